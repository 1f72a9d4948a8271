"""Connections to replicas, kept open between requests, and the copies of requests sent to shadow revisions.

See decision 85.
"""

import asyncio
import socket

from fairlead.gateway import http_headers
from fairlead.gateway.byte_stream import ByteStream, ConnectionLost, HeadTooLong
from fairlead.gateway.messages import LONGEST_RESPONSE_HEAD, Body, Malformed, RequestHead, ResponseHead, read_response
from fairlead.gateway.services import ReplicaLease, RoutedService, UpstreamReplica

CONNECT_S = 2.0
"""Seconds without an established connection after which a replica counts as refusing."""
IDLE_S = 4.0
"""Seconds for which unused connections are kept: uvicorn and Node close theirs after 5 s."""
MOST_IDLE = 64
MOST_SHADOWS = 64
"""Maximum number of copies in flight; no more are made beyond it."""


async def connect(replica: UpstreamReplica[ByteStream]) -> ByteStream:
    """Return an open connection to a replica.

    Raises:
        OSError: The replica accepts none.
    """
    loop = asyncio.get_running_loop()
    now = loop.time()
    while replica.idle:
        stream = replica.idle.pop()
        if now - stream.idle_since < IDLE_S and stream.is_open():
            return stream
        stream.abort()
    host, port = replica.backend.host, replica.backend.port
    raw = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        raw.setblocking(False)
        async with asyncio.timeout(CONNECT_S):
            await loop.sock_connect(raw, (host, port))
        _, stream = await loop.create_connection(lambda: ByteStream(loop, raw), sock=raw)
    except BaseException:
        raw.close()
        raise
    return stream


def give_back(replica: UpstreamReplica[ByteStream], stream: ByteStream, *, reusable: bool) -> None:
    """Keep a connection for the next request, or close it."""
    if not reusable or replica.removed or stream.ended or len(replica.idle) >= MOST_IDLE:
        stream.abort()
        return
    stream.idle_since = asyncio.get_running_loop().time()
    replica.idle.append(stream)


def end_idle(replica: UpstreamReplica[ByteStream], *, now: float) -> None:
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
        self, service: RoutedService[ByteStream], request: RequestHead, path: bytes, body: bytes, request_id: bytes,
        remote: str, trusted: bool,
    ) -> bool:  # fmt: skip
        """Send a copy to each shadow revision with capacity, up to the limit. Return whether one was sent."""
        loop = asyncio.get_running_loop()
        sent = False
        for lease in service.acquire_shadows(loop.time()):
            if len(self._tasks) >= MOST_SHADOWS:
                service.metrics.shadows["dropped"] += 1
                service.release(lease, loop.time())
                continue
            service.metrics.shadows["sent"] += 1
            sent = True
            backend = lease.replica.backend
            head = http_headers.request_head(
                request, path=path, prefix=service.prefix if path is not request.path else b"",
                remote=remote.encode(), request_id=request_id, keyed=service.route.keys is not None,
                trusted=trusted, backend=b"%b:%d" % (backend.host.encode(), backend.port),
            )  # fmt: skip
            data = b"%bX-Fairlead-Shadow: 1\r\n%b%b" % (head, http_headers.framing(request, len(body)), body)
            task = loop.create_task(_copy(service, lease, request, data))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return sent

    def end(self) -> None:
        """Cancel all copies."""
        for task in self._tasks:
            task.cancel()


async def _copy(
    service: RoutedService[ByteStream], lease: ReplicaLease[ByteStream], request: RequestHead, data: bytes
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    stream: ByteStream | None = None
    reusable, failed = False, True
    answered: ResponseHead | None = None
    try:
        async with asyncio.timeout(service.route.timeout_s):
            stream = await connect(lease.replica)
            stream.write(data)
            while (head := await stream.head(LONGEST_RESPONSE_HEAD)) is not None:
                response = read_response(head, method=request.method)
                if response.status < 200:
                    continue
                answer = Body(stream, response.length)
                while await answer.piece():
                    pass
                failed = response.status >= 500
                answered = response
                reusable = response.keep_alive and not stream.buffer
                lease.replica.answered()
                break
    except OSError:
        if stream is None:
            lease.replica.refused(loop.time())
    except (ConnectionLost, Malformed, HeadTooLong):
        failed = True
    finally:
        if stream is not None:
            give_back(lease.replica, stream, reusable=reusable)
        took_s = loop.time() - began
        service.metrics.revision(lease.revision.name).add(failed=failed, duration_ms=took_s * 1e3)
        if service.pairs is not None and lease.revision.arm:
            service.pairs.add(lease.revision.arm, failed=failed, duration_s=took_s, response=answered)
        service.release(lease, loop.time())
