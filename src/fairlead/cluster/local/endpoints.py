"""Endpoints on this machine: their gateway, and the files by which it and the supervisor communicate.

The gateway is a process of its own that outlives the supervisor, and keeps a standby that takes over if it is killed.
Both inherit a lock, which is held as long as one of them lives, so that a later supervisor can detect them. The lock
file has the process id of the one that answers.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.cluster.local.access_keys import read_keys
from fairlead.cluster.local.gateway_proxy import chosen, haproxy_program
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.ports import port_for
from fairlead.deferred import deferred
from fairlead.errors import ClusterError
from fairlead.gateway.proxying.programs import HAPROXY
from fairlead.runtime.peer_users import is_own
from fairlead.runtime.podfiles import is_locked, read_json, take_lock, write_json
from fairlead.state.access_keys import AccessKey
from fairlead.state.demand import read_demand
from fairlead.state.snapshot import Snapshot

if TYPE_CHECKING:
    from fairlead.policy.serving import routes as endpoint_routes
    from fairlead.state.demand import Demand
else:
    endpoint_routes = deferred("fairlead.policy.serving.routes")

log = logging.getLogger(__name__)

# Port of the gateway, unless it is taken or FAIRLEAD_GATEWAY_PORT sets another.
FIRST_PORT, NUM_PORTS, HIGHEST_PORT = 8700, 100, 65_535
BACKLOG = 4096
# Delay between two starts of a gateway that keeps ending; it doubles up to the second value.
RESTART_S, RESTART_MOST_S = 0.2, 10.0
# A gateway must hand over its listening socket within this time, or it is asked again.
HAND_ON_S = 0.5
# A gateway that ran this long resets the delay.
STEADY_S = 30.0
LOCK = "gateway.lock"
_OF_HOSTS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_")


class Endpoints:
    """Manages the endpoints of one state directory for its supervisor."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._written: dict[str, Any] | None = None
        self._gateway: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._wait_s = 0.0
        self._told_to_end: int | None = None
        self._is_ending = False  # without endpoints, a gateway has not ended yet
        self._no_proxy = ""
        self._door: socket.socket | None = None

    def close(self) -> None:
        """Close this process's copy of the listening socket; the gateway has its own."""
        if self._door is not None:
            self._door.close()

    @property
    def is_open(self) -> bool:
        """Return whether, without endpoints, the socket is still to be closed or the gateway to be stopped."""
        if self._written is None:
            # Left by the previous supervisor, perhaps with a gateway.
            return self._home.serving.exists()
        return bool(self._written["services"]) or self._door is not None or self._gateway is not None or self._is_ending

    @property
    def are_served(self) -> bool:
        """Return whether a gateway is alive, if there are endpoints."""
        has_endpoints = self._written is not None and bool(self._written["services"])
        return not has_endpoints or is_locked(self._home.serving / LOCK)

    def update(self, snapshot: Snapshot) -> None:
        """Write the routes for the gateway, and keep a gateway running while there are endpoints."""
        pods = {pod.uid: pod for pod in snapshot.pods if pod.ready}
        urls = {
            uid: f"http://127.0.0.1:{port_for(self._home, pod.workload_uid, pod.attempt)}" for uid, pod in pods.items()
        }
        table = {
            **endpoint_routes.routes(snapshot, endpoint_routes.places_here(snapshot), urls, self._keys()),
            "wake": os.fspath(self._home.socket),
        }
        if table != self._written:
            self._home.serving.mkdir(mode=0o700, exist_ok=True)
            write_json(self._home.serving / "routes.json", table)
            self._written = table
        if table["services"]:
            self._watch()
        else:
            self._stop()

    def _keys(self) -> tuple[AccessKey, ...]:
        """Return the keys of all teams; none if they cannot be read, which closes endpoints with `access` to all."""
        try:
            return read_keys(self._home.access_keys)
        except (ClusterError, OSError) as error:
            log.error("endpoints with `access` are closed: %s", error)
            return ()

    def _watch(self) -> None:
        """Start a gateway if none is alive; one that keeps ending is restarted at growing intervals."""
        lock_file = self._home.serving / LOCK
        if self._gateway is not None and self._gateway.poll() is not None:
            log.warning("the gateway ended with %s", self._gateway.returncode)
            self._gateway = None
        if is_locked(lock_file):
            if self._door is None:
                self._door = _handed_on(self._home.door_socket)
            self._end_other_kind(lock_file)
            return
        now = time.monotonic()
        if self._started_at and now - self._started_at < self._wait_s:
            return
        steady = now - self._started_at >= STEADY_S
        self._wait_s = RESTART_S if steady else min(RESTART_MOST_S, 2 * self._wait_s)
        self._started_at = now
        lock = take_lock(lock_file)
        if lock is None:
            return
        try:
            self._gateway = self._start(lock)
            self._home.sign_lock(lock, self._gateway.pid)
        except (ClusterError, OSError) as error:
            # Retried later; the runs of this machine are managed meanwhile.
            log.error("the gateway does not start: %s", error)
        finally:
            os.close(lock)

    def _end_other_kind(self, lock_file: Path) -> None:
        """Stop a gateway that uses another proxy than the chosen one; a new gateway follows."""
        running, demand = read_json(self._home.serving / "proxy.json"), read_json(self._home.serving / "demand.json")
        if self._door is None or demand is None or lock_file.read_text().strip() != str(demand["pid"]):
            return  # its proxy is not known yet
        if (running is not None) != bool(self._options()) and demand["pid"] != self._told_to_end:
            self._told_to_end = demand["pid"]
            log.info("the gateway ends: another one follows, with %s", " ".join(self._options()) or "no proxy")
            with suppress(ProcessLookupError):
                os.kill(demand["pid"], signal.SIGTERM)

    def _options(self) -> list[str]:
        """Return the gateway's options for a proxy; none without haproxy, as the gateway proxies itself then."""
        try:
            if chosen(self._home) == HAPROXY:
                return ["--haproxy", os.fspath(haproxy_program())]
        except ClusterError as error:
            if str(error) != self._no_proxy:
                log.error("%s", error)
            self._no_proxy = str(error)
        return []

    def _start(self, lock: int) -> subprocess.Popen[bytes]:
        directory = self._home.serving
        if self._door is None:
            self._door = _listen(directory)
        # Our copy stays open: between two gateways, connections wait in the backlog and none is refused.
        door = self._door.fileno()
        with open(directory / "gateway.log", "ab") as output:
            log.info("starting the gateway on port %d", self._door.getsockname()[1])
            return subprocess.Popen(
                [
                    sys.executable,
                    "-X",
                    "utf8",  # whatever the locale of the shell
                    "-m",
                    "fairlead.gateway",
                    "--directory",
                    os.fspath(directory),
                    "--listen-fd",
                    str(door),
                    "--hand-on",
                    os.fspath(self._home.door_socket),
                    "--standby",
                    "--lock-fd",
                    str(lock),
                    *(f"--allow-host={name}" for name in _hosts()),
                    *(f"--trusted-proxy={network}" for network in _trusted()),
                    *self._options(),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
                pass_fds=[lock, door],
            )

    def _stop(self) -> None:
        lock_file = self._home.serving / LOCK
        # Told again until none is left: a standby that takes over just now did not hear it.
        self._is_ending = is_locked(lock_file)
        if self._is_ending:
            with suppress(ValueError, ProcessLookupError):
                os.kill(int(lock_file.read_text()), signal.SIGTERM)
        if self._gateway is not None and self._gateway.poll() is not None:
            self._gateway = None
        # Also if the gateway is gone already: clients would wait for ever on a socket that no process accepts from.
        self.close()
        self._door = None


def gateway_url(home: Home) -> str | None:
    """Return the URL of the gateway; None before the first one was started."""
    record = read_json(home.serving / "port.json")
    return None if record is None else f"http://127.0.0.1:{record['port']}"


def demand_here(home: Home, names: Iterable[str]) -> "dict[str, Demand]":
    """Read the demand for endpoints, by public name; empty where no gateway counts requests."""
    report = read_json(home.serving / "demand.json")
    if report is None or not isinstance(report.get("services"), dict):
        return {}
    try:
        return read_demand(report, "local", names)
    except ValueError as error:
        log.warning("%s cannot be read: %s", home.serving / "demand.json", error)
        return {}


def _handed_on(path: Path) -> socket.socket | None:
    """Take over the listening socket from a gateway that a previous supervisor started; None if none hands it over.

    A socket on another port than the configured one stays with that gateway: the next one listens on the configured
    port.
    """
    wanted = os.environ.get("FAIRLEAD_GATEWAY_PORT", "")
    try:
        first = _port(wanted) if wanted else 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(HAND_ON_S)
            asking.connect(os.fspath(path))
            if not is_own(asking):
                return None
            _, (number, *_), _, _ = socket.recv_fds(asking, 16, 1)
    except (ClusterError, OSError, ValueError):
        return None  # retried at the next pass
    door = socket.socket(fileno=number)
    if wanted and not first <= door.getsockname()[1] < first + NUM_PORTS:
        door.close()
        return None
    return door


def _listen(directory: Path) -> socket.socket:
    """Open the listening socket, on the previous port if that is free."""
    path = directory / "port.json"
    known = read_json(path)
    setting = os.environ.get("FAIRLEAD_GATEWAY_PORT", "")
    first = _port(setting) if setting else FIRST_PORT
    ports = range(first, min(first + NUM_PORTS, HIGHEST_PORT + 1))
    had = [] if known is None else [int(known["port"])]
    if setting:
        # A configured port outweighs the previous one.
        had = [port for port in had if port in ports]
    for port in (*had, *ports):
        door = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # The address may be reused at once after a gateway was killed.
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind(("127.0.0.1", port))
            door.listen(BACKLOG)
        except OSError:
            door.close()
            continue
        try:
            write_json(path, {"port": port})
        except OSError:
            door.close()
            raise
        return door
    raise ClusterError(f"No free port for the gateway from {ports[0]} to {ports[-1]}; end what holds them.")


def _hosts() -> list[str]:
    """Return the hosts besides this machine's own that lead to the gateway.

    Raises:
        ClusterError: One is no host name.
    """
    names = [name.strip().lower() for name in os.environ.get("FAIRLEAD_GATEWAY_HOSTS", "").split(",") if name.strip()]
    for name in names:
        if not set(name) <= _OF_HOSTS:
            raise ClusterError(
                f"FAIRLEAD_GATEWAY_HOSTS has to be host names without ports, separated by commas; one is {name!r}."
            )
    return names


def _trusted() -> list[str]:
    """Return the networks of proxies in front of the gateway.

    Raises:
        ClusterError: One is no network.
    """
    from ipaddress import ip_network  # here and not above: few name one

    setting = os.environ.get("FAIRLEAD_GATEWAY_TRUSTED_PROXIES", "")
    try:
        return [str(ip_network(network.strip())) for network in setting.split(",") if network.strip()]
    except ValueError as error:
        raise ClusterError(
            f"FAIRLEAD_GATEWAY_TRUSTED_PROXIES has to be networks such as 10.0.0.0/8, separated by commas: {error}."
        ) from None


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= HIGHEST_PORT:
        return int(text)
    raise ClusterError(f"FAIRLEAD_GATEWAY_PORT has to be a port, from 1 to {HIGHEST_PORT}; it is {text!r}.")
