"""What each node can hold for us: nodes with their devices, and beside our gangs all that others hold there. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from fairlead.cluster.kubernetes.devices import WHOLE
from fairlead.cluster.kubernetes.objects import NodeObject, PodObject
from fairlead.cluster.kubernetes.pods import GPU_TAINTS, REPORTER_CPU_MILLI, REPORTER_MEMORY_BYTES
from fairlead.state.snapshot import Gpu, Grant, Node, Pod, PodPhase

OTHERS = "others-"


def node_of(node: NodeObject, num_pods: int) -> Node:
    """A node as placement sees it, less what the reporter of one run takes beside its grant.

    Args:
        num_pods: Pods that are bound there, whoever's.
    """
    device, count = whole_devices(node)
    return Node(
        name=node.key,
        cpu_milli=max(0, node.allocatable.cpu_milli - REPORTER_CPU_MILLI),
        memory_bytes=max(0, node.allocatable.memory_bytes - REPORTER_MEMORY_BYTES),
        gpus=tuple(
            Gpu(uuid=f"{device}#{number}", model=node.gpu_model, memory_bytes=node.gpu_memory_bytes)
            for number in range(count)
        ),
        ready=node.ready,
        closed=_closed(node, num_pods),
    )


def whole_devices(node: NodeObject) -> tuple[str, int]:
    """The resource of a node that stands for its GPUs, and how many of it there are."""
    offered = dict(node.allocatable.devices)
    return next(((name, offered[name]) for name in WHOLE if offered.get(name)), ("", 0))


def held_by_others(nodes: Iterable[NodeObject], pods: Iterable[PodObject], ours: Iterable[Pod]) -> list[Pod]:
    """For each node what is bound there beyond the grants of our own live pods, as one pod of no workload.

    What our own pods take beside their grants counts too, beyond the one reporter that ``node_of`` allows for.
    """
    bound = bound_pods(pods)
    granted: dict[str, list[Pod]] = defaultdict(list)
    for pod in ours:
        if not pod.phase.is_final:
            granted[pod.node].append(pod)
    rests = (_rest(node, bound.get(node.key, ()), granted[node.key]) for node in nodes)
    return [pod for pod in rests if pod.grant != Grant()]


def bound_pods(pods: Iterable[PodObject]) -> Mapping[str, list[PodObject]]:
    """The pods of each node that count there: bound, and not over, and no placeholder, which gives way."""
    bound: dict[str, list[PodObject]] = defaultdict(list)
    for pod in pods:
        if pod.node and not pod.is_over and not pod.room_for:
            bound[pod.node].append(pod)
    return bound


def _rest(node: NodeObject, bound: Iterable[PodObject], ours: list[Pod]) -> Pod:
    there = list(bound)
    seen = {f"{pod.run_uid}-{pod.attempt}-{pod.index}" for pod in there if pod.run_uid}
    counted = [pod for pod in ours if pod.uid in seen]
    device, count = whole_devices(node)
    used = sum(number for pod in there for name, number in pod.requests.devices if name == device)
    taken = {uuid for pod in ours for uuid in pod.grant.gpu_uuids}
    num_foreign = max(0, used - sum(len(pod.grant.gpu_uuids) for pod in counted))
    free = [f"{device}#{number}" for number in reversed(range(count)) if f"{device}#{number}" not in taken]
    cpu = sum(pod.requests.cpu_milli for pod in there) - sum(pod.grant.cpu_milli for pod in counted)
    memory = sum(pod.requests.memory_bytes for pod in there) - sum(pod.grant.memory_bytes for pod in counted)
    return Pod(
        uid=f"{OTHERS}{node.key}",
        workload_uid="",
        attempt=0,
        index=0,
        node=node.key,
        grant=Grant(
            cpu_milli=max(0, cpu - REPORTER_CPU_MILLI),
            memory_bytes=max(0, memory - REPORTER_MEMORY_BYTES),
            gpu_uuids=tuple(free[:num_foreign]),
            gpu_milli=1000 if num_foreign else 0,
        ),
        phase=PodPhase.RUNNING,
        created_at=0.0,
    )


def _closed(node: NodeObject, num_pods: int) -> str | None:
    if node.cordoned:
        return "cordoned (`kubectl uncordon` opens it)"
    for taint in node.taints:
        if taint.key not in GPU_TAINTS:
            return f"tainted with {taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
    if num_pods >= node.slots:
        return f"full: all of its {node.slots} pod slots are taken"
    return None
