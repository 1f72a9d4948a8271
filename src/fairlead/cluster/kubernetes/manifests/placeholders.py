"""A placeholder: an idle pod with the shape of a gang's member, which makes an autoscaler add a node for it.

Its priority is below that of every run, so that kube-scheduler preempts it for any pod, and above -10, below which the
Cluster Autoscaler treats pods as expendable and adds no node. It lacks the labels by which members are found.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.objects import quantity
from fairlead.cluster.kubernetes.devices import DeviceResource
from fairlead.cluster.kubernetes.manifests.affinities import among
from fairlead.cluster.kubernetes.manifests.pod_environment import PYTHON
from fairlead.cluster.kubernetes.manifests.pods import PodSettings, render_pod
from fairlead.policy.placement.node_eligibility import PRICE_LABEL
from fairlead.specs.overlay import RANKS
from fairlead.specs.side_containers import SIDECAR
from fairlead.state.plan import CreatePod
from fairlead.state.snapshot import Grant, Workload

PRIORITY = -5
WAIT = "import signal; signal.pause()"
# Fields that determine eligible nodes, and that a namespace may require.
_KEPT = (
    "tolerations", "nodeSelector", "schedulerName", "runtimeClassName", "securityContext", "imagePullSecrets",
    "automountServiceAccountToken", "enableServiceLinks",
)  # fmt: skip


def render_placeholder(
    workload: Workload,
    index: int,
    settings: PodSettings,
    *,
    device: DeviceResource | None = None,
    labels: Iterable[tuple[str, str]] = (),
    shunned: Iterable[tuple[str, str]] = (),
    prices: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Render the placeholder of one member.

    Args:
        device: The resource that the member will request; None for a run without GPUs.
        labels: Alternative labels as key and value, one of which a node must have; empty for any node.
        shunned: Labels as key and value that a node must not have.
        prices: Values of the price label of which a node must have one; None for any price.
    """
    spec, requests = workload.spec, workload.spec.resources
    grant = Grant(cpu_milli=requests.pod_cpu_milli, memory_bytes=requests.pod_memory_bytes)
    member = CreatePod(attempt=workload.status.attempt, index=index, node="", grant=grant)
    pod = render_pod(workload, member, settings, device=device)["spec"]
    ranks = next(container for container in pod["containers"] if container["name"] == RANKS)
    sidecars = [
        init_container
        for init_container in pod.get("initContainers", ())
        if init_container.get("restartPolicy") == SIDECAR
    ]
    resources = _sum(item.get("resources") or {} for item in (*pod["containers"], *sidecars))
    container: dict[str, Any] = {
        "name": "room",
        "image": settings.placeholder_image or ranks["image"],
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "securityContext": ranks["securityContext"],
    }
    if "imagePullPolicy" in ranks:
        container["imagePullPolicy"] = ranks["imagePullPolicy"]
    if settings.placeholder_image is None:
        container["command"] = [PYTHON, "-c", WAIT]
    affinity = among((pod.get("affinity") or {}).get("nodeAffinity") or {}, labels, _others(shunned, prices))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.placeholder_name(spec, index),
            "namespace": spec.team,
            "labels": {
                **names.recommended_labels(names.RUN_NAME, spec.name, "placeholder"),
                names.ROOM_FOR: workload.uid,
                names.INDEX: str(index),
            },
            # A node added for a gang is kept until all of the gang's nodes are there.
            "annotations": {
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                "karpenter.sh/do-not-disrupt": "true",
            },
            "ownerReferences": [names.owner(workload)],
        },
        "spec": {
            **{name: pod[name] for name in _KEPT if name in pod},
            **({"affinity": {"nodeAffinity": affinity}} if affinity else {}),
            "containers": [container],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 0,
            "priorityClassName": names.PLACEHOLDER_CLASS,
        },
    }


def render_priority_class() -> dict[str, Any]:
    """Render the priority class of placeholders, which never preempt."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": names.PLACEHOLDER_CLASS, "labels": {names.MANAGED_BY: names.MANAGER}},
        "value": PRIORITY,
        "preemptionPolicy": "Never",
        "globalDefault": False,
        "description": "Fairlead's placeholders, which make an autoscaler bring nodes and give way to every pod.",
    }


def _sum(lists: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the sum of the containers' requests, by resource."""
    total: dict[str, Decimal] = {}
    for resources in lists:
        for name, value in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            total[name] = total.get(name, Decimal(0)) + quantity(value)
    return {name: f"{amount.normalize():f}" for name, amount in total.items()}


def _others(shunned: Iterable[tuple[str, str]], prices: Iterable[str] | None) -> list[dict[str, Any]]:
    """Return the expressions that every term of an affinity must have."""
    expressions: list[dict[str, Any]] = [{"key": key, "operator": "NotIn", "values": [value]} for key, value in shunned]
    if prices is not None:
        expressions.append({"key": PRICE_LABEL, "operator": "In", "values": sorted(prices)})
    return expressions
