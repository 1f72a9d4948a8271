"""Connections with limits: how many, how large a body, how long a header, a body and the taking of an answer may last.

aiohttp bounds the size of headers and ends idle connections; it knows no time-out for a header that dribbles in.
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
        """Note that a whole header is there."""
        self._is_busy = True
        self._got_header()

    def end_request(self) -> None:
        """Note that the request is answered."""
        self._is_busy = False

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP. Not logged: anybody could fill a disk with it."""
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
    """Makes connections.

    Args:
        handler: Answers a request.
        read_timeout_s: For a header, for a body, and for each part of an answer to be taken.
        max_connections: Further ones are closed at once.
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
        """Return whether there are more connections than may be."""
        return len(self.connections) > self.max_connections

    def __call__(self) -> Connection:
        connection = Connection(self, loop=asyncio.get_running_loop(), **self._kwargs)
        connection.limits = self
        return connection


async def read_body(request: web.BaseRequest, *, most: int, timeout_s: float) -> bytearray:
    """Return the body of a request, decompressed.

    Raises:
        TooLarge: It has more than ``most`` bytes.
        TooSlow: It did not come in time.
        BadRequest: It is not compressed as it says, or broken off.
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
        if request.content.is_eof():  # it came with its header; a timer would cost more than reading it
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
    """Send an answer; the connection of a client that does not take it in time is closed.

    Raises:
        ConnectionError: The client is gone, or was let go.
    """
    with taking(request, timeout_s):
        await response.prepare(request)
        await response.write_eof()


@contextlib.contextmanager
def taking(request: web.BaseRequest, timeout_s: float) -> Iterator[None]:
    """Close the connection if what is within takes longer."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client is gone")
    timer = asyncio.get_running_loop().call_later(timeout_s, transport.abort)
    try:
        yield
    finally:
        timer.cancel()
