"""Objects that ask an autoscaler for nodes without a pod: PodTemplates, ProvisioningRequests and CapacityBuffers.

They are the API group of the Cluster Autoscaler, ``autoscaling.x-k8s.io``, whose CapacityBuffers Karpenter knows too.
"""

from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.state.snapshot import Workload

GROUP = "autoscaling.x-k8s.io"
REQUESTS, REQUESTS_VERSION = "provisioningrequests", "v1"
BUFFERS, BUFFERS_VERSION = "capacitybuffers", "v1beta1"
ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
"""The class of requests for which all nodes come, or none."""


def request_name(workload: Workload) -> str:
    """Return the name of a run's request, which contains the start of its uid: one of that name may be terminating."""
    return f"{workload.spec.name}-room-{workload.uid[:6]}"


def buffer_name(pool: str) -> str:
    """Return the name of a pool's buffer."""
    return f"pool-{pool}"[:58].rstrip("-.") + "-room"


def render_pod_template(pod: dict[str, Any], name: str) -> dict[str, Any]:
    """Render the PodTemplate of a placeholder, for an autoscaler that needs no pod to add nodes for it."""
    metadata = {key: pod["metadata"][key] for key in ("namespace", "ownerReferences")}
    labels = {key: value for key, value in pod["metadata"]["labels"].items() if key != names.INDEX}
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {**metadata, "name": name, "labels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
    }


def render_provisioning_request(template: dict[str, Any], count: int, valid_s: float) -> dict[str, Any]:
    """Render the request for the nodes of a whole gang.

    Args:
        template: The PodTemplate of one member.
        count: The number of members.
        valid_s: Time for which the autoscaler tries, in seconds.
    """
    metadata = template["metadata"]
    return {
        "apiVersion": f"{GROUP}/{REQUESTS_VERSION}",
        "kind": "ProvisioningRequest",
        "metadata": metadata,
        "spec": {
            "provisioningClassName": ATOMIC,
            "parameters": {"ValidUntilSeconds": str(max(1, int(valid_s)))},
            "podSets": [{"count": count, "podTemplateRef": {"name": metadata["name"]}}],
        },
    }


def render_capacity_buffer(template: dict[str, Any], replicas: int) -> dict[str, Any]:
    """Render the buffer that keeps so many nodes free, each with room for the pod of the template."""
    metadata = template["metadata"]
    return {
        "apiVersion": f"{GROUP}/{BUFFERS_VERSION}",
        "kind": "CapacityBuffer",
        "metadata": metadata,
        "spec": {"replicas": replicas, "podTemplateRef": {"name": metadata["name"]}},
    }
