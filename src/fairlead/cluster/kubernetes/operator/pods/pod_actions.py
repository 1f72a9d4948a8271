"""Determines the requests to the API server that bring pods to the state of their run's object. Pure, and
level-triggered."""

import math
from collections.abc import Container, Mapping

from fairlead.cluster.kubernetes.api.objects import NodeObject, PodObject
from fairlead.cluster.kubernetes.informers.pod_status import is_hopeless, is_on_lost_node
from fairlead.cluster.kubernetes.manifests.pods import unlisted_s
from fairlead.cluster.kubernetes.workloads.run_record import TrainingObject
from fairlead.frozen import dataclass
from fairlead.state.pod_uids import pod_uid
from fairlead.state.snapshot import Phase, Pod, PodPhase

# Ended pods are kept until there are so many later ones in their place, for their logs.
KEPT_STARTS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Create the pod of a member of the latest gang."""

    attempt: int
    index: int
    replacement: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete a pod; ``grace_s`` 0 only where nothing of it can be alive."""

    key: str
    uid: str
    grace_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Check whether a pod of the latest gang, which was created and never seen, exists."""

    attempt: int
    index: int
    replacement: int = 0


Order = Create | Delete | Verify


def orders(
    run_object: TrainingObject,
    members: tuple[Pod, ...],
    objects: Mapping[str, PodObject],
    nodes: Mapping[str, NodeObject | None],
    now: float,
    *,
    is_creating: bool = False,
    engine_attempts: Container[int] = (),
) -> list[Order]:
    """Return the actions for one run.

    Args:
        engine_attempts: Attempts with an engine object. The engine creates their pods, and replaces deleted ones.
        is_creating: Earlier creations are still queued, so none is queued again.
        members: Its latest gang, as the loop sees it.
        objects: Its pods, of any attempt.
        nodes: The nodes of its pods.
    """
    gang, run = run_object.state.gang, run_object.workload
    if run is None:
        return []
    actions: list[Order] = []
    attempt = -1 if gang is None else gang.attempt
    at = {(pod.attempt, pod.index, pod.replacement) for pod in objects.values()}
    notices = {notice.pod_uid: notice for notice in run_object.state.notices}
    is_ours = run.spec.engine is None
    if gang is not None and is_ours:
        wanted = run.status.phase in (Phase.STARTING, Phase.RUNNING) and run.status.attempt == attempt
        for pod in members:
            if (attempt, pod.index, pod.replacement) in at or pod.phase.is_final:
                continue
            if gang.is_created(pod.index):
                actions.append(Verify(attempt=attempt, index=pod.index, replacement=pod.replacement))
            elif wanted and not is_creating and pod.uid not in notices:
                actions.append(Create(attempt=attempt, index=pod.index, replacement=pod.replacement))
    for pod_object in objects.values():
        if pod_object.attempt in engine_attempts and not pod_object.is_over and not (pod_object.node or is_ours):
            continue  # its engine makes it wait for a node
        notice = notices.get(pod_uid(pod_object.run_uid, pod_object.attempt, pod_object.index, pod_object.replacement))
        kill_at = None if notice is None else notice.kill_at
        if pod_object.attempt in engine_attempts and pod_object.told_at is None:
            kill_at = None  # its engine is told first, or it would replace the pod
        if kill_at is not None and pod_object.started_at is not None:
            kill_at += unlisted_s(run.spec)
        num_later = attempt - pod_object.attempt
        if gang is not None and pod_object.attempt == attempt and pod_object.index < len(gang.nodes):
            num_later = gang.number(pod_object.index) - pod_object.replacement
        order = _deletion(pod_object, num_later, kill_at, nodes.get(pod_object.node), now)
        if order is not None:
            actions.append(order)
    return actions


def _deletion(
    pod: PodObject, num_later: int, kill_at: float | None, node: NodeObject | None, now: float
) -> Delete | None:
    if pod.is_over:
        is_old = num_later > KEPT_STARTS
        return Delete(key=pod.key, uid=pod.uid, grace_s=0) if is_old and pod.told_at is None else None
    if is_on_lost_node(pod, node):
        return Delete(key=pod.key, uid=pod.uid, grace_s=0)
    if is_hopeless(pod, now):
        return Delete(key=pod.key, uid=pod.uid, grace_s=1)
    if kill_at is None:
        return None
    # Kubernetes counts whole seconds, and 0 would force the deletion while processes live.
    grace_s = max(1, math.ceil(kill_at - now))
    if pod.leaves_by is None or pod.leaves_by > now + grace_s + 1:
        return Delete(key=pod.key, uid=pod.uid, grace_s=grace_s)
    return None


def is_settled(run_object: TrainingObject, members: tuple[Pod, ...]) -> bool:
    """Return whether only a change, not time, can bring actions for a run, or a write that only refreshes."""
    status = run_object.state.status
    if status.phase.is_final:
        return True
    if status.phase in (Phase.PENDING, Phase.SUSPENDED) and all(pod.phase.is_final for pod in members):
        return True  # it may wait for hours
    return status.failures.retry_at is None and all(pod.phase is PodPhase.RUNNING for pod in members)
