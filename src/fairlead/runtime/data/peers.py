"""Reads bundles from other nodes of the run, so that each leaves the store once for all of them.

The home of a bundle is the first of the living nodes by rendezvous hashing (Thaler and Ravishankar, "Using name-based
mappings to increase hit rates", 1998). Its server records who holds the bundle, and grants the right to read it from
the store; see `peer_server.py`. A node that cannot be reached, is slow or sends other bytes is passed over for a while,
and the next one is home. Nothing here ever fails a read: at worst it is left to the store.

See decision 264.
"""

import contextlib
import hashlib
import json
import os
import socket
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fairlead.runtime.admission import greet
from fairlead.runtime.data.peer_server import BEAT_S, DATA, MOST_LINE, MOST_NODES, VARIABLE
from fairlead.runtime.elastic.member_server import notice_silence
from fairlead.runtime.errors import Misuse
from fairlead.runtime.run_key import token_here
from fairlead.untrusted_json import parse_object, whole

START_S = 30.0
"""Seconds in which a node that was never reached may still be starting, as long as no other has answered."""
OTHERS_START_S = 5.0
"""Seconds for that after the first answer of another node."""
CONNECT_S = 2.0
ANSWER_S = 20.0
"""Seconds without a byte, after which a node is passed over; one that waits for a third sends more often. A node that
lost its power is noticed earlier, by the kernel."""
LOCATE_S = 120.0
RETRY_S = 10.0
"""Seconds for which a node is passed over after its first failure, twice as many after each further one."""
MOST_FAILURES = 5
DAMAGED_S = 600.0
"""Seconds for which a node that sent other bytes is passed over."""
LEAST_BYTES_PER_S = 2_000_000
MOST_IDLE = 2
MOST_WITHOUT = 64
ROUNDS = 4
MOST_MANIFEST = 1 << 30

assert BEAT_S < ANSWER_S / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerNodes:
    """The nodes of a run, of which this is one.

    Attributes:
        hosts: Host of each node, with ``{}`` for its number.
        port: Port of the server on each node.
        node: Number of this node.
        num_nodes: Number of all nodes.
        token: Token of their servers.
    """

    hosts: str
    port: int
    node: int
    num_nodes: int
    token: bytes

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "PeerNodes | None":
        """Return the nodes of the run that this process belongs to; None if each reads for itself.

        Raises:
            Misuse: The variables, which Fairlead alone sets, do not describe any.
            RuntimeFault: The run has no key.
        """
        place = environ.get(VARIABLE)
        if not place:
            return None
        hosts, _, port = place.rpartition(":")
        try:
            node, num_nodes = int(environ["GROUP_RANK"]), int(environ["GROUP_WORLD_SIZE"])
            if not (hosts and 0 < int(port) < 65536 and 0 <= node < num_nodes <= MOST_NODES):
                raise ValueError(place)
        except (KeyError, ValueError) as error:
            raise Misuse(f"{VARIABLE} is {place!r} without numbers of nodes; it is set by Fairlead alone") from error
        if num_nodes == 1:
            return None
        token = token_here(environ, DATA)
        return cls(hosts=hosts, port=int(port), node=node, num_nodes=num_nodes, token=token)

    def address(self, node: int) -> tuple[str, int]:
        """Return host and port of the server on a node."""
        return self.hosts.replace("{}", str(node)), self.port

    def homes(self, name: str) -> list[int]:
        """Return all nodes, in the order in which they are a bundle's home."""
        nodes = range(self.num_nodes)
        return sorted(nodes, key=lambda node: hashlib.blake2b(f"{name}/{node}".encode(), digest_size=8).digest())


class PeerRecord:
    """The entry of one bundle at its home: to be ended by ``fetched`` or ``release``; the first call counts."""

    def __init__(self, peers: "Peers", connection: "_Connection", version: str, name: str) -> None:
        self._peers = peers
        self._connection: _Connection | None = connection
        self._mutex = threading.Lock()
        self._request = {"version": version, "name": name}

    def fetched(self, digest: str, size: int) -> None:
        """Record that this node holds the bundle."""
        self._end({"verb": "fetched", "digest": digest, "size": size})

    def release(self, *, is_kept: bool = True) -> None:
        """Give up the right to read the bundle from the store.

        Args:
            is_kept: False if this node has no room for it, so that others need not wait for each other.
        """
        self._end({"verb": "release", "kept": is_kept})

    def close(self) -> None:
        """Give up the right without a word, by closing the connection."""
        connection = self._taken()
        if connection is not None:
            connection.close()

    def _taken(self) -> "_Connection | None":
        with self._mutex:
            connection, self._connection = self._connection, None
        return connection

    def _end(self, request: dict[str, Any]) -> None:
        connection = self._taken()
        if connection is None:
            return
        try:
            connection.request(self._request | request)
        except (OSError, ValueError):  # the home is gone, and its record with it
            connection.close()
        else:
            self._peers.put_back(connection)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerResult:
    """The result of looking for a bundle at the other nodes.

    Attributes:
        data: Its bytes, verified; None if it has to be read from the store.
        digest: SHA-256 of the bytes.
        record: The entry at its home, if that could be reached.
    """

    data: memoryview | None = None
    digest: str | None = None
    record: PeerRecord | None = None


class Peers:
    """The other nodes as one process reads from them; methods are for any thread."""

    def __init__(self, nodes: PeerNodes) -> None:
        self._nodes = nodes
        self._starts_until = time.monotonic() + START_S
        self._mutex = threading.Lock()
        self._idle: dict[int, list[_Connection]] = {}
        self._reached: set[int] = set()
        self._failures: dict[int, int] = {}
        self._passed_over: dict[int, float] = {}
        self._is_closed = False
        _close_in_children()
        self.num_bytes = 0
        """Bytes that came from other nodes."""

    @property
    def num_nodes(self) -> int:
        """Number of the nodes, this one among them."""
        return self._nodes.num_nodes

    def obtain(self, version: str, name: str, into: memoryview | None = None) -> PeerResult:
        """Return a bundle of another node, or the right to read it from the store, or neither if none can be reached.

        Args:
            name: The bundle's name; that of a manifest is its version.
            into: Memory for all of its bytes; None to allocate as much as the manifest has.
        """
        without: set[int] = set()
        for _ in range(ROUNDS):
            homes = self._nodes.homes(name)
            home = next((node for node in homes if self._is_usable(node)), None)
            if home is None:
                break
            connection = None
            try:
                connection = self._connected(home)
                request = {"verb": "locate", "version": version, "name": name, "without": self._unusable(without)}
                answer = connection.request(request, within_s=LOCATE_S)
                nodes, digest, size = _located(answer)
            except (OSError, ValueError):
                self._pass_over(home, connection)
                continue
            self._has_answered(home)
            record = PeerRecord(self, connection, version, name)
            if not answer:  # others are still at it
                record.close()
                break
            if not nodes and answer.get("fetch") is not True:
                record.release()
                break
            if not nodes and home != homes[0]:
                # The home that knew who holds it is gone.
                nodes, digest, size = self._look(version, name, [node for node in homes if node != home], without)
                if not nodes:
                    return PeerResult(record=record)
            if not nodes:
                return PeerResult(record=record)
            data = self._read(version, name, nodes, digest, size, into, without)
            if data is not None:
                return PeerResult(data=data, digest=digest, record=record)
            record.release()
        return PeerResult()

    def put_back(self, connection: "_Connection") -> None:
        """Keep a connection for the next request."""
        with self._mutex:
            idle = self._idle.setdefault(connection.node, [])
            if len(idle) < MOST_IDLE and not self._is_closed:
                idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close the connections that are not in use."""
        with self._mutex:
            self._is_closed = True
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def _look(
        self, version: str, name: str, nodes: Sequence[int], without: set[int]
    ) -> tuple[list[int], str | None, int]:
        """Ask nodes one after another whether they hold a bundle, as no record of it is left."""
        for node in nodes:
            if node in without or not self._is_usable(node):
                continue
            connection = None
            try:
                connection = self._connected(node)
                request = {"verb": "locate", "version": version, "name": name, "look": True,
                           "without": self._unusable(without)}  # fmt: skip
                located = _located(connection.request(request))
            except (OSError, ValueError):
                self._pass_over(node, connection)
                continue
            self.put_back(connection)
            if located[0]:
                return located
        return [], None, 0

    def _read(
        self,
        version: str,
        name: str,
        nodes: Sequence[int],
        digest: str | None,
        size: int,
        into: memoryview | None,
        without: set[int],
    ) -> memoryview | None:
        """Return the bytes of a bundle from one of the nodes that hold it; those that fail are added to ``without``."""
        if into is None:
            if size > MOST_MANIFEST:
                return None
            into = memoryview(bytearray(size))
        for node in nodes:
            if node in without or not self._is_usable(node):
                continue
            connection = None
            try:
                connection = self._connected(node)
                answer = connection.request({"verb": "read", "version": version, "name": name})
                if not answer:
                    raise TimeoutError("the node is late")
                if answer.get("size") is None:  # evicted
                    without.add(node)
                    self.put_back(connection)
                    continue
                if answer["size"] != len(into):
                    raise ValueError("it has another size")
                connection.receive(into)
            except (OSError, ValueError):
                without.add(node)
                self._pass_over(node, connection)
                continue
            if hashlib.sha256(into).hexdigest() != digest:
                without.add(node)
                self._pass_over(node, connection, DAMAGED_S)
                continue
            self.put_back(connection)
            with self._mutex:
                self.num_bytes += len(into)
            return into
        without.update(nodes)
        return None

    def _is_usable(self, node: int) -> bool:
        with self._mutex:
            return self._passed_over.get(node, 0.0) <= time.monotonic()

    def _unusable(self, without: set[int]) -> list[int]:
        now = time.monotonic()
        with self._mutex:
            nodes = without | {node for node, until in self._passed_over.items() if until > now}
        return sorted(nodes)[:MOST_WITHOUT]

    def _has_answered(self, node: int) -> None:
        with self._mutex:
            self._failures.pop(node, None)
            if node != self._nodes.node:
                self._starts_until = min(self._starts_until, time.monotonic() + OTHERS_START_S)

    def _pass_over(self, node: int, connection: "_Connection | None", seconds: float = 0.0) -> None:
        """Leave a node alone for a while: longer after each failure, and at least for so many seconds."""
        if connection is not None:
            connection.close()
        with self._mutex:
            now = time.monotonic()
            if self._passed_over.get(node, 0.0) <= now:  # requests that were on their way count as one
                self._failures[node] = min(MOST_FAILURES, self._failures.get(node, 0) + 1)
            seconds = max(seconds, RETRY_S * 2.0 ** (self._failures[node] - 1))
            self._passed_over[node] = max(self._passed_over.get(node, 0.0), now + seconds)
            idle = self._idle.pop(node, [])
        for other in idle:
            other.close()

    def _connected(self, node: int) -> "_Connection":
        """Return a connection to a node.

        Raises:
            OSError: It cannot be reached.
        """
        with self._mutex:
            idle = self._idle.pop(node, [])
            # A server closes those that nobody has used for long, and any as it ends.
            while idle:
                connection = idle.pop()
                if connection.is_quiet():
                    self._idle[node] = idle
                    return connection
                connection.close()
        while True:
            try:
                connection = _Connection(self._nodes, node)
            except OSError:
                if node in self._reached or time.monotonic() > self._starts_until:
                    raise
                time.sleep(0.05)
                continue
            with self._mutex:
                self._reached.add(node)
            return connection


class _Connection:
    """A connection to the server of a node, for one request at a time."""

    def __init__(self, nodes: PeerNodes, node: int) -> None:
        self.node = node
        self._socket = socket.create_connection(nodes.address(node), CONNECT_S)
        try:
            notice_silence(self._socket)
            greet(self._socket, nodes.token, json.dumps({"node": nodes.node}).encode())
        except BaseException:
            self._socket.close()
            raise
        self._rest = b""
        _connections.add(self)

    def is_quiet(self) -> bool:
        """Return whether the connection is open and nothing was received that no request has asked for."""
        try:
            self._socket.settimeout(0)
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return not self._rest
        except OSError:
            pass
        return False

    def request(self, request: dict[str, Any], *, within_s: float = ANSWER_S) -> dict[str, Any]:
        """Return the answer to a request; nothing if the node has only asked for patience by then.

        Raises:
            OSError: The node is gone or late.
            ValueError: The answer is none.
        """
        deadline = time.monotonic() + within_s
        self._socket.settimeout(ANSWER_S)
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        while True:
            line, end, rest = self._rest.partition(b"\n")
            if end:
                self._rest = rest
                answer = parse_object(line, max_bytes=MOST_LINE)
                if answer or request["verb"] not in ("locate", "read"):
                    return answer
                continue
            if len(self._rest) > MOST_LINE:
                raise ValueError("a line without an end")
            if time.monotonic() > deadline:
                return {}
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the connection was closed")
            self._rest += data

    def receive(self, into: memoryview) -> None:
        """Receive the bytes behind an answer.

        Raises:
            OSError: The node is gone or slow.
        """
        deadline = time.monotonic() + ANSWER_S + len(into) / LEAST_BYTES_PER_S
        at = min(len(into), len(self._rest))
        into[:at], self._rest = self._rest[:at], self._rest[at:]
        while at < len(into):
            count = self._socket.recv_into(into[at:])
            if not count:
                raise ConnectionResetError("the connection was closed")
            at += count
            if time.monotonic() > deadline:
                raise TimeoutError("the node is slow")

    def close(self) -> None:
        """Close it, by which its rights end."""
        with contextlib.suppress(OSError):
            self._socket.close()


_connections: "weakref.WeakSet[_Connection]" = weakref.WeakSet()


@cache
def _close_in_children() -> None:
    """Close connections in processes that this one forks, so that its rights end with it and not with a worker."""

    def close() -> None:
        for connection in list(_connections):
            connection.close()

    os.register_at_fork(after_in_child=close)


def _located(answer: dict[str, Any]) -> tuple[list[int], str | None, int]:
    """Return the nodes, digest and size of an answer; no nodes if it names none.

    Raises:
        ValueError: It is no answer of this protocol.
    """
    listed = answer.get("nodes")
    if listed is None:
        return [], None, 0
    size, digest = whole(answer.get("size")), answer.get("digest")
    nodes = [whole(node) for node in listed] if isinstance(listed, list) else []
    if size is None or size < 0 or not isinstance(digest, str) or not nodes:
        raise ValueError("nodes without a bundle")
    return [node for node in nodes if node is not None and 0 <= node < MOST_NODES], digest, size
