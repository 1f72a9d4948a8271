"""Runs the client of one site of a federation: ``python -m fairlead.runtime.federation.site``.

Makes the site's key, brings its public part to the server to be enrolled, and starts Flower's supernode, which runs the
app's ClientApp for each message. The private key and the data stay here. In another cluster than the server's it writes
the public key to its output, and waits until it reaches the server.

See decisions 237 and 278.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import time

from fairlead.runtime import session
from fairlead.runtime.errors import MissingExtra
from fairlead.runtime.federation import identities
from fairlead.runtime.federation.server import LOOPBACK, POLL_S, flower_environment, flower_program, free_port
from fairlead.runtime.federation.settings import (
    ADDRESS,
    CA,
    ENROLLED,
    PUBLIC_KEY,
    SAYS,
    UNREACHABLE,
    FederationSettings,
    ReportReader,
    own_directory,
    read_settings,
    server_directory,
    write_atomically,
)
from fairlead.untrusted_json import parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from fairlead.runtime.session import Run

ADDRESS_MOST_BYTES = 1 << 20
ONLINE_S = 60.0
"""A killed client counts as online for two heartbeats, and Flower refuses another with its key until then."""
ACTIVATES_WITHIN_S = 1.5 * ONLINE_S
AGAIN_S = 5.0
ENROLLED_WITHIN_S = 600.0
"""A site in another cluster may be visited late, and it cannot see whether its key is registered."""
REACH_S, REPORT_EVERY_S = 10.0, 60.0


def node_config(settings: FederationSettings) -> str:
    """Return the configuration of this node: its number and name among the sites, and where its data is."""
    values = {"partition-id": settings.sites.index(settings.site or ""), "num-partitions": len(settings.sites)}
    texts = {"site": settings.site, "data": settings.data}
    shown = [f"{name}={value}" for name, value in values.items()]
    return " ".join([*shown, *(f"{name}={json.dumps(text)}" for name, text in texts.items() if text is not None)])


def bring_key(place: Path, site: str, public: str) -> int | None:
    """Bring the public key of a site to the server; return the server's port once it is enrolled, else None."""
    enrolled = place / ENROLLED
    if enrolled.is_dir() and not (enrolled / f"{site}.pub").exists():
        write_atomically(enrolled / f"{site}.pub", public)
    if not (place / ADDRESS).exists():
        return None
    content = parse_object((place / ADDRESS).read_bytes(), max_bytes=ADDRESS_MOST_BYTES)
    return int(content["port"]) if site in content["enrolled"] else None


def reach(address: str, certificate: str) -> str | None:
    """Return why the server at ``host:port`` is not reached from here, as a clause; None if it is."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cadata=certificate)
    try:
        with socket.create_connection((host, int(port)), timeout=REACH_S) as connection:
            context.wrap_socket(connection, server_hostname=host).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def await_server(superlink: tuple[str, str], run: Run) -> None:
    """Wait until the server is reached, and say why it is not."""
    address, certificate = superlink
    reported_at = None
    while (problem := reach(address, certificate)) is not None:
        if reported_at is None or time.monotonic() > reported_at + REPORT_EVERY_S:
            print(f"{UNREACHABLE}{address}: {problem}", flush=True)
            reported_at = time.monotonic()
        ends = time.monotonic() + AGAIN_S
        while time.monotonic() < ends:
            if run.stop_requested:
                sys.exit(session.STOPPED_CODE)
            time.sleep(POLL_S)
    print(f"{SAYS}it reaches its server at {address}", flush=True)


def main() -> None:
    """Run the supernode until it ends or the federation stops it."""
    settings = read_settings(os.environ)
    directory = own_directory(os.environ)
    try:
        program = flower_program("flower-supernode")
    except MissingExtra as error:
        sys.exit(f"fairlead: {error}")
    is_first = not (directory / identities.SITE_KEY).exists()
    with session.run() as run:
        public = identities.make_site_key(directory)
        if settings.superlink is None:
            place = server_directory(os.environ, settings)
            port = None
            while port is None:
                if run.stop_requested:
                    sys.exit(session.STOPPED_CODE)
                port = bring_key(place, settings.site or "", public)
                time.sleep(POLL_S)
            address, certificate = f"{LOOPBACK}:{port}", place / CA
        else:
            address, certificate = settings.superlink[0], directory / CA
            write_atomically(certificate, settings.superlink[1])
            print(f"{PUBLIC_KEY}{public}", flush=True)
            await_server(settings.superlink, run)
        argv = [
            program, "--superlink", address, "--root-certificates", str(certificate),
            "--auth-supernode-private-key", str(directory / identities.SITE_KEY), "--host", LOOPBACK,
            "--port", str(free_port()), "--node-config", node_config(settings),
        ]  # fmt: skip
        environment = flower_environment(directory, os.environ)
        reports = ReportReader(directory / "report.jsonl")
        is_elsewhere = settings.superlink is not None
        ends = time.monotonic() + (ENROLLED_WITHIN_S if is_elsewhere else ACTIVATES_WITHIN_S)
        code = _run_supernode(argv, environment, run, settings, reports)
        while code != 0 and (is_elsewhere or not is_first) and time.monotonic() < ends:
            before = "its key is not enrolled yet, or an earlier client" if is_elsewhere else "an earlier client"
            print(f"{before} of this site may count as online for {ONLINE_S:.0f} s; tries again", flush=True)
            time.sleep(AGAIN_S)
            code = _run_supernode(argv, environment, run, settings, reports)
    sys.exit(f"fairlead: flower-supernode of site {settings.site} ended with exit code {code}")


def _run_supernode(
    argv: list[str], environment: dict[str, str], run: Run, settings: FederationSettings, reports: ReportReader
) -> int:
    """Run Flower's supernode, and report its rounds; return its exit code, or exit when the run has to stop."""
    node = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL)
    try:
        while node.poll() is None:
            if run.stop_requested:
                sys.exit(session.STOPPED_CODE)
            for report in reports.new():
                number, loss = report.get("round"), report.get("loss")
                if report.get("event") == "train" and isinstance(number, int):
                    run.progress(number, total=settings.rounds, loss=loss)
            time.sleep(POLL_S)
    finally:
        if node.poll() is None:
            node.terminate()
        node.wait()
    return node.returncode


if __name__ == "__main__":
    main()
