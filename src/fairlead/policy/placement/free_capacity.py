"""Provides the free capacity of nodes: of a single node directly, of several as arrays.

A single node leaves only devices to choose, which needs no arrays. Among several nodes
``fairlead.policy.placement.packing`` chooses; it is imported only then, because numpy costs a supervisor 20 MB that a
laptop never needs.
"""

from collections.abc import Iterable, Mapping, Sequence

from fairlead.errors import ClusterError
from fairlead.policy.placement.node_eligibility import doors_of
from fairlead.policy.placement.placement import FreeCapacity, NodeCapacity, ways_of
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.placement.task_mix import TaskMix
from fairlead.specs.sharing import Sharing
from fairlead.state.snapshot import Grant, Node, Pod


class OneNode:
    """The capacity of at most one node: first come, first served."""

    def __init__(self, room: NodeCapacity | None) -> None:
        self._room = room
        self.doors = doors_of(() if room is None else (room.node,))

    @property
    def sharing(self) -> frozenset[Sharing]:
        """Return the same as ``FreeCapacity``."""
        return frozenset() if self._room is None else ways_of(self._room.node.gpus)

    def place(self, shape: Shape, count: int, peers: Sequence[str] = ()) -> tuple[tuple[str, Grant], ...] | None:
        """Place as ``FreeCapacity`` does."""
        if self._room is None or (shape.apart and count > 1):
            return None
        placed: list[tuple[str, Grant]] = []
        for _ in range(count):
            grant = self._room.fit(shape)
            if grant is None:
                for _, taken in placed:
                    self._room.take(taken, -1)
                return None
            self._room.take(grant)
            placed.append((self._room.node.name, grant))
        return tuple(placed)

    def may_place(self, shape: Shape, count: int) -> bool:
        """Return the same as ``FreeCapacity``."""
        placed = self.place(shape, count)
        for node, grant in placed or ():
            self.hold(node, grant, -1)
        return placed is not None

    def hold(self, node: str, grant: Grant, times: int = 1) -> None:
        """Hold as ``FreeCapacity`` does."""
        if self._room is not None and node == self._room.node.name:
            self._room.take(grant, times)

    def has(self, node: str, grant: Grant) -> bool:
        """Return the same as ``FreeCapacity``."""
        return self._room is not None and node == self._room.node.name and self._room.has(grant)

    def freest(self, shape: Shape, most: int) -> list[NodeCapacity]:
        """Return the same as ``FreeCapacity``."""
        return [self._room] if self._room is not None else []


def rooms(
    nodes: Sequence[Node],
    pods: Iterable[Pod],
    mix: TaskMix | None = None,
    risks: Mapping[str, int] | None = None,
) -> FreeCapacity:
    """Return the free capacity of the nodes; a pod holds its grant until none of its processes is alive.

    Args:
        mix: The expected future requests; unspecific if omitted.
        risks: Bits of evidence against nodes, by name; none if omitted.
    """
    if len(nodes) > 1:
        try:
            from fairlead.policy.placement.packed_capacity import PackedRooms
        except ModuleNotFoundError as error:
            raise ClusterError(
                f"Placement on several nodes needs {error.name}, which a small installation leaves out; "
                "`pip install 'fairlead[cluster]'` installs it."
            ) from error
        return PackedRooms.of(nodes, pods, mix or TaskMix(), risks)
    room = NodeCapacity.of(nodes[0]) if nodes else None
    for pod in pods:
        if room is not None and not pod.phase.is_final and pod.node == room.node.name:
            room.take(pod.grant)
    return OneNode(room)
