"""Counts the resources of DaemonSet pods that are not bound to their node yet, such as to a new node. Pure.

Those of the system namespaces alone: a tenant writes DaemonSets too, with requests that fill every node and pods that
never come.

See decision 247.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.cluster.kubernetes.api.objects import NodeObject, PodObject, ResourceAmounts, pod_requests
from fairlead.cluster.kubernetes.system_namespaces import SystemNamespaces
from fairlead.frozen import dataclass
from fairlead.policy.placement.node_eligibility import selects, tolerates

# The DaemonSet controller adds tolerations for a node's conditions to every pod.
CONDITIONS = "node.kubernetes.io/"
Object = Mapping[str, Any]
_SYSTEM = SystemNamespaces()


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonObject:
    """A DaemonSet: what its pods request, and on which nodes."""

    key: str
    version: int
    uid: str
    requests: ResourceAmounts
    selector: Object
    affinity: Object
    tolerations: tuple[Object, ...]


def read_daemon(content: Object, system: SystemNamespaces = _SYSTEM) -> DaemonObject | None:
    """Read a DaemonSet of the API server; None for one of a namespace in which others than administrators write."""
    metadata, pod = content["metadata"], content["spec"]["template"].get("spec") or {}
    if metadata["namespace"] not in system.names:
        return None
    return DaemonObject(
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=int(metadata["resourceVersion"]),
        uid=metadata["uid"],
        requests=pod_requests(pod),
        selector=pod.get("nodeSelector") or {},
        affinity=pod.get("affinity") or {},
        tolerations=tuple(pod.get("tolerations") or ()),
    )


def due(daemons: Iterable[DaemonObject], node: NodeObject, bound: Iterable[PodObject]) -> list[ResourceAmounts]:
    """List the requests of pods that a node will still get, one entry for each pod; ``bound`` are its present pods."""
    known = {(daemon.key.partition("/")[0], daemon.uid): daemon for daemon in daemons}
    missing = known.keys() - {(pod.key.partition("/")[0], pod.daemon) for pod in bound} if known else ()
    return [known[key].requests for key in missing if _wants(known[key], node)]


def _wants(daemon: DaemonObject, node: NodeObject) -> bool:
    return selects(node.key, node.labels, daemon.selector, daemon.affinity) and all(
        taint.key.startswith(CONDITIONS) or tolerates(daemon.tolerations, taint) for taint in node.taints
    )
