"""Determines the capacity of each node for runs: its devices, less what others hold there. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

from fairlead.cluster.kubernetes.api.objects import NodeObject, PodObject, ResourceAmounts
from fairlead.cluster.kubernetes.devices import gpus_of
from fairlead.cluster.kubernetes.manifests.pods import REPORTER_CPU_MILLI, REPORTER_MEMORY_BYTES
from fairlead.policy.placement.node_eligibility import price_label
from fairlead.state.pod_uids import pod_uid
from fairlead.state.snapshot import Grant, Leaving, Node, Pod, PodPhase

OTHERS = "others-"
# Taints of nodes that are about to be removed, and the time that pods then have, in seconds, if known. Karpenter and
# the Cluster Autoscaler wait for pods as long as they are told to.
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
    """Return a node as placement sees it, less what one run's reporter takes beyond its grant.

    Faults and histories are not in it: what follows from them depends on all nodes.

    Args:
        num_pods: The number of pods bound there, of any owner.
    """
    return Node(
        name=node.key,
        cpu_milli=max(0, node.allocatable.cpu_milli - REPORTER_CPU_MILLI),
        memory_bytes=max(0, node.allocatable.memory_bytes - REPORTER_MEMORY_BYTES),
        gpus=gpus_of(node.allocatable.devices, node.labels, node.gpu_model, node.gpu_memory_bytes),
        ready=node.ready,
        closed=closed(node, num_pods),
        full=not node.cordoned and num_pods >= node.slots and _leaving(node) is None,
        labels=node.labels,
        taints=node.taints,
        leaving=_leaving(node),
        price_per_hour=price_label(node.labels),
        extended=node.extended,
    )


def rest(
    node: NodeObject, bound: Iterable[PodObject], ours: Iterable[Pod], coming: Iterable[ResourceAmounts] = ()
) -> Pod:
    """Return what is bound on a node beyond the grants of our own live pods, as one pod of no workload.

    ``coming`` are requests of pods that will be bound to the node in any case, and devices that are claimed there. What
    our own pods take beside their grants counts too, beyond the one reporter that ``node_of`` allows for.
    """
    ours = tuple(ours)
    pods = list(bound)
    seen = {pod_uid(pod.run_uid, pod.attempt, pod.index, pod.replacement) for pod in pods if pod.run_uid}
    counted = [pod for pod in ours if pod.uid in seen]
    requests = [*(pod.requests for pod in pods), *coming]
    foreign = _foreign(node, requests, ours, counted)
    cpu = sum(amounts.cpu_milli for amounts in requests) - sum(pod.grant.cpu_milli for pod in counted)
    memory = sum(amounts.memory_bytes for amounts in requests) - sum(pod.grant.memory_bytes for pod in counted)
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


def _foreign(
    node: NodeObject, requests: list[ResourceAmounts], ours: Iterable[Pod], counted: list[Pod]
) -> tuple[str, ...]:
    """Return the devices that others hold: of each resource as many as are bound beyond our grants, the last first."""
    taken = {uuid for pod in ours for uuid in pod.grant.gpu_uuids}
    granted = Counter(uuid.partition("#")[0] for pod in counted for uuid in pod.grant.gpu_uuids)
    used: Counter[str] = Counter()
    for amounts in requests:
        used.update(dict(amounts.devices))
    devices: list[str] = []
    for name, count in node.allocatable.devices:
        free = [uuid for number in reversed(range(count)) if (uuid := f"{name}#{number}") not in taken]
        devices += free[: max(0, used[name] - granted[name])]
    return tuple(devices)


def _leaving(node: NodeObject) -> Leaving | None:
    going = (Leaving(why=f"tainted with {t.key}", within_s=GOING[t.key]) for t in node.taints if t.key in GOING)
    if (leaving := next(going, None)) is not None or not node.partitioning:
        return leaving
    return Leaving(why="its GPUs get another layout", gpus_only=True)


def closed(node: NodeObject, num_pods: int) -> str | None:
    """Return why a ready node takes no new pods; None if it does."""
    if node.cordoned and node.partitioning:
        return "cordoned while its GPUs get another layout"
    if node.cordoned and node.cordon_reason:
        return f"cordoned (`fairlead node uncordon {node.key}` opens it): {node.cordon_reason}"
    if node.cordoned:
        return "cordoned (`kubectl uncordon` opens it)"
    if num_pods >= node.slots:
        return f"full: all of its {node.slots} pod slots are taken"
    leaving = _leaving(node)
    return None if leaving is None else f"being removed: {leaving.why}"
