"""Places all of a gang or none of it, in the narrowest topology domain that holds it, with any chooser of nodes.

A gang of several pods waits for its slowest link at every step, and may run for days; restricting packing to one domain
loses only a little capacity, temporarily. So topology comes first, and packing chooses among nodes with the same
traffic cost for the gang (``fairlead.policy.placement.topology``). Of equal domains the fullest is taken, which leaves
others whole for wide gangs.

The search finds the narrowest level at which one domain holds all pods. There they fill the largest parts first, which
spreads them over as few as possible (any set of k parts holds at most what the k largest hold); the rest again goes to
the narrowest domain that holds it. For N nodes, L levels and P parts: at most L N for each of the P.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fairlead.policy.placement.fleet_arrays import FleetArrays, Spot
from fairlead.policy.placement.node_arrays import Ints, Mask
from fairlead.policy.placement.pod_shapes import Shape


class Chooser(Protocol):
    """Chooses among the nodes of a fleet."""

    def choose(self, shape: Shape, among: Ints) -> Spot | None:
        """Return node and devices for one pod on one of these nodes; None without room. Allocates nothing."""
        ...


class Anywhere(Protocol):
    """Chooses among all nodes of a fleet."""

    def choose(self, shape: Shape) -> Spot | None:
        """Return node and devices for one pod; None if it fits nowhere. Allocates nothing."""
        ...


def place_one(shape: Shape, fleet: FleetArrays, chooser: Anywhere) -> tuple[Spot, ...] | None:
    """Allocate the spot for a run of one pod; return None if it fits nowhere."""
    chosen = chooser.choose(shape)
    if chosen is None:
        return None
    fleet.take(chosen.node, shape.cpu_milli, shape.memory_bytes, chosen.devices, shape.gpu_milli)
    fleet.num_placed += 1
    return (chosen,)


def place_gang(shape: Shape, count: int, fleet: FleetArrays, chooser: Chooser) -> tuple[Spot, ...] | None:
    """Allocate spots for so many pods of one shape; return None, with nothing allocated, if not all fit.

    Pods that are adjacent in the ring are adjacent in the result.
    """
    most = members(shape, count, fleet)
    if most.sum() < count:
        return None
    gang = _Gang(shape, fleet, chooser, most, fleet.domains)
    if not gang.place(np.flatnonzero(most), count, 0):
        for spot in gang.spots:
            fleet.release(spot.node, shape.cpu_milli, shape.memory_bytes, spot.devices, shape.gpu_milli)
        return None
    fleet.num_placed += count
    return tuple(gang.spots)


def members(shape: Shape, count: int, fleet: FleetArrays) -> Ints:
    """Return how many pods of one shape fit on each node (N), at most ``count``."""
    everywhere = np.arange(len(fleet))
    usable = fleet.usable(everywhere, shape)
    most = np.full(len(fleet), min(count, 1) if shape.apart else count)
    if shape.cpu_milli:
        most = np.minimum(most, fleet.cpu_milli // shape.cpu_milli)
    if shape.memory_bytes:
        most = np.minimum(most, fleet.memory_bytes // shape.memory_bytes)
    if shape.is_share:
        most = np.minimum(most, (usable * (fleet.gpu_milli // shape.gpu_milli)).sum(axis=1))
    elif shape.num_gpus:
        most = np.minimum(most, usable.sum(axis=1) // shape.num_gpus)
    return np.asarray(np.where(fleet.fits(everywhere, shape, usable), most, 0))


def release(shape: Shape, spot: Spot, fleet: FleetArrays) -> None:
    """Release what a finished pod held."""
    fleet.num_left += 1
    fleet.release(spot.node, shape.cpu_milli, shape.memory_bytes, spot.devices, shape.gpu_milli)


@dataclass(slots=True)
class _Gang:
    """The state of a gang during placement.

    Attributes:
        most: The number of pods that each node could hold at first (N).
        domains: The domain of each node at each level, wide to narrow (L, N).
    """

    shape: Shape
    fleet: FleetArrays
    chooser: Chooser
    most: Ints
    domains: Ints
    spots: list[Spot] = field(default_factory=list)

    def place(self, nodes: Ints, count: int, level: int) -> bool:
        """Place so many pods on nodes that share all domains wider than ``level``; return whether all found a place."""
        while count:
            if level == len(self.domains):
                return self._put(nodes, count)
            domain = self._narrowest(nodes, count, level)
            if domain is not None:
                at, own = domain
                return self.place(nodes[own], count, at + 1)
            held = self._held(nodes, level)
            number = int(held.max())
            own = self._chosen(nodes, level, held == number)
            if not self.place(nodes[own], number, level + 1):
                return False
            nodes, count = nodes[~own], count - number
        return True

    def _narrowest(self, nodes: Ints, count: int, level: int) -> tuple[int, Mask] | None:
        """Return the narrowest level from ``level`` on with a domain that holds all, and which nodes are in it."""
        for at in reversed(range(level, len(self.domains))):
            held = self._held(nodes, at)
            enough = held >= count
            if not enough.any():
                continue
            if at + 1 < len(self.domains):
                spread = np.full(len(held), len(nodes) + 1)
                for domain in np.flatnonzero(enough):
                    parts = np.sort(self._held(nodes[self.domains[at][nodes] == domain], at + 1))[::-1]
                    spread[domain] = int(np.searchsorted(parts.cumsum(), count)) + 1
                enough &= spread == spread.min()
                enough &= held == held[enough].min()
            return at, self._chosen(nodes, at, enough)
        return None

    def _held(self, nodes: Ints, level: int) -> Ints:
        """Return how many pods each domain of a level could hold at first on these nodes."""
        return np.bincount(self.domains[level][nodes], weights=self.most[nodes]).astype(np.int64)

    def _chosen(self, nodes: Ints, level: int, equal: Mask) -> Mask:
        """Return which of the nodes (B) are in the domain, among equal ones, that the chooser prefers."""
        own = self.domains[level][nodes]
        if equal.sum() == 1:
            return np.asarray(equal[own])
        best = self.chooser.choose(self.shape, nodes[equal[own]])
        return np.asarray(own == (equal.argmax() if best is None else self.domains[level][best.node]))

    def _put(self, nodes: Ints, number: int) -> bool:
        """Place so many pods on these nodes, each where the chooser prefers."""
        for _ in range(number):
            spot = self.chooser.choose(self.shape, nodes)
            if spot is None:
                return False
            self.fleet.take(
                spot.node, self.shape.cpu_milli, self.shape.memory_bytes, spot.devices, self.shape.gpu_milli
            )
            self.spots.append(spot)
        return True
