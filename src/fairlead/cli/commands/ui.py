"""``fairlead ui``: serve the web page of a cluster."""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from fairlead.cli.show import as_json, json_option, message
from fairlead.cli.target import Target, cluster_options
from fairlead.control.opening import TokenAccess
from fairlead.deferred import deferred
from fairlead.errors import Conflict

if TYPE_CHECKING:
    from fairlead.web import server, visitors
    from fairlead.web.visitors import Authenticator
else:
    server = deferred("fairlead.web.server")
    visitors = deferred("fairlead.web.visitors")

PORT = 7700
NEEDED = ("aiohttp", "jinja2")


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), help=f"Port on 127.0.0.1; {PORT} by default, 0 for any.")
@click.option("--sign-in", is_flag=True, help="Require a Kubernetes token; users see what their token may read.")
@click.option("--listen", metavar="HOST:PORT", help="Address for a page with --sign-in, such as 0.0.0.0:8080.")
@json_option
@cluster_options
def ui(target: Target, port: int | None, sign_in: bool, listen: str | None, json_: bool) -> None:
    """Serve a web page with runs, queue, cluster, teams and costs until Ctrl-C.

    The page is read-only, and reachable only from this machine. --json prints its address and process once it is ready.
    On Kubernetes it shows what your permissions allow, with the runs of one namespace.
    """
    if listen is not None and port is not None:
        raise click.UsageError("--listen has a port of its own; leave --port out.")
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise Conflict(
            f"The page needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            "`pip install 'fairlead[serve]'` installs what it needs."
        )
    # aiohttp's lists of signals in Python: in C++ they would take a megabyte, the C++ library.
    os.environ.setdefault("FROZENLIST_NO_EXTENSIONS", "1")

    host, admission = "127.0.0.1", None
    if sign_in:
        if not target.is_kubernetes:
            raise click.UsageError("--sign-in is for Kubernetes, which knows tokens: add --cluster kubernetes.")
        admission = _admission(target)
    else:
        target.open().close()
    if listen is not None:
        host, _, port_text = listen.rpartition(":")
        if not sign_in or not host or not port_text.isdigit() or int(port_text) > 65535:
            raise click.UsageError(f"--listen {listen!r}: give HOST:PORT, such as 0.0.0.0:8080, and --sign-in with it.")
        port = int(port_text)
    listening = server.listen(PORT if port is None else port, host)
    address = f"http://{host}:{listening.getsockname()[1]}/"

    def tell() -> None:
        if json_:
            print(as_json({"url": address, "pid": os.getpid()}), flush=True)
        else:
            print(address, flush=True)
            message("Open it in a browser; Ctrl-C ends it.")

    server.serve(target.paged, listening, tell, admission)


def _admission(target: Target) -> "Authenticator":
    access = TokenAccess(context=target.context)
    default = target.namespace or ""
    return visitors.Authenticator(
        name=lambda identity: access.name(identity.token),
        open_as=lambda identity: access.open(identity.token, identity.namespace or default),
    )
