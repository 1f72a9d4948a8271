"""Counts the GPUs that runs compete for: which nodes serve which runs, and how many GPUs are available.

Nodes that serve the same runs are one cell. If all runs may go everywhere there is one cell, and a set of runs fits if
it fits by number (``fairlead.policy.selection.knapsack``); placement decides whether it fits on the nodes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fairlead.policy.gpu.stage_interleaving import MAX_MEMBERS
from fairlead.policy.placement.memo import cached_last
from fairlead.policy.placement.placement import matching, takes_pods
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.policy.selection.jobs import Sharable
from fairlead.specs.gang import GangSpec
from fairlead.state.snapshot import Grant, Node, Pod


class Homes:
    """The nodes that serve runs of a shape, if nothing else ran."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = [node for node in nodes if takes_pods(node) and node.gpus]
        self._known: dict[Shape, frozenset[str]] = {}
        self._beside: dict[Shape, tuple[int, float]] = {}
        self.gpu_milli = {node.name: sum(gpu.milli for gpu in node.gpus) for node in self._nodes}
        self.gpus = {node.name: {gpu.uuid: gpu for gpu in node.gpus} for node in self._nodes}

    def of(self, shape: Shape) -> frozenset[str]:
        """Return the names of the nodes."""
        if shape not in self._known:
            self._known[shape] = frozenset(
                node.name
                for node in self._nodes
                if node.name not in shape.barred and len(matching(node, shape)) >= max(1, shape.num_gpus)
            )
        return self._known[shape]

    def sharable(self, gang: GangSpec, shape: Shape, kind: str) -> Sharable:
        """Return with which others a run on whole GPUs may share them.

        The number of runs side by side assumes that every GPU of a node is held by as many.
        """
        if shape not in self._beside:
            self._beside[shape] = self._room_beside(shape)
        most, memory = self._beside[shape]
        return Sharable(
            kind=kind, alike=(replace(shape, min_gpu_memory_bytes=None), gang.nodes), most=most, memory=memory
        )

    def _room_beside(self, shape: Shape) -> tuple[int, float]:
        """Return how many have room beside each other, and the part of a device's memory that one declares to need."""
        homes = [node for node in self._nodes if node.name in self.of(shape)]
        slots = [(node, len(matching(node, shape)) // shape.num_gpus) for node in homes]
        most = [node.cpu_milli // (shape.cpu_milli * num) for node, num in slots if shape.cpu_milli]
        most += [node.memory_bytes // (shape.memory_bytes * num) for node, num in slots if shape.memory_bytes]
        gpus = [gpu for node in homes for gpu in matching(node, shape)]
        if not all(gpu.divisible for gpu in gpus):
            most.append(1)
        least = min((gpu.memory_bytes for gpu in gpus), default=0)
        needed = shape.min_gpu_memory_bytes
        return max(1, min(most, default=MAX_MEMBERS)), needed / least if needed and least else 0.0

    def held(self, pods: Iterable[Pod]) -> list[tuple[str, int]]:
        """Return nodes and thousandths of devices that some pods hold; a device held whole by several counts once."""
        whole = set[tuple[str, str]]()
        devices = []
        for pod in pods:
            grant = pod.grant
            if grant.gpu_milli >= WHOLE_GPU:
                new = tuple(uuid for uuid in grant.gpu_uuids if (pod.node, uuid) not in whole)
                whole.update((pod.node, uuid) for uuid in new)
                grant = replace(grant, gpu_uuids=new)
            devices.append((pod.node, self.held_milli(pod.node, grant)))
        return devices

    def held_milli(self, node: str, grant: Grant) -> int:
        """Return the thousandths of devices that a grant holds of a node; 0 if the node accepts no pods."""
        gpus = self.gpus.get(node)
        if gpus is None:
            return 0
        held = (gpus[uuid] for uuid in grant.gpu_uuids if uuid in gpus)
        return sum(min(grant.gpu_milli, WHOLE_GPU) if gpu.divisible else gpu.milli for gpu in held)


@cached_last
def homes_of(nodes: tuple[Node, ...]) -> Homes:
    """Return the homes on these nodes."""
    return Homes(nodes)


@dataclass(slots=True)
class Cells:
    """The available devices in each cell.

    Attributes:
        free_milli: Thousandths of devices, by the indices of the sets that contain the nodes.
    """

    free_milli: dict[frozenset[int], int]

    @classmethod
    def of(cls, homes: Homes, sets: Sequence[frozenset[str]], held: Iterable[tuple[str, int]]) -> "Cells":
        """Return the cells of some distinct sets of nodes.

        Args:
            held: Nodes and thousandths of devices that are not available.
        """
        left = dict(homes.gpu_milli)
        for node, milli in held:
            if node in left:
                left[node] -= milli
        free: dict[frozenset[int], int] = {}
        for node, milli in left.items():
            cell = frozenset(index for index, names in enumerate(sets) if node in names)
            if cell:
                free[cell] = free.get(cell, 0) + max(0, milli)
        return cls(free)

    def take(self, index: int, milli: int) -> bool:
        """Allocate for a run of that set, first where the fewest others may go; return False if too little is left."""
        own = sorted((cell for cell in self.free_milli if index in cell), key=lambda cell: (len(cell), sorted(cell)))
        if sum(self.free_milli[cell] for cell in own) < milli:
            return False
        for cell in own:
            taken = min(milli, self.free_milli[cell])
            self.free_milli[cell] -= taken
            milli -= taken
        return True
