"""What is free on every node, as arrays: N nodes with up to G devices each.

``take`` and ``release`` are the only ways it changes, and both stamp the node, so that whoever keeps a score of a node
knows when it is stale.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.policy.devices import matches
from fairlead.policy.shapes import WHOLE_GPU, Shape
from fairlead.state.snapshot import Node

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
        capacity_milli: 1000 for a device, 0 for none (N, G).
        kind: Index into ``kinds`` of each device (N, G); 0 where there is none.
        kinds: Model and memory of every kind of device.
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
        kinds: dict[tuple[str, int], int] = {}
        for i, node in enumerate(nodes):
            for j, gpu in enumerate(node.gpus):
                self.capacity_milli[i, j] = WHOLE_GPU
                self.kind[i, j] = kinds.setdefault((gpu.model, gpu.memory_bytes), len(kinds))
        self.kinds = list(kinds)
        self.gpu_milli: Ints = self.capacity_milli.copy()
        self.total_gpu_milli = int(self.capacity_milli.sum())
        self.free_gpu_milli = self.total_gpu_milli
        self.stamp: Ints = np.zeros(num, dtype=np.int64)
        self.changes = 0
        self.num_placed = 0
        self.num_left = 0
        self._allowed: dict[tuple[str | None, int | None], Mask] = {}

    def __len__(self) -> int:
        return len(self.names)

    def take(self, node: int, cpu_milli: int, memory_bytes: int, devices: Iterable[int], gpu_milli: int) -> None:
        """Count as held ``gpu_milli`` of each of the devices, with cores and memory of the node."""
        self.cpu_milli[node] -= cpu_milli
        self.memory_bytes[node] -= memory_bytes
        for device in devices:
            self.gpu_milli[node, device] -= gpu_milli
            self.free_gpu_milli -= gpu_milli
        self.changes += 1
        self.stamp[node] = self.changes

    def release(self, node: int, cpu_milli: int, memory_bytes: int, devices: Iterable[int], gpu_milli: int) -> None:
        """Undo a ``take``."""
        self.take(node, -cpu_milli, -memory_bytes, devices, -gpu_milli)

    @property
    def turnover(self) -> float:
        """Which part of the pods that ever were here are over."""
        return self.num_left / max(1, self.num_placed)

    def usable(self, nodes: Ints, shape: Shape) -> Mask:
        """Devices of these nodes (B) with room for a share, or for one whole device, of the shape (B, G)."""
        enough: Mask = self.gpu_milli[nodes] >= shape.gpu_milli
        if shape.gpu_model is None and shape.min_gpu_memory_bytes is None:
            return enough
        return enough & self.allowed(shape)[self.kind[nodes]]

    def fits(self, nodes: Ints, shape: Shape, usable: Mask) -> Mask:
        """Nodes of these (B) that can host one pod of the shape (B)."""
        room: Mask = (
            self.ready[nodes]
            & (self.cpu_milli[nodes] >= shape.cpu_milli)
            & (self.memory_bytes[nodes] >= shape.memory_bytes)
        )
        return room & (usable.sum(axis=1) >= shape.num_gpus) if shape.num_gpus else room

    def allowed(self, shape: Shape) -> Mask:
        """Which kinds of device the shape can use."""
        key = (shape.gpu_model, shape.min_gpu_memory_bytes)
        if key not in self._allowed:
            kinds = [matches(model, memory, *key) for model, memory in self.kinds]
            self._allowed[key] = np.array(kinds or [False], dtype=np.bool_)
        return self._allowed[key]
