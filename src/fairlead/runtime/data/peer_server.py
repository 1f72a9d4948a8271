"""The server of a node's cache for the other nodes of a run: ``runtime.pyz data PORT`` beside its ranks.

It records which nodes hold the bundles whose home it is, grants the right to read one of those from the store to a
single node at a time, and sends bundles that are in the cache of its own node, and parts of files of its copies. The
nodes of a run have numbers, and the replicas of an endpoint, which come and go, their addresses. It has no keys of a
store and reads nothing from one. Peers have the token of the run or endpoint. Each sends a request, a line of JSON, and
waits for the answer, a line of JSON and after it the bytes of a bundle; whatever else a peer does ends its own
connection. One thread, standard library only, Python 3.9 or newer.

Requests name ``version`` and ``name`` of a bundle; a manifest has its version as its name.

- ``locate`` is answered by nodes that hold it, ``{"nodes": [..], "digest": .., "size": ..}``, or by ``{"fetch": true}``
  for the right to read it from the store, or by ``{"fetch": false}`` where every node reads it for itself. While
  another node reads it, the answer is awaited, with ``{}`` every second. ``without`` are nodes that could not be
  reached, and with ``"look": true`` no right is granted; ``"busy": true`` then means that a node has it.
- ``fetched`` records, with ``digest`` and ``size``, that the node holds it. ``release`` gives the right up; with
  ``"kept": false`` those who wait read it for themselves, as no node has room for it. Both are answered by ``{}``.
- ``read`` is answered by ``{"size": ..}`` and the bytes, or by ``{"size": null}``.
- ``members`` is answered by ``{"members": [[NODE, SECONDS], ..], "heard": ..}``: who has spoken, and how long ago, and
  how many that were since the start, which the right to read tells too.

See decisions 264 and 275.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import selectors
import socket
import time
from collections import Counter, OrderedDict
from pathlib import Path

from fairlead.runtime.admission import MOST_HELLO, PeerAdmission
from fairlead.runtime.data.cache import open_bundle
from fairlead.runtime.elastic.member_server import notice_silence
from fairlead.runtime.paths import below
from fairlead.runtime.run_key import FILE, token, token_here
from fairlead.untrusted_json import parse_object, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Union

    Node = Union[int, str]  # Python 3.9 has no other way to write it

DATA = "data"
"""Name of the port, for its token."""
VARIABLE = "FAIRLEAD_DATA_PEERS"
"""Variable of a pod with the host of each node, with ``{}`` for its number, and the port of their servers. Without
``{}`` it is the name of all replicas of an endpoint, and a node is its address."""
OWN_ADDRESS = "FAIRLEAD_POD_IP"
PARTS = ".parts"
"""Suffix of the list of parts that a copy has by now, in the directory of copies: lines of JSON."""
MOST_PART_LINE = 16_384
BACKLOG = 1024
MOST_LINE = 4096
MOST_CONNECTIONS = 512
MOST_BUNDLES = 500_000
"""Bundles that are recorded; further ones are read by every node for itself."""
MOST_NODES = 100_000
MOST_VERSIONS = 10_000
CHUNK = 1 << 18
MOST_HASHED = 256 << 20
"""Longest bundle whose digest the server itself computes, which holds up its other answers."""
FETCH_S = 60.0
"""Seconds for reading a bundle from the store, after which the right is granted to another node as well: a process that
dies gives it up at once, and one that hangs ends the run in most cases."""
OWN_FIRST_S = 2.0
"""Seconds for which a bundle is left to its home, if that reads the same version: the nodes of a run share the work,
and none that is ahead of the others has the only copy of most, which would be lost with it."""
OWN_READS_S = 30.0
OWN_STARTS_S = 10.0
"""Seconds after the first request for a version in which its home may still begin to read it."""
STALL_S = 30.0
SEND_S = 0.02
READS = 3
"""Reads from a node at a time, of the bundles of one home: further nodes wait until more nodes hold them."""
BEAT_S = 1.0
TICK_S = 0.05
MOST_HEARD = 2_000
_NODES_NAMED = 4
_MEMBERS_NAMED = 60  # within a line
_VERSION = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(r"[0-9a-f]{32}|[0-9a-f]{16}")
_ADDRESS = re.compile(r"[0-9.]{7,15}|[0-9a-f:.]{2,45}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def main(port: int) -> None:
    """Serve the other nodes until killed."""
    token, node = identity(os.environ)
    own = os.environ[VARIABLE].rpartition(":")[0].replace("{}", str(node)) if isinstance(node, int) else node
    if _ADDRESS.fullmatch(own):  # nodes on one machine have one address each
        family = socket.AF_INET6 if ":" in own else socket.AF_INET
        listener = socket.create_server((own, port), family=family, backlog=BACKLOG)
    else:
        is_dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        listener = socket.create_server(("", port), family=family, backlog=BACKLOG, dualstack_ipv6=is_dual)
    PeerServer(listener, token, Path(os.environ["FAIRLEAD_DATA_DIR"]), node).serve()


def identity(environ: Mapping[str, str]) -> tuple[bytes, Node]:
    """Return the token of the servers, and which node this is: its number in the run, or the address of a replica.

    Raises:
        KeyError: A variable is missing.
        RuntimeFault: There is no key.
        ValueError: The variables describe no node.
    """
    if "{}" in environ[VARIABLE]:
        return token_here(environ, DATA), int(environ["GROUP_RANK"])
    # The key is that of the endpoint, whose replicas are runs of their own.
    return token(environ.get(FILE), "", 0, DATA), matched_node(environ[OWN_ADDRESS])


def matched_node(value: object) -> Node:
    """Return what names a node.

    Raises:
        ValueError: It names none.
    """
    if isinstance(value, str) and _ADDRESS.fullmatch(value):
        return value
    number = whole(value)
    if number is None or not 0 <= number < MOST_NODES:
        raise ValueError("it names no node")
    return number


class PeerServer:
    """The bundles of one node, and the record of those whose home it is.

    Args:
        listener: A listening socket.
        token: Token that peers begin with.
        directory: Directory of manifests, bundles and copies of this node.
        node: This node.
    """

    def __init__(self, listener: socket.socket, token: bytes, directory: Path, node: Node) -> None:
        self._directory = directory
        self._node = node
        self._records: dict[tuple[str, str], _Record] = {}
        self._unsettled: set[tuple[str, str]] = set()
        self._reads: Counter[Node] = Counter()
        self._own_reads: OrderedDict[str, float] = OrderedDict()
        self._peers: dict[socket.socket, _Peer] = {}
        self._heard: OrderedDict[Node, float] = OrderedDict()
        self._num_heard = 0
        self._copies: dict[str, _Copy] = {}
        self._ready = selectors.DefaultSelector()
        self._admission = PeerAdmission(listener, token, self._ready)

    def serve(self) -> None:
        """Handle connections for ever."""
        looked_at = time.monotonic()
        while True:
            timeout_s = TICK_S if self._unsettled else BEAT_S
            if self._admission.timeout_s is not None:
                timeout_s = min(timeout_s, self._admission.timeout_s)
            writable: list[_Peer] = []
            for key, events in self._ready.select(timeout_s):
                if key.data is self._admission:
                    admitted = self._admission.handle(key)
                    if admitted is not None:
                        self._enter(*admitted)
                    continue
                peer = key.data
                if events & selectors.EVENT_WRITE:
                    writable.append(peer)
                if events & selectors.EVENT_READ and not peer.is_closed:
                    self._hear(peer)
            self._admission.expire()
            now = time.monotonic()
            # Bundles go on their way between requests, which others wait for, and in no order, so that all advance.
            random.shuffle(writable)
            for peer in writable:
                self._flush(peer)
                if time.monotonic() - now > SEND_S:
                    break
            for record in list(self._unsettled):
                self._settle(record, now)
            if now - looked_at > BEAT_S:
                looked_at = now
                for peer in list(self._peers.values()):
                    if peer.is_sending and now - peer.moved_at > STALL_S:
                        self._close(peer)

    def _enter(self, connection: socket.socket, hello: bytes) -> None:
        try:
            node = matched_node(parse_object(hello, max_bytes=MOST_HELLO).get("node"))
            connection.setblocking(False)
            notice_silence(connection)
        except (OSError, ValueError):
            connection.close()
            return
        if len(self._peers) >= MOST_CONNECTIONS:
            idle = [peer for peer in self._peers.values() if not peer.is_busy]
            if not idle:
                connection.close()
                return
            self._close(min(idle, key=lambda peer: peer.moved_at))
        peer = self._peers[connection] = _Peer(connection, node)
        self._ready.register(connection, selectors.EVENT_READ, peer)

    def _hear(self, peer: _Peer) -> None:
        try:
            data = peer.connection.recv(MOST_LINE + 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        peer.unparsed += data
        line, end, rest = peer.unparsed.partition(b"\n")
        # A peer waits for an answer before it sends the next request.
        if not data or rest or len(peer.unparsed) > MOST_LINE or peer.is_sending or peer.waits_for is not None:
            self._close(peer)
            return
        if end:
            peer.unparsed = b""
            peer.moved_at = time.monotonic()
            try:
                self._do(peer, parse_object(line, max_bytes=MOST_LINE))
            except ValueError:
                self._close(peer)

    def _do(self, peer: _Peer, request: dict[str, Any]) -> None:
        verb = request.get("verb")
        self._num_heard += peer.node not in self._heard
        self._heard[peer.node] = time.monotonic()
        self._heard.move_to_end(peer.node)
        while len(self._heard) > MOST_HEARD:
            self._heard.popitem(last=False)
        if verb == "members":
            newest = list(reversed(self._heard.items()))[:_MEMBERS_NAMED]
            ages = [[node, round(time.monotonic() - at, 1)] for node, at in newest]
            self._answer(peer, {"members": ages, "heard": self._num_heard})
            return
        key = _matched(_VERSION, request.get("version")), _matched(_NAME, request.get("name"))
        if verb == "locate":
            self._locate(peer, key, request)
        elif verb == "fetched":
            self._fetched(peer, key, request)
        elif verb == "release":
            self._release(peer, key, is_kept=request.get("kept") is not False)
            self._answer(peer, {})
        elif verb == "read":
            self._read(peer, key)
        else:
            raise ValueError("an unknown verb")

    def _locate(self, peer: _Peer, key: tuple[str, str], request: dict[str, Any]) -> None:
        listed = request.get("without", [])
        without = {matched_node(node) for node in listed} if isinstance(listed, list) else set()
        record = self._records.get(key)
        if record is None:
            record = _Record(time.monotonic())
            content = self._open(key)
            if content is not None and content.size <= MOST_HASHED:
                with contextlib.suppress(OSError, ValueError):  # damaged, or removed just now
                    record.digest, record.size = content.digest(), content.size
                    record.nodes.add(self._node)
            if request.get("look") is True and not record.nodes:
                self._answer(peer, {"fetch": False})
                return
            if len(self._records) >= MOST_BUNDLES:
                self._answer(peer, {"fetch": False})
                return
            self._records[key] = record
        if request.get("look") is True:
            nodes = sorted(record.nodes.difference(without), key=str)
            is_busy = record.fetching not in (None, peer) and time.monotonic() < record.until
            self._answer(
                peer, record.answer(nodes) if nodes else {"fetch": False, **({"busy": True} if is_busy else {})}
            )
            return
        self._end_read(peer)
        now = time.monotonic()
        self._own_reads.setdefault(key[0], now + OWN_STARTS_S - OWN_READS_S)
        if peer.node == self._node:
            self._own_reads[key[0]] = now
        while len(self._own_reads) > MOST_VERSIONS:
            self._own_reads.popitem(last=False)
        peer.waits_for, peer.without, peer.beat_at = key, without, time.monotonic()
        record.waiting.append(peer)
        self._settle(key, time.monotonic())

    def _settle(self, key: tuple[str, str], now: float) -> None:
        """Answer those who wait for a bundle, as far as that is possible by now."""
        record = self._records.get(key)
        if record is None:
            self._unsettled.discard(key)
            return
        for peer in list(record.waiting):
            answer, nodes = None, sorted(record.nodes.difference(peer.without), key=str)
            if nodes:
                node = min(nodes, key=lambda node: (self._reads[node], random.random()))
                if self._reads[node] < READS:
                    self._reads[node] += 1
                    peer.reads_from = node
                    answer = record.answer([node])
            elif self._may_fetch(record, peer, key[0], now):
                record.fetching, record.until = peer, now + FETCH_S
                peer.rights.add(key)
                answer = {"fetch": True}
                if isinstance(self._node, str):
                    answer["heard"] = self._num_heard
            if answer is not None:
                record.waiting.remove(peer)
                peer.waits_for = None
                self._answer(peer, answer)
            elif now - peer.beat_at > BEAT_S:
                peer.beat_at = now
                self._answer(peer, {})
        if record.waiting:
            self._unsettled.add(key)
            return
        self._unsettled.discard(key)
        if record.digest is None and record.fetching is None:
            self._records.pop(key, None)

    def _end_read(self, peer: _Peer) -> None:
        """Count a read of another node that the peer was named as ended."""
        if peer.reads_from is not None:
            self._reads[peer.reads_from] -= 1
            peer.reads_from = None

    def _may_fetch(self, record: _Record, peer: _Peer, version: str, now: float) -> bool:
        if record.fetching is not None and now < record.until:
            return False
        is_own_read = now - self._own_reads.get(version, now - OWN_READS_S) < OWN_READS_S
        return peer.node == self._node or not is_own_read or now - record.began_at >= OWN_FIRST_S

    def _fetched(self, peer: _Peer, key: tuple[str, str], request: dict[str, Any]) -> None:
        digest, size = _matched(_DIGEST, request.get("digest")), whole(request.get("size"))
        if size is None or size < 0:
            raise ValueError("a bundle without a size")
        record = self._records.get(key)
        if record is None and len(self._records) < MOST_BUNDLES:
            record = self._records[key] = _Record(time.monotonic())
        if record is not None:
            if (record.digest, record.size) != (digest, size):
                record.digest, record.size, record.nodes = digest, size, set()
            record.nodes.add(peer.node)
        self._release(peer, key, is_kept=True)
        self._answer(peer, {})

    def _release(self, peer: _Peer, key: tuple[str, str], *, is_kept: bool) -> None:
        peer.rights.discard(key)
        self._end_read(peer)
        record = self._records.get(key)
        if record is None:
            return
        if record.fetching is peer:
            record.fetching = None
        if not is_kept:
            for waiting in record.waiting:
                waiting.waits_for = None
                self._answer(waiting, {"fetch": False})
            record.waiting.clear()
        self._unsettled.add(key)

    def _read(self, peer: _Peer, key: tuple[str, str]) -> None:
        content = self._open(key)
        self._answer(peer, {"size": None if content is None else content.size}, content)

    def _open(self, key: tuple[str, str]) -> _Content | None:
        version, name = key
        try:
            if name == version:
                return _file_content(below(self._directory, "manifests", f"{version}.json"))
            bundle = open_bundle(below(self._directory, "bundles", version, name))
        except (OSError, ValueError):
            return self._part(version, name)
        return _Content(bundle.size, bundle.read)

    def _part(self, version: str, name: str) -> _Content | None:
        """Return a part of a file of a copy; None if it is not here."""
        copy = self._copies.get(version)
        if copy is None:
            copy = _Copy(self._directory / "trees", version)
            if not copy.exists():
                return None
            self._copies[version] = copy
        return copy.part(name)

    def _answer(self, peer: _Peer, answer: dict[str, Any], content: _Content | None = None) -> None:
        peer.unsent += json.dumps(answer, separators=(",", ":")).encode() + b"\n"
        peer.content, peer.at = content, 0
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        if peer.is_closed:
            return
        content = peer.content
        try:
            if not peer.unsent and content is not None:
                # Verified as it is read; a damaged one ends the connection within the bundle.
                peer.unsent += content.read(peer.at, min(content.size, peer.at + CHUNK))
                peer.at = min(content.size, peer.at + CHUNK)
                if peer.at == content.size:
                    peer.content = None
            sent = peer.connection.send(peer.unsent)
            del peer.unsent[:sent]
            peer.moved_at = time.monotonic()
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            self._close(peer)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.is_sending else 0)
        if wanted != peer.wanted:
            peer.wanted = wanted
            self._ready.modify(peer.connection, wanted, peer)

    def _close(self, peer: _Peer) -> None:
        if peer.is_closed:
            return
        peer.is_closed = True
        self._ready.unregister(peer.connection)
        del self._peers[peer.connection]
        peer.connection.close()
        if peer.waits_for is not None:
            self._records[peer.waits_for].waiting.remove(peer)
            self._unsettled.add(peer.waits_for)
        self._end_read(peer)
        for key in list(peer.rights):
            self._release(peer, key, is_kept=True)


class _Record:
    """The nodes that hold a bundle, the peer that reads it from the store, and those who wait for it."""

    def __init__(self, now: float) -> None:
        self.began_at = now
        self.digest: str | None = None
        self.size = 0
        self.nodes: set[Node] = set()
        self.fetching: _Peer | None = None
        self.until = 0.0
        self.waiting: list[_Peer] = []

    def answer(self, nodes: list[Node]) -> dict[str, Any]:
        """Return the answer that names nodes."""
        return {"nodes": nodes[:_NODES_NAMED], "digest": self.digest, "size": self.size}


class _Content:
    """Bytes that are read in parts, and verified as far as they can be."""

    def __init__(self, size: int, read: Callable[[int, int], bytes]) -> None:
        self.size = size
        self.read = read

    def digest(self) -> str:
        digest = hashlib.sha256()
        for at in range(0, self.size, CHUNK):
            digest.update(self.read(at, min(self.size, at + CHUNK)))
        return digest.hexdigest()


class _Peer:
    """A connection, with the request that is being answered."""

    def __init__(self, connection: socket.socket, node: Node) -> None:
        self.connection = connection
        self.node = node
        self.unparsed = b""
        self.unsent = bytearray()
        self.content: _Content | None = None
        self.at = 0
        self.waits_for: tuple[str, str] | None = None
        self.without: set[Node] = set()
        self.rights: set[tuple[str, str]] = set()
        self.reads_from: Node | None = None
        self.wanted = selectors.EVENT_READ
        self.moved_at = self.beat_at = time.monotonic()
        self.is_closed = False

    @property
    def is_sending(self) -> bool:
        return bool(self.unsent) or self.content is not None

    @property
    def is_busy(self) -> bool:
        return self.is_sending or self.waits_for is not None or bool(self.rights)


class _Copy:
    """The parts of files of a version that a copy of it has by now, from the list that it is made with."""

    def __init__(self, trees: Path, version: str) -> None:
        self._tree = below(trees, version)
        self._list = below(trees, f"{version}{PARTS}")
        self._at = 0
        self._parts: dict[str, tuple[int, int, str]] = {}

    def exists(self) -> bool:
        return self._list.exists()

    def part(self, name: str) -> _Content | None:
        """Return a part by its name; None if it is not here."""
        if name not in self._parts:
            self._read_list()
        if name not in self._parts:
            return None
        start, stop, key = self._parts[name]
        for path in (below(self._tree, key), partial_path(below(self._tree, key))):
            with contextlib.suppress(OSError):
                return _file_content(path, start, stop)
        return None

    def _read_list(self) -> None:
        try:
            with open(self._list, "rb") as file:
                file.seek(self._at)
                lines = file.read().splitlines(keepends=True)
        except OSError:
            return
        for line in lines:
            if not line.endswith(b"\n"):
                return
            self._at += len(line)
            with contextlib.suppress(ValueError):  # of a process that was killed
                part = parse_object(line, max_bytes=MOST_PART_LINE)
                start, stop, key = whole(part.get("start")), whole(part.get("stop")), part.get("key")
                if start is not None and stop is not None and isinstance(key, str):
                    self._parts[_matched(_NAME, part.get("name"))] = start, stop, key


def partial_path(path: Path) -> Path:
    """Return the path of a file that is not whole yet."""
    return path.with_name(f".{path.name[:200]}.part")


def _file_content(path: Path, begin: int = 0, end: int | None = None) -> _Content:
    size = path.stat().st_size
    end = size if end is None else end
    if end > size:
        raise OSError("the file is shorter")

    def read(start: int, stop: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(begin + start)
            data = file.read(stop - start)
        if len(data) != stop - start:
            raise OSError("the file became shorter")
        return data

    return _Content(end - begin, read)


def _matched(pattern: re.Pattern[str], value: object) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ValueError("a name of another form")
    return value
