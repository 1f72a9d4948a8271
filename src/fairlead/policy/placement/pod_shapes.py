"""Makes a key of what one member of a gang needs: members of equal shape fit the same nodes equally well."""

from functools import lru_cache

from fairlead.frozen import dataclass
from fairlead.specs.resources import Resources
from fairlead.specs.sharing import Sharing

WHOLE_GPU = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The resources that one pod takes from its node.

    Attributes:
        num_gpus: Devices that are touched; a share touches one.
        gpu_milli: Thousandths of each of them; 1000 for whole devices.
        gpu_model: Models it can use, as in ``A100|H100``; None for any.
        min_gpu_memory_bytes: Each device has at least this much memory; None for any.
        sharing: Ways in which a share may be kept apart from others; None for any.
        parts_only: It takes what is handed out as a part by itself, such as a MIG instance, by its memory.
        barred: Nodes to which it cannot go, room or not.
        apart: No two members of one gang on one node.
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
        """The shape of a pod with these resources; what is left open counts as nothing."""
        return _shape_of(resources)

    @property
    def total_gpu_milli(self) -> int:
        """Thousandths of devices in all."""
        return self.num_gpus * self.gpu_milli

    @property
    def is_share(self) -> bool:
        """It takes a part of one device."""
        return self.num_gpus == 1 and self.gpu_milli < WHOLE_GPU


# Asked for each run at each pass, and most runs ask for what others ask for.
@lru_cache(maxsize=4096)
def _shape_of(resources: Resources) -> Shape:
    cpu, memory, gpu = resources.cpu_milli or 0, resources.memory_bytes or 0, resources.gpu
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
