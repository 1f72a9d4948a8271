"""Runs the server of a federation: ``python -m fairlead.runtime.federation.server``.

Starts Flower's superlink on loopback with TLS, enrolls the sites of the spec by their public keys, lets those of other
clusters reach it, and starts the app by `flwr run`. It reports each round, and ends when the app does. Started anew
after a failure, it continues after the last round whose model was saved: the superlink's database, its port and the
enrolled keys stay.

See decisions 237 and 278.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from fairlead.runtime import session
from fairlead.runtime.errors import MissingExtra, Misuse
from fairlead.runtime.federation import identities
from fairlead.runtime.federation.flower_app import NODES
from fairlead.runtime.federation.settings import (
    ADDRESS,
    CA,
    ENROLLED,
    REPORT,
    STATE,
    FederationSettings,
    ReportReader,
    own_directory,
    read_settings,
    write_atomically,
)
from fairlead.runtime.federation.wrapped_copy import make_wrapped_copy
from fairlead.specs.federation import CROSSED_MOST, PROBLEMS, WAYS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from fairlead.runtime.session import Run

LOOPBACK = "127.0.0.1"
CONNECTION = "federation"
GATE = "fairlead.runtime.federation.fleet_gate"
POLL_S = 0.25
"""Seconds between two looks at keys, reports and processes."""
START_WITHIN_S = 300.0
JOIN_WITHIN_S = 300.0
"""The time that a federation without a deadline waits for all sites, if fewer are enough."""
FINISHED = "finished"
REGISTERED = re.compile(r"SuperNode ([0-9]{1,20}) registered")
NO_FLOWER = (
    "Flower is not installed in the Python that runs here, {python}; `pip install 'flwr>=1.42'` there, or "
    "`pip install 'fairlead[federated]'`"
)


def flower_program(name: str) -> str:
    """Return the path of one of Flower's programs, from the environment of this Python.

    Raises:
        MissingExtra: It is not installed there.
    """
    path = Path(sys.executable).with_name(name)
    if importlib.util.find_spec("flwr") is None or not path.exists():
        raise MissingExtra(NO_FLOWER.format(python=sys.executable))
    return str(path)


def flower_environment(directory: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Flower's programs, which find each other by PATH."""
    programs = str(Path(sys.executable).parent)
    return {
        **environ,
        "PATH": f"{programs}{os.pathsep}{environ.get('PATH', '')}",
        "FLWR_HOME": str(directory / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        STATE: str(directory),
        REPORT: str(directory / "report.jsonl"),
    }


def free_port(preferred: int | None = None) -> int:
    """Return a free port of loopback, the wanted one if it is free."""
    for port in (preferred or 0, 0):
        with contextlib.closing(socket.socket()) as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            return int(probe.getsockname()[1])
    raise Misuse("no port of loopback is free")


class FlowerServer:
    """The superlink of one federation and the run of its app."""

    def __init__(self, settings: FederationSettings, directory: Path, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._directory = directory
        self._environment = flower_environment(directory, environ)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._registered: dict[str, str] = {}
        self._port = 0

    def start(self) -> None:
        """Start the superlink and wait until it accepts connections."""
        directory = self._directory
        host, _, port = (self._settings.address or "").rpartition(":")
        identities.make_server_identity(directory, host or None)
        (directory / ENROLLED).mkdir(exist_ok=True, mode=0o700)
        earlier_port, self._registered = _published(directory)
        if earlier_port is None:
            discard_database(directory)
        self._port = free_port(earlier_port)
        argv = [
            flower_program("flower-superlink"), "--host", LOOPBACK, "--port", str(self._port),
            "--ssl-ca-certfile", str(directory / CA),
            "--ssl-certfile", str(directory / identities.CERTIFICATE),
            "--ssl-keyfile", str(directory / identities.KEY),
            "--enable-supernode-auth", "--disable-runtime-dependency-installation",
            "--database", str(directory / "superlink.db"),
        ]  # fmt: skip
        flwr_home = directory / "flwr"
        flwr_home.mkdir(exist_ok=True, mode=0o700)
        config = (
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{LOOPBACK}:{self._port}"\n'
            f'root-certificates = "{directory / CA}"\n'
        )
        write_atomically(flwr_home / "config.toml", config)
        superlink = self._popen(argv)
        deadline = time.monotonic() + START_WITHIN_S
        while not _listens(self._port):
            if superlink.poll() is not None:
                sys.exit(f"fairlead: flower-superlink ended with exit code {superlink.returncode} as it started")
            if time.monotonic() > deadline:
                sys.exit(f"fairlead: flower-superlink does not listen after {START_WITHIN_S:.0f} s")
            time.sleep(POLL_S)
        self._publish()
        if host:
            self._open_gate(host, int(port))

    def _open_gate(self, host: str, port: int) -> None:
        """Listen for the sites of other clusters, on all interfaces unless the address is of loopback."""
        listen = LOOPBACK if host in (LOOPBACK, "localhost") else "0.0.0.0"
        argv = [sys.executable, "-m", GATE, listen, str(port), str(self._port), str(self._directory)]
        gate = self._popen(argv)
        deadline = time.monotonic() + START_WITHIN_S
        while not _listens(port):
            if gate.poll() is not None:
                sys.exit(
                    f"fairlead: nothing can listen at port {port} of `address` on this machine, as the log says; free "
                    "the port, or give another one"
                )
            if time.monotonic() > deadline:
                sys.exit(f"fairlead: port {port} of `address` does not listen after {START_WITHIN_S:.0f} s")
            time.sleep(POLL_S)
        print(f"sites of other clusters reach this server at {self._settings.address}", flush=True)

    def enroll(self) -> None:
        """Register new keys of the spec's sites, in place of their keys before; those of any other name are ignored."""
        for site in self._settings.sites:
            path = self._directory / ENROLLED / f"{site}.pub"
            key = path.read_text(encoding="utf-8") if path.exists() else None
            if key is None or self._registered.get(site) == key:
                continue
            if site in self._registered:
                self._revoke(site)
            self._register(site, path)
            self._registered[site] = key
            self._publish()
            print(f"site {site} is enrolled", flush=True)

    @property
    def num_enrolled(self) -> int:
        """Return the number of enrolled sites."""
        return len(self._registered)

    @property
    def is_complete(self) -> bool:
        """Return whether all sites are enrolled."""
        return len(self._registered) == len(self._settings.sites)

    def run_app(self, app_copy: Path) -> subprocess.Popen[bytes]:
        """Start the app by `flwr run`, which shows its log until it ends."""
        return self._popen([flower_program("flwr"), "run", str(app_copy), CONNECTION, "--stream"])

    def is_alive(self) -> bool:
        """Return whether the superlink runs, and what lets other clusters reach it."""
        servers = self._processes[: 1 if self._settings.address is None else 2]
        return all(process.poll() is None for process in servers)

    def stop(self) -> None:
        """End all processes that it started."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _popen(self, argv: list[str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(argv, env=self._environment, stdin=subprocess.DEVNULL)
        self._processes.append(process)
        return process

    def _register(self, site: str, key: Path) -> None:
        output = self._flower("register", str(key), CONNECTION, "--name", site)
        if (registered := REGISTERED.search(output)) is not None:
            write_atomically(self._directory / NODES, json.dumps({**self._nodes(), registered[1]: site}))

    def _revoke(self, site: str) -> None:
        """Remove the nodes of a site, whose key is replaced."""
        nodes = self._nodes()
        for node in [node for node, name in nodes.items() if name == site]:
            self._flower("unregister", node, CONNECTION)
            del nodes[node]
        write_atomically(self._directory / NODES, json.dumps(nodes))

    def _nodes(self) -> dict[str, str]:
        path = self._directory / NODES
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}

    def _flower(self, *command: str) -> str:
        """Run a command on supernodes in this process, since each start of Flower's command line takes seconds."""
        from typer.testing import CliRunner

        os.environ.update({name: self._environment[name] for name in ("FLWR_HOME", "FLWR_TELEMETRY_ENABLED")})
        from flwr.cli.app import app

        result = CliRunner().invoke(app, ["supernode", *command])
        if result.exit_code != 0:
            raise Misuse(f"`flwr supernode {' '.join(command)}`: {result.output.strip()[-500:] or result.exception}")
        return str(result.output)

    def _publish(self) -> None:
        content = {"port": self._port, "enrolled": sorted(self._registered), "keys": self._registered}
        write_atomically(self._directory / ADDRESS, json.dumps(content))


def discard_database(directory: Path) -> None:
    """Remove the database of a superlink that never served: killed while it made it, half of it keeps others out."""
    for path in directory.glob("superlink.db*"):
        path.unlink()


def _published(directory: Path) -> tuple[int | None, dict[str, str]]:
    """Return the port of an earlier attempt, and the keys of sites that its superlink knows, whose database stays."""
    path = directory / ADDRESS
    if not path.exists():
        return None, {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return int(content["port"]), dict(content["keys"])


def _listens(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, port)) == 0


def follow(
    run: Run, settings: FederationSettings, reports: list[dict[str, Any]], left_out: Counter[str] | None = None
) -> str | None:
    """Report rounds; return ``finished``, the sentence of the last failure, or None.

    Args:
        left_out: Numbers of updates that were left out of their rounds, by problem and site, which it adds to.

    A failure need not be the end: Flower starts a ServerApp again that it takes for dead, and the first one then fails.
    """
    outcome = None
    for report in reports:
        event, round_number = report.get("event"), report.get("round")
        if event == "round" and isinstance(round_number, int):
            loss = report.get("loss") if report.get("loss") is not None else report.get("site_loss")
            figures = {name: report.get(name) for name in ("updates", "sent", "received", "releases")}
            crossed = _crossed(settings, report)
            run.progress(round_number, total=settings.rounds, loss=loss, **figures, **crossed, **dict(left_out or {}))
            print(f"round {round_number} of {settings.rounds}: {figures['updates']} updates, loss {loss}", flush=True)
        elif event == "resumed":
            print(f"continues after round {round_number}, whose model was saved", flush=True)
        elif event == "left_out":
            problem, site = report.get("problem"), report.get("site")
            if problem in PROBLEMS and site in settings.sites and left_out is not None:
                left_out[f"{problem}.{site}"] += 1
            print(f"round {round_number}: left out an update of site {site or 'unknown'}: {problem}", flush=True)
        elif event == "repeated":
            print(
                f"round {round_number} is repeated: {report.get('updates')} updates, "
                f"and {report.get('needed')} are needed",
                flush=True,
            )
        elif event == "error":
            print(f"round {round_number}: a site failed: {report.get('message')}", flush=True)
        elif event == "failed":
            outcome = str(report.get("message"))
        elif event == "finished":
            return FINISHED
    return outcome


def _crossed(settings: FederationSettings, report: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of a round to and from each site, by the names of metrics; empty for very many sites."""
    by_site = report.get("crossed")
    if not isinstance(by_site, dict) or len(settings.sites) > CROSSED_MOST:
        return {}
    figures = {}
    for site in settings.sites:
        for way, number in zip(WAYS, by_site.get(site, ()), strict=False):
            if isinstance(number, int):
                figures[f"{way}.{site}"] = number
    return figures


def main() -> None:
    """Serve until the app has ended, and exit with 0 if it has finished."""
    settings = read_settings(os.environ)
    directory = own_directory(os.environ)
    if settings.app is None:
        sys.exit("fairlead: a federation without `app` starts its own `server` program")
    with session.run() as run:
        server = FlowerServer(settings, directory, os.environ)
        try:
            flower_program("flwr")
            app_copy = directory / "app" / Path(settings.app).name
            make_wrapped_copy(Path(settings.app), app_copy, settings)
            server.start()
            outcome = _serve(server, settings, directory, app_copy, run)
        except (MissingExtra, Misuse) as error:
            sys.exit(f"fairlead: {error}")
        finally:
            server.stop()
            shutil.rmtree(directory / "app", ignore_errors=True)
    if outcome != FINISHED:
        sys.exit(f"fairlead: the app failed: {outcome}")


def _serve(server: FlowerServer, settings: FederationSettings, directory: Path, app_copy: Path, run: Run) -> str:
    reports = ReportReader(directory / "report.jsonl")
    left_out: Counter[str] = Counter()
    app: subprocess.Popen[bytes] | None = None
    failure = None
    began_at = time.monotonic()
    while True:
        if run.stop_requested:
            sys.exit(session.STOPPED_CODE)
        if not server.is_alive():
            return "flower-superlink ended"
        server.enroll()
        is_late = time.monotonic() - began_at > (settings.deadline_s or JOIN_WITHIN_S)
        if app is None and (server.is_complete or (is_late and server.num_enrolled >= settings.min_sites)):
            app = server.run_app(app_copy)
        exit_code = None if app is None else app.poll()
        outcome = follow(run, settings, reports.new(), left_out)
        if outcome == FINISHED:
            return outcome
        failure = outcome or failure
        if exit_code is not None:
            return failure or f"`flwr run` ended with exit code {exit_code}; its log says why"
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
