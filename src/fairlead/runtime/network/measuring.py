"""Measures how fast the nodes of a gang send to each other, in rounds in which all nodes are paired.

The first rank of each node has a server, which admits those with the token of the attempt. In a round the first node of
a pair sends to the second for some time, and then receives for as long. The receiver measures: bytes over the time from
the first to the last of them, so that waiting for each other does not count.
"""

import json
import math
import os
import random
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fairlead.runtime.admission import MOST_HELLO, PeerAdmission, greet
from fairlead.runtime.channels import Channel, receive, send
from fairlead.runtime.environment import Environment
from fairlead.runtime.network.slow_links import Pair, SlowLink, plan_rounds, slow_links
from fairlead.runtime.run_key import token
from fairlead.untrusted_json import parse_json, parse_object

CHUNK = bytes(1 << 20)
CONNECT_S = 10.0
SILENCE_S = 30.0
"""Beyond the time of a measurement, how long a silent peer is waited for."""
MOST_S = 600.0
MOST_GB_S = 1e6
MOST_DOMAINS = 4096
ROUNDS_OF_LEVEL = 2
LEAST_PAIRS = 2
"""Pairs that a node must have tried before it is taken for cut off; with one the partner may be."""
_SEND, _RECEIVE = "send", "receive"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkReport:
    """The rates between nodes, as measured.

    Attributes:
        num_nodes: Nodes that measured.
        num_rounds: Rounds, in each of which a node has at most one partner.
        median_gb_s: Median over the pairs of all rounds, of the slower direction, in 10^9 bytes a second.
        slow: Slow NICs, the surest first.
        unreachable: Pairs that could not measure, by the names of their nodes, each once.
        domains: The domains in which the nodes are, as paths from the widest.
        pods: The pod of each node that measured, by the name of the node.
        cut_off: Nodes that could measure with no partner, of several, while others could.
    """

    num_nodes: int
    num_rounds: int
    median_gb_s: float
    slow: tuple[SlowLink, ...]
    unreachable: tuple[Pair, ...]
    domains: tuple[tuple[str, ...], ...] = ()
    pods: Mapping[str, int] = field(default_factory=dict)
    cut_off: tuple[str, ...] = ()

    @property
    def is_fine(self) -> bool:
        """Return whether nothing is slow or unreachable."""
        return not self.slow and not self.unreachable


class _Server:
    """Sends or receives for other nodes, on its own threads, until it is closed."""

    def __init__(self, host: str, secret: bytes, seconds: float) -> None:
        self._secret = secret
        self._seconds = seconds
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=16)
        self.port: int = self._listener.getsockname()[1]
        self._closing, self._close = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, name="fairlead-network", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._close.send(b"c")
        self._thread.join()

    def _listen(self) -> None:
        with self._listener, self._closing, self._close, selectors.DefaultSelector() as selector:
            admission = PeerAdmission(self._listener, self._secret, selector)
            selector.register(self._closing, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(admission.timeout_s):
                    if key.fileobj is self._closing:
                        admission.close()
                        return
                    if (peer := admission.handle(key)) is not None:
                        threading.Thread(target=partial(self._serve, *peer), daemon=True).start()
                admission.expire()

    def _serve(self, connection: socket.socket, hello: bytes) -> None:
        with connection:
            connection.settimeout(self._seconds + SILENCE_S)
            try:
                if parse_json(hello, max_bytes=MOST_HELLO) == _SEND:
                    send(connection, _rate_of_received(connection))
                else:
                    _send_for(connection, self._seconds)
            except (OSError, ValueError):
                return  # the other side says that it could not measure


def measure(
    channel: Channel,
    environment: Environment,
    environ: Mapping[str, str],
    *,
    num_rounds: int,
    seconds: float,
    most_s: float = math.inf,
    takes_part: bool = True,
) -> NetworkReport:
    """Measure and return the same report on all ranks. Collective.

    Args:
        num_rounds: Rounds, at least 1; more if the nodes are in domains, of which each level needs two.
        seconds: Seconds for each direction of a pair, above 0.
        most_s: Seconds after which no further round begins, by the clock of rank 0; the first always does.
        takes_part: Whether this node measures; of several pods on one node one should.

    Raises:
        AgreementFailed: A rank is gone.
    """
    secret = token(environment.key_file, environment.run_uid, environment.attempt, "network")
    host = own_address(environment, environ)
    server = _Server(host, secret, seconds) if environment.local_rank == 0 and takes_part else None
    try:
        name, domains = _node_name(environment, environ), _domains(environ)
        own_row = None if server is None else [name, host, server.port, environment.node, domains]
        rows = [peer for peer in channel.gather(own_row) if peer is not None]
        peers = {str(peer[0]): (str(peer[1]), int(peer[2])) for peer in rows}
        topology = topology_of({str(peer[0]): peer[4] for peer in rows})
        depth = max(map(len, topology.values()), default=0)
        num_rounds = max(num_rounds, ROUNDS_OF_LEVEL * (depth + 1))
        rounds: list[dict[Pair, float]] = []
        unreachable: dict[Pair, None] = {}
        rates: list[float] = []
        num_pairs, num_measured = Counter[str](), Counter[str]()
        began = time.monotonic()
        for pairs in plan_rounds(topology, num_rounds, random.Random(environment.run_uid)):
            elapsed_s = float(channel.gather(time.monotonic() - began)[0])  # all begin together
            if rounds and elapsed_s >= most_s:
                break
            own_pairs = [pair for pair in pairs if own_row is not None and pair[0] == own_row[0]]
            measured = [[*pair, _measure_pair(peers[pair[1]], secret, seconds)] for pair in own_pairs]
            seconds_per_gb: dict[Pair, float] = {}
            for first, second, gb_s in (row for rows in channel.gather(measured) for row in rows):
                num_pairs.update((first, second))
                if gb_s is None:
                    unreachable[first, second] = None
                else:
                    num_measured.update((first, second))
                    seconds_per_gb[first, second] = 1.0 / gb_s
                    rates.append(gb_s)
            rounds.append(seconds_per_gb)
    finally:
        if server is not None:
            server.close()
    rates.sort()
    return NetworkReport(
        num_nodes=len(peers),
        num_rounds=len(rounds),
        median_gb_s=rates[len(rates) // 2] if rates else math.nan,
        slow=slow_links(topology, rounds),
        unreachable=tuple(unreachable),
        domains=tuple(sorted({path[: level + 1] for path in topology.values() for level in range(depth)})),
        pods={str(peer[0]): int(peer[3]) for peer in rows},
        cut_off=tuple(name for name in peers if num_pairs[name] >= LEAST_PAIRS and rates and not num_measured[name]),
    )


def topology_of(domains: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the domains of each node, such as "rack r1", at levels that all have and that divide them.

    Args:
        domains: The domains of each node by level, wide to narrow.
    """
    first = next(iter(domains.values()), {})
    levels = []
    for level in first:
        values = [node_domains.get(level) for node_domains in domains.values()]
        if None not in values and 1 < len(set(values)) < len(values):
            levels.append(level)
    return {name: tuple(f"{level} {node_domains[level]}" for level in levels) for name, node_domains in domains.items()}


def _domains(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the domains of this node by level; empty if nothing readable is known."""
    try:
        content = parse_object(environ.get("FAIRLEAD_DOMAINS", "{}"), max_bytes=MOST_DOMAINS)
    except ValueError:
        return {}
    return {level: domain for level, domain in content.items() if isinstance(domain, str)}


def own_address(environment: Environment, environ: Mapping[str, str]) -> str:
    """Return the address of this node at which the others reach it: that of its pod, or of its way to rank 0."""
    if address := environ.get("FAIRLEAD_POD_IP"):
        return address
    family, _, _, _, rank_0 = socket.getaddrinfo(environment.master_addr, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(rank_0)  # sends nothing
        return str(probe.getsockname()[0])


def node_of(environ: Mapping[str, str]) -> str:
    """Return the name of this node: that of the cluster, or of the machine."""
    return environ.get("FAIRLEAD_NODE") or os.uname().nodename


def _node_name(environment: Environment, environ: Mapping[str, str]) -> str:
    """Return a name of the node that no other pod of the gang has."""
    return f"{node_of(environ)} (pod {environment.node})"


def _measure_pair(peer: tuple[str, int], secret: bytes, seconds: float) -> float | None:
    """Return the rate of the slower direction in GB/s; None if the other node could not be reached."""
    try:
        return min(_sent_rate(peer, secret, seconds), _received_rate(peer, secret, seconds))
    except (OSError, ValueError):
        return None


def _sent_rate(peer: tuple[str, int], secret: bytes, seconds: float) -> float:
    with _connected(peer, secret, _SEND, seconds) as connection:
        _send_for(connection, seconds)
        return _valid_rate(receive(connection, max_bytes=MOST_HELLO))


def _received_rate(peer: tuple[str, int], secret: bytes, seconds: float) -> float:
    with _connected(peer, secret, _RECEIVE, seconds) as connection:
        return _valid_rate(_rate_of_received(connection))


def _connected(peer: tuple[str, int], secret: bytes, direction: str, seconds: float) -> socket.socket:
    connection = socket.create_connection(peer, timeout=CONNECT_S)
    try:
        connection.settimeout(seconds + SILENCE_S)
        greet(connection, secret, json.dumps(direction).encode())
    except OSError:
        connection.close()
        raise
    return connection


def _send_for(connection: socket.socket, seconds: float) -> None:
    """Send for some time, then say that no more comes."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        connection.sendall(CHUNK)
    connection.shutdown(socket.SHUT_WR)


def _rate_of_received(connection: socket.socket) -> float:
    """Receive to the end, and return GB/s from the first to the last byte.

    Raises:
        ValueError: Too little came to measure a rate.
    """
    buffer = bytearray(len(CHUNK))
    size = connection.recv_into(buffer)
    began, num_bytes = time.monotonic(), 0
    while size and (size := connection.recv_into(buffer)):
        num_bytes += size
    seconds = time.monotonic() - began
    if not num_bytes or seconds <= 0.0:
        raise ValueError("too little came to measure a rate")
    return num_bytes / seconds / 1e9


def _valid_rate(rate: Any) -> float:
    """Return a rate that a peer sent.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(rate, float) or not 0.0 < rate < MOST_GB_S:
        raise ValueError(f"{rate!r} is no rate in GB/s")
    return rate
