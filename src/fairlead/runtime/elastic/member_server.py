"""The server at which ranks in pods learn of each other: `runtime.pyz members PORT`, beside the first pod's ranks.

Pods share no directory, so it holds what ranks on one machine keep in files: small JSON values by name, and which ranks
are alive. A rank is alive for as long as its connection is, which its kernel closes when it is killed. Every change is
sent to all ranks in one order, so that each has the same past. A rank of a pod's replacement ends the connection of the
pod's own rank of that number, which is admitted no more: the pod was taken for lost, and may still run on a node that
nobody reaches. Otherwise it decides nothing. One thread, standard library only, Python 3.9 or newer.

See decision 134.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys

from fairlead.runtime.admission import MOST_HELLO, PeerAdmission
from fairlead.runtime.run_key import token_here
from fairlead.untrusted_json import parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MEMBERS = "members"
"""Name of the port, for its token."""
BACKLOG = 1024
# A rank that reads nothing for so long is stopped, or its network is gone.
MOST_UNREAD = 16 * 1024 * 1024
MOST_UNPARSED = 1024 * 1024
# A node that loses power closes nothing: without an answer for these seconds a connection is over.
SILENT_AFTER_S, ASK_AGAIN_S, ASK_TIMES = 2, 1, 4


def main(port: int) -> None:
    """Serve the ranks of this attempt until killed."""
    token = token_here(os.environ, MEMBERS)
    listener = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("", port))
    listener.listen(BACKLOG)
    MemberServer(listener, token).serve()


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


class MemberServer:
    """The values and living ranks of one attempt, and a connection to each of those."""

    def __init__(self, listener: socket.socket, token: bytes) -> None:
        """Take a listening socket, and the token that ranks of the attempt have."""
        self._values: dict[str, Any] = {}
        self._peers: dict[int, _Peer] = {}
        self._replacements: dict[int, int] = {}
        self._broken: list[_Peer] = []
        self._ready = selectors.DefaultSelector()
        self._admission = PeerAdmission(listener, token, self._ready)

    def serve(self) -> None:
        """Handle connections forever."""
        while True:
            for key, events in self._ready.select(self._admission.timeout_s):
                if key.data is self._admission:
                    admitted = self._admission.handle(key)
                    if admitted is not None:
                        self._enter(*admitted)
                elif events & selectors.EVENT_READ and not key.data.is_closed:
                    self._read(key.data)
                if events & selectors.EVENT_WRITE and not key.data.is_closed:
                    self._flush(key.data)
                while self._broken:  # not earlier, or ranks would learn of two changes in different orders
                    self._close(self._broken.pop())
            self._admission.expire()

    def _enter(self, connection: socket.socket, hello: bytes) -> None:
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # the other side was faster to leave
            notice_silence(connection)
        peer = _Peer(connection)
        self._ready.register(connection, selectors.EVENT_READ, peer)
        try:
            self._introduce(peer, parse_object(hello, max_bytes=MOST_HELLO))
        except _MALFORMED:
            self._close(peer)

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
                self._obey(peer, parse_object(line, max_bytes=MOST_UNPARSED))
        except _MALFORMED:  # a rank whose memory is broken, or another program of the run
            self._close(peer)

    def _obey(self, peer: _Peer, message: dict[str, Any]) -> None:
        if peer.is_closed or peer.rank is None:
            return
        name, value, number = str(message["name"]), message["value"], int(message["number"])
        self._values[name] = value
        self._tell_all({"name": name, "value": value})
        self._send(peer, {"done": number})

    def _introduce(self, peer: _Peer, hello: dict[str, Any]) -> None:
        """Give a peer the place of its rank, if that is free, and tell it what was posted and who lives."""
        rank, token, replacement = int(hello["rank"]), str(hello["token"]), int(hello.get("replacement") or 0)
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
        living = {str(member): other.token for member, other in self._peers.items()}
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


# What reading a message of another program may raise.
_MALFORMED = (ValueError, KeyError, TypeError, OverflowError)


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
