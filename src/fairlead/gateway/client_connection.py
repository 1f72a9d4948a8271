"""A client's connection: reads requests one after the other, and answers each from a replica or by itself."""

import asyncio
import time
from typing import Any, Protocol

from fairlead.gateway import forwarding, http2, http_headers
from fairlead.gateway.access_log import AccessLogEntry
from fairlead.gateway.byte_stream import ByteStream, ConnectionLost, HeadTooLong
from fairlead.gateway.client import HEAD_S, NEVER, Ends, GatewayClient
from fairlead.gateway.forwarding import Exchange, Forwarder
from fairlead.gateway.messages import LONGEST_HEAD, HttpError, read_request
from fairlead.gateway.services import ServiceTable

IDLE_S = 75.0
"""Seconds for which a connection is kept without a request."""
_LINGER_S = 2.0
_LINGER_BYTES = 4 * 1024 * 1024
_CLIENT_CLOSED = 499


class Gateway(Forwarder, Protocol):
    """The part of the gateway that a connection uses; `gateway_server.py` documents each member."""

    table: ServiceTable[ByteStream]
    connections: set[Any]

    def trusts(self, address: str) -> bool: ...

    def count_unrouted(self, status: int) -> None: ...

    def log(self, entry: AccessLogEntry) -> None: ...

    def report(self, error: BaseException) -> None: ...


class ClientConnection:
    """A client's connection and the task that answers its requests.

    Args:
        falls_back: It comes from haproxy, which found no replica for its requests and has rewritten them.

    Attributes:
        busy: A request is being answered.
    """

    def __init__(self, gateway: Gateway, stream: ByteStream, ends: Ends, *, falls_back: bool = False) -> None:
        self._gateway = gateway
        self._loop = gateway.loop
        self.stream = stream
        address = "" if ends[0] is None else ends[0][0]
        is_trusted = falls_back or gateway.trusts(address)  # haproxy has judged what falls back
        self.client = GatewayClient(stream, self._loop, ends, is_trusted=is_trusted)
        self.busy = False
        self._is_revoked = False  # its key is not valid any more
        self._lingers = False
        self._falls_back = falls_back
        stream.on_end = self._client_ended
        self.task = self._loop.create_task(self._serve())

    def expire(self) -> None:
        """Give up the current wait, which is overdue."""
        client = self.client
        client.is_slow = client.slow_at < NEVER
        client.deadline = client.slow_at = NEVER
        if self.busy:
            client.is_late = True
            self.task.cancel()
            return
        if self.stream.buffer and not self._lingers:
            late = HttpError(408, "the request did not come in time")
            self.stream.write(http_headers.error_response(late, request_id=b"-", keep_alive=False))
        self.stream.close()

    def end_idle(self) -> bool:
        """Close the connection if it is idle, and return whether it was."""
        if self.busy or self.stream.buffer:
            return False
        if self.stream.unsent:
            self.stream.abort()  # it does not read its answers, and would take a descriptor for longer
        else:
            self.stream.close()
        return True

    def check_key(self) -> None:
        """End a WebSocket, or an answer without a length, whose key is not valid any more."""
        if not self.client.has_valid_key():
            self._is_revoked = True
            self.task.cancel()

    async def _serve(self) -> None:
        stream = self.stream
        try:
            keep_alive, idle_s = True, HEAD_S
            while keep_alive and not stream.ended:
                head = await self._next_head(idle_s)
                idle_s = IDLE_S
                if head is None:
                    break
                self.busy = True
                keep_alive = await self._answer(head)
                if keep_alive:
                    self.client.wait(IDLE_S)
                    await stream.drained()
                    if stream.buffer:
                        await asyncio.sleep(0)  # others have their turn between two requests that came at once
                self.busy = False
        except (asyncio.CancelledError, ConnectionLost):
            stream.abort()
        except Exception as error:  # noqa: BLE001 (a defect in one connection must not end the others)
            self._gateway.report(error)
            stream.abort()
        finally:
            stream.on_end = None
            stream.close()
            self._gateway.connections.discard(self)

    async def _next_head(self, idle_s: float) -> bytes | None:
        """Return the next request's head; None if none comes."""
        stream = self.stream
        self.client.wait(HEAD_S if stream.buffer else idle_s)
        try:
            while stream.buffer.startswith(b"\r\n"):
                stream.take(2)
            if not stream.buffer:
                if not await stream.more():
                    return None
                self.client.wait(HEAD_S)
                while stream.buffer.startswith(b"\r\n"):
                    stream.take(2)
            return await stream.head(LONGEST_HEAD)
        except HeadTooLong:
            self.busy = True
            self._refuse_unreadable(HttpError(431, f"the head is longer than {LONGEST_HEAD} bytes"))
            await self._linger()
            return None

    def _refuse_unreadable(self, error: HttpError) -> None:
        """Respond to input that could not be read as a request."""
        self.stream.write(http_headers.error_response(error, request_id=b"-", keep_alive=False))
        self._log_unreadable(error)

    def _log_unreadable(self, error: HttpError) -> None:
        self._gateway.count_unrouted(error.status)
        self._gateway.log(
            AccessLogEntry(
                time.time(), request_id="-", remote=self.client.address, status=error.status, error=error.text
            )
        )

    async def _answer(self, head: bytes) -> bool:
        """Answer one request and return whether the connection can be used for another."""
        try:
            request = read_request(head)
        except HttpError as error:
            if head == http2.PREFACE:
                self.busy = False
                await http2.refuse(self.stream)
                self._log_unreadable(HttpError(505, "HTTP/2 is not served here"))
            else:
                self._refuse_unreadable(error)
            await self._linger()
            return False
        if self._falls_back:
            request = http_headers.undo_proxy(request)
        gateway = self._gateway
        exchange = Exchange(gateway, self.client, request)
        entry = exchange.entry
        try:
            if gateway.guard is not None:
                gateway.guard.check_host(request, gateway.table.hosts)
            match = gateway.table.find(request)
            if match is None:
                self._answer_unrouted(exchange)
            else:
                exchange.service, path = match
                entry.service = exchange.service.name
                if not await exchange.forward(exchange.service, path):
                    exchange.keep_alive = False
        except HttpError as error:
            self._refuse(error, exchange)
        except asyncio.CancelledError:
            if not self.client.is_late:
                why = "the client went away" if self.stream.ended else "the gateway ended"
                if self._is_revoked:
                    why = "its key is not valid any more"
                entry.status, entry.error = entry.status or _CLIENT_CLOSED, why
                raise
            self.client.is_late = False
            self.task.uncancel()
            exchange.keep_alive = False
            self._refuse(self._timeout_error(exchange), exchange)
        except ConnectionLost:
            entry.status, entry.error = entry.status or _CLIENT_CLOSED, "the client went away"
            raise
        finally:
            self._account(exchange)
        if not exchange.keep_alive or not exchange.body.done or gateway.draining:
            await self._linger()
            return False
        return True

    def _account(self, exchange: Exchange) -> None:
        """Count and log a request that has ended."""
        entry, service = exchange.entry, exchange.service
        entry.seconds = self._loop.time() - exchange.started
        entry.bytes_in = exchange.body.read
        if service is not None:
            service.metrics.codes[entry.revision, entry.status] += 1
            if exchange.is_counted:
                service.metrics.in_flight -= 1
        else:
            self._gateway.count_unrouted(entry.status)
        self._gateway.log(entry)

    def _refuse(self, error: HttpError, exchange: Exchange) -> None:
        """Send an error response, or abort a response that has begun."""
        exchange.entry.error = error.text
        if exchange.has_begun:
            self.stream.abort()  # the only way to signal an incomplete response
            exchange.keep_alive = False
            return
        exchange.entry.status = error.status
        exchange.keep_alive = exchange.keep_alive and exchange.body.done
        self.stream.write(
            http_headers.error_response(
                error,
                request_id=exchange.request_id,
                keep_alive=exchange.keep_alive,
                bodiless=exchange.request.method == b"HEAD",
                cors=exchange.cors_fields,
            )
        )

    def _answer_unrouted(self, exchange: Exchange) -> None:
        """Answer a request of no service: the gateway's own health.

        Raises:
            HttpError: 404 for all else.
        """
        request = exchange.request
        if request.path != b"/-/healthz":
            raise HttpError(404, "nothing is served under this host and path")
        exchange.entry.status = 200
        self.stream.write(
            http_headers.short_response(
                200, b'{"status":"ok"}\n', request_id=exchange.request_id,
                keep_alive=exchange.keep_alive and request.length == 0, bodiless=request.method == b"HEAD",
            )
        )  # fmt: skip

    def _timeout_error(self, exchange: Exchange) -> HttpError:
        """Return the error of a request whose wait was given up; its status and text say who was waited for."""
        service, entry, has_begun = exchange.service, exchange.entry, exchange.has_begun
        assert service is not None, "only requests of a service wait"
        within = f"within {service.route.timeout_s:g} s"
        if self.client.is_slow:
            return HttpError(408, "the client took the answer too slowly" if has_begun else "the body came too slowly")
        if has_begun and entry.status == 101:
            return HttpError(408, f"nothing was sent for {forwarding.TUNNEL_IDLE_S:g} s")
        if has_begun:
            text = f"no more of the answer came from replica {entry.replica} or got to the client {within}"
            return HttpError(504, text)
        if not exchange.body.done and not entry.replica:
            return HttpError(408, f"the body did not come {within}")
        if entry.replica:
            return HttpError(504, f"replica {entry.replica} of {service.name} did not answer {within}")
        if service.has_replicas():
            return HttpError(503, f"{service.name}: no replica had room {within}", retry_after_s=1)
        return HttpError(503, f"{service.name}: no replica became ready {within}", retry_after_s=1)

    async def _linger(self) -> None:
        """Send EOF, then discard input for a while, so that a client that is still sending can read the response."""
        stream = self.stream
        if stream.ended or stream.transport.is_closing():
            return
        stream.on_end = None
        self.busy = False
        self._lingers = True
        self.client.wait(_LINGER_S)
        stream.buffer.clear()
        try:
            stream.transport.write_eof()
        except OSError:
            return  # the client has reset the connection; the transport reports that next
        dropped = 0
        while dropped < _LINGER_BYTES and await stream.more():
            dropped += len(stream.take(1 << 30))
        stream.buffer.clear()

    def _client_ended(self) -> None:
        if self.busy:
            self.task.cancel()


def ends_of(stream: ByteStream) -> Ends:
    """Return both ends of a client's connection."""
    peer, own = stream.transport.get_extra_info("peername"), stream.transport.get_extra_info("sockname")
    if not isinstance(peer, tuple) or not isinstance(own, tuple):
        return None, None
    return (peer[0], peer[1]), (own[0], own[1])
