"""Admits the peers of a run's port by their token, before anything else that they send is read.

A peer begins with the token of the port, the length of its hello and the hello, at most ``MOST_HELLO`` bytes. It has
``HELLO_WITHIN_S`` seconds for all of it. Peers are heard at the same time, so that a silent or slow one holds up
nobody, and at most ``MOST_WAITING`` of them, of which the one that came first makes room for the next. Standard library
only, Python 3.9 or newer; no thread of its own.

See decision 160.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import selectors
import socket
import struct
import time

from fairlead.runtime.run_key import TOKEN_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HELLO_WITHIN_S = 5.0
MOST_HELLO = 1024
MOST_WAITING = 128
_LENGTH = struct.Struct(">H")
_HEAD = TOKEN_BYTES + _LENGTH.size


def greet(connection: socket.socket, token: bytes, hello: bytes = b"") -> None:
    """Send what a peer begins with.

    Raises:
        OSError: The other side is gone.
    """
    assert len(token) == TOKEN_BYTES
    assert len(hello) <= MOST_HELLO
    connection.sendall(token + _LENGTH.pack(len(hello)) + hello)


class PeerAdmission:
    """The door of a listener. Its events are those of the selector that have it as their data.

    Args:
        listener: A listening socket; it becomes non-blocking.
        token: The token that a peer must send.
        selector: The selector of the thread that serves the listener.
    """

    def __init__(self, listener: socket.socket, token: bytes, selector: selectors.BaseSelector) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._token = token
        self._selector = selector
        self._waiting: dict[socket.socket, tuple[float, bytearray]] = {}  # until when, and what it has sent
        selector.register(listener, selectors.EVENT_READ, self)

    @property
    def timeout_s(self) -> float | None:
        """Return the seconds until a peer is late; None if nobody is being heard."""
        until = min((until for until, _ in self._waiting.values()), default=None)
        return None if until is None else max(0.0, until - time.monotonic())

    def handle(self, key: selectors.SelectorKey) -> tuple[socket.socket, bytes] | None:
        """Handle an event; return a peer that is admitted by it, a blocking socket, with its hello."""
        if key.fileobj is self._listener:
            self._accept()
            return None
        peer: Any = key.fileobj
        return self._hear(peer) if peer in self._waiting else None

    def expire(self) -> None:
        """Close the peers that are late; to be called after each wait for events."""
        now = time.monotonic()
        for peer in [peer for peer, (until, _) in self._waiting.items() if until <= now]:
            self._refuse(peer)

    def close(self) -> None:
        """Hear no further peers; the listener stays open."""
        for peer in list(self._waiting):
            self._refuse(peer)
        self._selector.unregister(self._listener)

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError as error:  # usually the other side was faster to leave
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room(len(self._waiting) // 2)
            return
        self._make_room(MOST_WAITING - 1)
        peer.setblocking(False)
        self._waiting[peer] = (time.monotonic() + HELLO_WITHIN_S, bytearray())
        self._selector.register(peer, selectors.EVENT_READ, self)

    def _make_room(self, most: int) -> None:
        # A rank sends its token at once, so the one that has waited longest is none.
        while len(self._waiting) > most:
            self._refuse(next(iter(self._waiting)))

    def _hear(self, peer: socket.socket) -> tuple[socket.socket, bytes] | None:
        _, received = self._waiting[peer]
        while True:
            # Never more than the hello: what follows is of the port's own protocol.
            wanted = TOKEN_BYTES
            if len(received) >= TOKEN_BYTES:
                if not hmac.compare_digest(bytes(received[:TOKEN_BYTES]), self._token):
                    self._refuse(peer)
                    return None
                wanted = _HEAD
            if len(received) >= _HEAD:
                (size,) = _LENGTH.unpack_from(received, TOKEN_BYTES)
                wanted += size
                if size > MOST_HELLO:
                    self._refuse(peer)
                    return None
                if len(received) == wanted:
                    return self._admit(peer), bytes(received[_HEAD:])
            try:
                data = peer.recv(wanted - len(received))
            except BlockingIOError:
                return None
            except OSError:
                data = b""
            if not data:
                self._refuse(peer)
                return None
            received += data

    def _admit(self, peer: socket.socket) -> socket.socket:
        self._selector.unregister(peer)
        del self._waiting[peer]
        peer.setblocking(True)
        return peer

    def _refuse(self, peer: socket.socket) -> None:
        self._selector.unregister(peer)
        del self._waiting[peer]
        with contextlib.suppress(OSError):
            peer.close()
