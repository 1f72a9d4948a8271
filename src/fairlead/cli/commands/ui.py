"""``fairlead ui``: the page of a cluster, for a browser on this machine."""

import os
from importlib.util import find_spec

import click

from fairlead.cli.show import as_json, json_option, message
from fairlead.cli.target import Target, cluster_options
from fairlead.errors import Conflict

PORT = 7700
NEEDED = ("aiohttp", "jinja2")


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, help=f"Port on 127.0.0.1; {PORT} by default, 0 for any."
)
@json_option
@cluster_options
def ui(target: Target, port: int, json_: bool) -> None:
    """Serve a page that shows runs, the queue, the cluster, teams and costs, until Ctrl-C.

    It only reads, and answers on this machine only. --json prints its address and process once it answers. On
    Kubernetes it shows what your own rights let you see, with the runs of one namespace.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise Conflict(
            f"The page needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            "`pip install 'fairlead[serve]'` installs what it needs."
        )
    # Here and not above: what takes a while to import is imported once all else is known to be right.
    from fairlead.web.server import listen, serve

    target.open().close()
    listening = listen(port)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/"

    def tell() -> None:
        if json_:
            print(as_json({"url": address, "pid": os.getpid()}), flush=True)
        else:
            print(address, flush=True)
            message("Open it in a browser; Ctrl-C ends it.")

    serve(target.paged, listening, tell)
