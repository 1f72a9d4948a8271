"""Makes a key of the needs of one pod of a gang: pods of equal shape fit the same nodes equally well."""

from functools import lru_cache

from fairlead.frozen import dataclass
from fairlead.specs.resources import Resources
from fairlead.specs.sharing import Sharing

WHOLE_GPU = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The resources that one pod takes from its node.

    Attributes:
        num_gpus: The number of devices used; a share uses one.
        gpu_milli: Thousandths of each of them; 1000 for whole devices.
        gpu_model: Models it can use, as in ``A100|H100``; None for any.
        min_gpu_memory_bytes: Each device has at least this much memory; None for any.
        sharing: Acceptable ways in which a share is isolated from others; None for any.
        parts_only: Whether it uses separately allocated parts, such as MIG instances, by their memory.
        barred: Nodes that it cannot use, regardless of capacity.
        apart: Whether no two pods of a gang may share a node.
    """

    cpu_milli: int = 0
    memory_bytes: int = 0
    num_gpus: int = 0
    gpu_milli: int = 0
    gpu_model: str | None = None
    min_gpu_memory_bytes: int | None = None
    sharing: frozenset[Sharing] | None = None
    parts_only: bool = False
    barred: frozenset[str] = frozenset()
    apart: bool = False

    def __post_init__(self) -> None:
        if self.num_gpus > 1 and self.gpu_milli != WHOLE_GPU:
            raise ValueError(f"{self.num_gpus} devices of {self.gpu_milli} thousandths; a share is of one device")

    @classmethod
    def of(cls, resources: Resources) -> "Shape":
        """Return the shape of a pod with these resources; unspecified ones count as zero."""
        return _shape_of(resources)

    @property
    def total_gpu_milli(self) -> int:
        """Return the total thousandths of devices."""
        return self.num_gpus * self.gpu_milli

    @property
    def is_share(self) -> bool:
        """Return whether it uses a part of one device."""
        return self.num_gpus == 1 and self.gpu_milli < WHOLE_GPU


# Called for each run at each pass, and most runs have the same requests as others.
@lru_cache(maxsize=4096)
def _shape_of(resources: Resources) -> Shape:
    cpu, memory, gpu = resources.pod_cpu_milli, resources.pod_memory_bytes, resources.gpu
    if gpu is None:
        return Shape(cpu_milli=cpu, memory_bytes=memory)
    by_memory = bool(resources.sharing) and gpu.milli == WHOLE_GPU
    return Shape(
        cpu_milli=cpu,
        memory_bytes=memory,
        num_gpus=gpu.num_devices,
        gpu_milli=1 if by_memory else min(gpu.milli, WHOLE_GPU),
        sharing=frozenset(resources.sharing) or None,
        parts_only=by_memory,
        gpu_model=gpu.model,
        min_gpu_memory_bytes=gpu.min_memory_bytes,
    )
