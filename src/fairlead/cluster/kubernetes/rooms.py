"""What each node can hold for us: nodes with their devices, and beside our gangs all that others hold there. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from fairlead.cluster.kubernetes.devices import gpus_of
from fairlead.cluster.kubernetes.objects import NodeObject, PodObject
from fairlead.cluster.kubernetes.pods import REPORTER_CPU_MILLI, REPORTER_MEMORY_BYTES
from fairlead.state.snapshot import Grant, Leaving, Node, Pod, PodPhase

OTHERS = "others-"
# Taints of nodes that are about to go, and how long pods then have, in seconds, where that is known. Karpenter and the
# Cluster Autoscaler wait for pods as long as they are told to.
GOING: Mapping[str, float | None] = {
    "karpenter.sh/disrupted": None,
    "karpenter.sh/disruption": None,
    "ToBeDeletedByClusterAutoscaler": None,
    "cloud.google.com/impending-node-termination": 15.0,
    "aws-node-termination-handler/spot-itn": 120.0,
    "aws-node-termination-handler/asg-lifecycle-termination": None,
    "aws-node-termination-handler/scheduled-maintenance": None,
}


def node_of(node: NodeObject, num_pods: int) -> Node:
    """A node as placement sees it, less what the reporter of one run takes beside its grant.

    Args:
        num_pods: Pods that are bound there, whoever's.
    """
    leaving = _leaving(node)
    return Node(
        name=node.key,
        cpu_milli=max(0, node.allocatable.cpu_milli - REPORTER_CPU_MILLI),
        memory_bytes=max(0, node.allocatable.memory_bytes - REPORTER_MEMORY_BYTES),
        gpus=gpus_of(node.allocatable.devices, node.labels, node.gpu_model, node.gpu_memory_bytes),
        ready=node.ready,
        closed=_closed(node, num_pods) or (None if leaving is None else f"about to go: {leaving.why}"),
        labels=node.labels,
        taints=node.taints,
        leaving=leaving,
    )


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
    foreign = _foreign(node, there, ours, counted)
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
            gpu_uuids=foreign,
            gpu_milli=1000 if foreign else 0,
        ),
        phase=PodPhase.RUNNING,
        created_at=0.0,
    )


def _foreign(node: NodeObject, there: list[PodObject], ours: list[Pod], counted: list[Pod]) -> tuple[str, ...]:
    """Devices that others hold: as many of each resource as are bound beyond our grants, from the last one down."""
    taken = {uuid for pod in ours for uuid in pod.grant.gpu_uuids}
    granted = Counter(uuid.partition("#")[0] for pod in counted for uuid in pod.grant.gpu_uuids)
    used: Counter[str] = Counter()
    for pod in there:
        used.update(dict(pod.requests.devices))
    found: list[str] = []
    for name, count in node.allocatable.devices:
        free = [uuid for number in reversed(range(count)) if (uuid := f"{name}#{number}") not in taken]
        found += free[: max(0, used[name] - granted[name])]
    return tuple(found)


def _leaving(node: NodeObject) -> Leaving | None:
    return next(
        (Leaving(why=f"tainted with {t.key}", within_s=GOING[t.key]) for t in node.taints if t.key in GOING), None
    )


def _closed(node: NodeObject, num_pods: int) -> str | None:
    if node.cordoned:
        return "cordoned (`kubectl uncordon` opens it)"
    if num_pods >= node.slots:
        return f"full: all of its {node.slots} pod slots are taken"
    return None
