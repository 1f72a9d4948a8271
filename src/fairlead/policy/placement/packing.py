"""The node on which a pod costs those still to come the least: the one decision of where a pod goes.

The worth ``V`` of a node is how many devices the pods still to come will use on it. With ``C`` free cores,

    V = min over p of (p C + sum over devices of worth(free, p)) - SHORT_WEIGHT max(0, U - C / a).

The first part is what they use if the best of them come (``fairlead.policy.placement.capacity_value``). The second
looks at the pods as they come: ``U`` devices will be filled, which takes ``a U`` cores, at the mean of what comes
with a device and of what pods without devices take besides; what lacks cores is worth less. A pod goes where V after
it, less V before it, is largest; a fixed random order of the nodes has a small say, so that pods gather on nodes
while others stay empty. Where pods leave, rests open anew on every node, and what is free of a node, in devices and
in cores, counts against it: pods gather on the fullest, and the emptiest clear. Devices of a node that are idle
together are worth more, to pods that need several, while there are few such places
(``fairlead.policy.placement.device_groups``). Nothing is refused that fits.

Nothing of the future is known: the task mix is learnt from arrivals. The design note is docs/decisions/0005.
"""

import math
import zlib
from functools import lru_cache

import numpy as np

from fairlead.policy.placement.capacity_value import LEVELS, PRICES, STEP_MILLI, Floats, demands, table
from fairlead.policy.placement.device_groups import SETTLED, Together
from fairlead.policy.placement.fleet_arrays import Fleet, Spot
from fairlead.policy.placement.memo import kept
from fairlead.policy.placement.node_arrays import Frame, Ints, Mask
from fairlead.policy.placement.node_ranking import Ranking, Scores
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.policy.placement.task_mix import TaskMix, next_size

# Measured with benchmarks/packing.py; see the design note for what each is worth.
CANDIDATES_WHEN_FULL = 12.0
CANDIDATES_GROWTH = 1.25
SHORT_WEIGHT = 0.2
ORDER_WEIGHT = 0.05
# Where pods leave, each free device of a node counts so much against it, and each of the cores that go with a device.
GATHER_WEIGHT = 0.08
# Cores count so many times that, by the square of how many times as large a part of devices is free as of cores.
SCARCE = 4.0
# But never less, and so many times at most.
MOST_SCARCE = 16.0
# For a share it counts so much of that: what shares fit into matters more to them.
GATHER_SHARES = 0.3
# With this turnover, what pods lose that must be taken no longer counts. Its ends were measured, not its slope.
TURNOVER_WITHOUT_FORCE = 0.5
# Of the cores that nodes have over, pods without devices are expected to use this part: they leave rests too.
SURPLUS_USABLE = 0.25
# The worth is worked out again when so much of the fleet has been taken or given back, and for multiples of it.
STALE_FREE = 0.025
# And when so many more of the pods that were ever here are over.
STALE_TURNOVER = 0.05
# The need for places is looked at again after as many changes as this part of the nodes.
STALE_PLACES = 1 / 64
# So often it is put off to look at the fleet before that is made up for.
MOST_UNLEARNT = 8
# From so many nodes on, those in equal state are scored once.
MANY = 64


class Packing:
    """Chooses nodes of one fleet; whoever takes and releases room tells it nothing but the arrivals."""

    def __init__(self, fleet: Fleet, mix: TaskMix) -> None:
        self._fleet = fleet
        self._mix = mix
        self._ranking = Ranking(fleet, self._score)
        self._order = _order(fleet.frame)
        self._device_counts, self._core_counts = _counts(fleet.frame)
        self._key = _key(fleet.capacity_milli.shape[1])
        self._ones = np.ones(fleet.capacity_milli.shape[1], dtype=np.int64)
        self._gather = 0.0
        self._scarce = 1.0
        self._worth: Floats = np.zeros((1, LEVELS, len(PRICES)))
        self._cores_each = math.inf
        self._together: Together | None = None
        self._learnt_free = -fleet.total_gpu_milli - 1
        self._learnt_turnover = 0.0
        self._learn_again = 0
        self._look_again = 0
        self._unlearnt: list[Fleet] = []

    def observe(self, shape: Shape) -> None:
        """A pod was asked for."""
        self._mix.observe(shape)

    def choose(self, shape: Shape, among: Ints | None = None) -> Spot | None:
        """Node and devices for one pod on one of these nodes, or on any; None where it fits nowhere."""
        self.learn()
        return self.pick(shape, among)

    def pick(self, shape: Shape, among: Ints | None = None) -> Spot | None:
        """As ``choose``, by the worth of room as it was last learnt: for all of a gang that is the same."""
        node = self._ranking.best(shape, among)
        if node is None:
            return None
        nodes = np.array([node])
        usable = self._fleet.usable(nodes, shape)
        if shape.is_share:
            return Spot(node=node, devices=(int(self._share_on_each(nodes, usable, shape)[0].argmax()),))
        return Spot(node=node, devices=tuple(int(i) for i in np.flatnonzero(usable[0])[: shape.num_gpus]))

    def learn(self) -> None:
        """Work out the worth of room again, when the mix or the fleet has moved on."""
        for fleet in (*self._unlearnt, self._fleet):
            self._learn_from(fleet)
        self._unlearnt.clear()

    def learn_later(self) -> None:
        """As ``learn``, but only once somebody asks: most often nobody does, where nothing fits.

        From a fleet that is as it was there is nothing more to be learnt: several shapes find no room in it.
        """
        if self._unlearnt and self._unlearnt[-1].equals(self._fleet):
            return
        self._unlearnt.append(self._fleet.copy())
        if len(self._unlearnt) > MOST_UNLEARNT:
            self.learn()

    def _learn_from(self, fleet: Fleet) -> None:
        mix = self._mix
        moved = abs(fleet.free_gpu_milli - self._learnt_free)
        as_full = moved <= STALE_FREE * fleet.total_gpu_milli
        if (
            mix.num_observed < self._learn_again
            and as_full
            and fleet.turnover <= self._learnt_turnover + STALE_TURNOVER
        ):
            self._look_at_places(fleet)
            return
        self._learnt_free = fleet.free_gpu_milli
        self._learnt_turnover = fleet.turnover
        self._learn_again = next_size(mix.num_observed)
        free = STALE_FREE * round(fleet.free_devices / STALE_FREE)
        candidates = CANDIDATES_WHEN_FULL * math.exp(CANDIDATES_GROWTH * free)
        # Where pods leave, room that a wide pod spoils comes back, and pods that need several devices need them idle.
        forced = round(max(0.0, 1.0 - fleet.turnover / TURNOVER_WITHOUT_FORCE), 1)
        self._worth = np.stack([table(demand, candidates, forced) for demand in demands(mix, fleet)])
        self._cores_each = self._cores_for_each_device(fleet)
        self._together = Together.of(mix, fleet)
        self._gather = GATHER_WEIGHT * min(1.0, fleet.turnover / SETTLED)
        self._scarce = _scarce(fleet)
        self._look_again = fleet.changes + int(STALE_PLACES * len(fleet))
        self._ranking.forget()

    def _look_at_places(self, fleet: Fleet) -> None:
        """Take places for pods that need several devices for as needed as they have become."""
        if self._together is None or fleet.changes < self._look_again:
            return
        self._look_again = fleet.changes + int(STALE_PLACES * len(fleet))
        together = self._together.now(fleet)
        if not np.array_equal(together.need, self._together.need):
            self._together = together
            self._ranking.forget()

    def _cores_for_each_device(self, fleet: Fleet) -> float:
        """Cores that a device must find free to be filled by pods as they come; infinite when no pod needs both.

        Pods without devices take what their nodes have over; what of it is not enough for them comes on top.
        """
        counts = self._mix.items()
        devices = sum(n * shape.total_gpu_milli for shape, n in counts)
        if not devices:
            return math.inf
        each = sum(n * shape.cpu_milli for shape, n in counts if shape.num_gpus) / devices
        others = sum(n * shape.cpu_milli for shape, n in counts if not shape.num_gpus) / devices
        filled = self._devices_of(fleet, np.arange(len(fleet)))[:, 0]
        over = np.maximum(0, fleet.cpu_milli / 1000 - each * filled).sum()
        lacking = others - SURPLUS_USABLE * float(over) / max(1.0, float(filled.sum()))
        return max(each + max(0.0, lacking), 1e-3)

    def _score(self, nodes: Ints, usable: Mask, shape: Shape) -> Scores:
        """Worth lost to a pod of the shape on each of the nodes (B), as a negative number."""
        first, same = self._distinct(nodes)
        few, usable = nodes[first], usable[first]
        if shape.is_share:
            after = self._share_on_each(few, usable, shape).max(axis=1)
        else:
            chosen = usable & (usable.cumsum(axis=1) <= shape.num_gpus)
            taken = (self._worth[self._fleet.kind[few], -1] * chosen[:, :, None]).sum(axis=1)
            after = self._value(few, shape.cpu_milli, (self._devices(few) - taken)[:, None, :])[:, 0]
            after += self._places(few, self._num_idle(few) - shape.num_gpus, shape)
        before = self._value(few, 0, self._devices(few)[:, None, :])[:, 0]
        before += self._places(few, self._num_idle(few), Shape())
        gain = after - before
        if self._gather:
            if shape.is_share:
                gain -= self._gather * GATHER_SHARES * self._emptiness(few, 1.0)
            else:
                gain -= self._gather * self._emptiness(few, self._scarce)
        return np.asarray(gain[same] - self._order[nodes])

    def _emptiness(self, nodes: Ints, scarce: float) -> Floats:
        """Return what is free on nodes: devices and their cores, those so many times (B); 0 where no devices are."""
        # A product with ones, and take, are several times faster here than a sum and an index.
        free = self._fleet.gpu_milli.take(nodes, axis=0) @ self._ones
        cores = scarce * self._fleet.cpu_milli[nodes]
        return np.asarray(self._device_counts[nodes] * free + self._core_counts[nodes] * cores)

    def _share_on_each(self, nodes: Ints, usable: Mask, shape: Shape) -> Scores:
        """Worth of the nodes after a share on each of their devices (B, G); minus infinity where it cannot go."""
        kind, free = self._fleet.kind[nodes], np.maximum(0, self._fleet.gpu_milli[nodes])
        after = np.where(self._fleet.divisible[nodes], np.maximum(0, free - shape.gpu_milli), 0)
        change = self._worth[kind, after // STEP_MILLI] - self._worth[kind, free // STEP_MILLI]
        worth = self._value(nodes, shape.cpu_milli, self._devices(nodes)[:, None, :] + change)
        idle = self._num_idle(nodes)
        kept, broken = self._places(nodes, idle, shape), self._places(nodes, idle - 1, shape)
        worth += np.where(free == WHOLE_GPU, broken[:, None], kept[:, None])
        return np.where(usable, worth, -np.inf)

    def _num_idle(self, nodes: Ints) -> Ints:
        """Return how many devices of each node nobody holds a part of (B)."""
        return np.asarray((self._fleet.gpu_milli[nodes] == WHOLE_GPU).sum(axis=1))

    def _places(self, nodes: Ints, idle: Ints, without: Shape) -> Floats:
        """Worth of places for pods that need several devices, with so many idle and the shape's room taken (B)."""
        if self._together is None or not self._together.is_needed:
            return np.zeros(len(nodes))
        cpu_milli = self._fleet.cpu_milli[nodes] - without.cpu_milli
        return self._together.value(nodes, idle, cpu_milli, self._fleet.memory_bytes[nodes] - without.memory_bytes)

    def _devices(self, nodes: Ints) -> Floats:
        """Worth of all devices of each node at each price (B, prices)."""
        return self._devices_of(self._fleet, nodes)

    def _devices_of(self, fleet: Fleet, nodes: Ints) -> Floats:
        free = np.maximum(0, fleet.gpu_milli[nodes])
        worth: Floats = self._worth[fleet.kind[nodes], free // STEP_MILLI].sum(axis=1)
        return worth

    def _value(self, nodes: Ints, cpu_milli: int, devices: Floats) -> Floats:
        """V of nodes (B) without so many cores, for each of some states of their devices (B, A, prices): (B, A)."""
        cores = np.maximum(0, self._fleet.cpu_milli[nodes] - cpu_milli)[:, None] / 1000
        chosen: Floats = (devices + PRICES * cores[:, :, None]).min(axis=2)
        short = np.maximum(0, devices[:, :, 0] - cores / self._cores_each)
        return np.asarray(chosen - SHORT_WEIGHT * short)

    def _distinct(self, nodes: Ints) -> tuple[Ints, Ints]:
        """Positions of nodes of which no two are in equal state, and for each node the one that stands for it."""
        if len(nodes) < MANY:
            everyone = np.arange(len(nodes))
            return everyone, everyone
        fleet = self._fleet
        matters = self._together is not None and self._together.is_needed
        memory = fleet.memory_bytes[nodes] if matters else np.zeros_like(nodes)
        # Without the first a node without devices is as one whose devices are all taken.
        has_gpus, cpu_milli = fleet.frame.has_gpus[nodes], fleet.cpu_milli[nodes]
        state = np.column_stack([has_gpus, cpu_milli, memory, fleet.gpu_milli[nodes], fleet.kind[nodes]])
        _, first, same = np.unique(state @ self._key, return_index=True, return_inverse=True)
        return first, same


@kept
def _order(frame: Frame) -> Floats:
    """Return what each node is given away at where nothing else tells them apart (N)."""
    rank, num_nodes = np.empty(len(frame.nodes)), len(frame.nodes)
    rank[np.argsort([zlib.crc32(name.encode()) for name in frame.names], kind="stable")] = np.arange(num_nodes)
    # Pods without devices go to nodes without devices while those have room.
    return np.asarray(ORDER_WEIGHT * (rank / max(1, num_nodes) + frame.has_gpus))


@lru_cache(maxsize=64)
def _key(num_devices: int) -> Ints:
    """Factors by which states of nodes with so many devices become numbers of their own."""
    return np.random.default_rng(0).integers(1 << 62, size=3 + 2 * num_devices)


@kept
def _counts(frame: Frame) -> tuple[Floats, Floats]:
    """Return what a thousandth of a device, and of a core, counts of what is free (N each); 0 where no devices are."""
    cores_each = max(1.0, frame.cpu_milli_beside_gpus / 1000 / max(1.0, frame.total_gpu_milli / WHOLE_GPU))
    return frame.has_gpus / WHOLE_GPU, frame.has_gpus / (1000 * cores_each)


def _scarce(fleet: Fleet) -> float:
    """Return the weight of the cores that go with a device: the more, the less is free of cores than of devices."""
    scarcer = max(0.0, fleet.free_devices) / max(1e-6, fleet.free_cores)
    return min(MOST_SCARCE, max(1.0, SCARCE * scarcer**2))
