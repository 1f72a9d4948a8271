"""Connections to replicas, kept open between requests, and the copies of requests sent to shadow revisions."""

import asyncio
import socket

from fairlead.gateway import heads
from fairlead.gateway.messages import LONGEST_RESPONSE_HEAD, Body, Malformed, Request, Response, read_response
from fairlead.gateway.services import Given, Replica, Service
from fairlead.gateway.wire import Lost, TooMuch, Wire

CONNECT_S = 2.0
"""Seconds without an established connection after which a replica counts as refusing."""
IDLE_S = 4.0
"""Seconds for which unused connections are kept: uvicorn and Node close theirs after 5 s."""
MOST_IDLE = 64
MOST_SHADOWS = 64
"""Maximum number of copies in flight; no more are made beyond it."""


async def connect(replica: Replica[Wire]) -> Wire:
    """Return an open connection to a replica.

    Raises:
        OSError: The replica accepts none.
    """
    loop = asyncio.get_running_loop()
    now = loop.time()
    while replica.idle:
        wire = replica.idle.pop()
        if now - wire.idle_since < IDLE_S and wire.is_open():
            return wire
        wire.abort()
    host, port = replica.backend.host, replica.backend.port
    raw = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        raw.setblocking(False)
        async with asyncio.timeout(CONNECT_S):
            await loop.sock_connect(raw, (host, port))
        _, wire = await loop.create_connection(lambda: Wire(loop, raw), sock=raw)
    except BaseException:
        raw.close()
        raise
    return wire


def give_back(replica: Replica[Wire], wire: Wire, *, reusable: bool) -> None:
    """Keep a connection for the next request, or close it."""
    if not reusable or replica.removed or wire.ended or len(replica.idle) >= MOST_IDLE:
        wire.abort()
        return
    wire.idle_since = asyncio.get_running_loop().time()
    replica.idle.append(wire)


def end_idle(replica: Replica[Wire], *, now: float) -> None:
    """Close the connections that have been unused for too long, or all of a removed replica."""
    while replica.idle and (
        replica.removed or replica.idle[0].ended or now - replica.idle[0].idle_since >= IDLE_S
    ):  # fmt: skip
        replica.idle.pop(0).abort()


class Shadows:
    """The copies in flight."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def send(
        self, service: Service[Wire], request: Request, path: bytes, body: bytes, request_id: bytes, remote: str
    ) -> bool:
        """Send a copy to each shadow revision with capacity, up to the limit. Return whether one was sent."""
        loop = asyncio.get_running_loop()
        sent = False
        for given in service.take_shadows(loop.time()):
            if len(self._tasks) >= MOST_SHADOWS:
                service.tally.shadows["dropped"] += 1
                service.release(given, loop.time())
                continue
            service.tally.shadows["sent"] += 1
            sent = True
            backend = given.replica.backend
            head = heads.forwarded(
                request, path=path, prefix=service.prefix if path is not request.path else b"",
                remote=remote.encode(), request_id=request_id, keyed=service.route.keys is not None,
                backend=b"%b:%d" % (backend.host.encode(), backend.port),
            )  # fmt: skip
            data = b"%bX-Fairlead-Shadow: 1\r\n%b%b" % (head, heads.framing(request), body)
            task = loop.create_task(_copy(service, given, request, data))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return sent

    def end(self) -> None:
        """Cancel all copies."""
        for task in self._tasks:
            task.cancel()


async def _copy(service: Service[Wire], given: Given[Wire], request: Request, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    wire: Wire | None = None
    reusable, failed = False, True
    answered: Response | None = None
    try:
        async with asyncio.timeout(service.route.timeout_s):
            wire = await connect(given.replica)
            wire.write(data)
            while (head := await wire.head(LONGEST_RESPONSE_HEAD)) is not None:
                response = read_response(head, method=request.method)
                if response.status < 200:
                    continue
                answer = Body(wire, response.length)
                while await answer.piece():
                    pass
                failed = response.status >= 500
                answered = response
                reusable = response.keep_alive and not wire.buffer
                given.replica.answered()
                break
    except OSError:
        if wire is None:
            given.replica.refused(loop.time())
    except (Lost, Malformed, TooMuch):
        failed = True
    finally:
        if wire is not None:
            give_back(given.replica, wire, reusable=reusable)
        took_s = loop.time() - began
        service.tally.revision(given.revision.name).add(failed=failed, duration_ms=took_s * 1e3)
        if service.pairs is not None and given.revision.arm:
            service.pairs.add(given.revision.arm, failed=failed, duration_s=took_s, response=answered)
        service.release(given, loop.time())
