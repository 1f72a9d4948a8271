"""One TCP connection that coroutines read and write, with bounded buffers on both sides."""

import asyncio
import socket
import struct
from collections.abc import Callable

BUFFERED = 64 * 1024
"""Bytes that may wait unread; beyond them the other side is not read from until half of it is taken."""
_BYTES_ACKED = 120
"""Where struct tcp_info of Linux (include/uapi/linux/tcp.h) has tcpi_bytes_acked, 64 bits."""
_TCP_CLOSE = 7
"""Its first byte, tcpi_state, once a reset has ended the connection."""


class TooMuch(Exception):
    """A head is longer than its limit."""


class Lost(Exception):
    """The connection ended before what was awaited had come."""


class Wire(asyncio.Protocol):
    """Both ends use it: a client's connection and one to a replica.

    Attributes:
        buffer: What was received and not yet taken.
        ended: Nothing more will come: the other side said so, or the connection is gone.
        lost: The connection is gone, nothing can be written.
        received: Bytes received in all.
        sent: Bytes given to the connection in all.
        on_end: Called once, when `ended` becomes true.
    """

    __slots__ = (
        "_can_write", "_held", "_loop", "_marked", "_more", "_socket", "_stopped", "_unseen", "buffer", "ended",
        "idle_since", "lost", "on_end", "received", "sent", "transport",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, raw: socket.socket | None = None) -> None:
        self._loop = loop
        self._socket = raw
        self.transport: asyncio.Transport
        self.buffer = bytearray()
        self.ended = False
        self.lost = False
        self.received = 0
        self.sent = 0
        self.idle_since = 0.0
        self.on_end: Callable[[], None] | None = None
        self._more: asyncio.Future[None] | None = None
        self._can_write: asyncio.Future[None] | None = None
        self._held = False  # no reading: the buffer is full
        self._stopped = False  # no writing: the other side does not read
        self._marked = 0
        self._unseen: bool | None = None  # once lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self.received += len(data)
        if self._more is not None:
            self._wake_reader()
        if len(self.buffer) > BUFFERED and not self._held:
            self._held = True
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self._end()
        return True  # what is still to be written can be

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._unseen = self._look_unseen()
        if self._can_write is not None and not self._can_write.done():
            self._can_write.set_result(None)
        self._end()

    def pause_writing(self) -> None:
        self._stopped = True

    def resume_writing(self) -> None:
        self._stopped = False
        if self._can_write is not None and not self._can_write.done():
            self._can_write.set_result(None)

    async def more(self) -> bool:
        """Wait until bytes come. False when none will come any more."""
        if self.ended:
            return False
        if self._held:
            self._read_on()
        before = self.received
        self._more = self._loop.create_future()
        try:
            await self._more
        finally:
            self._more = None
        return self.received > before

    async def head(self, limit: int) -> bytes | None:
        """Take bytes up to and with the next empty line. None when the other side ends before; `buffer` has what came.

        Raises:
            TooMuch: there is no empty line within `limit` bytes.
        """
        start = 0
        while True:
            end = self.buffer.find(b"\r\n\r\n", start)
            if end > limit - 4 or (end < 0 and len(self.buffer) >= limit):
                raise TooMuch
            if end >= 0:
                return self.take(end + 4)
            start = max(0, len(self.buffer) - 3)
            if not await self.more():
                return None

    def take(self, most: int) -> bytes:
        """Up to `most` bytes off the buffer, at once."""
        if most >= len(self.buffer):
            taken = bytes(self.buffer)
            self.buffer.clear()
        else:
            taken = bytes(memoryview(self.buffer)[:most])
            del self.buffer[:most]
        if self._held and len(self.buffer) < BUFFERED // 2:
            self._read_on()
        return taken

    def mark(self) -> None:
        """From here on `unseen` counts."""
        self._marked = self.sent

    def unseen(self) -> bool:
        """Return whether the other side has reset the connection before its kernel acknowledged any byte written since
        `mark`: what was written has certainly not been read. False where that cannot be known.
        """
        return self._unseen if self._unseen is not None else self._look_unseen()

    def write(self, data: bytes) -> None:
        """Queue bytes to be sent; nothing when the connection is gone."""
        if not self.lost:
            self.sent += len(data)
            self.transport.write(data)

    async def drained(self) -> None:
        """Wait until the other side has read enough for more to be written.

        Raises:
            Lost: it is gone.
        """
        while self._stopped and not self.lost:
            self._can_write = self._loop.create_future()
            try:
                await self._can_write
            finally:
                self._can_write = None
        if self.lost:
            raise Lost

    def is_open(self) -> bool:
        """Look at the socket itself: what the other side has ended may not have been told to us yet."""
        if self.ended or self.buffer or self.transport.is_closing():
            return False
        if self._socket is None:
            return True
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # an end, or bytes that nobody asked for

    def close(self) -> None:
        """Send what is queued, then close."""
        self.transport.close()

    def abort(self) -> None:
        """Close at once: what is queued is dropped."""
        self.transport.abort()

    def _look_unseen(self) -> bool:
        if self._socket is None or not hasattr(socket, "TCP_INFO"):
            return False
        try:
            told = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            return False
        if len(told) < _BYTES_ACKED + 8 or told[0] != _TCP_CLOSE:
            return False
        (acknowledged,) = struct.unpack_from("=Q", told, _BYTES_ACKED)
        return int(acknowledged) - 1 <= self._marked  # the SYN counts as a byte

    def _read_on(self) -> None:
        self._held = False
        if not self.ended:
            self.transport.resume_reading()

    def _wake_reader(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._wake_reader()
        if self.on_end is not None:
            self.on_end()
