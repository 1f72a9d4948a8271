"""Channels between the ranks of a run, separate from the training's own communication.

Three channels share one interface: one for a single rank, a gloo group of torch.distributed, and a star of sockets
around rank 0 for programs without torch.distributed. A channel is used by one thread at a time; two threads use two
channels.
"""

import errno
import json
import socket
import struct
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from fairlead.runtime.errors import AgreementFailed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

EXCHANGE_TIMEOUT_S = 1800.0
OPEN_TIMEOUT_S = 300.0
HELLO_TIMEOUT_S = 5.0
LARGEST_MESSAGE = 1 << 28
HEADER = struct.Struct(">I")


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
        import torch.distributed as dist

        values: list[Any] = [None] * self.world_size
        try:
            dist.all_gather_object(values, value, group=self.group)
        except (RuntimeError, ValueError) as error:
            raise AgreementFailed(f"the ranks cannot reach each other: {error}") from error
        return values

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
    token: str,
    names: Sequence[str],
    timeout_s: float = OPEN_TIMEOUT_S,
) -> list[Star]:
    """Open one star for each name. Collective: returns when every rank is connected.

    The token tells apart ranks of this attempt from those of another run or an earlier attempt; it is not a secret.

    Raises:
        AgreementFailed: Some rank did not connect within ``timeout_s``; the message names it.
    """
    deadline = time.monotonic() + timeout_s
    if rank == 0:
        found = _accept(world_size=world_size, host=host, port=port, token=token, names=names, deadline=deadline)
        stars = [Star(rank=0, connections=[found[name, peer] for peer in range(1, world_size)]) for name in names]
    else:
        stars = [Star(rank=rank, connections=[_connect(rank, host, port, token, name, deadline)]) for name in names]
    for star in stars:
        star.world_size = world_size
    return stars


def _accept(
    *, world_size: int, host: str, port: int, token: str, names: Sequence[str], deadline: float
) -> dict[tuple[str, int], socket.socket]:
    wanted = {(name, peer) for name in names for peer in range(1, world_size)}
    found: dict[tuple[str, int], socket.socket] = {}
    with _listen(host, port) as listener:
        while wanted - found.keys():
            listener.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                connection, _ = listener.accept()
            except TimeoutError as error:
                missing = sorted({peer for _, peer in wanted - found.keys()})
                raise AgreementFailed(f"ranks {missing} did not reach {host}:{port} in time") from error
            hello = _hello(connection)
            key = (hello.get("name"), hello.get("rank"))
            if hello.get("token") != token or key not in wanted:
                connection.close()
                continue
            stale = found.pop(key, None)
            if stale is not None:
                stale.close()
            found[key] = connection
            send(connection, "welcome")
    return found


def _hello(connection: socket.socket) -> dict[str, Any]:
    connection.settimeout(HELLO_TIMEOUT_S)
    try:
        hello = receive(connection)
    except (OSError, ValueError) as error:
        print(f"fairlead: refused a connection that is not from a rank of this run ({error})", file=sys.stderr)
        return {}
    return hello if isinstance(hello, dict) else {}


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


def _connect(rank: int, host: str, port: int, token: str, name: str, deadline: float) -> socket.socket:
    problem: Exception | None = None
    while time.monotonic() < deadline:
        try:
            connection = socket.create_connection((host, port), timeout=HELLO_TIMEOUT_S)
        except OSError as error:
            problem = error
            time.sleep(0.05)
            continue
        try:
            send(connection, {"token": token, "rank": rank, "name": name})
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            receive(connection)
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


def receive(connection: socket.socket) -> Any:
    """Receive one message.

    Raises:
        OSError: The other side is gone or late.
        ValueError: The data received is not a message of this protocol.
    """
    (size,) = HEADER.unpack(_exactly(connection, HEADER.size))
    if size > LARGEST_MESSAGE:
        raise ValueError(f"a message of {size} bytes")
    return json.loads(_exactly(connection, size))


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise ConnectionResetError("the connection was closed")
        parts += part
    return bytes(parts)
