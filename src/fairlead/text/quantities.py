"""Formats quantities for messages."""

from fairlead.specs.gang import GangSpec
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.sharing import Sharing

GIB = 1024**3
SHARED_BY = {Sharing.MIG: "MIG", Sharing.MPS: "MPS", Sharing.TIME_SLICING: "time slices"}


def describe_memory(num_bytes: int) -> str:
    """Format bytes in the largest binary unit that keeps them readable, such as ``1.5 GiB``."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def describe_cpu(milli: int) -> str:
    """Format thousandths of a core as cores, such as ``0.5 CPU``."""
    return f"{milli / 1000:g} CPU"


def describe_gpu(gpu: GpuRequest) -> str:
    """Describe a GPU request, such as ``8 x A100`` or ``1 GPU with at least 24 GiB``."""
    count = f"{gpu.milli / 1000:g}"
    text = f"{count} x {gpu.model}" if gpu.model else f"{count} GPU"
    if gpu.min_memory_bytes is not None:
        text += f" with at least {describe_memory(gpu.min_memory_bytes)}"
    elif gpu.memory_auto:
        text += " with the memory that earlier runs used"
    return text


def describe_ways(resources: Resources) -> str:
    """Describe how a part of a GPU may be shared, such as `` by MIG or MPS``; empty if any way will do."""
    return f" by {' or '.join(SHARED_BY[way] for way in resources.sharing)}" if resources.sharing else ""


def describe_resources(resources: Resources) -> str:
    """Describe what one node of a workload needs, GPUs first; with what its containers beside the ranks request."""
    parts = [] if resources.gpu is None else [describe_gpu(resources.gpu) + describe_ways(resources)]
    if resources.cpu_milli is not None:
        parts.append(describe_cpu(resources.pod_cpu_milli))
    if resources.memory_bytes is not None:
        parts.append(f"{describe_memory(resources.pod_memory_bytes)} of memory")
    return ", ".join(parts) or "nothing in particular"


def describe_nodes(spec: GangSpec) -> str:
    """Describe the number of nodes that a run asks for, such as ``4 nodes`` or ``2..8 nodes``."""
    return plural(spec.nodes, "node") if spec.most_nodes is None else f"{spec.nodes}..{spec.most_nodes} nodes"


def describe_need(spec: GangSpec) -> str:
    """Describe what a run asks for, such as ``1 node with 4 CPU`` or ``4 nodes with 8 x A100 each``."""
    suffix = "" if spec.nodes == 1 and spec.most_nodes is None else " each"
    return f"{describe_nodes(spec)} with {describe_resources(spec.resources)}{suffix}"


def describe_of_each(spec: GangSpec) -> str:
    """Return the suffix of an amount that every node of a run gets; empty for one node."""
    return "" if spec.nodes == 1 and spec.most_nodes is None else f" for each of {describe_nodes(spec)}"


def describe_dollars(amount: float) -> str:
    """Format dollars exactly, such as $3.50 or $0.0125."""
    cents = f"{amount:.2f}"
    return f"${cents if float(cents) == amount else repr(float(amount))}"


def describe_duration(seconds: float) -> str:
    """Format seconds in at most two units, such as ``3m 12s``."""
    if seconds < 10:
        return f"{seconds:.3g}s"
    whole = round(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{value}{unit}" for value, unit in parts[:2] if value) or "0s"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun, such as ``1 node`` or ``2 nodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
