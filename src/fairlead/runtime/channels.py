"""Channels between the ranks of a run, separate from the training's own communication.

Three channels share one interface: one for a single rank, a gloo group of torch.distributed, and a star of sockets
around rank 0 for programs without torch.distributed. A channel is used by one thread at a time; two threads use two
channels.
"""

import errno
import json
import selectors
import socket
import struct
import time
from collections.abc import Sequence, Set
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from fairlead.runtime.admission import MOST_HELLO, PeerAdmission, greet
from fairlead.runtime.errors import AgreementFailed
from fairlead.untrusted_json import parse_json

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

EXCHANGE_TIMEOUT_S = 1800.0
OPEN_TIMEOUT_S = 300.0
HELLO_TIMEOUT_S = 5.0
LARGEST_MESSAGE = 1 << 28
HEADER = struct.Struct(">I")
WELCOME = "welcome"


class Channel(Protocol):
    """A collective exchange: every rank makes the same calls in the same order.

    A call raises AgreementFailed when a rank is gone or does not answer in time; the channel cannot be used afterwards.
    """

    rank: int
    world_size: int

    def gather(self, value: Any) -> list[Any]:
        """Return the JSON value of every rank, by rank."""
        ...

    def maximum(self, vector: Sequence[int]) -> list[int]:
        """Return the elementwise maximum over the ranks' vectors."""
        ...

    def close(self) -> None:
        """Close the connections; calling it again does nothing."""
        ...


class Alone:
    """The channel of a run with one rank."""

    rank = 0
    world_size = 1

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def maximum(self, vector: Sequence[int]) -> list[int]:
        return list(vector)

    def close(self) -> None:
        """Do nothing: there are no connections."""


class Gloo:
    """A separate gloo group over all ranks. Creating one is collective; the training's own groups are not used."""

    def __init__(self, *, timeout_s: float = EXCHANGE_TIMEOUT_S) -> None:
        import torch.distributed as dist

        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        assert not isinstance(group, int), "every rank is a member of a group of all"
        self.group: ProcessGroup = group

    def gather(self, value: Any) -> list[Any]:
        # As JSON, not by all_gather_object: that loads pickles, which run what their sender chose.
        import torch
        import torch.distributed as dist

        data = json.dumps(value).encode()
        try:
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
            dist.all_gather(sizes, torch.tensor([len(data)]), group=self.group)
            lengths = [int(size) for size in sizes]
            if not 0 < max(lengths) <= LARGEST_MESSAGE:
                raise ValueError(f"a message of {max(lengths)} bytes")
            padded = torch.zeros(max(lengths), dtype=torch.uint8)
            padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            parts = [torch.empty_like(padded) for _ in range(self.world_size)]
            dist.all_gather(parts, padded, group=self.group)
            return [json.loads(part[:length].numpy().tobytes()) for part, length in zip(parts, lengths, strict=True)]
        except (RuntimeError, ValueError) as error:  # RecursionError is a RuntimeError
            raise AgreementFailed(f"the ranks cannot reach each other: {error}") from error

    def maximum(self, vector: Sequence[int]) -> list[int]:
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(vector, dtype=torch.int64, device="cpu")
        try:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
        except (RuntimeError, ValueError) as error:
            raise AgreementFailed(f"the ranks cannot reach each other: {error}") from error
        return [int(item) for item in tensor.tolist()]

    def close(self) -> None:
        """Do nothing: destroying the group is collective and a rank may be gone, so it ends with the process."""


class Star:
    """A star of sockets: rank 0 has a connection to every other rank."""

    def __init__(
        self, *, rank: int, connections: Sequence[socket.socket], timeout_s: float = EXCHANGE_TIMEOUT_S
    ) -> None:
        """Take the connections: for rank 0 those of ranks 1, 2, ... in that order; for others the one to rank 0."""
        self.rank = rank
        self.world_size = 0
        self._connections = list(connections)
        for connection in self._connections:
            connection.settimeout(timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def gather(self, value: Any) -> list[Any]:
        if self.rank == 0:
            values = [value, *(self._hear(peer, rank) for rank, peer in enumerate(self._connections, start=1))]
            for rank, peer in enumerate(self._connections, start=1):
                self._say(peer, values, rank)
            return values
        self._say(self._connections[0], value, 0)
        answer = self._hear(self._connections[0], 0)
        assert isinstance(answer, list)
        return answer

    def maximum(self, vector: Sequence[int]) -> list[int]:
        return [max(column) for column in zip(*self.gather(list(vector)), strict=True)]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def _say(self, peer: socket.socket, value: Any, rank: int) -> None:
        try:
            send(peer, value)
        except OSError as error:
            raise AgreementFailed(f"rank {rank} is gone: {error}") from error

    def _hear(self, peer: socket.socket, rank: int) -> Any:
        try:
            return receive(peer)
        except TimeoutError as error:
            raise AgreementFailed(f"rank {rank} did not connect within {peer.gettimeout():g} s") from error
        except (OSError, ValueError) as error:
            raise AgreementFailed(f"rank {rank} is gone: {error}") from error


def open_stars(
    *,
    rank: int,
    world_size: int,
    host: str,
    port: int,
    token: bytes,
    names: Sequence[str],
    timeout_s: float = OPEN_TIMEOUT_S,
) -> list[Star]:
    """Open one star for each name. Collective: returns when every rank is connected.

    Args:
        token: The secret of this attempt's ranks, which nobody else has; see `run_key.py`.

    Raises:
        AgreementFailed: Some rank did not connect within ``timeout_s``; the message names it.
    """
    deadline = time.monotonic() + timeout_s
    if rank == 0:
        peers = _accept(world_size=world_size, host=host, port=port, token=token, names=names, deadline=deadline)
        stars = [Star(rank=0, connections=[peers[name, peer] for peer in range(1, world_size)]) for name in names]
    else:
        stars = [Star(rank=rank, connections=[_connect(rank, host, port, token, name, deadline)]) for name in names]
    for star in stars:
        star.world_size = world_size
    return stars


def _accept(
    *, world_size: int, host: str, port: int, token: bytes, names: Sequence[str], deadline: float
) -> dict[tuple[str, int], socket.socket]:
    wanted = {(name, peer) for name in names for peer in range(1, world_size)}
    peers: dict[tuple[str, int], socket.socket] = {}
    with _listen(host, port) as listener, selectors.DefaultSelector() as selector:
        admission = PeerAdmission(listener, token, selector)
        while wanted - peers.keys():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                admission.close()
                missing = sorted({peer for _, peer in wanted - peers.keys()})
                raise AgreementFailed(f"ranks {missing} did not reach {host}:{port} in time")
            late_s = admission.timeout_s
            for event, _ in selector.select(left_s if late_s is None else min(left_s, late_s)):
                peer = admission.handle(event)
                if peer is not None:
                    _welcome(*peer, wanted, peers)
            admission.expire()
        admission.close()
    return peers


def _welcome(
    connection: socket.socket,
    hello: bytes,
    wanted: Set[tuple[str, int]],
    peers: dict[tuple[str, int], socket.socket],
) -> None:
    """Take in a rank that has the token; one that connects again takes the place of its earlier connection."""
    try:
        name, rank = parse_json(hello, max_bytes=MOST_HELLO)
        key = str(name), int(rank)
        if key not in wanted:
            raise ValueError(f"no rank {key} is awaited")
        connection.settimeout(HELLO_TIMEOUT_S)
        send(connection, WELCOME)
    except (OSError, ValueError, TypeError, OverflowError):
        connection.close()
        return
    earlier = peers.pop(key, None)
    if earlier is not None:
        earlier.close()
    peers[key] = connection


def _listen(host: str, port: int) -> socket.socket:
    """Listen on rank 0's own address if possible, so that a run on one machine is not reachable from outside."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            listener.bind(address)
        except OSError as error:
            # The name may be that of a Service in front of the pod, to which no process can bind.
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            listener.bind(("", port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise AgreementFailed(f"rank 0 cannot listen on {host}:{port}: {error}") from error
    return listener


def _connect(rank: int, host: str, port: int, token: bytes, name: str, deadline: float) -> socket.socket:
    problem: Exception | None = None
    while time.monotonic() < deadline:
        try:
            connection = socket.create_connection((host, port), timeout=HELLO_TIMEOUT_S)
        except OSError as error:
            problem = error
            time.sleep(0.05)
            continue
        try:
            greet(connection, token, json.dumps([name, rank]).encode())
            if receive(connection, max_bytes=MOST_HELLO, deadline=deadline) != WELCOME:
                raise ValueError("another program listens there")
            return connection
        except (OSError, ValueError) as error:
            # Rank 0 of an earlier attempt may still hold the port; the one of this attempt will accept this rank.
            problem = error
            connection.close()
            time.sleep(0.05)
    raise AgreementFailed(f"rank {rank} did not reach rank 0 at {host}:{port} in time: {problem}")


def send(connection: socket.socket, value: Any) -> None:
    """Send one JSON message, preceded by its length."""
    data = json.dumps(value).encode()
    connection.sendall(HEADER.pack(len(data)) + data)


def receive(connection: socket.socket, *, max_bytes: int = LARGEST_MESSAGE, deadline: float | None = None) -> Any:
    """Receive one message.

    Args:
        deadline: When it is late, by the monotonic clock; None for the connection's time limit for each part of it.

    Raises:
        OSError: The other side is gone or late.
        ValueError: The data received is not a message of this protocol.
    """
    (size,) = HEADER.unpack(_exactly(connection, HEADER.size, deadline))
    if size > max_bytes:
        raise ValueError(f"a message of {size} bytes; at most {max_bytes} are read")
    return parse_json(_exactly(connection, size, deadline), max_bytes=max_bytes)


def _exactly(connection: socket.socket, size: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise ConnectionResetError("the connection was closed")
        parts += part
    return bytes(parts)
