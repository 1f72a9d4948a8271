"""The gateway itself: follows routes.json, maintains demand.json and the access log, and tracks conversations."""

import asyncio
import contextlib
import os
import socket
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from fairlead.errors import InvalidSpec
from fairlead.frozen import dataclass
from fairlead.gateway import heads, upstreams
from fairlead.gateway.access_log import AccessLog, Entry
from fairlead.gateway.conversation import Conversation
from fairlead.gateway.demand import EVERY_S, DemandFile
from fairlead.gateway.messages import Refused
from fairlead.gateway.proxying.haproxy import Haproxy
from fairlead.gateway.routes import read_routes
from fairlead.gateway.services import Service, Table
from fairlead.gateway.wire import Wire

LOOK_S = 0.1
"""Seconds between checks of routes.json."""
LOOK_WHILE_WAITING_S = 0.01
"""Seconds between checks of routes.json while requests wait for a replica."""
LOOK_WHILE_QUIET_S = 1.0
"""Seconds between checks of routes.json without connections, of which the first has them read at once."""
SWEEP_S = 0.25
"""Resolution of time-outs in seconds."""
_LONGEST_PROXY_LINE = 107
LAME_DUCK_S = 0.25
"""Seconds for which idle connections stay open after SIGTERM, so that requests already in transit are answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings from the command line.

    Attributes:
        directory: Directory of routes.json, demand.json and the access log.
        access_log: Path of the access log, or None for none; `access_log_bytes` is the size at which it is rotated.
        most_body: Maximum bytes of a request's body.
        most_connections: Maximum number of concurrent client connections.
        grace_s: Seconds for requests to finish after SIGTERM.
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


class Door:
    """A gateway process.

    Attributes:
        table: Services and replicas of routes.json, with their current load.
        unread: Responses to requests of no service, by status.
        routes_problem: The error of the latest routes.json; the routes before it stay in effect.
    """

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.most_body = settings.most_body
        self.table: Table[Wire] = Table()
        self.conversations: set[Conversation] = set()
        self.draining = False
        self.unread: Counter[int] = Counter()
        self.turned_away = 0
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
        self._first: asyncio.Event | None = None  # set by the first connection after a time without any

    @property
    def log_lines_lost(self) -> int:
        """Return the number of lines of the access log that could not be written."""
        unwritten = 0 if self._log is None else self._log.lost
        return unwritten if self.haproxy is None else unwritten + self.haproxy.lost_lines

    def accept(self) -> Wire:
        """Return the protocol of a client's connection."""
        return _ClientWire(self)

    def accept_passed(self, *, falls_back: bool) -> Wire:
        """Return the protocol of a connection from haproxy; `falls_back`: its requests were for a lost replica."""
        return PassedWire(self, falls_back)

    def admit_passed(self, wire: Wire, remote: str, *, falls_back: bool) -> None:
        """Start a conversation with a client that haproxy accepted."""
        self.conversations.add(Conversation(self, wire, remote=remote, falls_back=falls_back))

    def admit(self, wire: Wire) -> None:
        """Start a conversation with a client; at the limit, close an idle connection, or else this one."""
        if self._first is not None:
            self._first.set()
            self._first = None
            self.look_at_routes()
        if len(self.conversations) >= self._settings.most_connections and not self._end_longest_idle():
            self.turned_away += 1
            refused = Refused(503, "too many connections", retry_after_s=1)
            wire.write(heads.refusal(refused, request_id=b"-", keep_alive=False))
            wire.close()
            return
        self.conversations.add(Conversation(self, wire))

    def ask_for(self, service: Service[Wire]) -> None:
        """Request capacity for a waiting request: at once and only once if the service has no replicas."""
        if service.has_replicas():
            self._crowded = True
            return
        now = time.time()
        told = service.tally.wake
        if service.route.failure is not None or (told is not None and (service.queued() or now - told < EVERY_S)):
            return
        service.tally.wake = now
        if self._demand is not None:
            self._demand.write(self.table, now=self.loop.time(), epoch=service.tally.wake)
        self._wake()

    def count_unread(self, status: int) -> None:
        self.unread[status] += 1

    def log(self, entry: Entry) -> None:
        if self._log is not None:
            self._log.add(entry)

    def report(self, error: BaseException) -> None:
        """Log an internal error on stderr."""
        self.defects += 1
        traceback.print_exception(error, file=sys.stderr)

    def tell(self, *, port: int, admin_port: int) -> None:
        """Write the first demand.json: from now on requests are answered."""
        self._demand = DemandFile(
            self._settings.directory / "demand.json", since=self.since, port=port, admin_port=admin_port
        )
        self._demand.write(self.table, now=self.loop.time(), epoch=time.time())

    def look_at_routes(self) -> None:
        """Read routes.json if it has changed. An invalid file has no effect."""
        try:
            found = os.stat(self._routes_path)
        except OSError:
            return  # not written yet, or being replaced by hand
        seen = (found.st_mtime_ns, found.st_ino, found.st_size)
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
            woken = [service.tally for service in self.table.services.values() if service.tally.wake is not None]
            since = [tally.wake or 0.0 for tally in woken]
            for replica in self.table.update(routes.services):
                upstreams.end_idle(replica, now=now)
            for tally, told in zip(woken, since, strict=True):
                if tally.wake is None:
                    tally.cold_starts.add((time.time() - told) * 1e3)
            self._admit_waiting(now)
            if self.haproxy is not None:
                self.haproxy.look_again()
        self._routes_seen = seen

    async def keep_watch(self) -> None:
        """Follow the routes, expire what is overdue and write demand; runs for ever."""
        while True:
            waiting = any(service.waiting for service in self.table.touched)
            if self.haproxy is None and not (self.conversations or self.table.touched or self.table.warm):
                self._first = asyncio.Event()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._first.wait(), LOOK_WHILE_QUIET_S)
                self._first = None
            else:
                await asyncio.sleep(LOOK_WHILE_WAITING_S if waiting else LOOK_S)
            try:
                self._watch(time.time())
            except Exception as error:  # noqa: BLE001 (an error in one pass must not stop the gateway)
                self.report(error)

    async def drain(self) -> None:
        """Shut down: answer the requests in flight within the grace period, then close all connections."""
        self.draining = True
        end = self.loop.time() + self._settings.grace_s
        patience = self.loop.time() + LAME_DUCK_S
        while self.conversations and self.loop.time() < end:
            if self.loop.time() >= patience:
                for conversation in list(self.conversations):
                    conversation.end_idle()
            await asyncio.sleep(0.02)
        remaining = [conversation.task for conversation in self.conversations]
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

    def _watch(self, epoch: float) -> None:
        now = self.loop.time()
        self.look_at_routes()
        self._admit_waiting(now)
        if now - self._swept >= SWEEP_S:
            self._swept = now
            for conversation in list(self.conversations):
                if conversation.deadline < now:
                    conversation.expire()
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
        idle = [each for each in self.conversations if not each.busy and not each.wire.buffer]
        if not idle:
            return False
        longest = min(idle, key=lambda each: each.deadline)
        self.conversations.discard(longest)
        return longest.end_idle()


class _ClientWire(Wire):
    __slots__ = ("_door",)

    def __init__(self, door: Door) -> None:
        super().__init__(door.loop)
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._door.admit(self)


class PassedWire(Wire):
    """A connection from haproxy, which begins with the client's address in a line of the PROXY protocol, version 1."""

    __slots__ = ("_begun", "_door", "_falls_back")

    def __init__(self, door: Door, falls_back: bool) -> None:
        super().__init__(door.loop)
        self._door = door
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
        remote = words[2] if len(words) > 2 else ""
        self._door.admit_passed(self, remote, falls_back=self._falls_back)
