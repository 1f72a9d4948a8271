"""Estimates the value of several idle devices on one node, for pods that need several of them.

A place for such a pod is as many idle devices on one node with the cores and the memory that it needs beside them; idle
devices without those are no place. An incomplete place counts in part, by the chance that the missing devices are
released before one is needed, so that pods gather on nodes that lack most and others become places.

The value of a place is the demand of the mix for such places, higher the fewer nodes can hold one, times the chance
that there are too few. The number of further pods that need as much is taken as normal: the mean is their part of the
capacity that is free now, the variance that of a Poisson number if all devices were in use. So some places are kept,
about as many as the number of such pods varies, and no node is kept whole beyond those.

All of this is weighted by how lasting places are. A fleet that only fills up leaves no device idle in the end; if pods
leave, some devices are always idle. Before any pod has left, this is assumed while there is room.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fairlead.frozen import dataclass
from fairlead.policy.placement.fleet_arrays import FleetArrays
from fairlead.policy.placement.memo import cached_last
from fairlead.policy.placement.node_arrays import Frame, Ints, Mask
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.policy.placement.task_mix import TaskMix

Floats = NDArray[np.float64]

# Measured with benchmarks/departures.py; docs/decisions/0005 describes its effect.
WEIGHT = 15.0
# The chance that a missing device is released in time.
CLEARED = 0.4
# At this many standard deviations beyond the expected number, one more place is needed with probability one half.
KEPT = 2.0
# Chances are rounded to multiples of 1 / STEPS, so that scores stay valid longer.
STEPS = 8
# From this turnover on, places count in full.
SETTLED = 0.1
# Before any pod has left, they count in full, and not at all, with this part of the devices and of the cores free.
ROOMY, TIGHT = 0.2, 0.1
# The number of shapes with several devices that count: those with most devices requested.
MAX_SHAPES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Shapes (S) that need several devices of a node (N) at once.

    Attributes:
        num_gpus: Devices of a place (S).
        cpu_milli: Cores beside them (S).
        memory_bytes: Memory beside them (S).
        suits: Nodes that could hold the shape if they were empty (N, S).
        most: The value, in devices, of one place that is certainly needed (S).
        expected: Places that pods with at least this need would hold if all devices were in use (S).
        need: The chance that one more place is needed, weighted by how lasting places are (S).
    """

    num_gpus: Ints
    cpu_milli: Ints
    memory_bytes: Ints
    suits: Mask
    most: Floats
    expected: Floats
    need: Floats

    @classmethod
    def of(cls, mix: TaskMix, fleet: FleetArrays) -> "Together | None":
        """Return the demand of the mix in the present state; None if nothing needs several devices."""
        demand = _together((mix.items(), fleet.frame))
        return None if demand is None else demand.now(fleet)

    @classmethod
    def asked(cls, counts: tuple[tuple[Shape, int], ...], frame: Frame) -> "Together | None":
        """Return the demand with no need for places, independent of free capacity."""
        wide = [(shape, n) for shape, n in counts if shape.num_gpus > 1]
        wide = sorted(wide, key=lambda item: -item[1] * item[0].num_gpus)[:MAX_SHAPES]
        if not wide:
            return None
        devices = sum(n * shape.total_gpu_milli for shape, n in counts)
        milli = np.array([n * shape.total_gpu_milli / devices for shape, n in wide])
        num_gpus = np.array([shape.num_gpus for shape, _ in wide])
        cpu_milli = np.array([max(1, shape.cpu_milli) for shape, _ in wide])
        memory_bytes = np.array([max(1, shape.memory_bytes) for shape, _ in wide])
        suits = np.stack([_suits(shape, frame) for shape, _ in wide], axis=1)
        devices_of = (frame.capacity_milli == WHOLE_GPU).sum(axis=1)
        as_much = (num_gpus >= num_gpus[:, None]) & (cpu_milli >= cpu_milli[:, None])
        as_much &= memory_bytes >= memory_bytes[:, None]
        # Demand that only some nodes can hold goes to those in proportion.
        share = (devices_of @ suits) / max(1, devices_of.sum())
        return cls(
            num_gpus=num_gpus,
            cpu_milli=cpu_milli,
            memory_bytes=memory_bytes,
            suits=suits,
            most=WEIGHT * num_gpus * np.where(share > 0, milli / np.maximum(share, 1e-9), 0.0),
            expected=(as_much @ milli) * devices_of.sum() / num_gpus,
            need=np.zeros(len(wide)),
        )

    @property
    def is_needed(self) -> bool:
        """Return whether any place has a value."""
        return bool(self.need.any())

    def now(self, fleet: FleetArrays) -> "Together":
        """Return the demand with the need for places in the present state."""
        idle = (fleet.gpu_milli == WHOLE_GPU).sum(axis=1)
        room = np.floor(self._room(idle, fleet.cpu_milli, fleet.memory_bytes))
        deviation = np.sqrt(self.expected)
        beyond = (room * self.suits).sum(axis=0) - fleet.free_devices * self.expected - KEPT * deviation
        chance = [math.erfc(z / math.sqrt(2)) / 2 for z in beyond / np.maximum(deviation, 1e-9)]
        return replace(self, need=np.round(STEPS * np.array(chance)) / STEPS * _lasting(fleet))

    def value(self, nodes: Ints, idle: Ints, cpu_milli: Ints, memory_bytes: Ints) -> Floats:
        """Return the value, in devices, of places on nodes (B) by idle devices, free cores and memory (B each)."""
        room = self._room(idle, cpu_milli, memory_bytes)
        whole = np.floor(room)
        none = CLEARED**self.num_gpus
        begun = (CLEARED ** (self.num_gpus * (1.0 + whole - room)) - none) / (1.0 - none)
        worth: Floats = ((whole + begun) * self.suits[nodes]) @ (self.most * self.need)
        return worth

    def _room(self, idle: Ints, cpu_milli: Ints, memory_bytes: Ints) -> Floats:
        """Return how many places, and parts of one, exist with so much free on each node (B, S)."""
        room = np.minimum(idle[:, None] / self.num_gpus, cpu_milli[:, None] / self.cpu_milli)
        return np.asarray(np.maximum(0.0, np.minimum(room, memory_bytes[:, None] / self.memory_bytes)))


def _lasting(fleet: FleetArrays) -> float:
    """Return how lasting places are, 0 to 1, in steps: by turnover or, before any pod has left, by free capacity."""
    believed = (min(fleet.free_devices, fleet.free_cores) - TIGHT) / (ROOMY - TIGHT)
    return round(STEPS * min(1.0, max(0.0, believed, fleet.turnover / SETTLED))) / STEPS


@cached_last
def _together(of: tuple[tuple[tuple[Shape, int], ...], Frame]) -> Together | None:
    return Together.asked(*of)


def _suits(shape: Shape, frame: Frame) -> Mask:
    """Return the nodes that could hold the shape if they were empty (N)."""
    such = (frame.capacity_milli == WHOLE_GPU) & frame.allowed(shape)[frame.kind]
    large = (shape.cpu_milli <= frame.cpu_milli) & (shape.memory_bytes <= frame.memory_bytes)
    return np.asarray((such.sum(axis=1) >= shape.num_gpus) & large)
