"""Handles nodes that announce their removal: their gangs save, stop, and start elsewhere."""

from collections.abc import Iterable

from fairlead.frozen import dataclass
from fairlead.policy.placement.memo import cached_last
from fairlead.specs.gang import GangSpec
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Node, Pod
from fairlead.text.quantities import describe_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """An order for a gang to leave, with the time for its ranks to save."""

    reason: Reason
    grace_s: float


@cached_last
def leaving(nodes: tuple[Node, ...]) -> frozenset[str]:
    """Return the names of nodes about to be removed."""
    return frozenset(node.name for node in nodes if node.leaving is not None)


def reclaim(spec: GangSpec, live: Iterable[Pod], nodes: Iterable[Node]) -> Reclaim | None:
    """Return the reclaim if a pod is on such a node, by the earliest removal; None otherwise."""
    held: dict[str, bool] = {}
    for pod in live:
        held[pod.node] = held.get(pod.node, False) or bool(pod.grant.gpu_uuids)
    going = [
        (node.name, node.leaving)
        for node in nodes
        if node.leaving is not None and node.name in held and (held[node.name] or not node.leaving.gpus_only)
    ]
    if not going:
        return None
    name, first = min(going, key=lambda item: spec.grace_s if item[1].within_s is None else item[1].within_s)
    grace_s = spec.grace_s if first.within_s is None else min(spec.grace_s, first.within_s)
    within = describe_duration(grace_s)
    message = f"node {name} is being reclaimed ({first.why}); it saves within {within} and starts elsewhere"
    return Reclaim(reason=Reason(code=Code.NODE_RECLAIMED, message=message), grace_s=grace_s)
