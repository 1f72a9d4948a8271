"""Many GET requests at a time over kept connections, by one thread that waits for all of their sockets.

With a thread for each request, changing threads costs more than the requests: 460 us of CPU each where this takes 100.
It does nothing but the plain case, a whole answer of the length that was asked for. Everything else, busy servers,
redirects, changed objects and lost connections, is left to the store's own ``get``, which retries and explains. See
decision 224.
"""

import contextlib
import heapq
import itertools
import selectors
import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from fairlead.runtime.data.concurrency import THREADS, RequestLimit
from fairlead.runtime.data.http_client import MOST_HEAD, TIMEOUT_S, HttpConnection, Response, read_head
from fairlead.runtime.data.manifest import Entry
from fairlead.runtime.errors import StoreUnavailable

Address = tuple[str, str, int]
"""Scheme, host and port."""
IDLE_S = 5.0
TICK_S = 1.0
OPENERS = 32
"""Connections that are being opened at a time, each by a thread, since names, proxies and TLS take round trips."""
RECEIVED = 131_072
MOST_UNUSABLE = 16
"""Answers without a usable one, after which the server is left to the store's own ``get``."""


class PooledStore(Protocol):
    """A store whose objects are read by single GET requests."""

    def address(self, entry: Entry) -> Address:
        """Return the server of an object."""
        ...

    def get_request(self, entry: Entry, start: int, stop: int, authority: str) -> tuple[str, str]:
        """Return the target and the header lines of the request for a range of an object, to be sent at once."""
        ...

    def is_usable(self, response: Response, entry: Entry, start: int, stop: int) -> bool:
        """Return whether the body that follows is the range of the object of the manifest."""
        ...


class Transfer:
    """A range of an object, which is received into memory.

    Attributes:
        done: Called once, from the pool's thread: with True after the last byte, with False if the store's own ``get``
            has to read the range.
    """

    __slots__ = ("begun", "done", "entry", "into", "start", "stop", "tries")

    def __init__(self, entry: Entry, start: int, stop: int, into: memoryview, done: Callable[[bool], None]) -> None:
        self.entry = entry
        self.start = start
        self.stop = stop
        self.into = into
        self.done = done
        self.tries = 0
        self.begun = 0.0


class _Waiting(NamedTuple):
    priority: float
    number: int
    transfer: Transfer


class _Link:
    """An open connection, with the transfer that it serves.

    Attributes:
        head: Begin of an answer whose headers are not complete yet.
        at: Bytes of the body so far; -1 before the end of the headers.
        heard: Time of the last byte, or of the request.
    """

    __slots__ = ("address", "at", "connection", "head", "heard", "priority", "socket", "transfer")

    def __init__(self, address: Address, connection: HttpConnection, opened: socket.socket) -> None:
        self.address = address
        self.connection = connection
        self.socket = opened
        self.transfer: Transfer | None = None
        self.priority = 0.0
        self.head = b""
        self.at = -1
        self.heard = 0.0


class HttpPool:
    """The requests to one store; ``submit``, ``clear`` and ``close`` are for any thread.

    The thread starts when there is work, and ends when idle.
    """

    def __init__(self, store: PooledStore, most: int = THREADS) -> None:
        self._store = store
        self._limit = RequestLimit(time.monotonic(), most)
        self._mutex = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._numbers = itertools.count()
        self._opened: list[_Link] = []
        self._failed = 0
        self._opening = 0
        self._thread: threading.Thread | None = None
        self._wake: socket.socket | None = None
        self._is_closed = False
        self._unusable = 0
        self._links: set[_Link] = set()
        self._num_active = 0
        self._idle: dict[Address, list[_Link]] = defaultdict(list)

    def submit(self, transfers: Iterable[tuple[float, Transfer]]) -> None:
        """Queue transfers with their priorities, of which lower ones are sent first."""
        with self._mutex:
            for priority, transfer in transfers:
                heapq.heappush(self._waiting, _Waiting(priority, next(self._numbers), transfer))
            if self._thread is None and not self._is_closed:
                receiver, self._wake = socket.socketpair()
                receiver.setblocking(False)
                self._wake.setblocking(False)
                self._thread = threading.Thread(
                    target=self._run, args=(receiver, self._wake), name="fairlead-http", daemon=True
                )
                self._thread.start()
            else:
                self._poke()

    def clear(self) -> None:
        """Drop the transfers that were not sent yet."""
        with self._mutex:
            self._waiting.clear()

    def close(self) -> None:
        """End the thread, and close all connections."""
        with self._mutex:
            self._is_closed = True
            self._waiting.clear()
            thread = self._thread
            self._poke()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _poke(self) -> None:
        """Wake the thread; called with the mutex."""
        if self._wake is not None:
            with contextlib.suppress(OSError):  # full of wakes already
                self._wake.send(b"\0")

    def _run(self, receiver: socket.socket, wake: socket.socket) -> None:
        last, ticked = time.monotonic(), time.monotonic()
        with selectors.DefaultSelector() as selector, receiver, wake:
            selector.register(receiver, selectors.EVENT_READ)
            while True:
                self._dispatch(selector)
                events = selector.select(TICK_S)
                now = time.monotonic()
                for key, _ in events:
                    if key.data is not None:
                        self._receive(selector, key.data, now)
                        continue
                    with contextlib.suppress(BlockingIOError):
                        receiver.recv(4096)
                if events:
                    last = now
                if now - ticked > TICK_S:
                    ticked = now
                    for link in [link for link in self._links if link.transfer and now - link.heard > TIMEOUT_S]:
                        self._drop(selector, link, is_retried=False)
                with self._mutex:
                    is_busy = bool(self._num_active or self._waiting or self._opening or self._opened)
                    if self._is_closed or (not is_busy and now - last > IDLE_S):
                        self._thread = self._wake = None
                        opened, self._opened = self._opened, []
                        break
            for link in opened:  # ready just now, and taken by nobody
                link.connection.close()
            for link in list(self._links):
                self._drop(selector, link, is_retried=False)

    def _dispatch(self, selector: selectors.BaseSelector) -> None:
        """Send requests as far as there are connections, and have further ones opened."""
        with self._mutex:
            opened, self._opened = self._opened, []
            failed, self._failed = self._failed, 0
        for link in opened:
            self._links.add(link)
            self._idle[link.address].append(link)
            selector.register(link.socket, selectors.EVENT_READ, link)
        for _ in range(failed):
            if (waiting := self._next()) is not None:
                waiting.transfer.done(False)
        while self._num_active < self._limit.value and (waiting := self._next()) is not None:
            if self._unusable >= MOST_UNUSABLE:
                waiting.transfer.done(False)
                continue
            address = self._store.address(waiting.transfer.entry)
            idle = self._idle[address]
            if not idle:
                with self._mutex:
                    heapq.heappush(self._waiting, waiting)
                    wanted = min(len(self._waiting), self._limit.value - self._num_active) - self._opening
                    wanted = min(wanted, OPENERS - self._opening)
                    self._opening += max(0, wanted)
                for _ in range(wanted):
                    threading.Thread(target=self._open, args=(address,), name="fairlead-connect", daemon=True).start()
                self._close_idle(selector, address)
                return
            self._send(selector, idle.pop(), waiting)

    def _next(self) -> _Waiting | None:
        with self._mutex:
            return heapq.heappop(self._waiting) if self._waiting else None

    def _open(self, address: Address) -> None:
        connection = HttpConnection(*address)
        try:
            opened = connection.open()
            opened.setblocking(False)
            link = _Link(address, connection, opened)
        except (OSError, ValueError, StoreUnavailable):  # which the store's own `get` meets again, and explains
            link = None
        with self._mutex:
            self._opening -= 1
            if link is None:
                self._failed += 1
            elif self._is_closed or self._thread is None:
                connection.close()
            else:
                self._opened.append(link)
            self._poke()

    def _close_idle(self, selector: selectors.BaseSelector, address: Address) -> None:
        """Close connections to other servers where there are too many."""
        for other, idle in self._idle.items():
            while other != address and idle and len(self._links) > THREADS:
                self._drop(selector, idle[-1], is_retried=False)

    def _send(self, selector: selectors.BaseSelector, link: _Link, waiting: _Waiting) -> None:
        transfer = waiting.transfer
        link.transfer, link.priority, link.at, link.head = transfer, waiting.priority, -1, b""
        self._num_active += 1
        transfer.begun = link.heard = time.monotonic()
        try:
            target, headers = self._store.get_request(
                transfer.entry, transfer.start, transfer.stop, link.connection.authority
            )
            data = link.connection.rendered("GET", target, headers)
            if link.socket.send(data) != len(data):
                raise ConnectionError("the request was not taken as a whole")
        except (OSError, StoreUnavailable):
            self._drop(selector, link, is_retried=True)

    def _receive(self, selector: selectors.BaseSelector, link: _Link, now: float) -> None:
        transfer = link.transfer
        if transfer is None:  # closed by the server while idle
            self._drop(selector, link, is_retried=False)
            return
        link.heard = now
        try:
            while True:
                if link.at < 0:
                    data = link.socket.recv(RECEIVED)
                    if not data:
                        self._drop(selector, link, is_retried=not link.head)
                        return
                    if not self._take_head(link, transfer, link.head + data):
                        self._unusable += 1
                        self._drop(selector, link, is_retried=False)
                        return
                else:
                    count = link.socket.recv_into(transfer.into[link.at :])
                    if not count:
                        self._drop(selector, link, is_retried=False)
                        return
                    link.at += count
                if link.at == len(transfer.into):
                    self._unusable = 0
                    link.transfer = None
                    self._num_active -= 1
                    self._idle[link.address].append(link)
                    self._limit.count(now, transfer.begun)
                    transfer.done(True)
                    return
                if not isinstance(link.socket, ssl.SSLSocket) or not link.socket.pending():
                    return
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except (OSError, ValueError):
            self._drop(selector, link, is_retried=link.at < 0 and not link.head)

    def _take_head(self, link: _Link, transfer: Transfer, data: bytes) -> bool:
        """Take the headers of an answer once they are complete; return False if its body cannot be used."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            link.head = data
            return len(data) <= MOST_HEAD
        response = read_head(data[:end])
        body = memoryview(data)[end + 4 :]
        size = transfer.stop - transfer.start
        if response.headers.get("content-length") != str(size) or len(body) > size:
            return False
        if response.headers.get("connection", "").lower() == "close":
            return False
        if not self._store.is_usable(response, transfer.entry, transfer.start, transfer.stop):
            return False
        transfer.into[: len(body)] = body
        link.at = len(body)
        return True

    def _drop(self, selector: selectors.BaseSelector, link: _Link, *, is_retried: bool) -> None:
        """Close a connection; its transfer is sent again, or left to the store."""
        self._links.discard(link)
        idle = self._idle[link.address]
        if link in idle:
            idle.remove(link)
        with contextlib.suppress(KeyError, ValueError):
            selector.unregister(link.socket)
        link.connection.close()
        transfer, link.transfer = link.transfer, None
        if transfer is None:
            return
        self._num_active -= 1
        transfer.tries += 1
        if not is_retried or transfer.tries > 1 or self._is_closed:
            transfer.done(False)
            return
        with self._mutex:
            heapq.heappush(self._waiting, _Waiting(link.priority, next(self._numbers), transfer))
