"""Holds the nodes of a fleet as arrays, without the state of pods: N nodes with up to G devices each."""

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fairlead.policy.placement.device_matching import serves
from fairlead.policy.placement.memo import cached_last
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.placement.topology import Fabric, Path
from fairlead.state.snapshot import Gpu, Grant, Node

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Frame:
    """The properties of nodes; all arrays are read-only.

    Attributes:
        names: Names of the nodes, in the order of the arrays (N).
        index: The position of a node in the arrays, by name.
        ready: Nodes that accept new pods (N).
        cpu_milli: Thousandths of cores (N).
        memory_bytes: Memory (N).
        capacity_milli: 1000 for a device, less for a part of one, 0 for none (N, G).
        divisible: Whether several pods may share the device (N, G).
        kind: Index into ``kinds`` of each device (N, G); 0 without a device.
        kinds: One device of each kind.
        has_gpus: Nodes with devices (N).
        cpu_milli_beside_gpus: The sum of thousandths of cores of nodes with devices.
    """

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        num, most = len(nodes), max((len(node.gpus) for node in nodes), default=0)
        self.nodes = nodes
        self.names = [node.name for node in nodes]
        self.index = {name: i for i, name in enumerate(self.names)}
        self._positions = [{gpu.uuid: i for i, gpu in enumerate(node.gpus)} for node in nodes]
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
        self.total_gpu_milli = int(self.capacity_milli.sum())
        self.all_divisible = bool(self.divisible.all())
        self.has_gpus: Mask = np.asarray(self.capacity_milli.any(axis=1))
        self.cpu_milli_beside_gpus = sum(node.cpu_milli for node in nodes if node.gpus)
        for array in (
            self.ready, self.cpu_milli, self.memory_bytes, self.capacity_milli, self.kind, self.divisible,
            self.has_gpus,
        ):  # fmt: skip
            array.flags.writeable = False

    @cached_property
    def domains(self) -> Ints:
        """Return the domain of each node at every relevant level, wide to narrow (L, N)."""
        fabric = Fabric.of(self.nodes)
        domains = np.zeros((len(fabric.levels), len(self.nodes)), dtype=np.int64)
        for level in range(len(fabric.levels)):
            known: dict[Path, int] = {}
            for i, name in enumerate(self.names):
                domains[level, i] = known.setdefault(fabric.paths[name][: level + 1], len(known))
        domains.flags.writeable = False
        return domains

    def devices(self, node: int, grant: Grant) -> list[int]:
        """Return the positions of a grant's devices on a node; missing ones are omitted."""
        positions = self._positions[node]
        return [positions[uuid] for uuid in grant.gpu_uuids if uuid in positions]

    def allowed(self, shape: Shape) -> Mask:
        """Return which kinds of device the shape can use."""
        return np.array([serves(gpu, shape) for gpu in self.kinds] or [False], dtype=np.bool_)


@cached_last
def frame_of(nodes: tuple[Node, ...]) -> Frame:
    """Return the frame of these nodes."""
    return Frame(nodes)
