"""Judges the loss of a pod of a gang with ``elastic: in_place``: the others go on, and that pod alone is replaced.

They go on if their ranks have met and the first pod runs: its server is where ranks in pods find each other, and it
reports progress. Any other loss restarts the gang. So does a pod that was lost ``MOST_LOSSES`` times more without a new
step in between, as a rank that is killed as often does.

A replacement is a pod of its own: its number is written to the run's status in the change that creates it, and is part
of its uid. It is placed once no earlier pod of its index lives.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fairlead.policy.disruption.node_reclaims import reclaim
from fairlead.policy.health.incidents import with_incident
from fairlead.policy.kinds.failures import Blame, Failure, diagnose
from fairlead.policy.kinds.retries import PRODUCTIVE_S, backoff_s
from fairlead.policy.kinds.slow_starts import LIMIT_S, overdue
from fairlead.policy.queue.changes import notices
from fairlead.specs.training import Elastic, Training
from fairlead.state.plan import Change, Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, LostPod, Node, Phase, Pod, PodPhase, Status, Workload
from fairlead.text.quantities import plural

# As often as `runtime/shim.py` starts a killed rank again without a new step in between.
MOST_LOSSES = 3
LOST, RETURNED = "PodLost", "PodReturned"
# Ends of a replacement that say nothing about the program; that of a pod of the first start restarts the gang.
_OF_PLACES = frozenset(
    {Code.POD_LOST, Code.NODE_LOST, Code.KILLED, Code.START_FAILED, Code.START_TIMED_OUT, Code.OVER_QUOTA}
)


def is_current(pod: Pod, status: Status) -> bool:
    """Return whether a pod belongs to the gang as it is now: of its attempt, and not lost before."""
    return pod.attempt == status.attempt and (
        not status.failures.lost_pods or pod.replacement == status.replacement(pod.index)
    )


def is_incomplete(workload: Workload) -> bool:
    """Return whether a run goes on without pods that are to be replaced."""
    status = workload.status
    return (
        bool(status.failures.lost_pods)
        and status.phase is Phase.RUNNING
        and workload.intent is Intent.RUN
        and bool(status.missing)
    )


def num_expected(workload: Workload) -> int:
    """Return the number of pods that the gang should have now."""
    return workload.gang.nodes - len(workload.status.missing)


def can_go_on(workload: Workload, own: Iterable[Pod]) -> bool:
    """Return whether the other pods go on if one that is not the first is lost."""
    status, progress = workload.status, workload.progress
    return (
        workload.spec.elastic is Elastic.IN_PLACE
        and status.phase is Phase.RUNNING
        and progress is not None
        and progress.in_place_attempt == status.attempt
        and any(pod.index == 0 and _runs(pod) for pod in own)
    )


def go_on(workload: Workload, own: tuple[Pod, ...], nodes: tuple[Node, ...], now: float) -> Change | None:
    """Return the change by which a run goes on without pods that it has just lost; None if it has lost none, or cannot.

    Args:
        own: The current pods of the gang.
    """
    if not can_go_on(workload, own):
        return None
    gone = dict(_lost(workload, own, nodes, now))
    rest = tuple(pod for pod in own if pod.index not in gone)
    if not gone or 0 in gone or diagnose(workload.gang, rest, nodes, workload.progress, now) is not None:
        return None
    status, progress = workload.status, workload.progress
    step = 0 if progress is None or progress.step is None else progress.step
    known = {pod.index: pod for pod in status.failures.lost_pods}
    at = {pod.index: pod for pod in own}
    for index in gone:
        one = _again(workload.spec, index, known.get(index), at.get(index), step, now)
        if one is None:
            return None
        known[index] = one
    lost = tuple(known[index] for index in sorted(known))
    avoids = tuple(
        sorted({*status.failures.avoided_nodes, *(name for failure in gone.values() for name in failure.nodes)})
    )
    left = [at[index] for index in gone if index in at and not at[index].phase.is_final]
    first = gone[min(gone)].reason
    num, goes_on = workload.gang.nodes, workload.gang.nodes - sum(pod.replaced_at is None for pod in lost)
    ranks = plural(goes_on * workload.gang.ranks_on_each_node, "rank")
    more = f", and {plural(len(gone) - 1, 'other pod')} with it" if len(gone) > 1 else ""
    they = "they are" if len(gone) > 1 else "it is"
    message = f"{first.message}{more}; {ranks} in {goes_on} of {num} pods continue in place, and {they} replaced"
    reason = Reason(code=first.code, message=message)
    change = Change(
        workload_uid=workload.uid,
        version=workload.version,
        status=replace(
            status,
            reason=reason,
            failures=replace(status.failures, lost_pods=lost, avoided_nodes=avoids),
            queue=status.queue.without_request(),
        ),
        event=Event(type=LOST, reason=reason),
        terminate=notices(tuple(left), 0.0),
    )
    pods = (at[index] for index in gone if index in at)
    return with_incident(change, workload, gone[min(gone)], pods, now, progressed=known[min(gone)].in_a_row == 1)


def leave(workload: Workload, own: tuple[Pod, ...], nodes: tuple[Node, ...]) -> Change | None:
    """Return the notices to pods on nodes that are about to be taken away, if the others can go on without them."""
    going = leaving_alone(workload, own, nodes)
    reclaims = [(pod, order) for pod in going if (order := reclaim(workload.spec, (pod,), nodes)) is not None]
    new = [(pod, order) for pod, order in reclaims if pod.terminating_since is None]
    if not new:
        return None
    orders = tuple(notice for pod, order in new for notice in notices((pod,), order.grace_s))
    order = new[0][1]
    indexes = ", ".join(str(pod.index) for pod, _ in new)
    which = f"pods {indexes} of {workload.gang.nodes} leave" if len(new) > 1 else f"pod {indexes} leaves"
    why = order.reason.message.rpartition("; ")[0]
    reason = Reason(code=Code.NODE_RECLAIMED, message=f"{why}; {which} it, and the others continue")
    return Change(
        workload_uid=workload.uid,
        version=workload.version,
        terminate=orders,
        event=Event(type=Code.NODE_RECLAIMED.value, reason=reason),
    )


def leaving_alone(workload: Workload, own: tuple[Pod, ...], nodes: tuple[Node, ...]) -> tuple[Pod, ...]:
    """Return the pods on nodes about to be taken away, if the others can go on; none if the whole gang leaves."""
    if not can_go_on(workload, own):
        return ()
    live = (pod for pod in own if not pod.phase.is_final)
    going = tuple(pod for pod in live if reclaim(workload.spec, (pod,), nodes) is not None)
    return () if any(pod.index == 0 for pod in going) else going


def counted(own: tuple[Pod, ...], now: float) -> tuple[Pod, ...]:
    """Return the pods on whose end the outcome of the gang depends.

    A replacement that has not started holds up nobody. One that comes when the training is over finds nobody: the first
    pod, where the ranks find each other, has ended.
    """
    is_over = any(pod.index == 0 and pod.phase is PodPhase.SUCCEEDED for pod in own)
    late = {pod.uid for pod in overdue(own, now)}
    return tuple(
        pod
        for pod in own
        if not pod.replacement
        or not (
            (pod.phase in (PodPhase.CREATED, PodPhase.STARTING) and (is_over or pod.uid not in late))
            or (is_over and _could_not_reform(pod))
        )
    )


def ended_well(pod: Pod) -> bool:
    """Return whether every rank ended with exit code 0 and none because of the stop notice."""
    notice = pod.terminating_since
    return pod.phase is PodPhase.SUCCEEDED and (notice is None or all(exit_.at < notice for exit_ in pod.exits))


def came_back(workload: Workload, own: tuple[Pod, ...]) -> Change | None:
    """Return the change that records that all lost pods run again, or why one does not start; None if there is none."""
    status, num = workload.status, workload.gang.nodes
    if not status.failures.lost_pods or status.missing:
        return None
    delayed = next((pod for pod in own if pod.message is not None and pod.started_at is None), None)
    if delayed is not None and status.reason.code is Code.PLACED:
        message = f"pod {delayed.index} of {num} has not started again: {delayed.message}"
        reason = Reason(code=Code.START_DELAYED, message=message)
        back = replace(status, reason=reason)
        return Change(workload_uid=workload.uid, version=workload.version, status=back)
    if status.reason.code is Code.RANKS_STARTED or not all(map(_runs, own)):
        return None
    message = f"{plural(workload.gang.world_size, 'rank')} in all {num} pods run"
    reason = Reason(code=Code.RANKS_STARTED, message=message)
    # Nodes that did not start a replacement are avoided until one has started.
    return Change(
        workload_uid=workload.uid,
        version=workload.version,
        status=replace(status, reason=reason, failures=replace(status.failures, avoided_nodes=())),
        event=Event(type=RETURNED, reason=reason),
    )


def look_times(workload: Workload) -> Iterator[float]:
    """Yield when a replacement may be placed, or gives up its place as it has not started."""
    if workload.status.phase is Phase.RUNNING:
        for pod in workload.status.failures.lost_pods:
            yield pod.retry_at
            if pod.replaced_at is not None:
                yield pod.replaced_at + LIMIT_S


def _runs(pod: Pod) -> bool:
    return pod.phase is PodPhase.RUNNING and pod.terminating_since is None


def _could_not_reform(pod: Pod) -> bool:
    bad = [exit_ for exit_ in pod.exits if not exit_.ok]
    return pod.phase is PodPhase.FAILED and all(any("ReformFailed" in line for line in exit_.tail) for exit_ in bad)


def _lost(
    workload: Workload, own: tuple[Pod, ...], nodes: tuple[Node, ...], now: float
) -> Iterator[tuple[int, Failure]]:
    """Yield the indexes of pods that are lost, with the reasons."""
    gang, status = workload.gang, workload.status
    known = {pod.index for pod in own} | {lost_pod.index for lost_pod in status.missing}
    for index in range(gang.nodes):
        if index not in known:
            reason = Reason(code=Code.POD_LOST, message=f"pod {index} of {gang.nodes} vanished")
            yield index, Failure(blame=Blame.INFRASTRUCTURE, reason=reason)
    for pod in own:
        is_told = pod.terminating_since is not None
        if is_told and pod.phase.is_final and not ended_well(pod) and reclaim(gang, (pod,), nodes) is not None:
            why = f"pod {pod.index} of {gang.nodes} has left {pod.node}, which is being reclaimed"
            reason = Reason(code=Code.NODE_RECLAIMED, message=why)
            yield pod.index, Failure(blame=Blame.INFRASTRUCTURE, reason=reason)
        elif is_told and pod.phase.is_final and pod.phase is not PodPhase.LOST and not ended_well(pod):
            reason = Reason(code=Code.POD_LOST, message=f"pod {pod.index} of {gang.nodes} was told to stop")
            yield pod.index, Failure(blame=Blame.INFRASTRUCTURE, reason=reason)
        elif pod.phase is PodPhase.LOST or pod.replacement:
            failure = diagnose(gang, (pod,), nodes, workload.progress, now)
            if failure is not None and failure.reason.code in _OF_PLACES:
                yield pod.index, failure


def _again(
    spec: Training, index: int, before: LostPod | None, pod: Pod | None, step: int, now: float
) -> LostPod | None:
    """Return the record of a pod that was lost once more; None if it was lost too often without a new step."""
    steps = () if before is None else before.steps
    if len(steps) == MOST_LOSSES and step <= steps[0]:
        return None
    lasted_s = 0.0 if pod is None or pod.started_at is None else now - pod.started_at
    in_a_row = 1 if before is None or lasted_s >= PRODUCTIVE_S else before.in_a_row + 1
    wait_s = 0.0 if in_a_row == 1 else backoff_s(spec, in_a_row - 1)
    return LostPod(
        index=index,
        times=1 if before is None else before.times + 1,
        in_a_row=in_a_row,
        steps=(*steps, step)[-MOST_LOSSES:],
        retry_at=now + wait_s,
    )
