"""GPUs by name: memory, speed and links, and the coefficients of a training step on them with their source.

Data sheets give memory, peak of dense bf16, memory bandwidth and NVLink. What a step really gets of that is fitted to
measured steps where there are any (`python -m benchmarks.step_time --fit`), and else taken as the same part of the data
sheet's numbers as on the GPU that was measured.
"""

from dataclasses import dataclass, replace

from fairlead.policy.strategy.memory import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """The costs of a step on a GPU and its network.

    Attributes:
        tflops: TFLOP/s that large matrix products reach.
        depth: Length of the inner dimension at which half of that is reached.
        hidden_passes: Times a layer reads or writes its hidden state besides matrix products, forward and backward.
        whole: The part of those passes that tensor parallelism does not divide.
        attention_passes: Times it reads or writes the scores of attention, where attention is not fused.
        launch_ms: The least that a layer takes, forward and backward, as its kernels are launched.
        launch_tensor_ms: What that grows by with each doubling of tensor parallelism.
        fallback_ms: What it grows by where the fused softmax cannot be used.
        slot_ms: What a micro-batch costs on each stage besides its layers.
        optimizer_bytes: Bytes that the optimizer moves for each parameter.
        network_gb_s: GB/s of a node's network in collectives.
        memory_gb_s: GB/s of its memory.
        link_gb_s: GB/s of collectives within a node.
        latency_ms: Of one collective between two GPUs of a node.
        logits_passes: Times the logits are read or written.
        source: Where they come from.
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
class Gpu:
    """A GPU by its data sheet.

    Attributes:
        names: As people and clusters write it, in capitals; the first is shown.
        memory_bytes: What a program finds.
        peak_tflops: Dense bf16.
        memory_gb_s: Of its memory.
        link_gb_s: NVLink in one direction, or PCIe where it has none.
        processors: Streaming multiprocessors.
    """

    names: tuple[str, ...]
    memory_bytes: float
    peak_tflops: float
    memory_gb_s: float
    link_gb_s: float
    processors: int


GPUS = (
    Gpu(
        names=("A100-80GB", "A100-SXM4-80GB", "A100-80GB-SXM", "A100-80"),
        memory_bytes=79.15 * GIB,
        peak_tflops=312,
        memory_gb_s=2039,
        link_gb_s=300,
        processors=108,
    ),
    Gpu(
        names=("A100", "A100-40GB", "A100-SXM4-40GB"),
        memory_bytes=39.39 * GIB,
        peak_tflops=312,
        memory_gb_s=1555,
        link_gb_s=300,
        processors=108,
    ),
    Gpu(
        names=("H100", "H100-80GB", "H100-SXM5-80GB", "H100-SXM"),
        memory_bytes=79.11 * GIB,
        peak_tflops=989,
        memory_gb_s=3350,
        link_gb_s=450,
        processors=132,
    ),
    Gpu(
        names=("H200", "H200-141GB", "H200-SXM"),
        memory_bytes=139.8 * GIB,
        peak_tflops=989,
        memory_gb_s=4800,
        link_gb_s=450,
        processors=132,
    ),
    Gpu(
        names=("B200", "B200-180GB", "B200-SXM"),
        memory_bytes=178.3 * GIB,
        peak_tflops=2250,
        memory_gb_s=8000,
        link_gb_s=900,
        processors=148,
    ),
    Gpu(
        names=("V100", "V100-16GB", "V100-SXM2-16GB"),
        memory_bytes=15.77 * GIB,
        peak_tflops=125,
        memory_gb_s=900,
        link_gb_s=150,
        processors=80,
    ),
    Gpu(
        names=("V100-32GB", "V100-SXM2-32GB"),
        memory_bytes=31.74 * GIB,
        peak_tflops=125,
        memory_gb_s=900,
        link_gb_s=150,
        processors=80,
    ),
    Gpu(
        names=("L40S",),
        memory_bytes=44.4 * GIB,
        peak_tflops=362,
        memory_gb_s=864,
        link_gb_s=32,
        processors=142,
    ),
    Gpu(
        names=("L4",),
        memory_bytes=22.0 * GIB,
        peak_tflops=121,
        memory_gb_s=300,
        link_gb_s=32,
        processors=58,
    ),
    Gpu(
        names=("A10G", "A10"),
        memory_bytes=22.1 * GIB,
        peak_tflops=70,
        memory_gb_s=600,
        link_gb_s=32,
        processors=80,
    ),
    Gpu(
        names=("T4",),
        memory_bytes=14.6 * GIB,
        peak_tflops=65,
        memory_gb_s=320,
        link_gb_s=16,
        processors=40,
    ),
    Gpu(
        names=("RTX4090", "RTX-4090", "GEFORCE-RTX-4090"),
        memory_bytes=23.5 * GIB,
        peak_tflops=165,
        memory_gb_s=1008,
        link_gb_s=32,
        processors=128,
    ),
)

# Before any fit: 85 % of the peak and of the memory's bandwidth, 72 % of NVLink, half of 8 x 200 Gb/s; passes by
# counting the operators of a layer (arXiv 2205.05198, fig. 2); launches of some 60 kernels in eager mode.
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

# What `python -m benchmarks.step_time --fit` gives, rounded.
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


def find(name: str) -> Gpu | None:
    """Return the GPU of that name, in any spelling that a cluster may use; None when it is not known."""
    wanted = name.upper().replace("NVIDIA-", "").replace("TESLA-", "").replace("_", "-").replace(" ", "-")
    return next((gpu for gpu in GPUS if wanted in gpu.names), None)


def coefficients(gpu: Gpu) -> Coefficients:
    """Coefficients of a GPU: those measured on A100, in the proportion of the data sheets."""
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
