"""The server at which ranks in pods learn of each other: `runtime.pyz members PORT RUN`, beside the first pod's ranks.

Pods share no directory, so it holds what ranks on one machine keep in files: small JSON values by name, and which ranks
are alive. A rank is alive for as long as its connection is, which its kernel closes when it is killed. Every change is
sent to all ranks in one order, so that each has the same past. A rank of a pod's replacement ends the connection of the
pod's own rank of that number, which is admitted no more: the pod was taken for lost, and may still run on a node that
nobody reaches. Otherwise it decides nothing. One thread, standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BACKLOG = 1024
# A rank that reads nothing for so long is stopped, or its network is gone.
MOST_UNREAD = 16 * 1024 * 1024
MOST_UNPARSED = 1024 * 1024
# A node that loses power closes nothing: without an answer for these seconds a connection is over.
SILENT_AFTER_S, ASK_AGAIN_S, ASK_TIMES = 2, 1, 4


def main(port: int, run: str) -> None:
    """Serve the ranks of a run until killed."""
    listener = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("", port))
    listener.listen(BACKLOG)
    Server(listener, run).serve()


def notice_silence(connection: socket.socket) -> None:
    """Have the kernel end a connection whose other side no longer answers, and send small messages at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_AFTER_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_AGAIN_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ASK_TIMES)
        limit_ms = (SILENT_AFTER_S + ASK_AGAIN_S * ASK_TIMES) * 1000
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)


class Server:
    """The values and living ranks of one attempt, and a connection to each of those."""

    def __init__(self, listener: socket.socket, run: str) -> None:
        """Take a listening socket, and the name of the attempt that ranks must give."""
        self._run = run
        self._listener = listener
        self._listener.setblocking(False)
        self._values: dict[str, Any] = {}
        self._peers: dict[int, _Peer] = {}
        self._replacements: dict[int, int] = {}
        self._broken: list[_Peer] = []
        self._ready = selectors.DefaultSelector()
        self._ready.register(listener, selectors.EVENT_READ)

    def serve(self) -> None:
        """Handle connections forever."""
        while True:
            for key, events in self._ready.select():
                if key.data is None:
                    self._accept()
                    continue
                if events & selectors.EVENT_READ and not key.data.is_closed:
                    self._read(key.data)
                if events & selectors.EVENT_WRITE and not key.data.is_closed:
                    self._flush(key.data)
                while self._broken:  # not earlier, or ranks would learn of two changes in different orders
                    self._close(self._broken.pop())

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the other side was faster to leave
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            notice_silence(connection)
            self._ready.register(connection, selectors.EVENT_READ, _Peer(connection))

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(peer)
            return
        *lines, peer.unparsed = (peer.unparsed + data).split(b"\n")
        try:
            if len(peer.unparsed) > MOST_UNPARSED:
                raise ValueError("a line without an end")
            for line in lines:
                self._obey(peer, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):  # not a rank of this attempt
            self._close(peer)

    def _obey(self, peer: _Peer, said: dict[str, Any]) -> None:
        if peer.is_closed:
            return
        if peer.rank is not None:
            self._values[said["name"]] = said["value"]
            self._tell_all({"name": said["name"], "value": said["value"]})
            self._send(peer, {"done": said["number"]})
            return
        if said["run"] != self._run:
            raise ValueError("another run or attempt")
        rank, token, replacement = int(said["rank"]), str(said["token"]), int(said.get("replacement") or 0)
        newest = self._replacements.get(rank, 0)
        if replacement < newest:
            self._send(peer, {"replaced": rank})
            return
        if replacement > newest:
            self._replacements[rank] = replacement
            if rank in self._peers:
                self._close(self._peers[rank])
        if rank in self._peers:
            self._send(peer, {"taken": rank})
            return
        self._tell_all({"rank": rank, "token": token})
        peer.rank, peer.token = rank, token
        self._peers[rank] = peer
        living = {str(each): other.token for each, other in self._peers.items()}
        self._send(peer, {"values": self._values, "living": living})

    def _tell_all(self, change: dict[str, Any]) -> None:
        line = _line(change)
        for peer in list(self._peers.values()):
            self._send_line(peer, line)

    def _send(self, peer: _Peer, message: dict[str, Any]) -> None:
        self._send_line(peer, _line(message))

    def _send_line(self, peer: _Peer, line: bytes) -> None:
        if not peer.is_closed:
            peer.unsent += line
            self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        try:
            sent = peer.connection.send(peer.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._broken.append(peer)
            return
        del peer.unsent[:sent]
        if len(peer.unsent) > MOST_UNREAD:
            self._broken.append(peer)
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        if wanted != peer.wanted:
            peer.wanted = wanted
            self._ready.modify(peer.connection, wanted, peer)

    def _close(self, peer: _Peer) -> None:
        if peer.is_closed:
            return
        peer.is_closed = True
        self._ready.unregister(peer.connection)
        peer.connection.close()
        if peer.rank is not None:
            del self._peers[peer.rank]
            self._tell_all({"rank": peer.rank, "token": None})


class _Peer:
    """A connection, and the rank at its other end once that has said which it is."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rank: int | None = None
        self.token = ""
        self.unparsed = b""
        self.unsent = bytearray()
        self.wanted = selectors.EVENT_READ
        self.is_closed = False


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
