"""Keeps the free capacity of every node as arrays: N nodes with up to G devices each.

Only ``take``, ``release`` and ``hold`` change it, and all stamp the changed nodes, so that users of cached scores know
which are stale.
"""

from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np

from fairlead.frozen import dataclass
from fairlead.policy.placement.node_arrays import Ints, Mask, frame_of
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.state.snapshot import Grant, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """The place of one pod: indices of the node, and of its devices."""

    node: int
    devices: tuple[int, ...]


class FleetArrays:
    """The free capacity of nodes.

    Attributes:
        frame: The nodes themselves.
        cpu_milli: Free thousandths of cores (N); below 0 if more is held than exists.
        memory_bytes: Free memory (N).
        gpu_milli: Free thousandths of each device (N, G); 0 without a device.
        stamp: When the node last changed, as a count of ``changes`` of the fleet (N).
        num_placed: The number of pods ever placed here; maintained by the caller that places them.
        num_left: The number of those that are over.
        names, ready, capacity_milli, divisible, kind, kinds: As in ``Frame``.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        frame = frame_of(tuple(nodes))
        self.frame = frame
        self.nodes, self.names, self.index, self.kinds = frame.nodes, frame.names, frame.index, frame.kinds
        self.ready, self.divisible, self.kind = frame.ready, frame.divisible, frame.kind
        self.capacity_milli, self.total_gpu_milli = frame.capacity_milli, frame.total_gpu_milli
        self.cpu_milli: Ints = frame.cpu_milli.copy()
        self.memory_bytes: Ints = frame.memory_bytes.copy()
        self.gpu_milli: Ints = frame.capacity_milli.copy()
        self.free_gpu_milli = frame.total_gpu_milli
        self.stamp: Ints = np.zeros(len(frame.nodes), dtype=np.int64)
        self.changes = 0
        self.num_placed = 0
        self.num_left = 0
        self._allowed: dict[tuple[object, ...], Mask] = {}
        self._open: dict[frozenset[str], Mask] = {}

    def copy(self) -> "FleetArrays":
        """Return an independent copy."""
        other = copy(self)
        other.cpu_milli, other.memory_bytes = self.cpu_milli.copy(), self.memory_bytes.copy()
        other.gpu_milli, other.stamp = self.gpu_milli.copy(), self.stamp.copy()
        return other

    def equals(self, other: "FleetArrays") -> bool:
        """Return whether the same is free as in another state of the fleet, after equally many pods."""
        return (
            (self.num_placed, self.num_left, self.free_gpu_milli)
            == (other.num_placed, other.num_left, other.free_gpu_milli)
            and np.array_equal(self.cpu_milli, other.cpu_milli)
            and np.array_equal(self.memory_bytes, other.memory_bytes)
            and np.array_equal(self.gpu_milli, other.gpu_milli)
        )

    def __len__(self) -> int:
        return len(self.names)

    def take(self, node: int, cpu_milli: int, memory_bytes: int, devices: Iterable[int], gpu_milli: int) -> None:
        """Hold ``gpu_milli`` of each of the devices, with cores and memory of the node."""
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

    def hold(self, held: Iterable[tuple[int, Grant]]) -> None:
        """Hold many grants, each on a node, even beyond what exists."""
        nodes, cpu, memory = list[int](), list[int](), list[int]()
        on, devices, milli = list[int](), list[int](), list[int]()
        for node, grant in held:
            nodes.append(node)
            cpu.append(grant.cpu_milli)
            memory.append(grant.memory_bytes)
            for device in self.frame.devices(node, grant):
                on.append(node)
                devices.append(device)
                milli.append(min(grant.gpu_milli, WHOLE_GPU))
        if not nodes:
            return
        np.subtract.at(self.cpu_milli, nodes, cpu)
        np.subtract.at(self.memory_bytes, nodes, memory)
        if on:
            at = (np.array(on), np.array(devices))
            taken = np.where(self.divisible[at], milli, np.sign(milli) * self.capacity_milli[at])
            np.subtract.at(self.gpu_milli, at, taken)
            self.free_gpu_milli -= int(taken.sum())
        self.changes += len(nodes)
        self.stamp[nodes] = self.changes

    def release(self, node: int, cpu_milli: int, memory_bytes: int, devices: Iterable[int], gpu_milli: int) -> None:
        """Undo ``take``."""
        self.take(node, -cpu_milli, -memory_bytes, devices, -gpu_milli)

    @property
    def turnover(self) -> float:
        """Return the part of all pods ever placed here that are over."""
        return self.num_left / max(1, self.num_placed)

    @property
    def free_devices(self) -> float:
        """Return the part of the devices that is free."""
        return self.free_gpu_milli / max(1, self.total_gpu_milli)

    @property
    def free_cores(self) -> float:
        """Return the free part of the cores of nodes with devices; below 0 if more is held than exists."""
        return float(self.cpu_milli[self.frame.has_gpus].sum()) / max(1, self.frame.cpu_milli_beside_gpus)

    @property
    def domains(self) -> Ints:
        """Return the same as in ``Frame``."""
        return self.frame.domains

    def usable(self, nodes: Ints, shape: Shape) -> Mask:
        """Return the devices of these nodes (B) with room for a share, or for one whole device, of the shape (B, G).

        If parts of devices are allocated separately, only the smallest sufficient ones on a node count.
        """
        enough: Mask = self.gpu_milli[nodes] >= shape.gpu_milli
        is_any = shape.gpu_model is None and shape.min_gpu_memory_bytes is None and shape.sharing is None
        if is_any and self.frame.all_divisible:
            return enough
        usable: Mask = enough & self.allowed(shape)[self.kind[nodes]]
        if self.frame.all_divisible or not shape.is_share:
            return usable
        shared, size = self.divisible[nodes], self.capacity_milli[nodes]
        smallest = np.where(usable & ~shared, size, WHOLE_GPU).min(axis=1, keepdims=True)
        return np.asarray(usable & (shared | (size == smallest)))

    def fits(self, nodes: Ints, shape: Shape, usable: Mask) -> Mask:
        """Return which of these nodes (B) can host one pod of the shape (B)."""
        room: Mask = (
            self.open_to(shape)[nodes]
            & (self.cpu_milli[nodes] >= shape.cpu_milli)
            & (self.memory_bytes[nodes] >= shape.memory_bytes)
        )
        return room & (usable.sum(axis=1) >= shape.num_gpus) if shape.num_gpus else room

    def allowed(self, shape: Shape) -> Mask:
        """Return the same as in ``Frame``."""
        key = (shape.gpu_model, shape.min_gpu_memory_bytes, shape.gpu_milli, shape.sharing, shape.parts_only)
        if key not in self._allowed:
            self._allowed[key] = self.frame.allowed(shape)
        return self._allowed[key]

    def open_to(self, shape: Shape) -> Mask:
        """Return the nodes that accept new pods of the shape, regardless of free capacity (N)."""
        if not shape.barred:
            return self.ready
        if shape.barred not in self._open:
            barred = [self.index[name] for name in shape.barred if name in self.index]
            mask = self.ready.copy()
            mask[barred] = False
            self._open[shape.barred] = mask
        return self._open[shape.barred]
