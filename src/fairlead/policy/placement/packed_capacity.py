"""Provides the free capacity of many nodes, with ``fairlead.policy.placement.packing`` choosing among them."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fairlead.frozen import dataclass
from fairlead.policy.placement.fleet_arrays import FleetArrays, Spot
from fairlead.policy.placement.gang_placement import members, place_gang, place_one
from fairlead.policy.placement.node_arrays import Ints
from fairlead.policy.placement.node_eligibility import doors_of
from fairlead.policy.placement.node_ranking import Scores
from fairlead.policy.placement.packing import ORDER_WEIGHT, Packing
from fairlead.policy.placement.placement import NodeCapacity, grant_of, ways_of
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.policy.placement.task_mix import TaskMix
from fairlead.specs.sharing import Sharing
from fairlead.state.snapshot import Grant, Node, Pod

WIDE = 32
"""Gangs of so many pods get the nodes with the fewest failures; or, on a small cluster, of a sixteenth of its nodes."""
MOST_BITS = 8
"""The most bits of evidence against a node that count: more make no node better for a narrow gang."""


class Holdings:
    """The holdings of pods in a fleet, updated incrementally."""

    def __init__(self, nodes: Sequence[Node], pods: Iterable[Pod]) -> None:
        self._fleet = FleetArrays(nodes)
        index = self._fleet.index
        here = [pod for pod in pods if pod.node in index]
        live = [(index[pod.node], pod.grant) for pod in here if not pod.phase.is_final]
        self._fleet.hold(live)
        self._fleet.num_placed, self._fleet.num_left = len(here), len(here) - len(live)

    def change(self, gone: Iterable[Pod], new: Iterable[Pod]) -> None:
        """Replace changed pods by their new versions."""
        fleet = self._fleet
        for pods, times in ((gone, -1), (new, 1)):
            for pod in pods:
                node = fleet.index.get(pod.node)
                if node is None:
                    continue
                fleet.num_placed += times
                if pod.phase.is_final:
                    fleet.num_left += times
                else:
                    hold(fleet, node, pod.grant, times)

    def copy(self) -> FleetArrays:
        """Return a copy of the fleet."""
        return self._fleet.copy()


def hold(fleet: FleetArrays, node: int, grant: Grant, times: int) -> None:
    """Hold a grant ``times`` times."""
    devices = fleet.frame.devices(node, grant)
    milli = times * min(grant.gpu_milli, WHOLE_GPU)
    fleet.take(node, times * grant.cpu_milli, times * grant.memory_bytes, devices, milli)


class PackedRooms:
    """The free capacity of the nodes, as ``fairlead.policy.placement.placement.FreeCapacity``.

    Args:
        fleet: Owned by this object from now on.
        risks: Bits of evidence against nodes, by name; those of others are 0.
    """

    def __init__(self, fleet: FleetArrays, mix: TaskMix, risks: Mapping[str, int] | None = None) -> None:
        self.doors = doors_of(fleet.nodes)
        self._fleet = fleet
        self._packing = Packing(fleet, mix)
        self._bonus = _bonus(fleet, risks or {})

    @classmethod
    def of(
        cls, nodes: Sequence[Node], pods: Iterable[Pod], mix: TaskMix, risks: Mapping[str, int] | None = None
    ) -> "PackedRooms":
        """Return the capacity of nodes with what these pods hold."""
        return cls(Holdings(nodes, pods).copy(), mix, risks)

    @property
    def sharing(self) -> frozenset[Sharing]:
        """Return the ways in which parts of devices are isolated here."""
        return ways_of(self._fleet.kinds)

    def place(self, shape: Shape, count: int, peers: Sequence[str] = ()) -> tuple[tuple[str, Grant], ...] | None:
        """Allocate nodes and grants for so many pods; return None, with nothing allocated, if they do not all fit."""
        if members(shape, count, self._fleet).sum() < count:
            self._packing.learn_later()
            return None
        self._packing.learn()
        bonus = self._bonus
        if bonus is not None and count >= min(WIDE, max(1, len(self._fleet) // 16)):
            bonus = -bonus
        chooser = _Members(self._packing, tuple(peers) if count == 1 else (), bonus)
        gang = place_one(shape, self._fleet, chooser) if count == 1 else place_gang(shape, count, self._fleet, chooser)
        return None if gang is None else tuple(self._grant(shape, spot) for spot in gang)

    def may_place(self, shape: Shape, count: int) -> bool:
        """Return whether so many pods fit."""
        return bool(members(shape, count, self._fleet).sum() >= count)

    def hold(self, node: str, grant: Grant, times: int = 1) -> None:
        """Hold a grant on a node, even beyond what exists; with -1 release it."""
        hold(self._fleet, self._fleet.index[node], grant, times)

    def has(self, node: str, grant: Grant) -> bool:
        """Return whether the node exists, accepts pods, and has this grant free."""
        index = self._fleet.index.get(node)
        return index is not None and self._room(index).has(grant)

    def freest(self, shape: Shape, most: int) -> list[NodeCapacity]:
        """Return nodes in order: with such devices, open, most of those free, most cores free."""
        fleet = self._fleet
        everywhere = np.arange(len(fleet))
        such = (fleet.allowed(shape)[fleet.kind] & (fleet.capacity_milli > 0)).sum(axis=1) >= shape.num_gpus
        devices = (fleet.gpu_milli * (fleet.usable(everywhere, shape) & (fleet.gpu_milli > 0))).sum(axis=1)
        devices = devices if shape.num_gpus else np.zeros_like(devices)
        order = np.lexsort((everywhere, -fleet.cpu_milli, -devices, ~fleet.open_to(shape), ~such))
        return [self._room(int(node)) for node in order[:most]]

    def _grant(self, shape: Shape, spot: Spot) -> tuple[str, Grant]:
        node = self._fleet.nodes[spot.node]
        return node.name, grant_of(shape, tuple(node.gpus[i].uuid for i in spot.devices))

    def _room(self, index: int) -> NodeCapacity:
        node, fleet = self._fleet.nodes[index], self._fleet
        free = {gpu.uuid: int(fleet.gpu_milli[index, i]) for i, gpu in enumerate(node.gpus)}
        return NodeCapacity(node, int(fleet.cpu_milli[index]), int(fleet.memory_bytes[index]), free)


def _bonus(fleet: FleetArrays, risks: Mapping[str, int]) -> Scores | None:
    """Return how much narrow gangs prefer each node, enough to outweigh the order of equals (N); None without risks."""
    at = [(fleet.index[name], bits) for name, bits in risks.items() if name in fleet.index]
    if not at:
        return None
    bonus = np.zeros(len(fleet))
    for node, bits in at:
        bonus[node] = ORDER_WEIGHT * min(bits, MOST_BITS)
    return bonus


@dataclass(frozen=True, slots=True)
class _Members:
    """Chooses for the pods of one gang.

    Attributes:
        peers: The nodes of replicas of the same endpoint, for a replica of one pod; several pods follow the topology.
        bonus: How much each node is preferred beside its value (N); None for all alike.
    """

    packing: Packing
    peers: tuple[str, ...]
    bonus: Scores | None

    def choose(self, shape: Shape, among: Ints | None = None) -> Spot | None:
        return self.packing.pick(shape, among, self.peers, self.bonus)
