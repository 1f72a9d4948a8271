"""GPUs by name: memory, speed and links, and sourced coefficients of a training step on them.

Data sheets give memory, peak of dense bf16, memory bandwidth and NVLink. The parts of those reached by a step are
fitted to measured steps if there are any (`python -m benchmarks.step_time --fit`), otherwise taken as on the measured
GPU.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from fairlead.frozen import dataclass
from fairlead.policy.strategy.memory import GIB

MEMORY_TOLERANCE = 0.15
"""The relative difference in memory up to which a device matches a data sheet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """The costs of a step on a GPU and its network.

    Attributes:
        tflops: TFLOP/s that large matrix products reach.
        depth: Length of the inner dimension at which half of that is reached.
        hidden_passes: Times a layer reads or writes its hidden state besides matrix products, forward and backward.
        whole: The part of those passes that tensor parallelism does not divide.
        attention_passes: Times it reads or writes the attention scores, if attention is not fused.
        launch_ms: The minimum time of a layer, forward and backward, for launching its kernels.
        launch_tensor_ms: Its increase with each doubling of tensor parallelism.
        fallback_ms: Its increase if the fused softmax cannot be used.
        slot_ms: The time of a micro-batch on each stage besides its layers.
        optimizer_bytes: Bytes that the optimizer moves per parameter.
        network_gb_s: GB/s of a node's network in collectives.
        memory_gb_s: GB/s of its memory.
        link_gb_s: GB/s of collectives within a node.
        latency_ms: The latency of one collective between two GPUs of a node.
        logits_passes: Times the logits are read or written.
        source: The source of the values.
    """

    tflops: float
    depth: float
    hidden_passes: float
    whole: float
    attention_passes: float
    launch_ms: float
    launch_tensor_ms: float
    fallback_ms: float
    slot_ms: float
    optimizer_bytes: float
    network_gb_s: float
    memory_gb_s: float
    link_gb_s: float
    latency_ms: float
    logits_passes: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """A GPU by its data sheet.

    Attributes:
        names: Names used by people and clusters, in capitals; the first is displayed.
        memory_bytes: The memory available to a program.
        peak_tflops: Dense bf16.
        memory_gb_s: Memory bandwidth.
        link_gb_s: NVLink in one direction, or PCIe without NVLink.
        processors: Streaming multiprocessors.
    """

    names: tuple[str, ...]
    memory_bytes: float
    peak_tflops: float
    memory_gb_s: float
    link_gb_s: float
    processors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGpu:
    """A GPU as measured by ``fairlead doctor --gpu``.

    Attributes:
        name: The name reported by the device.
        memory_bytes: The memory available to a program.
        processors: Streaming multiprocessors.
        tflops: TFLOP/s that large matrix products reach.
        depth: Length of the inner dimension at which half of that is reached.
        memory_gb_s: GB/s of a copy within its memory, read and written.
        launch_ms: The minimum time of a layer, forward and backward.
        link_gb_s: GB/s of all-reduces among the GPUs of the machine; None with a single one.
        latency_ms: The latency of one all-reduce between two of them; None with a single one.
        at: Seconds since 1970.
    """

    name: str
    memory_bytes: float
    processors: int
    tflops: float
    depth: float
    memory_gb_s: float
    launch_ms: float
    link_gb_s: float | None = None
    latency_ms: float | None = None
    at: float


GPUS = (
    GpuModel(
        names=("A100-80GB", "A100-SXM4-80GB", "A100-80GB-SXM", "A100-80"),
        memory_bytes=79.15 * GIB,
        peak_tflops=312,
        memory_gb_s=2039,
        link_gb_s=300,
        processors=108,
    ),
    GpuModel(
        names=("A100", "A100-40GB", "A100-SXM4-40GB"),
        memory_bytes=39.39 * GIB,
        peak_tflops=312,
        memory_gb_s=1555,
        link_gb_s=300,
        processors=108,
    ),
    GpuModel(
        names=("H100", "H100-80GB", "H100-SXM5-80GB", "H100-SXM"),
        memory_bytes=79.11 * GIB,
        peak_tflops=989,
        memory_gb_s=3350,
        link_gb_s=450,
        processors=132,
    ),
    GpuModel(
        names=("H200", "H200-141GB", "H200-SXM"),
        memory_bytes=139.8 * GIB,
        peak_tflops=989,
        memory_gb_s=4800,
        link_gb_s=450,
        processors=132,
    ),
    GpuModel(
        names=("B200", "B200-180GB", "B200-SXM"),
        memory_bytes=178.3 * GIB,
        peak_tflops=2250,
        memory_gb_s=8000,
        link_gb_s=900,
        processors=148,
    ),
    GpuModel(
        names=("V100", "V100-16GB", "V100-SXM2-16GB"),
        memory_bytes=15.77 * GIB,
        peak_tflops=125,
        memory_gb_s=900,
        link_gb_s=150,
        processors=80,
    ),
    GpuModel(
        names=("V100-32GB", "V100-SXM2-32GB"),
        memory_bytes=31.74 * GIB,
        peak_tflops=125,
        memory_gb_s=900,
        link_gb_s=150,
        processors=80,
    ),
    GpuModel(
        names=("L40S",),
        memory_bytes=44.4 * GIB,
        peak_tflops=362,
        memory_gb_s=864,
        link_gb_s=32,
        processors=142,
    ),
    GpuModel(
        names=("L4",),
        memory_bytes=22.0 * GIB,
        peak_tflops=121,
        memory_gb_s=300,
        link_gb_s=32,
        processors=58,
    ),
    GpuModel(
        names=("A10G", "A10"),
        memory_bytes=22.1 * GIB,
        peak_tflops=70,
        memory_gb_s=600,
        link_gb_s=32,
        processors=80,
    ),
    GpuModel(
        names=("T4",),
        memory_bytes=14.6 * GIB,
        peak_tflops=65,
        memory_gb_s=320,
        link_gb_s=16,
        processors=40,
    ),
    GpuModel(
        names=("RTX4090", "RTX-4090", "GEFORCE-RTX-4090"),
        memory_bytes=23.5 * GIB,
        peak_tflops=165,
        memory_gb_s=1008,
        link_gb_s=32,
        processors=128,
    ),
)

# Before any fit: 85 % of the peak and of the memory bandwidth, 72 % of NVLink, half of 8 x 200 Gb/s; passes by counting
# the operators of a layer (arXiv 2205.05198, fig. 2); launches of some 60 kernels in eager mode.
TEXTBOOK = Coefficients(
    tflops=265.0,
    depth=256.0,
    hidden_passes=128.0,
    whole=0.1,
    attention_passes=3.0,
    launch_ms=4.0,
    launch_tensor_ms=0.3,
    fallback_ms=1.0,
    slot_ms=1.0,
    optimizer_bytes=18.0,
    network_gb_s=100.0,
    memory_gb_s=1350.0,
    link_gb_s=215.0,
    latency_ms=0.03,
    logits_passes=4.0,
    source="data sheet of A100",
)

# The results of `python -m benchmarks.step_time --fit`, rounded.
MEASURED = {
    "A100": Coefficients(
        tflops=239.8,
        depth=260.8,
        hidden_passes=129.6,
        whole=0.0987,
        attention_passes=3.04,
        launch_ms=4.056,
        launch_tensor_ms=0.3009,
        fallback_ms=1.0,
        slot_ms=0.999,
        optimizer_bytes=18.05,
        network_gb_s=96.23,
        memory_gb_s=1350.0,
        link_gb_s=215.0,
        latency_ms=0.03,
        logits_passes=4.0,
        source="88 steps on 64 to 512 A100 (vTrain)",
    )
}


def find(name: str) -> GpuModel | None:
    """Return the GPU with that name, in any spelling that a cluster may use; None if unknown."""
    wanted = _spelt(name)
    return next((gpu for gpu in GPUS if wanted in gpu.names), None)


def find_measured(name: str, known: GpuModel | None, measured: Iterable[MeasuredGpu]) -> MeasuredGpu | None:
    """Return the measurement of a GPU; None without one.

    Args:
        known: That GPU by its data sheet. A device with the model in its name and about its memory matches.
    """
    model = None if known is None else known.names[0].partition("-")[0]
    for gpu in measured:
        own = _spelt(gpu.name)
        if own == _spelt(name):
            return gpu
        is_like = known is not None and abs(gpu.memory_bytes / known.memory_bytes - 1) < MEMORY_TOLERANCE
        if is_like and model is not None and model in own.split("-"):
            return gpu
    return None


def as_gpu(measured: MeasuredGpu) -> GpuModel:
    """Return a GPU without a known data sheet, from its measurement."""
    return GpuModel(
        names=(measured.name,),
        memory_bytes=measured.memory_bytes,
        peak_tflops=measured.tflops,
        memory_gb_s=measured.memory_gb_s,
        link_gb_s=measured.link_gb_s or measured.memory_gb_s,
        processors=measured.processors,
    )


def coefficients(gpu: GpuModel, measured: MeasuredGpu | None = None) -> Coefficients:
    """Return the coefficients of a GPU: measured ones, and the rest from A100 in proportion to the data sheets."""
    by_sheet = _by_data_sheet(gpu)
    if measured is None:
        return by_sheet
    day = datetime.fromtimestamp(measured.at, UTC).date()
    return replace(
        by_sheet,
        tflops=measured.tflops,
        depth=measured.depth,
        memory_gb_s=measured.memory_gb_s,
        launch_ms=measured.launch_ms,
        link_gb_s=measured.link_gb_s or by_sheet.link_gb_s,
        latency_ms=measured.latency_ms or by_sheet.latency_ms,
        source=f"{measured.name} as measured here on {day}, its network by {by_sheet.source}",
    )


def _spelt(name: str) -> str:
    return name.upper().replace("NVIDIA-", "").replace("TESLA-", "").replace("_", "-").replace(" ", "-")


def _by_data_sheet(gpu: GpuModel) -> Coefficients:
    measured = MEASURED["A100"]
    reference = find("A100")
    if reference is None or gpu.processors == reference.processors:
        return measured
    return replace(
        measured,
        tflops=measured.tflops * gpu.peak_tflops / reference.peak_tflops,
        memory_gb_s=measured.memory_gb_s * gpu.memory_gb_s / reference.memory_gb_s,
        link_gb_s=measured.link_gb_s * gpu.link_gb_s / reference.link_gb_s,
        source=f"{measured.source}; {gpu.names[0]} is by its data sheet and not measured",
    )
