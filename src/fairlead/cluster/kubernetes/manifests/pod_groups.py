"""The PodGroup of an attempt of a gang, by which schedulers know its pods as one (Kubernetes 1.37, KEP 4671). Pure.

See decision 260.
"""

from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.state.snapshot import Workload

GROUP, VERSION, RESOURCE = "scheduling.k8s.io", "v1beta1", "podgroups"
BASE = f"/apis/{GROUP}/{VERSION}"


def render_pod_group(workload: Workload, attempt: int, min_count: int) -> dict[str, Any]:
    """Render the PodGroup of an attempt.

    It has the priority class of its pods, since kube-scheduler places none of a group that has another priority.

    Args:
        min_count: Pods that are to be placed together or not at all, at least 1.
    """
    priority_class = (workload.spec.kubernetes.pod.get("spec") or {}).get("priorityClassName")
    spec: dict[str, Any] = {
        "schedulingPolicy": {"gang": {"minCount": min_count}},
        "disruptionMode": {"all": {}},
    }
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "PodGroup",
        "metadata": {
            "name": names.pod_group_name_of(workload.spec.name, workload.uid, attempt),
            "namespace": workload.spec.team,
            "labels": {**names.run_labels(workload), names.ATTEMPT: str(attempt)},
            "ownerReferences": [names.owner(workload)],
        },
        "spec": {**spec, "priorityClassName": priority_class} if priority_class else spec,
    }


def min_count_patch(min_count: int, uid: str) -> dict[str, Any]:
    """Return the merge patch that sets how many pods are placed together, for the PodGroup of this uid only."""
    return {"metadata": {"uid": uid}, "spec": {"schedulingPolicy": {"gang": {"minCount": min_count}}}}
