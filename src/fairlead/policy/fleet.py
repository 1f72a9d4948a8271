"""What is free on every node, as arrays: N nodes with up to G devices each.

``take`` and ``release`` are the only ways it changes, and both stamp the node, so that whoever keeps a score of a node
knows when it is stale.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairlead.policy.devices import serves
from fairlead.policy.shapes import WHOLE_GPU, Shape
from fairlead.policy.topology import Fabric, Path
from fairlead.state.snapshot import Gpu, Node

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where one pod goes: indices of the node, and of its devices."""

    node: int
    devices: tuple[int, ...]


class Fleet:
    """Free room of nodes.

    Attributes:
        names: Names of the nodes, in the order of the arrays (N).
        ready: Nodes that take new pods (N).
        cpu_milli: Free thousandths of cores (N); below 0 where more is held than there is.
        memory_bytes: Free memory (N).
        gpu_milli: Free thousandths of each device (N, G); 0 where there is no such device.
        capacity_milli: 1000 for a device, less for a part of one, 0 for none (N, G).
        divisible: Several pods may share the device (N, G).
        kind: Index into ``kinds`` of each device (N, G); 0 where there is none.
        kinds: One device of every kind.
        stamp: When the node last changed, as a count of ``changes`` of the fleet (N).
        num_placed: How many pods were ever placed here; whoever places them counts them.
        num_left: How many of those are over.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        num, most = len(nodes), max((len(node.gpus) for node in nodes), default=0)
        self.nodes = tuple(nodes)
        self.names = [node.name for node in nodes]
        self.index = {name: i for i, name in enumerate(self.names)}
        self.ready: Mask = np.array([node.ready and node.closed is None for node in nodes], dtype=np.bool_)
        self.cpu_milli: Ints = np.array([node.cpu_milli for node in nodes], dtype=np.int64)
        self.memory_bytes: Ints = np.array([node.memory_bytes for node in nodes], dtype=np.int64)
        self.capacity_milli: Ints = np.zeros((num, most), dtype=np.int64)
        self.kind: Ints = np.zeros((num, most), dtype=np.int64)
        self.divisible: Mask = np.ones((num, most), dtype=np.bool_)
        kinds: dict[Gpu, int] = {}
        for i, node in enumerate(nodes):
            for j, gpu in enumerate(node.gpus):
                self.capacity_milli[i, j] = gpu.milli
                self.divisible[i, j] = gpu.divisible
                self.kind[i, j] = kinds.setdefault(replace(gpu, uuid=""), len(kinds))
        self.kinds = list(kinds)
        self.gpu_milli: Ints = self.capacity_milli.copy()
        self.total_gpu_milli = int(self.capacity_milli.sum())
        self.free_gpu_milli = self.total_gpu_milli
        self.stamp: Ints = np.zeros(num, dtype=np.int64)
        self.changes = 0
        self.num_placed = 0
        self.num_left = 0
        self._all_divisible = bool(self.divisible.all())
        self._allowed: dict[tuple[object, ...], Mask] = {}
        self._open: dict[frozenset[str], Mask] = {}
        self._domains: Ints | None = None

    def __len__(self) -> int:
        return len(self.names)

    def take(self, node: int, cpu_milli: int, memory_bytes: int, devices: Iterable[int], gpu_milli: int) -> None:
        """Count as held ``gpu_milli`` of each of the devices, with cores and memory of the node."""
        self.cpu_milli[node] -= cpu_milli
        self.memory_bytes[node] -= memory_bytes
        for device in devices:
            held = gpu_milli
            if not self.divisible[node, device]:
                held = int(np.sign(gpu_milli) * self.capacity_milli[node, device])
            self.gpu_milli[node, device] -= held
            self.free_gpu_milli -= held
        self.changes += 1
        self.stamp[node] = self.changes

    def release(self, node: int, cpu_milli: int, memory_bytes: int, devices: Iterable[int], gpu_milli: int) -> None:
        """Undo a ``take``."""
        self.take(node, -cpu_milli, -memory_bytes, devices, -gpu_milli)

    @property
    def turnover(self) -> float:
        """Which part of the pods that ever were here are over."""
        return self.num_left / max(1, self.num_placed)

    @property
    def domains(self) -> Ints:
        """The domain of each node at every level that matters here, wide to narrow (L, N); worked out once."""
        if self._domains is None:
            fabric = Fabric.of(self.nodes)
            self._domains = np.zeros((len(fabric.levels), len(self)), dtype=np.int64)
            for level in range(len(fabric.levels)):
                known: dict[Path, int] = {}
                for i, name in enumerate(self.names):
                    self._domains[level, i] = known.setdefault(fabric.paths[name][: level + 1], len(known))
        return self._domains

    def usable(self, nodes: Ints, shape: Shape) -> Mask:
        """Devices of these nodes (B) with room for a share, or for one whole device, of the shape (B, G).

        Where parts of devices are handed out, only the smallest on a node that are enough count.
        """
        enough: Mask = self.gpu_milli[nodes] >= shape.gpu_milli
        is_any = shape.gpu_model is None and shape.min_gpu_memory_bytes is None and shape.sharing is None
        if is_any and self._all_divisible:
            return enough
        usable: Mask = enough & self.allowed(shape)[self.kind[nodes]]
        if self._all_divisible or not shape.is_share:
            return usable
        shared, size = self.divisible[nodes], self.capacity_milli[nodes]
        smallest = np.where(usable & ~shared, size, WHOLE_GPU).min(axis=1, keepdims=True)
        return np.asarray(usable & (shared | (size == smallest)))

    def fits(self, nodes: Ints, shape: Shape, usable: Mask) -> Mask:
        """Nodes of these (B) that can host one pod of the shape (B)."""
        room: Mask = (
            self.open_to(shape)[nodes]
            & (self.cpu_milli[nodes] >= shape.cpu_milli)
            & (self.memory_bytes[nodes] >= shape.memory_bytes)
        )
        return room & (usable.sum(axis=1) >= shape.num_gpus) if shape.num_gpus else room

    def allowed(self, shape: Shape) -> Mask:
        """Which kinds of device the shape can use."""
        key = (shape.gpu_model, shape.min_gpu_memory_bytes, shape.gpu_milli, shape.sharing, shape.parts_only)
        if key not in self._allowed:
            kinds = [serves(gpu, shape) for gpu in self.kinds]
            self._allowed[key] = np.array(kinds or [False], dtype=np.bool_)
        return self._allowed[key]

    def open_to(self, shape: Shape) -> Mask:
        """Nodes that take new pods of the shape, as far as room does not tell (N)."""
        if not shape.barred:
            return self.ready
        if shape.barred not in self._open:
            barred = [self.index[name] for name in shape.barred if name in self.index]
            mask = self.ready.copy()
            mask[barred] = False
            self._open[shape.barred] = mask
        return self._open[shape.barred]
