"""Connections with limits: their number, the size of a body, and the time to receive a header and a body and to send.

aiohttp limits the size of headers and closes idle connections, but has no time-out for a header that arrives slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from fairlead.runtime.serving.problems import BadRequest, TooLarge, TooSlow

KEEPALIVE_S = 75.0
LINGER_S = 2.0


class Connection(web.RequestHandler):
    """One connection of a client."""

    limits: ConnectionServer
    _header_timer: asyncio.TimerHandle | None = None
    _is_busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.limits.is_crowded():
            transport.close()
            return
        self._await_header()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_busy:
            self._await_header()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._got_header()
        super().connection_lost(exc)

    def begin_request(self) -> None:
        """Record that a complete header has arrived."""
        self._is_busy = True
        self._got_header()

    def end_request(self) -> None:
        """Record that the request is answered."""
        self._is_busy = False

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Respond to data that is not HTTP. It is not logged, because any client could fill the disk with it."""
        if status >= 500:
            self.log_exception("Error handling request from %s", request.remote, exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun; it cannot become an error")
        text = " ".join((message or "internal error").split())[:300]
        response = web.json_response(
            {"error": f"not understood as HTTP: {text}" if status < 500 else text}, status=status
        )
        response.force_close()
        return response

    def _await_header(self) -> None:
        if self._header_timer is None:
            loop = asyncio.get_running_loop()
            self._header_timer = loop.call_later(self.limits.read_timeout_s, self._header_is_late)

    def _got_header(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _header_is_late(self) -> None:
        self._header_timer = None
        if not self._is_busy:
            self.force_close()


class ConnectionServer(web.Server):
    """Creates connections.

    Args:
        handler: Answers a request.
        read_timeout_s: Seconds to receive a header, to receive a body, and to send each part of a response.
        max_connections: Most open connections; further ones are closed at once.
    """

    def __init__(self, handler: Any, *, read_timeout_s: float, max_connections: int) -> None:
        super().__init__(
            handler,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S,
        )
        self.read_timeout_s = read_timeout_s
        self.max_connections = max_connections

    def is_crowded(self) -> bool:
        """Return whether there are more connections than allowed."""
        return len(self.connections) > self.max_connections

    def __call__(self) -> Connection:
        connection = Connection(self, loop=asyncio.get_running_loop(), **self._kwargs)
        connection.limits = self
        return connection


async def read_body(request: web.BaseRequest, *, most: int, timeout_s: float) -> bytearray:
    """Return the body of a request, decompressed.

    Raises:
        TooLarge: The body has more than ``most`` bytes.
        TooSlow: The body did not arrive within ``timeout_s`` seconds.
        BadRequest: The body is not compressed as its header says, or is incomplete.
    """
    if (request.content_length or 0) > most:
        raise TooLarge(f"the body has {request.content_length} bytes; at most {most} are allowed")
    if not request.body_exists:
        return bytearray()
    expected = request.headers.get("Expect", "").lower()
    if expected == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    try:
        if request.content.is_eof():  # the body arrived with its header; a timer would cost more than reading it
            body = bytearray(request.content.read_nowait())
        else:
            body = await asyncio.wait_for(_read(request, most), timeout_s)
    except TimeoutError as error:
        raise TooSlow(f"the body did not come within {timeout_s:g} s") from error
    except web.RequestPayloadError as error:
        raise BadRequest(f"the body cannot be read: {error}") from error
    if len(body) > most:
        raise TooLarge(f"the body has more than the {most} bytes that are allowed")
    return body


async def _read(request: web.BaseRequest, most: int) -> bytearray:
    body = bytearray()
    while len(body) <= most:
        chunk = await request.content.readany()
        if not chunk:
            break
        body += chunk
    return body


async def send(request: web.BaseRequest, response: web.StreamResponse, *, timeout_s: float) -> None:
    """Send a response; close the connection if the client does not read it within ``timeout_s`` seconds.

    Raises:
        ConnectionError: The client is gone, or its connection was closed.
    """
    with taking(request, timeout_s):
        await response.prepare(request)
        await response.write_eof()


@contextlib.contextmanager
def taking(request: web.BaseRequest, timeout_s: float) -> Iterator[None]:
    """Abort the connection if the block takes longer than ``timeout_s`` seconds.

    Raises:
        ConnectionResetError: The client is gone.
    """
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client is gone")
    timer = asyncio.get_running_loop().call_later(timeout_s, transport.abort)
    try:
        yield
    finally:
        timer.cancel()
