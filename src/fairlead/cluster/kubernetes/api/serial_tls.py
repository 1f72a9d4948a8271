"""A TLS socket that one thread reads and another writes, whose reads and writes take turns.

OpenSSL's connections may be used by one thread at a time. While a read processes a session ticket, which a server of
TLS 1.3 sends after the handshake, what another thread writes may be lost, so that both sides wait, or either fails.
"""

import select
import socket
import ssl
import threading
import time
from typing import Any

# How long a read waits before it looks whether another thread has closed the socket, which does not wake it.
LOOK_S = 0.5


class SerialTlsSocket:
    """Wraps a connected TLS socket; methods that are not here are those of the socket."""

    def __init__(self, wrapped: ssl.SSLSocket) -> None:
        self._wrapped = wrapped
        self._lock = threading.Lock()
        self._timeout_s: float | None = None
        wrapped.setblocking(False)

    def __enter__(self) -> "SerialTlsSocket":
        return self

    def __exit__(self, *_: object) -> None:
        self._wrapped.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def settimeout(self, timeout_s: float | None) -> None:
        """Set how long a ``sendall`` may take; None for as long as it takes."""
        self._timeout_s = timeout_s

    def recv(self, size: int) -> bytes:
        """Return what has arrived, at most ``size`` bytes; wait for it if there is nothing."""
        while True:
            with self._lock:
                try:
                    return self._wrapped.recv(size)
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                    pass
            self._wait(select.POLLIN, LOOK_S)

    def sendall(self, data: bytes) -> None:
        """Send all bytes.

        Raises:
            TimeoutError: It took longer than the timeout.
        """
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        rest = memoryview(data)
        while rest:
            with self._lock:
                try:
                    rest = rest[self._wrapped.send(rest) :]
                    continue
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                    pass
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError("timed out")
            self._wait(select.POLLOUT, LOOK_S)

    def shutdown(self, how: int) -> None:
        """Shut down one or both directions."""
        with self._lock:
            self._wrapped.shutdown(how)

    def _wait(self, event: int, timeout_s: float) -> None:
        number = self._wrapped.fileno()
        if number < 0:
            raise OSError("the socket was closed")
        poller = select.poll()
        poller.register(number, event)
        poller.poll(timeout_s * 1000)


def serial(connected: socket.socket) -> Any:
    """Return a socket that two threads may use; one without TLS is such a socket already."""
    return SerialTlsSocket(connected) if isinstance(connected, ssl.SSLSocket) else connected
