"""Chooses the node on which a pod costs future pods the least.

The value ``V`` of a node is the number of devices that future pods will use on it. With ``C`` free cores,

    V = min over p of (p C + sum over devices of worth(free, p)) - SHORT_WEIGHT max(0, U - C / a).

The first part is what they use if the best of them come (``fairlead.policy.placement.capacity_value``). The second
considers pods as they come: ``U`` devices will be filled, which takes ``a U`` cores, at the mean of cores per device
and of what pods without devices use besides; a node that lacks cores is worth less. A pod goes where V after it, minus
V before it, is largest; a fixed random order of the nodes has a small weight, so that pods gather on nodes while others
stay empty. Where pods leave, fragments open on every node, and the free devices and cores of a node count against it:
pods gather on the fullest, and the emptiest clear. Devices of a node that are idle together have additional value, for
pods that need several, while there are few such places (``fairlead.policy.placement.device_groups``). Nothing that fits
is refused.

The future is unknown: the task mix is learnt from arrivals. The design note is docs/decisions/0005.
"""

import math
import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fairlead.policy.placement.capacity_value import LEVELS, PRICES, STEP_MILLI, Floats, demands, table
from fairlead.policy.placement.device_groups import SETTLED, Together
from fairlead.policy.placement.fleet_arrays import FleetArrays, Spot
from fairlead.policy.placement.memo import cached_last
from fairlead.policy.placement.node_arrays import Frame, Ints, Mask
from fairlead.policy.placement.node_ranking import NodeRanking, Scores
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.policy.placement.spread import spread
from fairlead.policy.placement.task_mix import TaskMix, next_size

# Measured with benchmarks/packing.py; the design note gives the effect of each.
CANDIDATES_WHEN_FULL = 12.0
CANDIDATES_GROWTH = 1.25
SHORT_WEIGHT = 0.2
ORDER_WEIGHT = 0.05
# Where pods leave, the weight of each free device of a node, and of the cores that go with a device, against it.
GATHER_WEIGHT = 0.08
# The weight of cores relative to that, times the square of the ratio of the free parts of devices and of cores.
SCARCE = 4.0
# But at least 1, and at most this.
MOST_SCARCE = 16.0
# The part of that weight that counts for a share: finding a fitting gap matters more to shares.
GATHER_SHARES = 0.3
# At this turnover the loss of forced pods no longer counts. Its ends were measured, not its slope.
TURNOVER_WITHOUT_FORCE = 0.5
# The part of surplus cores that pods without devices are expected to use: they leave fragments too.
SURPLUS_USABLE = 0.25
# Values are recomputed after a change of the free part of the fleet by this, and for multiples of it.
STALE_FREE = 0.025
# They are also recomputed when the turnover has grown by this.
STALE_TURNOVER = 0.05
# The need for places is recomputed after as many changes as this part of the nodes.
STALE_PLACES = 1 / 64
# The number of fleet states for which learning is deferred.
MOST_UNLEARNT = 8
# From this many nodes on, nodes in equal states are scored once.
MANY = 64


class Packing:
    """Chooses nodes of one fleet; callers that allocate and release report only arrivals."""

    def __init__(self, fleet: FleetArrays, mix: TaskMix) -> None:
        self._fleet = fleet
        self._mix = mix
        self._ranking = NodeRanking(fleet, self._score)
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
        self._unlearnt: list[FleetArrays] = []

    def observe(self, shape: Shape) -> None:
        """Record the request of a pod."""
        self._mix.observe(shape)

    def choose(self, shape: Shape, among: Ints | None = None) -> Spot | None:
        """Return node and devices for one pod on one of these nodes, or on any; None if it fits nowhere."""
        self.learn()
        return self.pick(shape, among)

    def pick(
        self, shape: Shape, among: Ints | None = None, peers: Sequence[str] = (), bonus: Scores | None = None
    ) -> Spot | None:
        """Return the same as ``choose``, by the last learnt values: they are the same for all of a gang.

        Args:
            peers: The nodes of replicas of the same endpoint, which others are preferred to if they are as good.
            bonus: How much each node is preferred beside its value (N).
        """
        node = self._ranking.best(shape, among, bonus)
        if node is None:
            return None
        if peers:
            node = spread(shape, node, peers, self._fleet, self._ranking.scores(shape), ORDER_WEIGHT)
        nodes = np.array([node])
        usable = self._fleet.usable(nodes, shape)
        if shape.is_share:
            return Spot(node=node, devices=(int(self._share_on_each(nodes, usable, shape)[0].argmax()),))
        return Spot(node=node, devices=tuple(int(i) for i in np.flatnonzero(usable[0])[: shape.num_gpus]))

    def learn(self) -> None:
        """Recompute values if the mix or the fleet has changed enough."""
        for fleet in (*self._unlearnt, self._fleet):
            self._learn_from(fleet)
        self._unlearnt.clear()

    def learn_later(self) -> None:
        """Defer ``learn`` until the next choice, which often never comes if nothing fits.

        An unchanged fleet needs no further learning: several shapes find no room in it.
        """
        if self._unlearnt and self._unlearnt[-1].equals(self._fleet):
            return
        self._unlearnt.append(self._fleet.copy())
        if len(self._unlearnt) > MOST_UNLEARNT:
            self.learn()

    def _learn_from(self, fleet: FleetArrays) -> None:
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
        # Where pods leave, room spoilt by a wide pod comes back, and pods that need several devices need idle ones.
        forced = round(max(0.0, 1.0 - fleet.turnover / TURNOVER_WITHOUT_FORCE), 1)
        self._worth = np.stack([table(demand, candidates, forced) for demand in demands(mix, fleet)])
        self._cores_each = self._cores_for_each_device(fleet)
        self._together = Together.of(mix, fleet)
        self._gather = GATHER_WEIGHT * min(1.0, fleet.turnover / SETTLED)
        self._scarce = _scarce(fleet)
        self._look_again = fleet.changes + int(STALE_PLACES * len(fleet))
        self._ranking.forget()

    def _look_at_places(self, fleet: FleetArrays) -> None:
        """Update the need for places for pods that need several devices."""
        if self._together is None or fleet.changes < self._look_again:
            return
        self._look_again = fleet.changes + int(STALE_PLACES * len(fleet))
        together = self._together.now(fleet)
        if not np.array_equal(together.need, self._together.need):
            self._together = together
            self._ranking.forget()

    def _cores_for_each_device(self, fleet: FleetArrays) -> float:
        """Return the cores that must be free for a device to be filled as pods come; infinite if no pod needs both.

        Pods without devices use what their nodes have left; what is missing for them is added.
        """
        counts = self._mix.items()
        devices = sum(n * shape.total_gpu_milli for shape, n in counts)
        if not devices:
            return math.inf
        cores = sum(n * shape.cpu_milli for shape, n in counts if shape.num_gpus) / devices
        others = sum(n * shape.cpu_milli for shape, n in counts if not shape.num_gpus) / devices
        worth: Floats = self._worth[:, :, 0][fleet.kind, np.maximum(0, fleet.gpu_milli) // STEP_MILLI]
        # Added device by device, as for all prices: a sum along the rows would be rounded otherwise.
        filled = np.ascontiguousarray(worth.T).sum(axis=0)
        over = np.maximum(0, fleet.cpu_milli / 1000 - cores * filled).sum()
        lacking = others - SURPLUS_USABLE * float(over) / max(1.0, float(filled.sum()))
        return max(cores + max(0.0, lacking), 1e-3)

    def _score(self, nodes: Ints, usable: Mask, shape: Shape) -> Scores:
        """Return the value lost to a pod of the shape on each of the nodes (B), as a negative number."""
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
        """Return the free devices and cores of nodes, cores with a weight (B); 0 without devices."""
        # A product with ones, and take, are several times faster here than a sum and an index.
        free = self._fleet.gpu_milli.take(nodes, axis=0) @ self._ones
        cores = scarce * self._fleet.cpu_milli[nodes]
        return np.asarray(self._device_counts[nodes] * free + self._core_counts[nodes] * cores)

    def _share_on_each(self, nodes: Ints, usable: Mask, shape: Shape) -> Scores:
        """Return the value of the nodes after a share on each of their devices (B, G); minus infinity without room."""
        kind, free = self._fleet.kind[nodes], np.maximum(0, self._fleet.gpu_milli[nodes])
        after = np.where(self._fleet.divisible[nodes], np.maximum(0, free - shape.gpu_milli), 0)
        change = self._worth[kind, after // STEP_MILLI] - self._worth[kind, free // STEP_MILLI]
        worth = self._value(nodes, shape.cpu_milli, self._devices(nodes)[:, None, :] + change)
        idle = self._num_idle(nodes)
        whole, split = self._places(nodes, idle, shape), self._places(nodes, idle - 1, shape)
        worth += np.where(free == WHOLE_GPU, split[:, None], whole[:, None])
        return np.where(usable, worth, -np.inf)

    def _num_idle(self, nodes: Ints) -> Ints:
        """Return how many devices of each node are entirely free (B)."""
        return np.asarray((self._fleet.gpu_milli[nodes] == WHOLE_GPU).sum(axis=1))

    def _places(self, nodes: Ints, idle: Ints, without: Shape) -> Floats:
        """Return the value of places for pods with several devices, with so many idle and a shape's room taken (B)."""
        if self._together is None or not self._together.is_needed:
            return np.zeros(len(nodes))
        cpu_milli = self._fleet.cpu_milli[nodes] - without.cpu_milli
        return self._together.value(nodes, idle, cpu_milli, self._fleet.memory_bytes[nodes] - without.memory_bytes)

    def _devices(self, nodes: Ints) -> Floats:
        """Return the value of all devices of each node at each price (B, prices)."""
        free = np.maximum(0, self._fleet.gpu_milli[nodes])
        worth: Floats = self._worth[self._fleet.kind[nodes], free // STEP_MILLI].sum(axis=1)
        return worth

    def _value(self, nodes: Ints, cpu_milli: int, devices: Floats) -> Floats:
        """Return V of nodes (B) minus so many cores, for some states of their devices (B, A, prices): (B, A)."""
        cores = np.maximum(0, self._fleet.cpu_milli[nodes] - cpu_milli)[:, None] / 1000
        chosen: Floats = (devices + PRICES * cores[:, :, None]).min(axis=2)
        short = np.maximum(0, devices[:, :, 0] - cores / self._cores_each)
        return np.asarray(chosen - SHORT_WEIGHT * short)

    def _distinct(self, nodes: Ints) -> tuple[Ints, Ints]:
        """Return positions of nodes in pairwise different states, and for each node that of its representative."""
        if len(nodes) < MANY:
            everyone = np.arange(len(nodes))
            return everyone, everyone
        fleet = self._fleet
        matters = self._together is not None and self._together.is_needed
        memory = fleet.memory_bytes[nodes] if matters else np.zeros_like(nodes)
        # Without the first, a node without devices would equal one with all devices taken.
        has_gpus, cpu_milli = fleet.frame.has_gpus[nodes], fleet.cpu_milli[nodes]
        state = np.column_stack([has_gpus, cpu_milli, memory, fleet.gpu_milli[nodes], fleet.kind[nodes]])
        _, first, same = np.unique(state @ self._key, return_index=True, return_inverse=True)
        return first, same


@cached_last
def _order(frame: Frame) -> Floats:
    """Return the penalty that breaks ties between nodes (N)."""
    rank, num_nodes = np.empty(len(frame.nodes)), len(frame.nodes)
    rank[np.argsort([zlib.crc32(name.encode()) for name in frame.names], kind="stable")] = np.arange(num_nodes)
    # Pods without devices go to nodes without devices while those have room.
    return np.asarray(ORDER_WEIGHT * (rank / max(1, num_nodes) + frame.has_gpus))


@lru_cache(maxsize=64)
def _key(num_devices: int) -> Ints:
    """Return factors that map states of nodes with so many devices to distinct numbers."""
    return np.random.default_rng(0).integers(1 << 62, size=3 + 2 * num_devices)


@cached_last
def _counts(frame: Frame) -> tuple[Floats, Floats]:
    """Return the weight of a thousandth of a device, and of a core, in free capacity (N each); 0 without devices."""
    cores_each = max(1.0, frame.cpu_milli_beside_gpus / 1000 / max(1.0, frame.total_gpu_milli / WHOLE_GPU))
    return frame.has_gpus / WHOLE_GPU, frame.has_gpus / (1000 * cores_each)


def _scarce(fleet: FleetArrays) -> float:
    """Return the weight of the cores that go with a device: higher, the scarcer free cores are than free devices."""
    scarcer = max(0.0, fleet.free_devices) / max(1e-6, fleet.free_cores)
    return min(MOST_SCARCE, max(1.0, SCARCE * scarcer**2))
