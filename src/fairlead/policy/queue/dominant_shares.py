"""Computes the share of the cluster that a team holds, for weighted dominant resource fairness.

Ghodsi et al., "Dominant Resource Fairness", NSDI 2011: the dominant share of user i is s_i = max over j of u_ij / r_j
(Algorithm 1), with weights s_i = max over j of u_ij / w_ij (section 4.3); here one weight for all resources of a team.
Constant time for each call.
"""

from functools import lru_cache

from fairlead.frozen import dataclass
from fairlead.policy.placement.device_matching import serves
from fairlead.policy.placement.memo import cached_last
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.specs.gang import GangSpec
from fairlead.specs.resources import Resources
from fairlead.state.snapshot import Gpu, Node


@dataclass(frozen=True, slots=True)
class Amounts:
    """Quantities of the three shared resources."""

    gpu_milli: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(
            self.gpu_milli + other.gpu_milli, self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes
        )

    def minus(self, other: "Amounts") -> "Amounts":
        """Return the difference."""
        return Amounts(
            self.gpu_milli - other.gpu_milli, self.cpu_milli - other.cpu_milli, self.memory_bytes - other.memory_bytes
        )

    def times(self, number: int) -> "Amounts":
        """Return the amounts multiplied by a number."""
        return Amounts(number * self.gpu_milli, number * self.cpu_milli, number * self.memory_bytes)


@dataclass(frozen=True, slots=True)
class ClusterCapacity(Amounts):
    """The total of a cluster, and one example of each kind of GPU part on its nodes."""

    parts: tuple[Gpu, ...] = ()


def asked(spec: GangSpec, whole: ClusterCapacity) -> Amounts:
    """Return the request of the whole gang.

    A part requested by memory counts as the smallest part in the cluster with that memory, which is the one allocated
    while one is free; as a whole GPU if there is none.
    """
    amounts = _fixed_request(spec.resources, spec.nodes)
    if amounts is not None:
        return amounts
    shape = Shape.of(spec.resources)
    gpu_milli = min((part.milli for part in whole.parts if serves(part, shape)), default=WHOLE_GPU)
    return _amounts(shape, spec.nodes, gpu_milli)


# Called for each run at each pass, several times, and most runs have the same requests as others.
@lru_cache(maxsize=4096)
def _fixed_request(resources: Resources, count: int) -> Amounts | None:
    """Return the amounts of a gang if they do not depend on the cluster; None if they do."""
    shape = Shape.of(resources)
    return None if shape.parts_only else _amounts(shape, count, shape.total_gpu_milli)


def _amounts(shape: Shape, count: int, gpu_milli: int) -> Amounts:
    return Amounts(count * gpu_milli, count * shape.cpu_milli, count * shape.memory_bytes)


@cached_last
def capacity(nodes: tuple[Node, ...]) -> ClusterCapacity:
    """Return the total of all nodes, including unavailable ones."""
    gpus = cpu = memory = 0
    parts: dict[tuple[object, ...], Gpu] = {}
    for node in nodes:
        for gpu in node.gpus:
            gpus += gpu.milli
            if gpu.milli < WHOLE_GPU:
                parts.setdefault((gpu.model, gpu.memory_bytes, gpu.milli, gpu.sharing), gpu)
        cpu += node.cpu_milli
        memory += node.memory_bytes
    return ClusterCapacity(gpus, cpu, memory, tuple(parts.values()))


def dominant_share(held: Amounts, whole: Amounts, weight: int = 1) -> float:
    """Return the largest held part of any resource, divided by the weight; resources without capacity count zero."""
    parts = (
        held.gpu_milli / whole.gpu_milli if whole.gpu_milli else 0.0,
        held.cpu_milli / whole.cpu_milli if whole.cpu_milli else 0.0,
        held.memory_bytes / whole.memory_bytes if whole.memory_bytes else 0.0,
    )
    return max(parts) / weight
