"""All of a gang or none of it, in the narrowest place that holds it, whatever chooses among the nodes there.

A gang of several members waits for its slowest link at every step, and may run for days; what packing loses when it
may not choose the domain is a little room, which comes back. So topology comes first, and packing chooses among what
costs the traffic of the gang the same (``fairlead.policy.placement.topology``). Of domains that are equal the fullest
is taken, so that wide gangs find others whole.

The narrowest level is looked for at which one domain holds all. There the members fill the largest parts first, so that
they are spread over as few as possible (any set of k parts holds at most what the k largest hold); the rest again goes
to the narrowest domain that holds it. For N nodes, L levels and P parts: at most L N for each of the P.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fairlead.policy.placement.fleet_arrays import Fleet, Spot
from fairlead.policy.placement.node_arrays import Ints, Mask
from fairlead.policy.placement.pod_shapes import Shape


class Chooser(Protocol):
    """Chooses among the nodes of a fleet."""

    def choose(self, shape: Shape, among: Ints) -> Spot | None:
        """Node and devices for one pod on one of these nodes as things stand; None without room. Takes nothing."""
        ...


class Anywhere(Protocol):
    """Chooses among all nodes of a fleet."""

    def choose(self, shape: Shape) -> Spot | None:
        """Node and devices for one pod as things stand; None where it fits nowhere. Takes nothing."""
        ...


def place_one(shape: Shape, fleet: Fleet, chooser: Anywhere) -> tuple[Spot, ...] | None:
    """The spot for a run of one member, taken from the fleet; None where it fits nowhere."""
    chosen = chooser.choose(shape)
    if chosen is None:
        return None
    fleet.take(chosen.node, shape.cpu_milli, shape.memory_bytes, chosen.devices, shape.gpu_milli)
    fleet.num_placed += 1
    return (chosen,)


def place_gang(shape: Shape, count: int, fleet: Fleet, chooser: Chooser) -> tuple[Spot, ...] | None:
    """Spots for so many members of one shape, taken from the fleet; None, with nothing taken, if not all fit.

    Members that are next to each other in the ring are next to each other in the answer.
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


def members(shape: Shape, count: int, fleet: Fleet) -> Ints:
    """Return how many members of one shape fit on each node (N), as far as ``count``."""
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


def release(shape: Shape, spot: Spot, fleet: Fleet) -> None:
    """Give back what a member held that is over."""
    fleet.num_left += 1
    fleet.release(spot.node, shape.cpu_milli, shape.memory_bytes, spot.devices, shape.gpu_milli)


@dataclass(slots=True)
class _Gang:
    """One gang on its way into the fleet.

    Attributes:
        most: How many members each node held at first (N).
        domains: The domain of each node at each level, wide to narrow (L, N).
    """

    shape: Shape
    fleet: Fleet
    chooser: Chooser
    most: Ints
    domains: Ints
    spots: list[Spot] = field(default_factory=list)

    def place(self, nodes: Ints, count: int, level: int) -> bool:
        """Put so many members on nodes that share all domains wider than ``level``; False when a node refuses one."""
        while count:
            if level == len(self.domains):
                return self._put(nodes, count)
            found = self._narrowest(nodes, count, level)
            if found is not None:
                at, own = found
                return self.place(nodes[own], count, at + 1)
            held = self._held(nodes, level)
            number = int(held.max())
            own = self._chosen(nodes, level, held == number)
            if not self.place(nodes[own], number, level + 1):
                return False
            nodes, count = nodes[~own], count - number
        return True

    def _narrowest(self, nodes: Ints, count: int, level: int) -> tuple[int, Mask] | None:
        """The narrowest level from ``level`` on at which one domain holds all, and which of the nodes are in it."""
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
        """Return how many members each domain of a level held at first on these nodes."""
        return np.bincount(self.domains[level][nodes], weights=self.most[nodes]).astype(np.int64)

    def _chosen(self, nodes: Ints, level: int, equal: Mask) -> Mask:
        """Return which of the nodes (B) are in that of some equal domains which is best to the chooser."""
        own = self.domains[level][nodes]
        if equal.sum() == 1:
            return np.asarray(equal[own])
        best = self.chooser.choose(self.shape, nodes[equal[own]])
        return np.asarray(own == (equal.argmax() if best is None else self.domains[level][best.node]))

    def _put(self, nodes: Ints, number: int) -> bool:
        """So many members on these nodes, each where the chooser wants it."""
        for _ in range(number):
            spot = self.chooser.choose(self.shape, nodes)
            if spot is None:
                return False
            self.fleet.take(
                spot.node, self.shape.cpu_milli, self.shape.memory_bytes, spot.devices, self.shape.gpu_milli
            )
            self.spots.append(spot)
        return True
