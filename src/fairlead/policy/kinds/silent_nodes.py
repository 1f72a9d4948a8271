"""Reports that a node with pods of a running gang does not answer.

The pods may still run, so the gang goes on until they are lost.
"""

from collections.abc import Iterable, Sequence

from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Node, Pod, Workload
from fairlead.text.lists import listed

MOST_NAMED = 3


def silent(nodes: Iterable[Node]) -> frozenset[str]:
    """Return the names of the nodes that do not answer."""
    return frozenset(node.name for node in nodes if not node.ready)


def reason(workload: Workload, live: Sequence[Pod], nodes: Iterable[Node]) -> Reason | None:
    """Return the warning about the silent nodes of a gang; None if all answer."""
    names = silent(nodes)
    silent_pods = [pod for pod in live if pod.node in names]
    if not silent_pods:
        return None
    named = listed([f"node {pod.node}, which holds pod {pod.index}" for pod in silent_pods], MOST_NAMED)
    message = (
        f"{named} of {workload.gang.nodes}: its kubelet does not answer. The pods may still run; the gang "
        "restarts when Kubernetes gives them up, by default five minutes after the node fell silent"
    )
    remedy = (
        f"Look at that machine. If it is off for good, `kubectl delete node {silent_pods[0].node}` restarts the gang "
        "elsewhere at once."
    )
    return Reason(code=Code.NODE_SILENT, message=message, remedy=remedy)
