"""The gateway itself: follows routes.json, maintains demand.json and the access log, and tracks connections.

See decision 25.
"""

import asyncio
import contextlib
import os
import socket
import sys
import time
import traceback
from collections import Counter
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path

from fairlead.errors import InvalidSpec
from fairlead.frozen import dataclass
from fairlead.gateway import http_headers, upstreams
from fairlead.gateway.access import KeyUses
from fairlead.gateway.access_log import AccessLog, AccessLogEntry
from fairlead.gateway.byte_stream import ByteStream
from fairlead.gateway.client import Ends
from fairlead.gateway.client_connection import ClientConnection, ends_of
from fairlead.gateway.demand import EVERY_S, DemandFile, read_key_uses
from fairlead.gateway.local_guard import LocalGuard
from fairlead.gateway.messages import HttpError
from fairlead.gateway.proxying.haproxy import Haproxy
from fairlead.gateway.routes import read_routes
from fairlead.gateway.services import RoutedService, ServiceTable
from fairlead.loopback import is_loopback

LOOK_S = 0.1
"""Seconds between checks of routes.json."""
LOOK_WHILE_WAITING_S = 0.01
"""Seconds between checks of routes.json while requests wait for a replica."""
LOOK_WHILE_QUIET_S = 1.0
"""Seconds between checks of routes.json without connections, of which the first has them read at once."""
SWEEP_S = 0.25
"""Resolution of time-outs in seconds."""
_LONGEST_PROXY_LINE = 107
Network = IPv4Network | IPv6Network
LAME_DUCK_S = 0.25
"""Seconds for which idle connections stay open after SIGTERM, so that requests already in transit are answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Settings from the command line.

    Attributes:
        directory: Directory of routes.json, demand.json and the access log.
        access_log: Path of the access log, or None for none; `access_log_bytes` is the size at which it is rotated.
        most_body: Maximum bytes of a request's body.
        most_connections: Maximum number of concurrent client connections.
        grace_s: Seconds for requests to finish after SIGTERM.
        names: Hosts that lead to a gateway on loopback, besides those of this machine.
        trusted: Networks of the proxies whose X-Forwarded-Host and -Proto are believed.
        is_guarded: On loopback, other sites' pages and other users are kept out.
        haproxy: The haproxy executable that forwards eligible requests by itself; None if the gateway forwards all of
            them.
    """

    directory: Path
    access_log: Path | None
    access_log_bytes: int
    most_body: int
    most_connections: int
    grace_s: float
    haproxy: Path | None = None
    names: frozenset[str] = frozenset()
    trusted: tuple[Network, ...] = ()
    is_guarded: bool = False


class GatewayServer:
    """A gateway process.

    Args:
        address: Address on which it listens.

    Attributes:
        table: Services and replicas of routes.json, with their current load.
        unrouted: Responses to requests of no service, by status.
        admin_tasks: The connections of those who ask for metrics or health.
        key_uses: When keys were last used.
        routes_problem: The error of the latest routes.json; the routes before it stay in effect.
    """

    def __init__(self, settings: GatewaySettings, loop: asyncio.AbstractEventLoop, address: str) -> None:
        self.loop = loop
        self.most_body = settings.most_body
        self.table: ServiceTable[ByteStream] = ServiceTable()
        self.guard = LocalGuard(settings.names) if settings.is_guarded and is_loopback(address) else None
        self.connections: set[ClientConnection] = set()
        self.admin_tasks: set[asyncio.Task[None]] = set()
        self.key_uses = KeyUses(read_key_uses(settings.directory / "demand.json"))
        self.draining = False
        self.unrouted: Counter[int] = Counter()
        self.refused_connections = 0
        self.defects = 0
        self.routes_problem: str | None = None
        self.since = time.time()
        self._settings = settings
        self._routes_path = settings.directory / "routes.json"
        self._routes_seen: tuple[int, int, int] | None = None
        self._log = (
            AccessLog(settings.access_log, most_bytes=settings.access_log_bytes) if settings.access_log else None
        )
        self.shadows = upstreams.Shadows()
        self.haproxy: Haproxy | None = None
        self._demand: DemandFile | None = None
        self._swept = 0.0
        self._wake_path: str | None = None
        self._crowded = False  # requests have been waiting for capacity since demand.json was written
        self._first_connection: asyncio.Event | None = None  # set by the first connection after a time without any

    @property
    def log_lines_lost(self) -> int:
        """Return the number of lines of the access log that could not be written."""
        unwritten = 0 if self._log is None else self._log.lost
        return unwritten if self.haproxy is None else unwritten + self.haproxy.lost_lines

    def accept(self) -> ByteStream:
        """Return the protocol of a client's connection."""
        return _ClientStream(self)

    def accept_proxied(self, *, falls_back: bool) -> ByteStream:
        """Return the protocol of a connection from haproxy; `falls_back`: its requests were for a lost replica."""
        return ProxiedStream(self, falls_back)

    def admit_proxied(self, stream: ByteStream, ends: Ends, *, falls_back: bool) -> None:
        """Serve a client that haproxy accepted."""
        self.connections.add(ClientConnection(self, stream, ends, falls_back=falls_back))

    def admit(self, stream: ByteStream) -> None:
        """Serve a client; at the limit, close an idle connection, or else this one."""
        if self._first_connection is not None:
            self._first_connection.set()
            self._first_connection = None
            self.reload_routes()
        if len(self.connections) >= self._settings.most_connections and not self._end_longest_idle():
            self.refused_connections += 1
            refused = HttpError(503, "too many connections", retry_after_s=1)
            stream.write(http_headers.error_response(refused, request_id=b"-", keep_alive=False))
            stream.close()
            return
        self.connections.add(ClientConnection(self, stream, ends_of(stream)))

    def trusts(self, address: str) -> bool:
        """Return whether a client is a proxy that the settings trust."""
        if not self._settings.trusted:
            return False
        try:
            client = ip_address(address)
        except ValueError:  # no address, such as of a connection without one
            return False
        return any(client in network for network in self._settings.trusted)

    def request_capacity(self, service: RoutedService[ByteStream]) -> None:
        """Request capacity for a waiting request: at once and only once if the service has no replicas."""
        if service.has_replicas():
            self._crowded = True
            return
        now = time.time()
        waiting_since = service.metrics.wake
        is_requested = waiting_since is not None and (service.queued() > 0 or now - waiting_since < EVERY_S)
        if service.route.failure is not None or is_requested:
            return
        service.metrics.wake = now
        if self._demand is not None:
            self._demand.write(self.table, now=self.loop.time(), epoch=service.metrics.wake)
        self._wake()

    def count_unrouted(self, status: int) -> None:
        self.unrouted[status] += 1

    def log(self, entry: AccessLogEntry) -> None:
        if self._log is not None:
            self._log.add(entry)

    def report(self, error: BaseException) -> None:
        """Log an internal error on stderr."""
        self.defects += 1
        traceback.print_exception(error, file=sys.stderr)

    def publish_ready(self, *, port: int, admin_port: int) -> None:
        """Write the first demand.json: from now on requests are answered."""
        self._demand = DemandFile(
            self._settings.directory / "demand.json", self.key_uses, since=self.since, port=port, admin_port=admin_port
        )
        self._demand.write(self.table, now=self.loop.time(), epoch=time.time())

    def reload_routes(self) -> None:
        """Read routes.json if it has changed. An invalid file has no effect."""
        try:
            file_status = os.stat(self._routes_path)
        except OSError:
            return  # not written yet, or being replaced by hand
        seen = (file_status.st_mtime_ns, file_status.st_ino, file_status.st_size)
        if seen == self._routes_seen:
            return
        try:
            routes = read_routes(self._routes_path.read_bytes())
        except (OSError, InvalidSpec) as error:
            self.routes_problem = str(error)
            print(f"gateway: {error}", file=sys.stderr, flush=True)
        else:
            self.routes_problem = None
            self._wake_path = routes.wake
            now = self.loop.time()
            woken = [service.metrics for service in self.table.services.values() if service.metrics.wake is not None]
            since = [metrics.wake or 0.0 for metrics in woken]
            for replica in self.table.update(routes.services):
                upstreams.end_idle(replica, now=now)
            for metrics, waiting_since in zip(woken, since, strict=True):
                if metrics.wake is None:
                    metrics.cold_starts.add((time.time() - waiting_since) * 1e3)
            self._admit_waiting(now)
            for connection in list(self.connections):
                connection.check_key()
            if self.haproxy is not None:
                self.haproxy.apply_changes()
        self._routes_seen = seen

    async def watch(self) -> None:
        """Follow the routes, expire what is overdue and write demand; runs for ever."""
        while True:
            waiting = any(service.waiting for service in self.table.touched)
            if self.haproxy is None and not (self.connections or self.table.touched or self.table.warm):
                self._first_connection = asyncio.Event()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._first_connection.wait(), LOOK_WHILE_QUIET_S)
                self._first_connection = None
            else:
                await asyncio.sleep(LOOK_WHILE_WAITING_S if waiting else LOOK_S)
            try:
                self._watch_once(time.time())
            except Exception as error:  # noqa: BLE001 (an error in one pass must not stop the gateway)
                self.report(error)

    async def drain(self) -> None:
        """Shut down: answer the requests in flight within the grace period, then close all connections."""
        self.draining = True
        end = self.loop.time() + self._settings.grace_s
        patience = self.loop.time() + LAME_DUCK_S
        while self.connections and self.loop.time() < end:
            if self.loop.time() >= patience:
                for connection in list(self.connections):
                    connection.end_idle()
            await asyncio.sleep(0.02)
        remaining = [connection.task for connection in self.connections]
        for task in remaining:
            task.cancel()
        if remaining:
            await asyncio.wait(remaining, timeout=1.0)
        self.shadows.end()
        for service in self.table.services.values():
            for revision in service.revisions:
                for replica in revision.replicas:
                    replica.removed = True
                    upstreams.end_idle(replica, now=self.loop.time())
        if self._demand is not None:
            self._demand.write(self.table, now=self.loop.time(), epoch=time.time())
        if self._log is not None:
            self._log.flush()
            self._log.close()

    def _watch_once(self, epoch: float) -> None:
        now = self.loop.time()
        self.reload_routes()
        self._admit_waiting(now)
        if now - self._swept >= SWEEP_S:
            self._swept = now
            for connection in list(self.connections):
                if connection.client.is_overdue(now):
                    connection.expire()
            for service in list(self.table.warm):
                replicas = [replica for revision in service.revisions for replica in revision.replicas]
                for replica in replicas:
                    upstreams.end_idle(replica, now=now)
                if not any(replica.idle for replica in replicas):
                    self.table.warm.discard(service)
            if self._log is not None:
                self._log.flush()
        if self._demand is not None:
            written = self._demand.write_if_due(self.table, now=now, epoch=epoch)
            if written and self._crowded:
                self._crowded = False
                self._wake()

    def _admit_waiting(self, now: float) -> None:
        for service in list(self.table.touched):
            if service.waiting:
                service.admit_waiting(now)

    def _wake(self) -> None:
        """Notify the writer of the routes that demand.json is new; it also polls, only less often."""
        if self._wake_path is None:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wake:
            wake.setblocking(False)
            wake.sendto(b"", self._wake_path)

    def _end_longest_idle(self) -> bool:
        idle = [connection for connection in self.connections if not connection.busy and not connection.stream.buffer]
        if not idle:
            return False
        longest = min(idle, key=lambda connection: connection.client.deadline)
        self.connections.discard(longest)
        return longest.end_idle()


class _ClientStream(ByteStream):
    __slots__ = ("_gateway",)

    def __init__(self, gateway: GatewayServer) -> None:
        super().__init__(gateway.loop)
        self._gateway = gateway

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._gateway.admit(self)


class ProxiedStream(ByteStream):
    """A connection from haproxy, which begins with the client's address in a line of the PROXY protocol, version 1."""

    __slots__ = ("_begun", "_falls_back", "_gateway")

    def __init__(self, gateway: GatewayServer, falls_back: bool) -> None:
        super().__init__(gateway.loop)
        self._gateway = gateway
        self._falls_back = falls_back
        self._begun = False

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._begun:
            return
        line, end, _ = bytes(self.buffer[:_LONGEST_PROXY_LINE]).partition(b"\r\n")
        if not end:
            if len(self.buffer) >= _LONGEST_PROXY_LINE:
                self.abort()
            return
        words = line.decode("latin-1").split(" ")
        self.take(len(line) + 2)
        self._begun = True
        ends: Ends = (None, None)
        if len(words) == 6 and words[4].isdigit() and words[5].isdigit():
            ends = (words[2], int(words[4])), (words[3], int(words[5]))
        self._gateway.admit_proxied(self, ends, falls_back=self._falls_back)
