"""Forwards one request to a replica and relays the response; tries another replica where that is safe."""

import asyncio
import time
from types import TracebackType
from typing import Protocol, Self

from fairlead.gateway import http_headers, upstreams
from fairlead.gateway.access import KeyUses, TeamUse, digest_of, key_of
from fairlead.gateway.access_log import AccessLogEntry
from fairlead.gateway.byte_stream import ByteStream, ConnectionLost, HeadTooLong
from fairlead.gateway.client import NEVER, GatewayClient
from fairlead.gateway.local_guard import LocalGuard
from fairlead.gateway.messages import (
    CHUNKED,
    LONGEST_RESPONSE_HEAD,
    UNTIL_CLOSE,
    Body,
    HttpError,
    Malformed,
    RequestHead,
    ResponseHead,
    chunk,
    read_response,
)
from fairlead.gateway.pace import ClientPace
from fairlead.gateway.prefix_affinity import Prompt, read_prompt
from fairlead.gateway.routes import ServiceRoute
from fairlead.gateway.services import ReplicaLease, RoutedService
from fairlead.gateway.token_usage import TokenUsage

TUNNEL_IDLE_S = 3600.0
"""Seconds without a byte in either direction after which a WebSocket is closed."""
SMALL_BODY = 64 * 1024
"""Bytes of a body that are read before a replica is reserved: a slow client with a small body occupies none."""
KEPT_BODY = 1024 * 1024
"""Largest body in bytes kept for an idempotent service, or one with a shadow or routing by prefix."""
MOST_TRIES = 3
"""Maximum number of replicas that may have begun a request of an idempotent service."""


class Forwarder(Protocol):
    """The part of the gateway that forwarding uses; `gateway_server.py` documents each member."""

    loop: asyncio.AbstractEventLoop
    guard: LocalGuard | None
    shadows: upstreams.Shadows
    key_uses: KeyUses
    most_body: int
    draining: bool

    def request_capacity(self, service: RoutedService[ByteStream]) -> None: ...


class Exchange:
    """A request and the answer to it.

    Attributes:
        entry: Its line of the access log.
        request_id: The client's X-Request-Id, or a new one.
        service: The service to which it is routed; None before.
        started: Time of its arrival by the loop's clock, in seconds.
        keep_alive: The client's connection can be used for another request afterwards.
        has_begun: Part of the response has been written.
        is_counted: Counted as a request of its service; unauthorized requests neither wake nor scale it.
        is_shadowed: Copied to a shadow.
        cors_fields: Fields of the gateway's answers for the page that sent it.
        first_part: The part of its body that was read before a replica was chosen.
        whole_body: That part if it is all of the body, so that it can be sent again; else None.
        num_begun: Number of replicas that may have begun it and did not answer.
    """

    __slots__ = (
        "body", "client", "cors_fields", "entry", "first_part", "gateway", "has_begun", "is_counted", "is_metered",
        "is_shadowed", "keep_alive", "num_begun", "request", "request_id", "service", "started", "team_use",
        "whole_body",
    )  # fmt: skip

    def __init__(self, gateway: Forwarder, client: GatewayClient, request: RequestHead) -> None:
        self.gateway = gateway
        self.client = client
        self.request = request
        self.request_id = http_headers.request_id_of(request)
        self.body = Body(client.stream, request.length)
        self.entry = AccessLogEntry(
            time.time(), self.request_id.decode(), client.address, request.method.decode(), request.path.decode()
        )
        self.service: RoutedService[ByteStream] | None = None
        self.started = gateway.loop.time()
        self.keep_alive = request.keep_alive and not gateway.draining
        self.has_begun = self.is_counted = self.is_shadowed = False
        self.cors_fields = b""
        self.team_use: TeamUse | None = None
        self.is_metered = False  # the tokens of the response count against a limit of its team
        self.first_part = b""
        self.whole_body: bytes | None = None
        self.num_begun = 0

    async def forward(self, service: RoutedService[ByteStream], path: bytes) -> bool:
        """Forward the request and relay the response. Return whether the client's connection can be kept.

        Args:
            path: Path as the replicas expect it.

        Raises:
            HttpError: The request is to be answered with this error.
            ConnectionLost: The client has disconnected.
        """
        route, entry = service.route, self.entry
        self.client.deadline = self.started + route.timeout_s
        is_allowed = self._allow_origin(route)
        if route.keys is None:
            self._check_client(route)
        elif is_allowed and http_headers.is_preflight(self.request):
            return self._answer_preflight()
        expects_continue = self._check_limits(service)
        await self._read_first_part(service, expects_continue=expects_continue)
        service.arrive(time.time())
        self.is_counted = True
        service.shed()
        prompt = None
        if self.whole_body is not None and service.affinity is not None:
            prompt = read_prompt(path, self.whole_body)
        while True:
            lease = await self._acquire(service, prompt)
            entry.tries += 1
            entry.revision, entry.replica = lease.revision.name, lease.replica.backend.id
            with Attempt(self, service, path, lease) as attempt:
                if not await attempt.connect():
                    continue
                response = await attempt.send()
                if response is not None:
                    return await attempt.relay(response)
                attempt.require_retry()

    def _allow_origin(self, route: ServiceRoute) -> bool:
        """Let pages of the request's origin read the gateway's answers if they may use the service; return that."""
        origin = self.request.single.get(b"origin")
        if origin is None:
            return False
        guard = self.gateway.guard
        is_own = guard is not None and guard.is_own_origin(origin, route.origins)
        is_allowed = is_own or origin.decode("latin-1").lower() in route.origins
        if is_allowed:
            self.cors_fields = http_headers.cors_fields(self.request)
        return is_allowed

    def _check_client(self, route: ServiceRoute) -> None:
        """Guard a service without keys.

        Raises:
            HttpError: The gateway listens on loopback, and the request comes from another site or user.
        """
        guard = self.gateway.guard
        if guard is None:
            return
        guard.check_site(self.request, route.origins)
        if not self.client.is_own_user:
            guard.check_user(*self.client.ends)
            self.client.is_own_user = True

    def _answer_preflight(self) -> bool:
        self.entry.status = 204
        keep_alive = self.request.keep_alive and self.body.done and not self.gateway.draining
        self.client.stream.write(
            http_headers.preflight(self.request, request_id=self.request_id, keep_alive=keep_alive)
        )
        return keep_alive

    def _check_limits(self, service: RoutedService[ByteStream]) -> bool:
        """Check the key, the limits of its team and the size. Return whether the client awaits `100 Continue`.

        Raises:
            HttpError: The key is missing or unknown, a limit is reached, or the request cannot be forwarded.
        """
        request, route, most_body = self.request, service.route, self.gateway.most_body
        if route.keys is not None:
            key = key_of(request, route.keys)
            self.gateway.key_uses.note(key, time.time())
            self.entry.team = key.team
            self.team_use = service.use_of(self.entry.team)
            self.team_use.begin(self.entry.team, route, self.started)
        self.is_metered = self.team_use is not None and route.tokens_per_minute is not None
        if request.length > most_body:
            raise HttpError(413, f"the body has {request.length} bytes; at most {most_body} are taken")
        expected = request.single.get(b"expect", b"").lower()
        if expected and expected != b"100-continue":
            raise HttpError(417, "only `Expect: 100-continue` is known")
        if self.is_metered and request.upgrade:
            raise HttpError(400, "tokens are counted here, which a WebSocket does not show: ask without `Upgrade`")
        return expected != b"" and request.minor == 1

    async def _read_first_part(self, service: RoutedService[ByteStream], *, expects_continue: bool) -> None:
        """Read the whole body if it is short, or the first part of one that is streamed.

        Raises:
            HttpError: The body is malformed or too large.
        """
        body, stream = self.body, self.client.stream
        if self.request.length != 0:
            keeps = (
                service.route.idempotent
                or service.affinity is not None
                or any(revision.shadow for revision in service.revisions)
            )
            enough = KEPT_BODY if keeps and self.request.length <= KEPT_BODY else SMALL_BODY
            if expects_continue and not stream.buffer:
                stream.write(http_headers.CONTINUE)
            pieces = []
            while body.read < enough and (piece := await self._next_piece()):
                pieces.append(piece)
            self.first_part = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self.whole_body = self.first_part if body.done else None

    async def _next_piece(self) -> bytes:
        """Return the next bytes of the request's body; empty at the end.

        Raises:
            HttpError: The body is malformed or too large.
        """
        try:
            piece = await self.body.piece()
        except Malformed as error:
            raise HttpError(400, str(error)) from error
        if self.body.read > self.gateway.most_body:
            raise HttpError(413, f"the body has more than {self.gateway.most_body} bytes")
        return piece

    async def _acquire(self, service: RoutedService[ByteStream], prompt: Prompt | None) -> ReplicaLease[ByteStream]:
        """Reserve a slot at a replica, waiting until one is free. Only the first waiter wakes a sleeping service."""
        entry, loop = self.entry, self.gateway.loop
        entry.replica = entry.revision = ""
        since = loop.time()
        if not service.waiting and (lease := service.take(since, prompt)) is not None:
            return lease
        waiter: asyncio.Future[ReplicaLease[ByteStream]] = loop.create_future()
        self.gateway.request_capacity(service)
        service.join_queue(waiter, prompt)
        try:
            return await waiter
        except BaseException:
            service.leave_queue(waiter, loop.time())
            raise
        finally:
            waited_s = loop.time() - since
            entry.queue_s += waited_s
            service.metrics.queue.add(waited_s * 1e3)

    async def upload(self, upstream: ByteStream) -> None:
        """Stream the rest of the body to the replica.

        Raises:
            HttpError: The body is malformed or too large; the connection to the replica is aborted.
        """
        loop, client = self.gateway.loop, self.client
        as_chunks = self.body.length == CHUNKED
        pace = ClientPace()
        try:
            while True:
                since = loop.time()
                client.slow_at = since + pace.patience_s
                piece = await self._next_piece()
                client.slow_at = NEVER
                if not piece:
                    break
                pace.count(len(piece), loop.time() - since)
                client.extend_wait()
                upstream.write(chunk(piece) if as_chunks else piece)
                await upstream.drained()
            if as_chunks:
                upstream.write(chunk(b""))
        except HttpError:
            upstream.abort()
            raise
        except ConnectionLost:
            return  # the reading side handles a connection lost at either end


class Attempt:
    """One try of a request at one replica: owns the lease, the connection to it, the upload, and their accounting.

    On leaving its block all of them are released and counted, whatever happened.
    """

    __slots__ = (
        "_client", "_exchange", "_has_failed", "_is_reusable", "_is_uncounted", "_lease", "_loop", "_path", "_response",
        "_sent_at", "_service", "_text_requests", "_text_row", "_upload", "_upstream", "_usage",
    )  # fmt: skip

    def __init__(
        self, exchange: Exchange, service: RoutedService[ByteStream], path: bytes, lease: ReplicaLease[ByteStream]
    ) -> None:
        self._exchange = exchange
        self._client = exchange.client
        self._loop = exchange.gateway.loop
        self._service = service
        self._path = path
        self._lease = lease
        self._upstream: ByteStream | None = None
        self._upload: asyncio.Task[None] | None = None
        self._response: ResponseHead | None = None
        self._usage: TokenUsage | None = None
        self._has_failed = True
        self._is_reusable = self._is_uncounted = False
        self._sent_at = self._loop.time()
        entry = exchange.entry
        self._text_requests = texts = service.texts
        self._text_row = None if texts is None else texts.begin(entry.revision, entry.replica, time.time())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release everything and count the try.

        Raises:
            HttpError: 502 in place of `Malformed`, the replica's error.
        """
        exchange, client, service = self._exchange, self._client, self._service
        is_abandoned = False
        if isinstance(error, asyncio.CancelledError):
            is_abandoned = not client.is_late  # the client left: shows nothing about the revision but that it was slow
            self._is_uncounted = client.is_slow  # not even that, where the client was too slow itself
        client.watched = None
        client.slow_at = NEVER
        if self._usage is not None and exchange.team_use is not None and exchange.is_metered:
            exchange.team_use.tokens.add(self._usage.total(exchange.body.read), self._loop.time())
        self._record_text()
        if self._upload is not None:
            self._is_reusable = self._is_reusable and self._upload.done()
            self._upload.cancel()
            self._upload.add_done_callback(_retrieve_exception)
        if self._upstream is not None:
            if not self._is_uncounted:
                now = self._loop.time()
                service.count(
                    self._lease, failed=self._has_failed, duration_s=now - self._sent_at, response=self._response,
                    now=now, epoch=time.time(), abandoned=is_abandoned, copied=exchange.is_shadowed,
                )  # fmt: skip
            upstreams.give_back(self._lease.replica, self._upstream, reusable=self._is_reusable)
        service.release(self._lease, self._loop.time())
        if isinstance(error, Malformed):
            raise HttpError(502, f"replica {exchange.entry.replica}: {error}") from error

    async def connect(self) -> bool:
        """Connect to the replica; the first try also copies the request to shadows. Return whether it is connected."""
        exchange, replica = self._exchange, self._lease.replica
        entry, request, whole_body = exchange.entry, exchange.request, exchange.whole_body
        is_first = entry.tries == 1 and not request.upgrade
        if whole_body is not None and is_first and self._service.is_shadowed(self._lease):
            exchange.is_shadowed = exchange.gateway.shadows.send(
                self._service, request, self._path, whole_body, exchange.request_id, self._client.address,
                self._client.is_trusted,
            )  # fmt: skip
        self._sent_at = self._loop.time()
        try:
            self._upstream = await upstreams.connect(replica)
        except OSError as error:
            replica.refused(self._loop.time())
            entry.error = f"replica {entry.replica} takes no connection: {error}"
            return False
        return True

    async def send(self) -> ResponseHead | None:
        """Send the request, and return the head of the final response; None if the replica closed the connection first.

        Raises:
            Malformed: The head is invalid.
        """
        upstream = self._upstream
        assert upstream is not None, "it is connected"
        exchange = self._exchange
        request, body, backend = exchange.request, exchange.body, self._lease.replica.backend
        head = http_headers.request_head(
            request,
            path=self._path,
            prefix=self._service.prefix if self._path is not request.path else b"",
            remote=self._client.address.encode(),
            request_id=exchange.request_id,
            keyed=exchange.team_use is not None,
            metered=exchange.is_metered or self._text_row is not None,
            trusted=self._client.is_trusted,
            backend=b"%b:%d" % (backend.host.encode(), backend.port),
        )
        upstream.mark()
        if exchange.whole_body is not None:
            whole_body = exchange.whole_body
            upstream.write(b"%b%b%b" % (head, http_headers.framing(request, len(whole_body)), whole_body))
        else:
            first_part = chunk(exchange.first_part) if body.length == CHUNKED else exchange.first_part
            upstream.write(b"%b%b%b" % (head, http_headers.framing(request, body.length), first_part))
            self._upload = self._loop.create_task(exchange.upload(upstream))
        self._response = await _read_final_response(upstream, request)
        return self._response

    def require_retry(self) -> None:
        """Return if another replica may get the request: this one did not read it, or it may be begun twice.

        Raises:
            HttpError: It may not, or the client's error ended the upload.
        """
        exchange, service, replica = self._exchange, self._service, self._lease.replica
        assert self._upstream is not None, "it is connected"
        if self._upload is not None and (client_error := _client_error(self._upload)) is not None:
            self._is_uncounted = True  # the client's fault
            raise client_error
        is_unread = self._upstream.unseen() and exchange.body.read == len(exchange.first_part)
        exchange.entry.error = f"replica {exchange.entry.replica} ended the connection without an answer"
        if not is_unread:
            exchange.num_begun += 1
            replica.broke_off(self._loop.time())
        may_repeat = service.route.idempotent and exchange.whole_body is not None and exchange.num_begun < MOST_TRIES
        if not is_unread and not may_repeat:
            raise HttpError(502, f"{exchange.entry.error}; it may have begun the request")
        service.metrics.retries += 1
        self._is_uncounted = is_unread

    async def relay(self, response: ResponseHead) -> bool:
        """Relay the response, or both directions of a WebSocket. Return whether the client's connection can be kept.

        Raises:
            Malformed: The body is invalid, or ends before its length.
            ConnectionLost: The client has disconnected.
        """
        upstream, exchange = self._upstream, self._exchange
        assert upstream is not None, "it is connected"
        self._lease.replica.answered()
        exchange.entry.error = ""
        exchange.entry.status = response.status
        self._has_failed = response.status >= 500
        if response.status == 101:
            await self._tunnel(upstream, response)
            return False
        if exchange.is_metered or self._text_row is not None:
            self._usage = TokenUsage(response)
        keep_alive = await self._relay_response(upstream, response)
        self._is_reusable = response.keep_alive and not upstream.buffer
        return keep_alive

    async def _relay_response(self, upstream: ByteStream, response: ResponseHead) -> bool:
        exchange, client, route = self._exchange, self._client, self._service.route
        request, entry, stream = exchange.request, exchange.entry, client.stream
        pace = ClientPace()
        is_open_ended = response.length in (CHUNKED, UNTIL_CLOSE)
        if is_open_ended:
            self._watch_key()
        as_chunks = is_open_ended and request.minor == 1
        has_end = as_chunks or not is_open_ended
        keep_alive = request.keep_alive and exchange.body.done and not exchange.gateway.draining and has_end
        head = http_headers.response_head(
            request, response, request_id=exchange.request_id, keep_alive=keep_alive, as_chunks=as_chunks,
            cors=b"" if route.keys is None else exchange.cors_fields,
        )  # fmt: skip
        body = Body(upstream, response.length)
        exchange.has_begun = True
        try:
            piece = body.available() if not body.done else b""
            entry.bytes_out = len(piece)
            if self._usage is not None:
                self._count_tokens(piece)
            stream.write(head + (chunk(piece) if as_chunks and piece else piece))
            while not body.done:
                await client.drained(pace)
                piece = await body.piece()
                if piece:
                    entry.bytes_out += len(piece)
                    if self._usage is not None:
                        self._count_tokens(piece)
                    client.wait(route.timeout_s)
                    stream.write(chunk(piece) if as_chunks else piece)
        except ConnectionLost:
            if stream.lost:
                raise
            raise Malformed("its answer ends before its length") from None
        if as_chunks:
            stream.write(chunk(b""))
        await client.drained(pace)
        return keep_alive

    async def _tunnel(self, upstream: ByteStream, response: ResponseHead) -> None:
        """Copy bytes in both directions until either side ends, is silent for too long or has lost its key."""
        exchange, stream = self._exchange, self._client.stream
        exchange.has_begun = True
        self._watch_key()
        stream.keep_alive()
        upstream.keep_alive()
        stream.write(
            http_headers.response_head(
                exchange.request, response, request_id=exchange.request_id, keep_alive=True, as_chunks=False
            )
        )
        to_replica = self._loop.create_task(self._pump(stream, upstream, None))
        try:
            await self._pump(upstream, stream, ClientPace())
        finally:
            to_replica.cancel()

    async def _pump(self, source: ByteStream, sink: ByteStream, pace: ClientPace | None) -> None:
        """Copy bytes until the source ends; to the client with its pace."""
        try:
            self._client.wait(TUNNEL_IDLE_S)
            while source.buffer or await source.more():
                self._client.wait(TUNNEL_IDLE_S)
                piece = source.take(1 << 20)
                sink.write(piece)
                if pace is None:
                    await sink.drained()
                else:
                    self._exchange.entry.bytes_out += len(piece)
                    await self._client.drained(pace)
        except ConnectionLost:
            return

    def _watch_key(self) -> None:
        """Have the answer end with its key, as it may last for ever."""
        if self._service.route.keys is not None:
            self._client.watched = self._service, digest_of(self._exchange.request)

    def _count_tokens(self, piece: bytes) -> None:
        usage, row = self._usage, self._text_row
        assert usage is not None, "its tokens are counted"
        usage.add(piece)
        if row is not None and row.first is None and usage.has_begun:
            row.first = time.time()

    def _record_text(self) -> None:
        """Record the request's tokens; drop a request that failed."""
        if self._text_row is None or self._text_requests is None:
            return
        if self._usage is None or self._has_failed:
            self._text_requests.drop(self._text_row)
            return
        prompt, output = self._usage.parts(self._exchange.body.read)
        self._text_requests.end(self._text_row, prompt=prompt, output=output, epoch=time.time())


async def _read_final_response(upstream: ByteStream, request: RequestHead) -> ResponseHead | None:
    """Return the head of the final response; None if the replica closes the connection before it.

    Raises:
        Malformed: The head is invalid.
    """
    while True:
        try:
            head = await upstream.head(LONGEST_RESPONSE_HEAD)
        except HeadTooLong:
            raise Malformed(f"the head of its answer is longer than {LONGEST_RESPONSE_HEAD} bytes") from None
        if head is None:
            if upstream.buffer:
                raise Malformed("its answer ends within the head")
            return None
        response = read_response(head, method=request.method)
        if response.status >= 200:
            return response
        if response.status == 101:
            if not request.upgrade:
                raise Malformed("it switches the protocol without a request to do so")
            return response


def _client_error(upload: "asyncio.Task[None]") -> HttpError | None:
    """Return the client's error that ended an upload, if there is one; raise any other."""
    if not upload.done() or upload.cancelled():
        return None
    error = upload.exception()
    if error is not None and not isinstance(error, HttpError):
        raise error
    return error


def _retrieve_exception(upload: "asyncio.Task[None]") -> None:
    """Retrieve the exception of an abandoned upload, so that asyncio does not log it."""
    if not upload.cancelled():
        upload.exception()
