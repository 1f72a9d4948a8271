"""What it is worth that devices of one node are idle together: to pods that need several of them, and can use them.

A place for such a pod is as many idle devices on one node with the cores and the memory that it needs beside them; idle
devices without those are no place. A place is worth what the mix asks for in such places, the more the fewer nodes
could hold one. What is almost a place counts in part, by the chance that what it lacks is left before one is needed, so
that pods gather on nodes that lack most and others become places.

A fleet that only fills up leaves no device idle in the end, together or not, so there a place is worth nothing. Where
pods leave again some devices are always idle.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.policy.fleet import Fleet, Ints, Mask
from fairlead.policy.shapes import WHOLE_GPU, Shape
from fairlead.policy.task_mix import TaskMix

Floats = NDArray[np.float64]

# Measured with benchmarks/departures.py; docs/decisions/0005 says what it is worth.
WEIGHT = 30.0
# From this turnover on places count in full.
SETTLED = 0.1
# The chance that a device that is lacking is left in time.
CLEARED = 0.4
# Of the shapes that need several devices, so many count: those with most devices asked for.
MAX_SHAPES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Shapes (S) that need several devices of a node (N) at once.

    Attributes:
        num_gpus: Devices of a place (S).
        cpu_milli: Cores beside them (S).
        memory_bytes: Memory beside them (S).
        worth: In devices, of one place (S).
        suits: Nodes that could hold the shape if they were empty (N, S).
    """

    num_gpus: Ints
    cpu_milli: Ints
    memory_bytes: Ints
    worth: Floats
    suits: Mask

    @classmethod
    def of(cls, mix: TaskMix, fleet: Fleet) -> "Together | None":
        """What the mix asks for; None where no place is worth anything."""
        counts = mix.items()
        wide = [(shape, n) for shape, n in counts if shape.num_gpus > 1]
        wide = sorted(wide, key=lambda item: -item[1] * item[0].num_gpus)[:MAX_SHAPES]
        if not wide or not fleet.turnover:
            return None
        devices = sum(n * shape.total_gpu_milli for shape, n in counts)
        asked = np.array([n * shape.total_gpu_milli / devices for shape, n in wide])
        num_gpus = np.array([shape.num_gpus for shape, _ in wide])
        suits = np.stack([_suits(shape, fleet) for shape, _ in wide], axis=1)
        # What only some nodes can hold comes to those the more often.
        devices_of = (fleet.capacity_milli == WHOLE_GPU).sum(axis=1)
        share = (devices_of @ suits) / max(1, devices_of.sum())
        asked = np.where(share > 0, asked / np.maximum(share, 1e-9), 0.0)
        return cls(
            num_gpus=num_gpus,
            cpu_milli=np.array([max(1, shape.cpu_milli) for shape, _ in wide]),
            memory_bytes=np.array([max(1, shape.memory_bytes) for shape, _ in wide]),
            worth=WEIGHT * min(1.0, fleet.turnover / SETTLED) * asked * num_gpus,
            suits=suits,
        )

    def value(self, nodes: Ints, idle: Ints, cpu_milli: Ints, memory_bytes: Ints) -> Floats:
        """Worth in devices of the places on nodes (B) with so many idle devices, free cores and memory (B each)."""
        room = np.minimum(idle[:, None] / self.num_gpus, cpu_milli[:, None] / self.cpu_milli)
        room = np.maximum(0.0, np.minimum(room, memory_bytes[:, None] / self.memory_bytes))
        whole = np.floor(room)
        none = CLEARED**self.num_gpus
        begun = (CLEARED ** (self.num_gpus * (1.0 + whole - room)) - none) / (1.0 - none)
        worth: Floats = ((whole + begun) * self.suits[nodes]) @ self.worth
        return worth


def _suits(shape: Shape, fleet: Fleet) -> Mask:
    """Nodes that could hold the shape if they were empty (N)."""
    such = (fleet.capacity_milli == WHOLE_GPU) & fleet.allowed(shape)[fleet.kind]
    large = [shape.cpu_milli <= node.cpu_milli and shape.memory_bytes <= node.memory_bytes for node in fleet.nodes]
    return np.asarray((such.sum(axis=1) >= shape.num_gpus) & np.array(large, dtype=np.bool_))
