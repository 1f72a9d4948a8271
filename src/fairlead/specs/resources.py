"""The spec of the resources of one node of a workload. All numbers are exact and in base units."""

from collections.abc import Iterable

from fairlead.frozen import dataclass
from fairlead.specs.constraints import MODELS, Constraints, Limit, broken, enforce
from fairlead.specs.sharing import Sharing

GPU_RULES: Constraints = {
    "milli": Limit(low=1, high=1_000_000, whole=True),
    "model": MODELS,
    "min_memory_bytes": Limit(low=1, high=2**50, whole=True),
}

RESOURCES_RULES: Constraints = {
    "cpu_milli": Limit(low=1, high=100_000_000, whole=True),
    "memory_bytes": Limit(low=1, high=2**50, whole=True),
    "shm_bytes": Limit(low=1, high=2**50, whole=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """GPUs on each node: a number of whole devices, or one share of a device.

    Attributes:
        milli: Thousandths of a device; a multiple of 1000, or less than 1000 for a share of one device.
        model: Device model such as ``A100``, or alternatives as in ``A100|H100``; None for any.
        min_memory_bytes: Minimum memory of each device; None for any.
        memory_auto: The minimum follows the usage of similar runs; any will do until that is known.
    """

    milli: int = 1000
    model: str | None = None
    min_memory_bytes: int | None = None
    memory_auto: bool = False

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def num_devices(self) -> int:
        """Return the number of devices involved: 1 for a share."""
        return max(1, self.milli // 1000)

    def _problems(self) -> Iterable[tuple[str, str]]:
        if self.milli <= 0:
            yield "milli", f"{self.milli / 1000:g} GPUs; ask for more than 0, or leave `gpu` out"
        elif self.milli > 1000 and self.milli % 1000:
            yield "milli", f"{self.milli / 1000:g} GPUs; above 1 only whole GPUs, below 1 a share such as 0.5"
        elif self.milli > GPU_MOST * 1000:
            yield (
                "milli",
                f"{self.milli / 1000:g} GPUs on one node; at most {GPU_MOST}. A model that is a number needs its "
                "letters, such as `RTX4090`",
            )
        elif self.memory_auto and self.milli < 1000:
            yield "milli", f"a share of {self.milli / 1000:g} has no memory of its own; leave the number out, or `auto`"
        else:
            yield from broken(self, GPU_RULES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources that each node of a workload gets.

    Attributes:
        gpu: GPUs of each node; None for none.
        cpu_milli: Thousandths of a core; None for the cluster's choice, which the plan shows.
        cpu_auto: Cores follow the usage of similar runs; ``cpu_milli`` applies until that is known.
        memory_bytes: Memory request and limit; None for no limit.
        memory_auto: Memory follows the usage of similar runs, and grows after a kill at the limit.
        shm_bytes: Size of /dev/shm; None for the cluster's default.
        sharing: Accepted methods of sharing the GPU, each once; empty for any suitable one. If given, a request for one
            GPU with an amount of memory means a part of a GPU with that memory.
        colocate: Other runs with as many GPUs and this setting may run on the same GPUs concurrently, if that increases
            throughput. GPU memory is then the amount that the run needs of each GPU beside the others.
    """

    gpu: GpuRequest | None = None
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    sharing: tuple[Sharing, ...] = ()
    colocate: bool = False
    cpu_auto: bool = False
    memory_auto: bool = False

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def is_auto(self) -> bool:
        """Return whether any resource follows the usage of similar runs."""
        return self.cpu_auto or self.memory_auto or (self.gpu is not None and self.gpu.memory_auto)

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, RESOURCES_RULES)
        for way in sorted({way for way in self.sharing if self.sharing.count(way) > 1}):
            yield "sharing", f"{way} is listed twice; list each once"
        gpu = self.gpu
        if self.sharing and gpu is not None and gpu.milli >= 1000:
            has_memory = gpu.min_memory_bytes is not None or gpu.memory_auto
            if gpu.milli > 1000 or not has_memory:
                yield "sharing", ONLY_PARTS
        if self.colocate and (gpu is None or gpu.milli < 1000 or self.sharing):
            yield "colocate", ONLY_WHOLE


GPU_MOST = 1000
ONLY_PARTS = "it is for a part of one GPU; ask for a share such as `gpu: 0.5`, or for memory such as `gpu: 24GB`"
ONLY_WHOLE = "it is for runs on whole GPUs; ask for some, such as `gpu: 1`, and leave `sharing` out"
ONLY_FIXED = (
    "`colocate` is for gangs that Fairlead places on one number of nodes; leave it out, or `engine`, `spot: auto` and "
    "a span of `nodes`"
)
ONLY_BY_LEAST_WORK = (
    "runs share whole GPUs by the policy `least-work`, and this machine uses another. Write `least-work` into the "
    "file `policy` of its state directory, or leave `colocate` out."
)
NOT_IN_PODS = "it is for this machine and simulations: in pods a whole GPU goes to one run only; leave it out"
