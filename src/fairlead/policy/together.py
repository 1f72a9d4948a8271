"""What it is worth that devices of one node are idle together: to pods that need several of them, and can use them.

A place for such a pod is as many idle devices on one node with the cores and the memory that it needs beside them; idle
devices without those are no place. Every place on a node is worth what the mix asks for in such places, so that a pod
goes where it spoils those that are asked for least. A node that few shapes ask for, but that alone can hold them, is
kept by what it has beyond the others: cores and memory count as devices do.

A fleet that only fills up leaves no device idle in the end, together or not, so there a place is worth nothing. Where
pods leave again some devices are always idle, and worth the more, the more pods leave.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.policy.fleet import Fleet, Ints, Mask
from fairlead.policy.shapes import WHOLE_GPU
from fairlead.policy.task_mix import TaskMix

Floats = NDArray[np.float64]

# Measured with benchmarks/departures.py; docs/decisions/0005 says what it is worth.
WEIGHT = 15.0
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
        suits: Nodes that could hold the shape if they were empty, as far as devices tell (N, S).
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
        whole = fleet.capacity_milli == WHOLE_GPU
        such = [(whole & fleet.allowed(shape)[fleet.kind]).sum(axis=1) >= shape.num_gpus for shape, _ in wide]
        return cls(
            num_gpus=num_gpus,
            cpu_milli=np.array([max(1, shape.cpu_milli) for shape, _ in wide]),
            memory_bytes=np.array([max(1, shape.memory_bytes) for shape, _ in wide]),
            worth=WEIGHT * fleet.turnover * asked * num_gpus,
            suits=np.stack(such, axis=1),
        )

    def value(self, nodes: Ints, idle: Ints, cpu_milli: Ints, memory_bytes: Ints) -> Floats:
        """Worth in devices of the places on nodes (B) with so many idle devices, free cores and memory (B each)."""
        places = np.minimum(idle[:, None] // self.num_gpus, cpu_milli[:, None] // self.cpu_milli)
        places = np.minimum(places, memory_bytes[:, None] // self.memory_bytes)
        worth: Floats = (np.maximum(0, places) * self.suits[nodes]) @ self.worth
        return worth
