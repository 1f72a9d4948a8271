"""Shows the cluster as nodes, their GPUs and the parts of each that runs hold."""

from collections import defaultdict

from fairlead.frozen import dataclass
from fairlead.state.snapshot import WHOLE_MILLI, Gpu, Node, Pod, Snapshot
from fairlead.text.quantities import describe_cpu, describe_dollars, describe_memory
from fairlead.web.expected_starts import snapshot_of
from fairlead.web.view import Answer, Question

OTHERS = "others"
# Segments take these patterns in turn, so that neighbours differ without colour.
NUM_PATTERNS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a bar that one pod holds, in percent of the bar.

    Attributes:
        uid: Uid of the workload; None for pods that are not Fairlead's.
        amount: The held amount as text.
    """

    uid: str | None
    name: str
    begin: float
    width: float
    amount: str
    pattern: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceBar:
    """One resource of a node and its holders."""

    name: str
    held: str
    segments: tuple[Segment, ...]


def cluster(question: Question) -> Answer:
    """Show every node with bars for each GPU, its cores and its memory."""
    seen = snapshot_of(question)
    names = {run.uid: run.spec.name for run in seen.workloads}
    pods = defaultdict[str, list[Pod]](list)
    for pod in seen.pods:
        if not pod.phase.is_final:
            pods[pod.node].append(pod)
    nodes = [
        {
            "node": node,
            "state": _state(node),
            "price": "" if node.price_per_hour is None else describe_dollars(node.price_per_hour),
            "bars": [
                *(_gpu(gpu, pods[node.name], names) for gpu in node.gpus),
                _cpu(node, pods[node.name], names),
                _memory(node, pods[node.name], names),
            ],
            "num_pods": len(pods[node.name]),
        }
        for node in sorted(seen.nodes, key=lambda node: node.name)
    ]
    return Answer(title="Cluster", template="cluster.html", values={"nodes": nodes, **_sums(seen)}, look_again_s=5.0)


def _sums(seen: Snapshot) -> dict[str, float]:
    gpus = sum(gpu.milli for node in seen.nodes for gpu in node.gpus) / WHOLE_MILLI
    held = sum(
        min(gpu.milli, sum(_held_milli(pod, gpu) for pod in _on(seen, node)))
        for node in seen.nodes
        for gpu in node.gpus
    )
    return {"num_gpus": gpus, "held_gpus": held / WHOLE_MILLI}


def _on(seen: Snapshot, node: Node) -> list[Pod]:
    return [pod for pod in seen.pods if pod.node == node.name and not pod.phase.is_final]


def _state(node: Node) -> str:
    if not node.ready:
        return "not ready"
    if node.leaving is not None:
        return f"leaving: {node.leaving.why}"
    return "ready" if node.closed is None else node.closed


def _held_milli(pod: Pod, gpu: Gpu) -> int:
    """Return the thousandths of a device, or of a separately allocated part of one, that a pod holds."""
    if gpu.uuid not in pod.grant.gpu_uuids:
        return 0
    return min(pod.grant.gpu_milli, WHOLE_MILLI) if gpu.divisible else gpu.milli


def _gpu(gpu: Gpu, pods: list[Pod], names: dict[str, str]) -> ResourceBar:
    in_all = max(
        gpu.milli, sum(_held_milli(pod, gpu) for pod in pods)
    )  # of one that several hold whole, each has a part
    parts = [(pod, held / in_all, f"{held / WHOLE_MILLI:g}") for pod in pods if (held := _held_milli(pod, gpu))]
    whole_held = min(gpu.milli, sum(_held_milli(pod, gpu) for pod in pods)) / WHOLE_MILLI
    size = "" if gpu.milli == WHOLE_MILLI else f" part {gpu.milli / WHOLE_MILLI:g}"
    name = f"{gpu.model}{size}, {describe_memory(gpu.memory_bytes)}"
    return ResourceBar(
        name=name, held=f"{whole_held:g} of {gpu.milli / WHOLE_MILLI:g}", segments=_segments(parts, names)
    )


def _cpu(node: Node, pods: list[Pod], names: dict[str, str]) -> ResourceBar:
    parts = [
        (pod, pod.grant.cpu_milli / node.cpu_milli, describe_cpu(pod.grant.cpu_milli))
        for pod in pods
        if pod.grant.cpu_milli
    ]
    held = sum(pod.grant.cpu_milli for pod in pods) / 1000
    return ResourceBar(name="CPU", held=f"{held:g} of {node.cpu_milli / 1000:g}", segments=_segments(parts, names))


def _memory(node: Node, pods: list[Pod], names: dict[str, str]) -> ResourceBar:
    parts = [
        (pod, pod.grant.memory_bytes / node.memory_bytes, describe_memory(pod.grant.memory_bytes))
        for pod in pods
        if pod.grant.memory_bytes
    ]
    text = f"{describe_memory(sum(pod.grant.memory_bytes for pod in pods))} of {describe_memory(node.memory_bytes)}"
    return ResourceBar(name="Memory", held=text, segments=_segments(parts, names))


def _segments(parts: list[tuple[Pod, float, str]], names: dict[str, str]) -> tuple[Segment, ...]:
    segments, at = list[Segment](), 0.0
    for number, (pod, part, amount) in enumerate(parts):
        width = 100 * min(part, 1.0)
        known = pod.workload_uid in names
        segments.append(
            Segment(
                uid=pod.workload_uid if known else None,
                name=names.get(pod.workload_uid, OTHERS),
                begin=at,
                width=width,
                amount=amount,
                pattern=number % NUM_PATTERNS,
            )
        )
        at += width
    return tuple(segments)
