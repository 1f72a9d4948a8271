"""Endpoints on this machine: the gateway before their replicas, and what it and the supervisor tell each other.

The gateway is a process of its own that outlives the supervisor. It holds a lock for its life, which it was started
with, so that whoever comes next knows whether it lives.
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

from fairlead.cluster.local.home import Home
from fairlead.cluster.local.ports import port_for
from fairlead.errors import ClusterError
from fairlead.runtime.podfiles import is_locked, read_json, take_lock, write_json
from fairlead.state.access_keys import AccessKey
from fairlead.state.snapshot import Snapshot

if TYPE_CHECKING:
    from fairlead.state.demand import Demand

log = logging.getLogger(__name__)

# Where endpoints are asked for, unless something else listens there or FAIRLEAD_GATEWAY_PORT says so.
FIRST_PORT, NUM_PORTS, HIGHEST_PORT = 8700, 100, 65_535
BACKLOG = 4096
# Between two starts of a gateway that ends; it doubles up to the other.
RESTART_S, RESTART_MOST_S = 0.2, 10.0
# A gateway hands on its door within this time, or is asked again.
HAND_ON_S = 0.5
# One that ran so long ended for another reason than the time before.
STEADY_S = 30.0


class Endpoints:
    """The endpoints of one state directory, as its supervisor looks after them."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._written: dict[str, Any] | None = None
        self._gateway: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._wait_s = 0.0
        self._told_to_end: int | None = None
        self._no_proxy = ""
        self._door: socket.socket | None = None

    def close(self) -> None:
        """Let go of the door's socket, which the gateway has too."""
        if self._door is not None:
            self._door.close()

    @property
    def is_open(self) -> bool:
        """Return whether something is still to be closed, or the gateway to be told, once there are no endpoints."""
        if self._written is None:
            # Left by the supervisor before, perhaps with a gateway.
            return self._home.serving.exists()
        return bool(self._written["services"]) or self._door is not None or self._gateway is not None

    def update(self, snapshot: Snapshot) -> None:
        """Tell the gateway where requests go, and see to it that there is one while there are endpoints."""
        # Here and not above: a cluster without endpoints needs none of it.
        from fairlead.policy.serving.routes import places_here, routes

        pods = {pod.uid: pod for pod in snapshot.pods if pod.ready}
        urls = {
            uid: f"http://127.0.0.1:{port_for(self._home, pod.workload_uid, pod.attempt)}" for uid, pod in pods.items()
        }
        found = {**routes(snapshot, places_here(snapshot), urls, self._keys()), "wake": os.fspath(self._home.socket)}
        if found != self._written:
            self._home.serving.mkdir(mode=0o700, exist_ok=True)
            write_json(self._home.serving / "routes.json", found)
            self._written = found
        if found["services"]:
            self._watch()
        else:
            self._stop()

    def _keys(self) -> tuple[AccessKey, ...]:
        """Return the keys of all teams; none where they cannot be read, so that nobody gets in who may not."""
        from fairlead.cluster.local.access_keys import read_keys  # here and not above: as in `update`

        try:
            return read_keys(self._home.access_keys)
        except (ClusterError, OSError) as error:
            log.error("endpoints with `access` are closed: %s", error)
            return ()

    def _watch(self) -> None:
        """Start a gateway where none lives; one that ends again and again is started ever later."""
        lock_file = self._home.serving / "gateway.lock"
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
            # Tried again later; the runs of this machine are looked after meanwhile.
            log.error("the gateway does not start: %s", error)
        finally:
            os.close(lock)

    def _end_other_kind(self, lock_file: Path) -> None:
        """Let a gateway end that passes requests on by another program than is asked for; one that does follows."""
        running, demand = read_json(self._home.serving / "proxy.json"), read_json(self._home.serving / "demand.json")
        if self._door is None or demand is None or lock_file.read_text().strip() != str(demand["pid"]):
            return  # it is not known yet what it is
        if (running is not None) != bool(self._options()) and demand["pid"] != self._told_to_end:
            self._told_to_end = demand["pid"]
            log.info("the gateway ends: another one follows, with %s", " ".join(self._options()) or "no proxy")
            with suppress(ProcessLookupError):
                os.kill(demand["pid"], signal.SIGTERM)

    def _options(self) -> list[str]:
        """Return what the gateway is to be told of a proxy; where it cannot be had, it passes requests on by itself."""
        from fairlead.cluster.local.gateway_proxy import HAPROXY, chosen, haproxy_program  # as there

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
        # Ours stays open: while one gateway follows on another, requests wait at the door and none is refused.
        door = self._door.fileno()
        with open(directory / "gateway.log", "ab") as output:
            log.info("starting the gateway on port %d", self._door.getsockname()[1])
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "fairlead.gateway",
                    "--directory",
                    os.fspath(directory),
                    "--listen-fd",
                    str(door),
                    "--hand-on",
                    os.fspath(self._home.door_socket),
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
        lock_file = self._home.serving / "gateway.lock"
        if is_locked(lock_file):
            with suppress(ValueError, ProcessLookupError):
                os.kill(int(lock_file.read_text()), signal.SIGTERM)
        if self._gateway is not None and self._gateway.poll() is not None:
            self._gateway = None
        # Also where the gateway is gone already: at a door that nobody opens clients would wait without end.
        self.close()
        self._door = None


def gateway_url(home: Home) -> str | None:
    """Return the address of endpoints; None before the first gateway was started."""
    found = read_json(home.serving / "port.json")
    return None if found is None else f"http://127.0.0.1:{found['port']}"


def demand_here(home: Home, names: Iterable[str]) -> "dict[str, Demand]":
    """Read what is asked of endpoints, by the names that requests call them; empty where nobody counts."""
    found = read_json(home.serving / "demand.json")
    if found is None or not isinstance(found.get("services"), dict):
        return {}
    from fairlead.state.demand import read_demand  # here and not above: a supervisor without endpoints needs none

    return read_demand(found, "local", names)


def _handed_on(path: Path) -> socket.socket | None:
    """The door's socket from a gateway that the supervisor before has started; None where none gives it.

    A door at another port than is asked for is left to that gateway: the next one listens where it is to.
    """
    wanted = os.environ.get("FAIRLEAD_GATEWAY_PORT", "")
    try:
        first = _port(wanted) if wanted else 0
        if path.stat().st_uid != os.getuid():
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(HAND_ON_S)
            asking.connect(os.fspath(path))
            _, (number, *_), _, _ = socket.recv_fds(asking, 16, 1)
    except (ClusterError, OSError, ValueError):
        return None  # asked again at the next look
    door = socket.socket(fileno=number)
    if wanted and not first <= door.getsockname()[1] < first + NUM_PORTS:
        door.close()
        return None
    return door


def _listen(directory: Path) -> socket.socket:
    """The door's socket, at the port that it had if nobody else has that by now."""
    path = directory / "port.json"
    known = read_json(path)
    given = os.environ.get("FAIRLEAD_GATEWAY_PORT", "")
    first = _port(given) if given else FIRST_PORT
    ports = range(first, min(first + NUM_PORTS, HIGHEST_PORT + 1))
    had = [] if known is None else [int(known["port"])]
    if given:
        # It moves to where it is asked to be.
        had = [port for port in had if port in ports]
    for port in (*had, *ports):
        door = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # It may follow at once on one that was killed.
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


def _port(given: str) -> int:
    if given.isascii() and given.isdigit() and 1 <= int(given) <= HIGHEST_PORT:
        return int(given)
    raise ClusterError(f"FAIRLEAD_GATEWAY_PORT has to be a port, from 1 to {HIGHEST_PORT}; it is {given!r}.")
