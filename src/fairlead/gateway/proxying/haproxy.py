"""Runs haproxy in front of the gateway process: starts it, updates its replicas and polls its statistics.

A process of haproxy is a generation. Replicas, and the services that it forwards by itself, are updated at runtime; a
service that is new, or has another path, host or time-out, needs a new generation on the same listening socket, while
the old one finishes its requests. Each is killed with this process. While none is alive, the gateway process answers by
itself.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fairlead.gateway.demand import EVERY_S
from fairlead.gateway.proxying.eligibility import held_because
from fairlead.gateway.proxying.haproxy_config import GATEWAY, ProxiedService, add_server, configuration, places
from fairlead.gateway.proxying.proxy_log import ProxiedReplica, ProxiedRequests
from fairlead.gateway.routes import Backend
from fairlead.gateway.services import RoutedService, ServiceTable

LOOK_S = 0.1
RENEW_S = 1.0
"""Minimum seconds between two generations; meanwhile requests of new services go through the gateway process."""
RESTART_MOST_S = 10.0
READY_WITHIN_S = 20.0
ANSWERS_WITHIN_S = 5.0
STEADY_S = 30.0
"""A generation that has lived for so many seconds is restarted at once when it ends."""
_PIPE_BYTES = 1024 * 1024
_READ_BYTES = 256 * 1024
STATUS_FILE = "proxy.json"
_COMMANDS = 20
"""Number of commands sent to haproxy at a time."""
_SET_PIPE_SIZE = getattr(fcntl, "F_SETPIPE_SZ", 1031)
_PDEATHSIG = 1


@dataclass(slots=True)
class Generation:
    """A process of haproxy, with the state that it has been given.

    Attributes:
        services: Services that it may forward by itself.
        servers: Names and addresses of its replicas, by backend.
        resting: Names of replicas in maintenance that are to be deleted.
        mapped: Entries of its maps: map and key, and the backend to which they lead.
        is_stale: Changes have not been sent to it yet.
        retired: It accepts no more connections.
        leaves: It has no requests left, and was signalled to end.
    """

    number: int
    process: subprocess.Popen[bytes]
    services: dict[str, ProxiedService]
    servers: dict[str, dict[str, str]]
    mapped: dict[tuple[str, str], str]
    resting: dict[str, set[str]] = field(default_factory=dict)
    is_stale: bool = False
    retired: bool = False
    leaves: bool = False


class AcceptingSocket(Protocol):
    """The listening socket, on which the gateway process accepts connections while no haproxy does."""

    listening: socket.socket

    async def open(self) -> None:
        """Start accepting connections."""

    def shut(self) -> None:
        """Stop accepting connections."""


class Haproxy:
    """Manages haproxy in front of one gateway process.

    Attributes:
        connections: Number of its client connections.
        lost_lines: Number of log lines that it dropped.
        problem: Why its latest process does not work; None while one does.
    """

    def __init__(
        self,
        program: Path,
        directory: Path,
        entrance: AcceptingSocket,
        table: ServiceTable[Any],
        requests: ProxiedRequests,
        *,
        most_connections: int,
        most_body: int,
        grace_s: float,
        is_guarded: bool,
        trusted: Sequence[str],
    ) -> None:
        self._program = program
        self._directory = directory
        self._entrance = entrance
        self._table = table
        self._requests = requests
        self._most_connections = most_connections
        self._most_body = most_body
        self._grace_s = grace_s
        self._is_guarded = is_guarded
        self._trusted = trusted
        self._clock = asyncio.get_running_loop().time
        self._generations: list[Generation] = []
        self._count = 0
        self._names: dict[Backend, str] = {}
        self._num_names = 0
        self._servers: dict[str, ProxiedReplica] = {}
        self._backends: dict[str, str] = {}
        self._services: dict[str, RoutedService[Any]] = {}
        self._wanted: dict[str, ProxiedService] = {}
        self._written_status: dict[str, Any] | None = None
        self._counted_proxied: dict[str, int] = {}
        self._proxied: dict[str, int] = {}
        self._polled_at = 0.0
        self._started = float("-inf")
        self._wait_s = 0.0
        self._changed = asyncio.Event()
        self._is_stale = True  # the table has changed since haproxy was updated
        self._is_ending = False
        self.connections = 0
        self.lost_lines = 0
        self.problem: str | None = "it starts"
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._write_status()
        with contextlib.suppress(OSError):  # a smaller pipe loses lines earlier; lost lines are counted
            fcntl.fcntl(self._write_fd, _SET_PIPE_SIZE, _PIPE_BYTES)

    def apply_changes(self) -> None:
        """Apply a change of the table at once."""
        self._is_stale = True
        self._changed.set()

    async def run(self, report: Callable[[BaseException], None]) -> None:
        """Manage haproxy until `stop`."""
        while not self._is_ending:
            try:
                await self._step()
            except Exception as error:  # noqa: BLE001 (the gateway process answers whatever is wrong here)
                report(error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LOOK_S)
            self._changed.clear()

    def stop(self) -> None:
        """Begin to shut down: start and update nothing any more."""
        self._is_ending = True
        self._changed.set()

    async def end(self, within_s: float, *, lame_duck_s: float) -> None:
        """Finish the requests in flight and end. Idle connections stay briefly, as a request may be in transit."""
        began = self._clock()
        for generation in self._generations:
            await self._retire(generation)
        while (passed_s := self._clock() - began) < within_s and self._generations:
            await asyncio.sleep(0.02)
            await self._poll()
            await self._reap()
            here = sum(service.metrics.present for service in self._table.services.values())
            if passed_s >= lame_duck_s and not here:
                break
        for generation in self._generations:
            generation.process.kill()
            generation.process.wait()
            self._forget(generation)
        self._read_log()
        os.close(self._read_fd)
        os.close(self._write_fd)

    async def _step(self) -> None:
        self._read_log()
        await self._reap()
        now = self._clock()
        broken = self._requests.broken
        if recovered := {replica for replica in broken if replica.closed_until <= now}:
            broken -= recovered
            self._is_stale = True
        if self._is_stale or broken:
            self._is_stale = False
            self._follow_table()
        current = self._current
        if self._is_ending:
            return
        if current is None:
            if now - self._started >= self._wait_s:
                await self._start()
        elif now - self._started >= RENEW_S and self._needs_renewal(current):
            await self._start()
        for generation in self._at_work():
            await self._update(generation)
        if now - self._polled_at >= EVERY_S:
            self._polled_at = now
            await self._poll()
        self._write_status()

    def _write_status(self) -> None:
        """Write the state of haproxy, with the reason why a service is not forwarded, for the status of endpoints."""
        program = os.fspath(self._program)
        status = {"pid": os.getpid(), "program": program, "problem": self.problem, "held": self._held()}
        if status != self._written_status:
            draft = self._directory / f".{STATUS_FILE}"
            draft.write_text(json.dumps(status))
            draft.replace(self._directory / STATUS_FILE)
            self._written_status = status

    def _held(self) -> dict[str, str]:
        """Return the services whose requests all go through the gateway process, each with the reason."""
        current = self._current
        if current is None:
            return dict.fromkeys(self._table.services, f"haproxy does not run: {self.problem}")
        mapped = set(current.mapped.values())
        reasons = {}
        for name, service in self._table.services.items():
            why = held_because(service.route)
            known = current.services.get(name)
            if why is None and (known is None or known.backend not in mapped):
                why = "haproxy is being told"
            if why is not None:
                reasons[name] = why
        return reasons

    @property
    def _current(self) -> Generation | None:
        return next((generation for generation in self._generations if not generation.retired), None)

    def _at_work(self) -> list[Generation]:
        return [generation for generation in self._generations if not generation.leaves]

    def _needs_renewal(self, generation: Generation) -> bool:
        """Return whether services have changed in ways that need a new generation; removals do not."""
        known = generation.services
        return any(known.get(name) != service for name, service in self._wanted.items())

    def _follow_table(self) -> None:
        """Assign names to new services and replicas."""
        self._wanted, self._services = {}, {}
        for name, service in self._table.services.items():
            backend = self._backends.get(name)
            if backend is None:
                self._num_names += 1
                backend = self._backends[name] = f"b{self._num_names}"
            route = service.route
            self._wanted[name] = ProxiedService(backend, route.path, route.hosts, route.timeout_s)
            self._services[backend] = service
            for revision in service.revisions:
                for replica in revision.replicas:
                    server = self._names.get(replica.backend)
                    if server is None:
                        self._num_names += 1
                        server = self._names[replica.backend] = f"s{self._num_names}"
                    self._servers[server] = ProxiedReplica(replica, revision.name)
        for generation in self._generations:
            generation.is_stale = True

    def _forget_names(self) -> None:
        """Forget the names of replicas and services that no generation uses any more."""
        used: set[str] = set()
        for generation in self._generations:
            used.update(*generation.servers.values(), *generation.resting.values())
        gone = {
            backend: server
            for backend, server in self._names.items()
            if server not in used and self._servers[server].replica.removed
        }
        for backend, server in gone.items():
            del self._names[backend], self._servers[server]
        for name in self._backends.keys() - self._table.services.keys():
            if not any(name in generation.services for generation in self._generations):
                del self._backends[name]
                self._requests.ended.pop(name, None)
                self._counted_proxied.pop(name, None)

    def _replicas(self, name: str, known: ProxiedService) -> dict[str, str] | None:
        """Return the replicas to which haproxy forwards requests of a service; None if there are none."""
        service = self._table.services.get(name)
        if service is None or held_because(service.route) is not None:
            return None
        route = service.route
        if (route.path, route.hosts, route.timeout_s) != (known.path, known.hosts, known.timeout_s):
            return None
        now = self._clock()
        return {
            self._names[replica.backend]: _place(replica.backend)
            for revision in service.revisions
            for replica in revision.replicas
            if replica.closed_until <= now
        } or None

    # Lifecycle.

    async def _start(self) -> None:
        """Start another generation and retire the earlier ones."""
        now = self._clock()
        steady = now - self._started >= STEADY_S
        self._started = now
        self._wait_s = RENEW_S if steady else min(RESTART_MOST_S, 2 * self._wait_s or RENEW_S)
        self._count += 1
        number, wanted = self._count, self._wanted
        servers, mapped = self._state_for(wanted)
        hosts, paths = _map_files(number)
        for file, kind in ((hosts, "hosts"), (paths, "paths")):
            text = "".join(f"{key} {backend}\n" for (of, key), backend in mapped.items() if of == kind)
            (self._directory / file).write_text(text)
        text = configuration(
            wanted,
            servers,
            listening_fd=self._entrance.listening.fileno(),
            log_fd=self._write_fd,
            stats_socket=_stats_socket(number),
            maps=(hosts, paths),
            most_connections=self._most_connections,
            most_body=self._most_body,
            is_guarded=self._is_guarded,
            trusted=self._trusted,
            stop_within_s=self._grace_s + max((service.timeout_s for service in wanted.values()), default=0.0),
        )
        config = self._directory / f"haproxy-{number}.cfg"
        config.write_text(text)
        parent = os.getpid()
        with (self._directory / "haproxy.log").open("wb") as output:
            process = subprocess.Popen(
                [os.fspath(self._program), "-db", "-f", config.name],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(self._entrance.listening.fileno(), self._write_fd),
                preexec_fn=lambda: _die_with(parent),
                start_new_session=True,
            )
        made = Generation(number, process, wanted, servers, mapped=mapped)
        try:
            why = await self._until_ready(made)
        except BaseException:
            process.kill()
            raise
        if why is not None:
            process.kill()
            process.wait()
            self._forget(made)
            self.problem = why
            print(f"gateway: haproxy does not work: {why}", file=sys.stderr, flush=True)
            return
        for earlier in self._generations:
            await self._retire(earlier)
        self._generations.append(made)
        self.problem = None
        self._entrance.shut()

    async def _until_ready(self, generation: Generation) -> str | None:
        """Wait until it answers; return the reason if it does not."""
        until = self._clock() + READY_WITHIN_S
        while generation.process.poll() is None:
            try:
                await self._command(generation, "show info")
                return None
            except OSError:
                if self._clock() > until:
                    return f"it does not answer within {READY_WITHIN_S:g} s"
                await asyncio.sleep(0.01)
        try:
            log_lines = (self._directory / "haproxy.log").read_text(errors="replace").strip().splitlines()
        except OSError:
            log_lines = []
        alert = next((line for line in log_lines if "ALERT" in line), "")
        return f"it ended with {generation.process.returncode}: {alert or 'haproxy.log says why'}"

    async def _retire(self, generation: Generation) -> None:
        """Stop it from accepting connections. Its open connections continue, with new requests on them too."""
        if not generation.retired:
            generation.retired = True
            try:
                await self._command(generation, "disable frontend f")
            except OSError as error:
                self._give_up(generation, error)

    @staticmethod
    def _finish(generation: Generation) -> None:
        """Have it close its connections after their next response, and end; it reads no more commands."""
        generation.leaves = True
        with contextlib.suppress(ProcessLookupError):
            generation.process.send_signal(signal.SIGUSR1)

    async def _reap(self) -> None:
        for generation in [generation for generation in self._generations if generation.process.poll() is not None]:
            self._generations.remove(generation)
            self._forget(generation)
            if not generation.retired:
                self.problem = f"it ended with {generation.process.returncode}"
                print(f"gateway: haproxy: {self.problem}", file=sys.stderr, flush=True)
                await self._entrance.open()

    def _forget(self, generation: Generation) -> None:
        for name in (
            f"haproxy-{generation.number}.cfg", _stats_socket(generation.number), *_map_files(generation.number),
        ):  # fmt: skip
            (self._directory / name).unlink(missing_ok=True)

    # Updates to haproxy.

    def _state_for(
        self, services: dict[str, ProxiedService]
    ) -> tuple[dict[str, dict[str, str]], dict[tuple[str, str], str]]:
        """Return the target state: servers by backend, and the entries of both maps."""
        servers: dict[str, dict[str, str]] = {}
        mapped: dict[tuple[str, str], str] = {}
        for name, service in self._table.services.items():
            known = services.get(name)
            replicas = None if known is None else self._replicas(name, known)
            backend = GATEWAY  # also of one that haproxy does not forward: its requests are not another's
            if known is not None and replicas is not None:
                backend = known.backend
                servers[backend] = replicas
            hosts, paths = places(service.route)
            mapped.update({("hosts", host): backend for host in hosts})
            mapped.update({("paths", path): backend for path in paths})
        return servers, mapped

    async def _update(self, generation: Generation) -> None:
        """Update its servers and maps to the target state."""
        if not generation.is_stale:
            await self._delete_drained(generation)
            return
        generation.is_stale = False
        servers, mapped = self._state_for(generation.services)
        files = dict(zip(("hosts", "paths"), _map_files(generation.number), strict=True))
        commands: list[str] = []
        # Map entries lead to servers only while these are there, and meanwhile to the gateway process.
        for (kind, key), backend in generation.mapped.items():
            if (kind, key) not in mapped:
                commands.append(f"del map {files[kind]} {key}")
            elif mapped[kind, key] != backend != GATEWAY:
                commands.append(f"set map {files[kind]} {key} {GATEWAY}")
        for backend, previous in generation.servers.items():
            for server in previous.keys() - servers.get(backend, {}).keys():
                commands.append(f"set server {backend}/{server} state maint")
                generation.resting.setdefault(backend, set()).add(server)
        for backend, replicas in servers.items():
            previous, resting = generation.servers.get(backend, {}), generation.resting.get(backend, set())
            for server, place in replicas.items():
                if server in resting:
                    resting.discard(server)
                    commands += [f"set server {backend}/{server} state ready"]
                elif server not in previous:
                    commands += add_server(backend, server, place)
        for (kind, key), backend in mapped.items():
            if (kind, key) not in generation.mapped:
                commands.append(f"add map {files[kind]} {key} {backend}")
            elif generation.mapped[kind, key] != backend != GATEWAY:
                commands.append(f"set map {files[kind]} {key} {backend}")
        generation.servers, generation.mapped = servers, mapped
        try:
            for first in range(0, len(commands), _COMMANDS):
                await self._command(generation, ";".join(commands[first : first + _COMMANDS]))
        except OSError as error:
            self._give_up(generation, error)

    async def _delete_drained(self, generation: Generation) -> None:
        """Delete servers in maintenance that have no requests left."""
        for backend, resting in generation.resting.items():
            for server in list(resting):
                try:
                    reply = await self._command(generation, f"del server {backend}/{server}")
                except OSError as error:
                    self._give_up(generation, error)
                    return
                if "deleted" in reply or "No such server" in reply:
                    resting.discard(server)
                    self._forget_names()

    def _give_up(self, generation: Generation, error: OSError) -> None:
        """Kill a generation that cannot be updated any more; another replaces it."""
        if generation.process.poll() is None:
            print(f"gateway: haproxy cannot be told: {error}", file=sys.stderr, flush=True)
            generation.process.kill()

    # Statistics and log.

    async def _poll(self) -> None:
        """Poll the requests in flight of all generations, and count arrivals."""
        proxied: dict[str, int] = {}
        connections = lost = 0
        for generation in self._at_work():
            under_way = 0
            names = {known.backend: name for name, known in generation.services.items()}
            try:
                reply = await self._command(generation, "show info;show stat -1 5 -1")
            except OSError as error:
                self._give_up(generation, error)
                continue
            for line in reply.splitlines():
                if line.startswith("DroppedLogs: "):
                    lost += int(line[13:])
                    continue
                fields = line.split(",", 6)
                if len(fields) < 7 or fields[0].startswith("#"):
                    continue
                backend, server, now = fields[0], fields[1], fields[4]
                if server == "FRONTEND":
                    connections += int(now)
                elif server != "gateway" and now not in ("", "0") and backend in names:
                    name = names[backend]
                    proxied[name] = proxied.get(name, 0) + int(now)
                    under_way += int(now)
            if generation.retired and not under_way and not self._is_ending:
                self._finish(generation)
        self._read_log()
        self.connections, self.lost_lines = connections, lost
        epoch = time.time()
        ended = self._requests.ended
        for name in proxied.keys() | ended.keys() | self._proxied.keys():
            service = self._table.services.get(name)
            if service is None:
                continue
            in_flight = proxied.get(name, 0)
            total = ended[name] + in_flight
            counted = self._counted_proxied.get(name, 0)
            arrivals = max(0, total - counted)
            if arrivals or in_flight != service.metrics.proxied:
                service.metrics.record_proxied(epoch, arrivals=arrivals, in_flight=in_flight)
                self._table.touched.add(service)
            self._counted_proxied[name] = max(counted, total)
        self._proxied = proxied

    def _read_log(self) -> None:
        while True:
            try:
                data = os.read(self._read_fd, _READ_BYTES)
            except BlockingIOError:
                return
            self._requests.take(data, self._services, self._servers, self._clock())

    async def _command(self, generation: Generation, command: str) -> str:
        """Send a command to one generation and return its output.

        Raises:
            OSError: It does not answer.
        """
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # By the directory's descriptor, as the path of a socket is limited to about a hundred bytes.
            path = f"/proc/self/fd/{directory}/{_stats_socket(generation.number)}"
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    writer.write(command.encode() + b"\n")
                    return (await reader.read(-1)).decode(errors="replace")
                finally:
                    writer.close()
        finally:
            os.close(directory)


def _stats_socket(number: int) -> str:
    return f"haproxy-{number}.sock"


def _map_files(number: int) -> tuple[str, str]:
    return f"haproxy-{number}.hosts", f"haproxy-{number}.paths"


def _place(backend: Backend) -> str:
    host = f"[{backend.host}]" if ":" in backend.host else backend.host
    return f"{host}:{backend.port}"


def _die_with(parent: int) -> None:
    """Have the kernel kill this process with its parent."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
