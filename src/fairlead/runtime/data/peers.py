"""Reads bundles from other nodes of the run, so that each leaves the store once for all of them.

The home of a bundle is the first of the living nodes by rendezvous hashing (Thaler and Ravishankar, "Using name-based
mappings to increase hit rates", 1998). Its server records who holds the bundle, and grants the right to read it from
the store; see `peer_server.py`. A node that cannot be reached, is slow or sends other bytes is passed over for a while,
and the next one is home. Nothing here ever fails a read: at worst it is left to the store.

The replicas of an endpoint come and go, and each has a view of its own of who they are: by a name that all their
addresses have, and by whom servers have heard of. Views differ for a while, so that a bundle may have two homes;
whoever has the right to read it looks first whether another node holds it, or has the right at another home. Homes have
the same order in all views. Of two that see each other, the one whose home is later gives its right up, and the other
waits.

See decisions 264 and 275.
"""

import contextlib
import hashlib
import json
import os
import random
import socket
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from fairlead.runtime.admission import greet
from fairlead.runtime.data.peer_server import (
    BEAT_S,
    FETCH_S,
    MOST_LINE,
    MOST_NODES,
    VARIABLE,
    identity,
    matched_node,
)
from fairlead.runtime.elastic.member_server import notice_silence
from fairlead.runtime.errors import Misuse
from fairlead.untrusted_json import number, parse_object, whole

if TYPE_CHECKING:
    from fairlead.runtime.data.peer_server import Node

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
REFRESH_S = 1.0
"""Seconds after which a replica looks again who the others are."""
LISTED_S = 5.0
"""Seconds for which a replica waits until its own address has the name of all: others that started with it have it too
by then."""
HEARD_S = 60.0
"""Seconds for which a node that was heard of counts as one."""
BUSY_POLL_S = 0.1
MOST_REPLICAS = 1_000
MOST_NEW = 64
ASKED = 3
"""Nodes, beside the own one, that are asked for others at a time."""
MOST_MANIFEST = 1 << 30

assert BEAT_S < ANSWER_S / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerNodes:
    """The nodes of a run, of which this is one, or the replicas of an endpoint.

    Attributes:
        hosts: Host of each node, with ``{}`` for its number; the name that all have for replicas.
        port: Port of the server on each node.
        node: This node: its number, or its address.
        num_nodes: Number of all nodes; 1 for replicas, which come and go.
        token: Token of their servers.
    """

    hosts: str
    port: int
    node: "Node"
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
        is_fixed = "{}" in hosts
        try:
            num_nodes = int(environ["GROUP_WORLD_SIZE"]) if is_fixed else 1
            if not (hosts and 0 < int(port) < 65536 and 0 < num_nodes <= MOST_NODES):
                raise ValueError(place)
            if is_fixed and num_nodes == 1:
                return None
            token, node = identity(environ)
            if isinstance(node, int) and node >= num_nodes:
                raise ValueError(place)
        except (KeyError, ValueError) as error:
            raise Misuse(f"{VARIABLE} is {place!r} without numbers of nodes; it is set by Fairlead alone") from error
        return cls(hosts=hosts, port=int(port), node=node, num_nodes=num_nodes, token=token)

    @property
    def are_replicas(self) -> bool:
        """Return whether nodes come and go."""
        return isinstance(self.node, str)

    def address(self, node: "Node") -> tuple[str, int]:
        """Return host and port of the server on a node."""
        return node if isinstance(node, str) else self.hosts.replace("{}", str(node)), self.port

    def listed(self) -> "set[Node]":
        """Return the addresses that have the name of all replicas now; none if that is unknown."""
        try:
            entries = socket.getaddrinfo(self.hosts, self.port, type=socket.SOCK_STREAM)
        except OSError:
            return set()
        return {str(address[0]) for *_, address in entries[:MOST_REPLICAS]}


def homes_of(name: str, nodes: "Iterable[Node]") -> "list[Node]":
    """Return nodes in the order in which they are a bundle's home."""
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
        self._idle: dict[Node, list[_Connection]] = {}
        self._reached: set[Node] = set()
        self._failures: dict[Node, int] = {}
        self._passed_over: dict[Node, float] = {}
        self._failed_at: dict[Node, float] = {}
        self._refreshing = threading.Lock()
        self._refresh_at = 0.0
        self._heard: dict[Node, float] = {}
        self._news: dict[Node, int | None] = {}  # how many nodes each has heard of
        self._members: frozenset[Node] = frozenset(() if nodes.are_replicas else range(nodes.num_nodes))
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
        without: set[Node] = set()
        for _ in range(ROUNDS):
            self._refresh()
            homes = homes_of(name, self._members)
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
            if not nodes and (self._nodes.are_replicas or home != homes[0]):
                # The home that knew who holds it is gone, or was another one.
                if self._nodes.are_replicas and answer.get("heard") != self._news.get(home):
                    self._hear_of(home)
                try:
                    nodes, digest, size = self._look(version, name, home, without)
                except _EarlierHomeError:
                    record.release()
                    continue
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

    def _refresh(self) -> None:
        """Look who the replicas are now, if that was long ago; another thread goes on with what is known."""
        nodes = self._nodes
        if not nodes.are_replicas or time.monotonic() < self._refresh_at:
            return
        if not self._refreshing.acquire(blocking=not self._members):
            return
        try:
            if time.monotonic() < self._refresh_at:
                return
            listed, until = nodes.listed(), time.monotonic() + LISTED_S
            while not self._members and nodes.node not in listed and time.monotonic() < until:
                time.sleep(BUSY_POLL_S)
                listed = nodes.listed()
            known = listed | self._members
            others = [node for node in known if node != nodes.node and self._is_usable(node)]
            # Those that are new hear of this node by that, before it looks for anything at theirs.
            new = [node for node in others if node not in self._news][:MOST_NEW]
            for node in (nodes.node, *new, *random.sample(others, min(ASKED, len(others)))):
                self._hear_of(node)
            until = time.monotonic() - HEARD_S
            with self._mutex:
                self._heard = {node: at for node, at in self._heard.items() if at > until}
                self._members = frozenset({nodes.node, *listed, *self._heard})
            self._refresh_at = time.monotonic() + REFRESH_S
        finally:
            self._refreshing.release()

    def _hear_of(self, node: "Node") -> None:
        """Ask a node of whom it has heard; those that have spoken since they could not be reached are used again."""
        connection = None
        try:
            connection = self._connected(node)
            answer = connection.request({"verb": "members"})
            listed = answer.get("members")
            pairs = [] if not isinstance(listed, list) else listed
            ages = [(matched_node(member), number(age)) for member, age in pairs]
        except (OSError, TypeError, ValueError):
            self._pass_over(node, connection)
            return
        self.put_back(connection)
        now = time.monotonic()
        with self._mutex:
            self._news[node] = whole(answer.get("heard"))
            for member, age in ages:
                at = now - (HEARD_S if age is None else max(0.0, age))
                if at > now - HEARD_S:
                    self._heard[member] = max(at, self._heard.get(member, at))
                    self._members |= {member}
                failed_at = self._failed_at.get(member)
                if failed_at is not None and at > failed_at:
                    self._passed_over.pop(member, None)

    def _look(
        self, version: str, name: str, home: "Node", without: "set[Node]"
    ) -> "tuple[list[Node], str | None, int]":
        """Ask the nodes beside the home one after another whether they hold a bundle, as it has no record of that.

        Raises:
            _EarlierHomeError: A node has the right to read it from a home that comes before this one.
        """
        until = time.monotonic() + FETCH_S
        while True:
            is_busy = False
            homes = homes_of(name, self._members)
            place = homes.index(home) if home in homes else 0
            for order, node in enumerate(homes):
                if node == home or node in without or not self._is_usable(node):
                    continue
                connection = None
                try:
                    connection = self._connected(node)
                    request = {"verb": "locate", "version": version, "name": name, "look": True,
                               "without": self._unusable(without)}  # fmt: skip
                    answer = connection.request(request)
                    located = _located(answer)
                except (OSError, ValueError):
                    self._pass_over(node, connection)
                    continue
                self.put_back(connection)
                if located[0]:
                    return located
                if answer.get("busy") is True and self._nodes.are_replicas:
                    if order < place:
                        raise _EarlierHomeError
                    is_busy = True
            if not is_busy or time.monotonic() > until:
                return [], None, 0
            time.sleep(BUSY_POLL_S)
            self._refresh()

    def _read(
        self,
        version: str,
        name: str,
        nodes: "Sequence[Node]",
        digest: str | None,
        size: int,
        into: memoryview | None,
        without: "set[Node]",
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

    def _is_usable(self, node: "Node") -> bool:
        with self._mutex:
            return self._passed_over.get(node, 0.0) <= time.monotonic()

    def _unusable(self, without: "set[Node]") -> "list[Node]":
        now = time.monotonic()
        with self._mutex:
            nodes = without | {node for node, until in self._passed_over.items() if until > now}
        return sorted(nodes, key=str)[:MOST_WITHOUT]

    def _has_answered(self, node: "Node") -> None:
        with self._mutex:
            self._failures.pop(node, None)
            if node != self._nodes.node:
                self._starts_until = min(self._starts_until, time.monotonic() + OTHERS_START_S)

    def _pass_over(self, node: "Node", connection: "_Connection | None", seconds: float = 0.0) -> None:
        """Leave a node alone for a while: longer after each failure, and at least for so many seconds."""
        if connection is not None:
            connection.close()
        with self._mutex:
            now = time.monotonic()
            if self._passed_over.get(node, 0.0) <= now:  # requests that were on their way count as one
                self._failures[node] = min(MOST_FAILURES, self._failures.get(node, 0) + 1)
            seconds = max(seconds, RETRY_S * 2.0 ** (self._failures[node] - 1))
            self._passed_over[node] = max(self._passed_over.get(node, 0.0), now + seconds)
            self._failed_at[node] = now
            idle = self._idle.pop(node, [])
        for other in idle:
            other.close()

    def _connected(self, node: "Node") -> "_Connection":
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
                # Of replicas the own server alone is known to start.
                is_late = node in self._reached or time.monotonic() > self._starts_until
                if is_late or (self._nodes.are_replicas and node != self._nodes.node):
                    raise
                time.sleep(0.05)
                continue
            with self._mutex:
                self._reached.add(node)
            return connection


class _Connection:
    """A connection to the server of a node, for one request at a time."""

    def __init__(self, nodes: PeerNodes, node: "Node") -> None:
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


class _EarlierHomeError(Exception):
    """Another node has the right to read a bundle, from a home that comes before."""


def _located(answer: dict[str, Any]) -> "tuple[list[Node], str | None, int]":
    """Return the nodes, digest and size of an answer; no nodes if it names none.

    Raises:
        ValueError: It is no answer of this protocol.
    """
    listed = answer.get("nodes")
    if listed is None:
        return [], None, 0
    size, digest = whole(answer.get("size")), answer.get("digest")
    nodes = [matched_node(node) for node in listed] if isinstance(listed, list) else []
    if size is None or size < 0 or not isinstance(digest, str) or not nodes:
        raise ValueError("nodes without a bundle")
    return nodes, digest, size
