"""Builds changes of one workload: each follows the lifecycle table and has a reason."""

from collections.abc import Sequence

from fairlead.frozen import replace
from fairlead.policy.placement.placement import Placement
from fairlead.policy.placement.topology import describe_where
from fairlead.policy.queue.ageing import raised
from fairlead.policy.queue.tested_nodes import start_as_it_is
from fairlead.state.phase_transitions import move
from fairlead.state.plan import Change, CreatePod, Event, TerminatePod
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AfterStop, AnyWorkload, Intent, Node, Phase, Pod, Status, Workload
from fairlead.text.quantities import plural

_BETWEEN_STARTS = (Phase.PENDING, Phase.RESTARTING, Phase.SUSPENDED)


def change_to(workload: AnyWorkload, status: Status) -> Change:
    """Return a change of status with its event; a run that ends by itself also gets the intent STOP.

    If it was stopped on request and has the intent RUN, it was resumed since: that request is kept.
    """
    ended = status.phase in (Phase.SUCCEEDED, Phase.FAILED) and workload.intent is Intent.RUN
    return Change(
        workload_uid=workload.uid,
        version=workload.version,
        status=status,
        intent=Intent.STOP if ended else None,
        event=Event(type=status.phase.value, reason=status.reason),
    )


def started(
    workload: Workload,
    placed: tuple[Placement, ...],
    now: float,
    nodes: Sequence[Node],
    beside: Sequence[str] = (),
) -> Change:
    """Return the change that starts a run where it was placed, ``beside`` others on the same GPUs."""
    spec, status = workload.spec, workload.status
    where = ", ".join(sorted({item.node for item in placed}))
    num_nodes = len(placed)
    lies = describe_where(nodes, [item.node for item in placed])
    ranks = plural(num_nodes * spec.ranks_on_each_node, "rank")
    message = f"{plural(num_nodes, 'pod')} with {ranks} placed on {where}"
    if beside:
        message += f", on the same GPUs as {', '.join(beside)}"
    message = message if lies is None else f"{message}: {lies}"
    untested = start_as_it_is(workload, [item.node for item in placed])
    reason = Reason(code=Code.PLACED, message=message if untested is None else f"{message}; {untested}")
    began = status.started_at if status.started_at is not None else now
    attempt = next_attempt(status)
    create = tuple(CreatePod(attempt=attempt, index=item.index, node=item.node, grant=item.grant) for item in placed)
    moved = move(
        status, Phase.STARTING, reason, now, attempt=attempt, started_at=began,
        failures=replace(status.failures, retry_at=None, is_tested=status.failures.is_tested or untested is not None),
        queue=replace(status.queue.without_request(), raised=raised(workload, now), preempted_by=None),
        size=replace(status.size, nodes=None if spec.most_nodes is None else num_nodes, room_since=None),
        migration=replace(status.migration, seats=()),
    )  # fmt: skip
    return replace(change_to(workload, moved), create=create)


def stop(
    workload: Workload,
    live: tuple[Pod, ...],
    after: Phase,
    final: Reason,
    why: Reason,
    now: float,
    *,
    grace_s: float | None = None,
    **changes: object,
) -> Change:
    """Return the change that stops every live pod; once all are over, the run goes to ``after`` for ``final``."""
    status = move(workload.status, Phase.STOPPING, why, now, **changes)
    status = replace(status, after_stop=AfterStop(phase=after, reason=final))
    grace = workload.spec.grace_s if grace_s is None else grace_s
    return replace(change_to(workload, status), terminate=notices(live, grace))


def terminate(workload: Workload, live: tuple[Pod, ...], grace_s: float) -> Change | None:
    """Return the notices to pods without one; None if all have one."""
    orders = notices(live, grace_s)
    if not orders:
        return None
    return Change(workload_uid=workload.uid, version=workload.version, terminate=orders)


def notices(live: tuple[Pod, ...], grace_s: float) -> tuple[TerminatePod, ...]:
    """Return a stop notice for every pod without one."""
    return tuple(TerminatePod(pod_uid=pod.uid, grace_s=grace_s) for pod in live if pod.terminating_since is None)


def requeue(workload: Workload, code: Code, message: str, now: float, *, remedy: str | None = None) -> Change:
    """Return the change that makes a run Pending, or Suspended if that is the code."""
    reason = Reason(code=code, message=message, remedy=remedy)
    status = workload.status
    if code in (Code.SUSPENDED, Code.PREEMPTED, Code.MOVED, Code.OVER_QUOTA):
        # Time spent suspended, preempted, refused or moving does not count as run time: the clock of max_duration
        # restarts.
        status = replace(status, started_at=None)
    if code is not Code.OVER_QUOTA:
        status = replace(status, failures=replace(status.failures, retry_at=None))
    if code is Code.SUSPENDED:
        suspended = replace(
            status,
            failures=replace(status.failures, refusals=0),
            size=replace(status.size, is_kept_small=False),
            queue=status.queue.without_request(),
        )
        return change_to(workload, move(suspended, Phase.SUSPENDED, reason, now, attempt=next_attempt(status)))
    if status.phase is Phase.PENDING:
        return change_to(workload, replace(status, reason=reason, since=now, queue=status.queue.without_request()))
    return change_to(workload, move(status, Phase.PENDING, reason, now, attempt=next_attempt(status)))


def next_attempt(status: Status) -> int:
    """Return the number of the next attempt; one that was stopped is over, so the next gets its own number."""
    return status.attempt if status.phase in _BETWEEN_STARTS else status.attempt + 1


def wait(
    workload: Workload,
    reason: Reason,
    now: float,
    *,
    asked_at: float | None = None,
    ask_again_at: float | None = None,
) -> list[Change]:
    """Record why it waits, once per reason; and since when nodes are requested, or when they are again."""
    status = workload.status
    queue = status.queue
    if (queue.nodes_requested_at, queue.request_again_at) != (asked_at, ask_again_at):
        queue = replace(queue, nodes_requested_at=asked_at, request_again_at=ask_again_at)
    if status.phase is not Phase.PENDING:
        failures = replace(status.failures, retry_at=None)
        pending = move(
            status, Phase.PENDING, reason, now, attempt=next_attempt(status), queue=queue, failures=failures
        )  # fmt: skip
        return [change_to(workload, pending)]
    if queue is status.queue and reason == status.reason:
        return []
    return [change_to(workload, replace(status, queue=queue, reason=reason))]
