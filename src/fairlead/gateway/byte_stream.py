"""One TCP connection that coroutines read and write, with bounded buffers on both sides."""

import asyncio
import socket
import struct
from collections.abc import Callable

BUFFERED = 64 * 1024
"""Limit of unread bytes; reading pauses above it until half of them are taken."""
CLOSE_S = 5.0
"""Seconds after which a closed connection is aborted whose peer does not read what is still queued for it."""
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""A peer that lost power is noticed within two minutes."""
_BYTES_ACKED = 120
"""Offset of tcpi_bytes_acked, 64 bits, in struct tcp_info of Linux (include/uapi/linux/tcp.h)."""
_TCP_CLOSE = 7
"""Value of the first byte, tcpi_state, after a reset has ended the connection."""


class HeadTooLong(Exception):
    """A head is longer than its limit."""


class ConnectionLost(Exception):
    """The connection ended before the awaited bytes arrived."""


class ByteStream(asyncio.Protocol):
    """A TCP connection, to a client or to a replica.

    Attributes:
        buffer: Received bytes that have not been taken.
        ended: No more bytes will arrive: the peer sent EOF, or the connection is lost.
        lost: The connection is gone; nothing can be written.
        received: Total bytes received.
        sent: Total bytes written.
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
        self._held = False  # reading is paused: the buffer is full
        self._stopped = False  # writing is paused: the peer does not read
        self._marked = 0
        self._unseen: bool | None = None  # set once the connection is lost

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
        return True  # keep the transport open for pending writes

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

    @property
    def is_full(self) -> bool:
        """Return whether `drained` would wait."""
        return self._stopped or self.lost

    @property
    def unsent(self) -> int:
        """Return the bytes that are queued in this process."""
        return self.transport.get_write_buffer_size()

    def keep_alive(self) -> None:
        """Have the kernel probe a silent peer."""
        raw = self.transport.get_extra_info("socket")
        if raw is None or raw.family not in (socket.AF_INET, socket.AF_INET6):
            return
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):  # some systems have fewer
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    async def more(self) -> bool:
        """Wait until bytes arrive. Return False if no more will."""
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
        """Take bytes up to and including the next empty line; None if the peer ends before, with the rest in `buffer`.

        Raises:
            HeadTooLong: There is no empty line within `limit` bytes.
        """
        start = 0
        while True:
            end = self.buffer.find(b"\r\n\r\n", start)
            if end > limit - 4 or (end < 0 and len(self.buffer) >= limit):
                raise HeadTooLong
            if end >= 0:
                return self.take(end + 4)
            start = max(0, len(self.buffer) - 3)
            if not await self.more():
                return None

    def take(self, most: int) -> bytes:
        """Take up to `most` bytes from the buffer without waiting."""
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
        """Set the reference point of `unseen`."""
        self._marked = self.sent

    def unseen(self) -> bool:
        """Return whether the peer reset the connection before its kernel acknowledged any byte written since `mark`.

        In that case the peer has certainly not read what was written. False where this cannot be known.
        """
        return self._unseen if self._unseen is not None else self._look_unseen()

    def write(self, data: bytes) -> None:
        """Queue bytes to be sent; do nothing if the connection is lost."""
        if not self.lost:
            self.sent += len(data)
            self.transport.write(data)

    async def drained(self) -> None:
        """Wait until the peer has read enough for more to be written.

        Raises:
            ConnectionLost: The connection is lost.
        """
        while self._stopped and not self.lost:
            self._can_write = self._loop.create_future()
            try:
                await self._can_write
            finally:
                self._can_write = None
        if self.lost:
            raise ConnectionLost

    def is_open(self) -> bool:
        """Check the socket itself, as the event loop may not have reported yet that the peer closed it."""
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
        return False  # EOF, or unexpected bytes

    def close(self) -> None:
        """Send what is queued, then close; abort if the peer does not read it."""
        self.transport.close()
        if not self.lost and self.unsent:
            self._loop.call_later(CLOSE_S, self.transport.abort)

    def abort(self) -> None:
        """Close at once and drop what is queued."""
        self.transport.abort()

    def _look_unseen(self) -> bool:
        if self._socket is None or not hasattr(socket, "TCP_INFO"):
            return False
        try:
            tcp_info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            return False
        if len(tcp_info) < _BYTES_ACKED + 8 or tcp_info[0] != _TCP_CLOSE:
            return False
        (acknowledged,) = struct.unpack_from("=Q", tcp_info, _BYTES_ACKED)
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
