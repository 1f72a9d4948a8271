"""A client's connection: answers its requests one after the other, each by forwarding it to a replica."""

import asyncio
import time
from typing import Protocol

from fairlead.gateway import heads, upstreams
from fairlead.gateway.access import TeamUse, team_of
from fairlead.gateway.access_log import Entry
from fairlead.gateway.messages import (
    CHUNKED,
    LONGEST_HEAD,
    LONGEST_RESPONSE_HEAD,
    UNTIL_CLOSE,
    Body,
    Malformed,
    Refused,
    Request,
    Response,
    chunk,
    read_request,
    read_response,
)
from fairlead.gateway.prefix_affinity import Prompt, read_prompt
from fairlead.gateway.services import Given, Service, Table
from fairlead.gateway.text_requests import TextRequests, TextRow
from fairlead.gateway.token_usage import TokenUsage
from fairlead.gateway.wire import Lost, TooMuch, Wire

HEAD_S = 10.0
"""Seconds for a head to arrive completely, from its first byte."""
IDLE_S = 75.0
"""Seconds for which a connection is kept without a request."""
SMALL_BODY = 64 * 1024
"""Largest body in bytes that is read whole before a replica is reserved, so that a slow client occupies none."""
KEPT_BODY = 1024 * 1024
"""Largest body in bytes kept for an idempotent service, or one with a shadow or routing by prefix."""
MOST_TRIES = 3
"""Maximum number of replicas that may have begun a request of an idempotent service."""
_LINGER_S = 2.0
_LINGER_BYTES = 4 * 1024 * 1024
_GONE = 499
_NEVER = float("inf")


class Gateway(Protocol):
    """The part of the gateway that a conversation uses; ``door.py`` documents each member."""

    loop: asyncio.AbstractEventLoop
    table: Table[Wire]
    shadows: upstreams.Shadows
    most_body: int
    draining: bool

    @property
    def conversations(self) -> "set[Conversation]": ...

    def ask_for(self, service: Service[Wire]) -> None: ...

    def count_unread(self, status: int) -> None: ...

    def log(self, entry: Entry) -> None: ...

    def report(self, error: BaseException) -> None: ...


class Conversation:
    """A client's connection and the handling of its requests.

    Attributes:
        deadline: Time at which the current wait is given up, by the loop's clock.
        busy: A request is being answered.
    """

    def __init__(self, door: Gateway, wire: Wire, *, remote: str | None = None, falls_back: bool = False) -> None:
        self._door = door
        self._loop = door.loop
        self.wire = wire
        self.deadline = self._loop.time() + HEAD_S
        self.busy = False
        self._late = False
        self._begun = False  # part of the response has been written
        self._counted = False  # counted as a request of its service; unauthorized requests neither wake nor scale it
        self._lingers = False
        peer = wire.transport.get_extra_info("peername")
        self._remote = remote if remote is not None else peer[0] if isinstance(peer, tuple) else ""
        self._falls_back = falls_back
        wire.on_end = self._client_ended
        self.task = self._loop.create_task(self._converse())

    def expire(self) -> None:
        """Give up the current wait after its deadline."""
        self.deadline = _NEVER
        if self.busy:
            self._late = True
            self.task.cancel()
            return
        if self.wire.buffer and not self._lingers:
            late = Refused(408, "the request did not come in time")
            self.wire.write(heads.refusal(late, request_id=b"-", keep_alive=False))
        self.wire.close()

    def end_idle(self) -> bool:
        """Close the connection if it is idle, and return whether it was."""
        if self.busy or self.wire.buffer:
            return False
        self.wire.close()
        return True

    async def _converse(self) -> None:
        wire = self.wire
        try:
            keep, idle_s = True, HEAD_S
            while keep and not wire.ended:
                head = await self._next_head(idle_s)
                idle_s = IDLE_S
                if head is None:
                    break
                self.busy = True
                keep = await self._answer(head)
                self.busy = False
        except (asyncio.CancelledError, Lost):
            wire.abort()
        except Exception as error:  # noqa: BLE001 (a defect in one conversation must not end the others)
            self._door.report(error)
            wire.abort()
        finally:
            wire.on_end = None
            wire.close()
            self._door.conversations.discard(self)

    async def _next_head(self, idle_s: float) -> bytes | None:
        wire = self.wire
        self.deadline = self._loop.time() + (HEAD_S if wire.buffer else idle_s)
        try:
            while wire.buffer.startswith(b"\r\n"):
                wire.take(2)
            if not wire.buffer:
                if not await wire.more():
                    return None
                self.deadline = self._loop.time() + HEAD_S
                while wire.buffer.startswith(b"\r\n"):
                    wire.take(2)
            return await wire.head(LONGEST_HEAD)
        except TooMuch:
            self.busy = True
            refused = Refused(431, f"the head is longer than {LONGEST_HEAD} bytes")
            self._tell_unread(refused)
            await self._linger()
            return None

    def _tell_unread(self, refused: Refused) -> None:
        """Respond to input that could not be read as a request."""
        entry = Entry(time.time(), request_id="-", remote=self._remote, status=refused.status, error=refused.text)
        self.wire.write(heads.refusal(refused, request_id=b"-", keep_alive=False))
        self._door.count_unread(refused.status)
        self._door.log(entry)

    async def _answer(self, head: bytes) -> bool:
        """Answer one request and return whether the connection can be used for another."""
        try:
            request = read_request(head)
        except Refused as refused:
            self._tell_unread(refused)
            await self._linger()
            return False
        if self._falls_back:
            request = heads.as_it_came(request)
        request_id = heads.request_id_of(request)
        entry = Entry(
            time.time(), request_id.decode(), self._remote, request.method.decode(), request.path.decode()
        )  # fmt: skip
        start = self._loop.time()
        keep_alive = request.keep_alive and not self._door.draining
        self._begun = self._counted = False
        service: Service[Wire] | None = None
        body = Body(self.wire, request.length)
        try:
            found = self._door.table.find(request)
            if found is None:
                self._door_itself(request, entry, request_id, keep_alive)
            else:
                service, path = found
                entry.service = service.name
                if not await self._pass_on(request, service, path, body, entry, request_id, start):
                    keep_alive = False
        except Refused as refused:
            keep_alive = self._refuse(refused, request, body, entry, request_id, keep_alive)
        except asyncio.CancelledError:
            if not self._late:
                why = "the client went away" if self.wire.ended else "the gateway ended"
                entry.status, entry.error = entry.status or _GONE, why
                raise
            self._late = False
            self.task.uncancel()
            keep_alive = self._refuse(self._too_late(entry, service, body), request, body, entry, request_id, False)
        except Lost:
            entry.status, entry.error = entry.status or _GONE, "the client went away"
            raise
        finally:
            entry.seconds = self._loop.time() - start
            entry.bytes_in = body.read
            if service is not None:
                service.tally.codes[entry.revision, entry.status] += 1
                if self._counted:
                    service.tally.in_flight -= 1
            else:
                self._door.count_unread(entry.status)
            self._door.log(entry)
        if not keep_alive or not body.done or self._door.draining:
            await self._linger()
            return False
        return True

    def _refuse(
        self, refused: Refused, request: Request, body: Body, entry: Entry, request_id: bytes, keep_alive: bool
    ) -> bool:
        """Send an error response, or abort a response that has begun. Return whether the connection can be kept."""
        entry.error = refused.text
        if self._begun:
            self.wire.abort()  # the only way to signal an incomplete response
            return False
        entry.status = refused.status
        keep_alive = keep_alive and body.done
        bodiless = request.method == b"HEAD"
        self.wire.write(heads.refusal(refused, request_id=request_id, keep_alive=keep_alive, bodiless=bodiless))
        return keep_alive

    def _door_itself(self, request: Request, entry: Entry, request_id: bytes, keep_alive: bool) -> None:
        if request.path != b"/-/healthz":
            raise Refused(404, "nothing is served under this host and path")
        entry.status = 200
        keep_alive = keep_alive and request.length == 0
        self.wire.write(
            heads.plain(
                200, b'{"status":"ok"}\n', request_id=request_id, keep_alive=keep_alive,
                bodiless=request.method == b"HEAD",
            )
        )  # fmt: skip

    def _too_late(self, entry: Entry, service: Service[Wire] | None, body: Body) -> Refused:
        assert service is not None
        after = f"within {service.route.timeout_s:g} s"
        if self._begun:
            return Refused(504, f"no more of the answer came from replica {entry.replica} or got to the client {after}")
        if not body.done and not entry.replica:
            return Refused(408, f"the body did not come {after}")
        if entry.replica:
            return Refused(504, f"replica {entry.replica} of {service.name} did not answer {after}")
        if service.has_replicas():
            return Refused(503, f"{service.name}: no replica had room {after}", retry_after_s=1)
        return Refused(503, f"{service.name}: no replica became ready {after}", retry_after_s=1)

    async def _pass_on(
        self, request: Request, service: Service[Wire], path: bytes, body: Body, entry: Entry, request_id: bytes,
        start: float,
    ) -> bool:  # fmt: skip
        """Forward a request to a replica and relay its response. Return whether the client's connection can be kept.

        Raises:
            Refused: The request is to be answered with this error.
            Lost: The client has disconnected.
        """
        route = service.route
        self.deadline = start + route.timeout_s
        use: TeamUse | None = None
        if route.keys is not None:
            entry.team = team_of(request, route.keys)
            use = service.use_of(entry.team)
            use.begin(entry.team, route, start)
        is_metered = use is not None and route.tokens_per_minute is not None
        if request.length > self._door.most_body:
            raise Refused(413, f"the body has {request.length} bytes; at most {self._door.most_body} are taken")
        expect = request.single.get(b"expect", b"").lower()
        if expect and expect != b"100-continue":
            raise Refused(417, "only `Expect: 100-continue` is known")
        if is_metered and request.upgrade:
            raise Refused(400, "tokens are counted here, which a WebSocket does not show: ask without `Upgrade`")
        service.arrive(entry.began)
        self._counted = True
        service.shed()
        kept = await self._small_body(request, service, body, expects=expect != b"" and request.minor == 1)
        prompt = None if kept is None or service.affinity is None else read_prompt(path, kept)
        tries = 0
        begun = 0
        copied = False
        while True:
            given = await self._place(service, entry, prompt)
            tries += 1
            entry.tries, entry.revision, entry.replica = tries, given.revision.name, given.replica.backend.id
            if kept is not None and tries == 1 and service.copies(given):
                copied = self._door.shadows.send(service, request, path, kept, request_id, self._remote)
            sent_at = self._loop.time()
            upstream: Wire | None = None
            upload: asyncio.Task[None] | None = None
            reusable = False
            failed = True
            counted = abandoned = False
            response: Response | None = None
            usage: TokenUsage | None = None
            texts = service.texts
            text = None if texts is None else texts.begin(entry.revision, entry.replica, time.time())
            try:
                try:
                    upstream = await upstreams.connect(given.replica)
                except OSError as error:
                    given.replica.refused(self._loop.time())
                    entry.error = f"replica {entry.replica} takes no connection: {error}"
                    continue  # to the next replica, after the `finally`
                head = heads.forwarded(
                    request,
                    path=path,
                    prefix=service.prefix if path is not request.path else b"",
                    remote=self._remote.encode(),
                    request_id=request_id,
                    keyed=use is not None,
                    metered=is_metered or text is not None,
                    backend=b"%b:%d" % (given.replica.backend.host.encode(), given.replica.backend.port),
                )
                upstream.mark()
                if kept is not None:
                    upstream.write(b"%b%b%b" % (head, heads.framing(request), kept))
                else:
                    if expect and request.minor == 1:
                        self.wire.write(heads.CONTINUE)
                    upstream.write(head + heads.framing(request))
                    upload = self._loop.create_task(self._upload(body, upstream))
                response = await self._response(upstream, request)
                if response is None:
                    if upload is not None and (refused := _refusal_of(upload)) is not None:
                        counted = True  # counted as the client's fault
                        raise refused
                    unseen = upstream.unseen() and body.read == (len(kept) if kept is not None else 0)
                    entry.error = f"replica {entry.replica} ended the connection without an answer"
                    begun += not unseen
                    if not unseen:
                        given.replica.broke_off(self._loop.time())
                    if unseen or (route.idempotent and kept is not None and begun < MOST_TRIES):
                        service.tally.retries += 1
                        counted = unseen
                        continue
                    raise Refused(502, f"{entry.error}; it may have begun the request")
                given.replica.answered()
                entry.error = ""
                entry.status = response.status
                failed = response.status >= 500
                if response.status == 101:
                    await self._tunnel(upstream, request, response, request_id, entry)
                    return False
                usage = TokenUsage(response) if is_metered or text is not None else None
                keep = await self._relay(
                    upstream, request, response, body.done, request_id, entry, route.timeout_s, usage, text
                )
                reusable = response.keep_alive and not upstream.buffer
                return keep
            except Malformed as error:
                raise Refused(502, f"replica {entry.replica}: {error}") from error
            except asyncio.CancelledError:
                abandoned = not self._late  # the client left: shows nothing about the revision but that it was slow
                raise
            finally:
                if usage is not None and use is not None and is_metered:
                    use.tokens.add(usage.total(body.read), self._loop.time())
                if text is not None and texts is not None:
                    _note_tokens(texts, text, None if failed else usage, body.read)
                if upload is not None:
                    reusable = reusable and upload.done()
                    upload.cancel()
                    upload.add_done_callback(_forget)
                if upstream is not None:
                    if not counted:
                        now = self._loop.time()
                        service.count(
                            given, failed=failed, duration_s=now - sent_at, response=response, now=now,
                            epoch=time.time(), abandoned=abandoned, copied=copied,
                        )  # fmt: skip
                    upstreams.give_back(given.replica, upstream, reusable=reusable)
                service.release(given, self._loop.time())

    async def _small_body(self, request: Request, service: Service[Wire], body: Body, *, expects: bool) -> bytes | None:
        """Read the whole body if it is short; return None for one that is streamed."""
        if request.length == 0:
            return b""
        keeps = (
            service.route.idempotent
            or service.affinity is not None
            or any(revision.shadow for revision in service.revisions)
        )
        if request.length == CHUNKED or request.length > (KEPT_BODY if keeps else SMALL_BODY):
            return None
        if expects and not self.wire.buffer:
            self.wire.write(heads.CONTINUE)
        pieces = []
        while piece := await body.piece():
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _place(self, service: Service[Wire], entry: Entry, prompt: Prompt | None) -> Given[Wire]:
        """Reserve a slot at a replica, waiting until one is free. Only the first waiter wakes a sleeping service."""
        entry.replica = entry.revision = ""
        now = self._loop.time()
        if not service.waiting and (given := service.take(now, prompt)) is not None:
            return given
        waiter: asyncio.Future[Given[Wire]] = self._loop.create_future()
        self._door.ask_for(service)
        service.join_queue(waiter, prompt)
        try:
            return await waiter
        except BaseException:
            service.leave_queue(waiter, self._loop.time())
            raise
        finally:
            waited_s = self._loop.time() - now
            entry.queue_s += waited_s
            service.tally.queue.add(waited_s * 1e3)

    async def _upload(self, body: Body, upstream: Wire) -> None:
        """Stream a body to the replica.

        Raises:
            Refused: The body is malformed or too large; the connection to the replica is aborted.
        """
        as_chunks = body.length == CHUNKED
        try:
            while piece := await body.piece():
                if body.read > self._door.most_body:
                    raise Refused(413, f"the body has more than {self._door.most_body} bytes")
                self._progress()
                upstream.write(chunk(piece) if as_chunks else piece)
                await upstream.drained()
            if as_chunks:
                upstream.write(chunk(b""))
        except Malformed as error:
            upstream.abort()
            raise Refused(400, str(error)) from error
        except Refused:
            upstream.abort()
            raise
        except Lost:
            return  # the reading side handles a connection lost at either end

    async def _response(self, upstream: Wire, request: Request) -> Response | None:
        """Return the head of the final response; None if the replica closes the connection before it."""
        while True:
            try:
                head = await upstream.head(LONGEST_RESPONSE_HEAD)
            except TooMuch:
                raise Malformed(f"the head of its answer is longer than {LONGEST_RESPONSE_HEAD} bytes") from None
            if head is None:
                if upstream.buffer:
                    raise Malformed("its answer ends within the head")
                return None
            response = read_response(head, method=request.method)
            if response.status >= 200:
                return response
            if response.status == 101:
                if request.upgrade != b"websocket":
                    raise Malformed("it switches the protocol without a request to do so")
                return response

    async def _relay(
        self, upstream: Wire, request: Request, response: Response, whole: bool, request_id: bytes, entry: Entry,
        timeout_s: float, usage: TokenUsage | None, text: TextRow | None,
    ) -> bool:  # fmt: skip
        """Relay the response as it arrives and return whether the client's connection can be kept.

        `whole` is true if the request has been read to its end.
        """
        wire = self.wire
        open_ended = response.length in (CHUNKED, UNTIL_CLOSE)
        as_chunks = open_ended and request.minor == 1
        keep_alive = request.keep_alive and whole and not self._door.draining and (as_chunks or not open_ended)
        head = heads.answered(
            request, response, request_id=request_id, keep_alive=keep_alive, as_chunks=as_chunks
        )  # fmt: skip
        body = Body(upstream, response.length)
        self._begun = True
        try:
            piece = body.at_hand() if not body.done else b""
            entry.bytes_out = len(piece)
            if usage is not None:
                _add_piece(usage, piece, text)
            first = chunk(piece) if as_chunks and piece else piece
            wire.write(head + first)
            while not body.done:
                await wire.drained()
                piece = await body.piece()
                if piece:
                    entry.bytes_out += len(piece)
                    if usage is not None:
                        _add_piece(usage, piece, text)
                    self.deadline = self._loop.time() + timeout_s
                    wire.write(chunk(piece) if as_chunks else piece)
        except Lost:
            if wire.lost:
                raise
            raise Malformed("its answer ends before its length") from None
        if as_chunks:
            wire.write(chunk(b""))
        await wire.drained()
        return keep_alive

    async def _tunnel(
        self, upstream: Wire, request: Request, response: Response, request_id: bytes, entry: Entry
    ) -> None:
        """Copy bytes in both directions until either side ends."""
        self._begun = True
        self.deadline = _NEVER
        self.wire.write(heads.answered(request, response, request_id=request_id, keep_alive=True, as_chunks=False))
        up = self._loop.create_task(_pump(self.wire, upstream))
        try:
            entry.bytes_out = await _pump(upstream, self.wire)
        finally:
            up.cancel()

    async def _linger(self) -> None:
        """Send EOF, then discard input for a while, so that a client that is still sending can read the response."""
        wire = self.wire
        if wire.ended or wire.transport.is_closing():
            return
        wire.on_end = None
        self.busy = False
        self._lingers = True
        self.deadline = self._loop.time() + _LINGER_S
        wire.buffer.clear()
        try:
            wire.transport.write_eof()
        except OSError:
            return  # the client has reset the connection; the transport reports that next
        dropped = 0
        while dropped < _LINGER_BYTES and await wire.more():
            dropped += len(wire.take(1 << 30))
        wire.buffer.clear()

    def _progress(self) -> None:
        self.deadline = max(self.deadline, self._loop.time() + HEAD_S)

    def _client_ended(self) -> None:
        if self.busy:
            self.task.cancel()


def _refusal_of(upload: "asyncio.Task[None]") -> Refused | None:
    """Return the client's error that ended an upload, if there is one; raise any other."""
    if not upload.done() or upload.cancelled():
        return None
    error = upload.exception()
    if error is not None and not isinstance(error, Refused):
        raise error
    return error


def _add_piece(usage: TokenUsage, piece: bytes, text: TextRow | None) -> None:
    usage.add(piece)
    if text is not None and text.first is None and usage.has_begun:
        text.first = time.time()


def _note_tokens(texts: TextRequests, text: TextRow, usage: TokenUsage | None, bytes_in: int) -> None:
    """Record a request's tokens; drop a request that failed."""
    if usage is None:
        texts.drop(text)
    else:
        prompt, output = usage.parts(bytes_in)
        texts.end(text, prompt=prompt, output=output, epoch=time.time())


def _forget(upload: "asyncio.Task[None]") -> None:
    """Retrieve the exception of an abandoned upload, so that asyncio does not log it."""
    if not upload.cancelled():
        upload.exception()


async def _pump(source: Wire, sink: Wire) -> int:
    passed = 0
    try:
        while source.buffer or await source.more():
            piece = source.take(1 << 20)
            passed += len(piece)
            sink.write(piece)
            await sink.drained()
    except Lost:
        return passed
    return passed
