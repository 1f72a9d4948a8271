"""The spec of the resources of one node of a workload. All numbers are exact and in base units."""

import re
from collections.abc import Iterable
from typing import Annotated

from fairlead.frozen import dataclass
from fairlead.specs.constraints import MODELS, Limit, enforce
from fairlead.specs.field_types import ANY, CPU_OR_AUTO, SIZE, SIZE_OR_AUTO, ListField, Single, pattern, word
from fairlead.specs.key import Key, broken
from fairlead.specs.quantities import (
    DECIMAL,
    NUMBER,
    format_gpu_count,
    format_size,
    like_size,
    parse_gpu_count,
    parse_size,
)
from fairlead.specs.sharing import Sharing

MOST_CPU_MILLI, MOST_BYTES = 100_000_000, 2**50

_MODEL = MODELS.pattern or ""
GPU_MEMORY = rf"{DECIMAL} ?(?:(?:k|[KMGTPE]i?)B?|B)"
GPU_AUTO = "auto"
GPU_NOTATION = (
    rf"(?:{_MODEL}(?::(?:{GPU_MEMORY}|{GPU_AUTO}))?(?::{DECIMAL})?|(?:{GPU_MEMORY}|{GPU_AUTO})(?::{DECIMAL})?)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """GPUs on each node: a number of whole devices, or one share of a device.

    Attributes:
        milli: Thousandths of a device; a multiple of 1000, or less than 1000 for a share of one device.
        model: Device model such as ``A100``, or alternatives as in ``A100|H100``; None for any.
        min_memory_bytes: Minimum memory of each device; None for any.
        memory_auto: The minimum follows the usage of similar runs; any will do until that is known.
    """

    milli: Annotated[int, Limit(low=1, high=1_000_000, whole=True)] = 1000
    model: Annotated[str | None, MODELS] = None
    min_memory_bytes: Annotated[int | None, Limit(low=1, high=MOST_BYTES, whole=True)] = None
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
            yield from broken(self)


def parse_gpu(text: str) -> GpuRequest:
    """Parse ``8``, ``A100|H100``, ``A100:8``, ``24GB:2``, ``A100:40GB:2``, or a share: ``0.5``, ``A100:0.5``.

    In place of the memory ``auto`` lets it follow the usage of earlier runs.
    """
    if re.fullmatch(NUMBER, text):
        return GpuRequest(milli=parse_gpu_count(text))
    if re.fullmatch(GPU_NOTATION, text) is None:
        raise ValueError("is not a number of GPUs, or model, memory and count joined by `:`" + _like_gpu(text))
    model = memory = None
    milli, is_auto = 1000, False
    for place, part in enumerate(text.split(":")):
        if part == GPU_AUTO:
            is_auto = True
        elif re.fullmatch(_MODEL, part):
            model = part
        elif place and re.fullmatch(DECIMAL, part):
            milli = parse_gpu_count(part)
        else:
            memory = parse_size(part)
    return GpuRequest(milli=milli, model=model, min_memory_bytes=memory, memory_auto=is_auto)


def format_gpu(request: GpuRequest) -> str | int:
    """Format a request for ``parse_gpu``; as a number only for whole GPUs of any model and memory."""
    count = format_gpu_count(request.milli)
    if request.model is None and request.min_memory_bytes is None and not request.memory_auto:
        return count
    parts = [] if request.model is None else [request.model]
    if request.min_memory_bytes is not None:
        size = format_size(request.min_memory_bytes)
        parts.append(f"{size}B" if not str(size).endswith("i") else f"{size}")
    elif request.memory_auto:
        parts.append(GPU_AUTO)
    return ":".join(parts if request.milli == 1000 else [*parts, str(count)])


def _like_gpu(text: str) -> str:
    match = re.fullmatch(rf"({DECIMAL})(?::|[xX]|\s|\*)\s*({_MODEL})", text) or re.fullmatch(
        rf"({_MODEL})(?:[xX=*]|\s+)({DECIMAL})", text
    )
    if match is not None:
        count, model = sorted((match[1], match[2]), key=lambda part: not part[0].isdigit())
        return f"; did you mean `{model}:{count}`?"
    return like_size(text)


GPU = Single(
    what="a number of GPUs, or model, memory and count joined by `:`",
    tags=ANY,
    parse=parse_gpu,
    render=format_gpu,
    schema={
        "anyOf": [
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1000},
            pattern(f"{GPU_NOTATION}|{NUMBER}"),
        ]
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRequests:
    """The requests of a pod's containers beside the ranks, as Kubernetes counts them.

    Attributes:
        cpu_milli: Thousandths of a core of those that run as long as the ranks.
        memory_bytes: The same for memory, in bytes.
        first_cpu_milli: The most that any container which ends before the ranks needs, with those that run then.
        first_memory_bytes: The same for memory, in bytes.
    """

    cpu_milli: int = 0
    memory_bytes: int = 0
    first_cpu_milli: int = 0
    first_memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources that each node of a workload gets.

    With ``sharing``, a request for one GPU with an amount of memory means a part of a GPU with that memory. With
    ``colocate``, GPU memory is the amount that the run needs of each GPU beside the others.

    Attributes:
        cpu_auto: Cores follow the usage of similar runs; ``cpu_milli`` applies until that is known.
        memory_auto: Memory follows the usage of similar runs, and grows after a kill at the limit.
        beside: Requests of the pod's other containers, where there are pods; not a key of a spec.
    """

    gpu: Annotated[
        GpuRequest | None,
        Key(
            "gpu",
            GPU,
            example="A100:8",
            also="gpus accelerator accelerators num_gpus gpu_count ngpus nvidia.com/gpu devices",
        ),
        "GPUs of each node: a number, a model (A100:8), a minimum memory (24GB:2; `auto` follows the usage of earlier "
        "runs of its name) or a part of one (0.5).",
    ] = None
    cpu_milli: Annotated[
        int | None,
        Key(
            "cpu",
            CPU_OR_AUTO,
            Limit(low=1, high=MOST_CPU_MILLI, whole=True),
            example="4",
            also="cpus vcpu vcpus num_cpus core cores cpu_count num_cores",
            sets=("cpu_auto",),
        ),
        "Cores of each node, such as 4 or 500m; the cluster chooses when left out; `auto` follows the usage of earlier "
        "runs of its name.",
    ] = None
    memory_bytes: Annotated[
        int | None,
        Key(
            "memory",
            SIZE_OR_AUTO,
            Limit(low=1, high=MOST_BYTES, whole=True),
            example="16Gi",
            also="mem ram memory_gb memory_limit",
            sets=("memory_auto",),
        ),
        "Memory of each node, request and limit in one, such as 16Gi; no limit when left out; `auto` follows the usage "
        "of earlier runs of its name.",
    ] = None
    shm_bytes: Annotated[
        int | None,
        Key(
            "shm", SIZE, Limit(low=1, high=MOST_BYTES, whole=True), example="2Gi", also="shm_size shared_memory dev_shm"
        ),
        "Size of /dev/shm, such as 2Gi.",
    ] = None
    sharing: Annotated[
        tuple[Sharing, ...],
        Key(
            "sharing",
            ListField(item=word(Sharing), most=len(Sharing)),
            example="[mig, mps]",
            also="share gpu_sharing isolation mig mps time_slicing sharing_strategy",
        ),
        "Allowed isolation of a part of a GPU: mig, mps, time-slicing; chosen for the run when left out.",
    ] = ()
    colocate: Annotated[
        bool,
        Key("colocate", example="true", also="co_locate colocation interleave gpu_packing space_sharing share_gpus"),
        "Share whole GPUs with other such runs of the same number of GPUs, under the policy `least-work`.",
    ] = False
    cpu_auto: bool = False
    memory_auto: bool = False
    beside: SideRequests | None = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def pod_cpu_milli(self) -> int:
        """Return the thousandths of a core of a whole pod; unspecified ones of the ranks count as zero."""
        own, beside = self.cpu_milli or 0, self.beside
        return own if beside is None else max(own + beside.cpu_milli, beside.first_cpu_milli)

    @property
    def pod_memory_bytes(self) -> int:
        """Return the bytes of memory of a whole pod; an unspecified amount of the ranks counts as zero."""
        own, beside = self.memory_bytes or 0, self.beside
        return own if beside is None else max(own + beside.memory_bytes, beside.first_memory_bytes)

    @property
    def is_auto(self) -> bool:
        """Return whether any resource follows the usage of similar runs."""
        return self.cpu_auto or self.memory_auto or (self.gpu is not None and self.gpu.memory_auto)

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
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
