"""Runs the client of one site of a federation: ``python -m fairlead.runtime.federation.site``.

Makes the site's key, brings its public part to the server to be enrolled, and starts Flower's supernode, which runs the
app's ClientApp for each message. The private key and the data stay here.

See decision 237.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from fairlead.runtime import session
from fairlead.runtime.errors import MissingExtra
from fairlead.runtime.federation import identities
from fairlead.runtime.federation.server import LOOPBACK, POLL_S, flower_environment, flower_program, free_port
from fairlead.runtime.federation.settings import (
    ADDRESS,
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


def node_config(settings: FederationSettings) -> str:
    """Return the configuration of this node: its number and name among the sites, and where its data is."""
    values = {"partition-id": settings.sites.index(settings.site or ""), "num-partitions": len(settings.sites)}
    texts = {"site": settings.site, "data": settings.data}
    shown = [f"{name}={value}" for name, value in values.items()]
    return " ".join([*shown, *(f"{name}={json.dumps(text)}" for name, text in texts.items() if text is not None)])


def bring_key(place: Path, site: str, public: str) -> int | None:
    """Bring the public key of a site to the server; return the server's port once it is enrolled, else None."""
    enrolled = place / "enrolled"
    if enrolled.is_dir() and not (enrolled / f"{site}.pub").exists():
        write_atomically(enrolled / f"{site}.pub", public)
    if not (place / ADDRESS).exists():
        return None
    content = parse_object((place / ADDRESS).read_bytes(), max_bytes=ADDRESS_MOST_BYTES)
    return int(content["port"]) if site in content["enrolled"] else None


def main() -> None:
    """Run the supernode until it ends or the federation stops it."""
    settings = read_settings(os.environ)
    directory = own_directory(os.environ)
    place = server_directory(os.environ, settings)
    try:
        program = flower_program("flower-supernode")
    except MissingExtra as error:
        sys.exit(f"fairlead: {error}")
    is_first = not (directory / identities.SITE_KEY).exists()
    with session.run() as run:
        public = identities.make_site_key(directory)
        port = None
        while port is None:
            if run.stop_requested:
                sys.exit(session.STOPPED_CODE)
            port = bring_key(place, settings.site or "", public)
            time.sleep(POLL_S)
        argv = [
            program, "--superlink", f"{LOOPBACK}:{port}", "--root-certificates", str(place / identities.CA),
            "--auth-supernode-private-key", str(directory / identities.SITE_KEY), "--host", LOOPBACK,
            "--port", str(free_port()), "--node-config", node_config(settings),
        ]  # fmt: skip
        environment = flower_environment(directory, os.environ)
        reports = ReportReader(directory / "report.jsonl")
        ends = time.monotonic() + ACTIVATES_WITHIN_S
        code = _run_supernode(argv, environment, run, settings, reports)
        while code != 0 and not is_first and time.monotonic() < ends:
            print(f"an earlier client of this site may count as online for {ONLINE_S:.0f} s; tries again", flush=True)
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
