"""Channels between the ranks of a run, apart from the training's own traffic.

Three channels with one face: nobody to talk to, a gloo group of torch.distributed, and a star of sockets around rank
0 for programs without it. A channel is used by one thread at a time; two threads use two channels.
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

    A call raises AgreementFailed when a rank is gone or does not come in time; the channel is of no use then.
    """

    rank: int
    world_size: int

    def gather(self, value: Any) -> list[Any]:
        """The JSON value of every rank, by rank."""
        ...

    def maximum(self, vector: Sequence[int]) -> list[int]:
        """The largest of every rank's numbers, place by place."""
        ...

    def close(self) -> None:
        """Let go of connections; calling it again does nothing."""
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
        """Nothing is held."""


class Gloo:
    """A gloo group of its own over all ranks. Making one is collective; the training's groups are not touched."""

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
        """The group goes with the process: destroying it is collective, and a rank may be gone."""


class Star:
    """Rank 0 in the middle, a connection to every other rank."""

    def __init__(
        self, *, rank: int, connections: Sequence[socket.socket], timeout_s: float = EXCHANGE_TIMEOUT_S
    ) -> None:
        """For rank 0 the connections of ranks 1, 2, ... in that order; for others the one to rank 0."""
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
    """One star for each name. Collective: returns when every rank is connected.

    The token keeps ranks of another run, or of an earlier attempt, apart; it is no secret.

    Raises:
        AgreementFailed: Some rank did not come in time; the message names it.
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
    """Listen on rank 0's own address where it has one, so that a run on one machine is not seen from outside."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            listener.bind(address)
        except OSError as error:
            # The name may stand for a service in front of the pod, which no process can bind to.
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
            # Rank 0 of an earlier attempt may still hold the port; the next one will know us.
            problem = error
            connection.close()
            time.sleep(0.05)
    raise AgreementFailed(f"rank {rank} did not reach rank 0 at {host}:{port} in time: {problem}")


def send(connection: socket.socket, value: Any) -> None:
    """One JSON message, its length first."""
    data = json.dumps(value).encode()
    connection.sendall(HEADER.pack(len(data)) + data)


def receive(connection: socket.socket) -> Any:
    """One message.

    Raises:
        OSError: The other side is gone or late.
        ValueError: What came is no message of ours.
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
