"""Changes of one workload as the decisions make them: each moves by the table of the lifecycle and tells why."""

from dataclasses import replace

from fairlead.policy.lifecycle import move
from fairlead.state.plan import Change, Event, TerminatePod
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Pod, Status, Workload


def change_to(workload: Workload, status: Status) -> Change:
    """A change of status with its event; a run that ends is no longer wanted to run."""
    ended = status.phase.is_final and workload.intent is Intent.RUN
    return Change(
        workload_uid=workload.uid,
        version=workload.version,
        status=status,
        intent=Intent.STOP if ended else None,
        event=Event(type=status.phase.value, reason=status.reason),
    )


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
    """Give every live pod its notice; once all are over the run comes to ``after`` for the reason ``final``."""
    status = move(workload.status, Phase.STOPPING, why, now, **changes)
    status = replace(status, next_phase=after, next_reason=final)
    grace = workload.spec.grace_s if grace_s is None else grace_s
    return replace(change_to(workload, status), terminate=notices(live, grace))


def terminate(workload: Workload, live: tuple[Pod, ...], grace_s: float) -> Change | None:
    """Notices to those pods that have none; None when all have."""
    orders = notices(live, grace_s)
    if not orders:
        return None
    return Change(workload_uid=workload.uid, version=workload.version, terminate=orders)


def notices(live: tuple[Pod, ...], grace_s: float) -> tuple[TerminatePod, ...]:
    """A stop notice for every pod that has none."""
    return tuple(TerminatePod(pod_uid=pod.uid, grace_s=grace_s) for pod in live if pod.terminating_since is None)


def requeue(workload: Workload, code: Code, message: str, now: float, *, remedy: str | None = None) -> Change:
    """It is Pending from now on, or again."""
    reason = Reason(code=code, message=message, remedy=remedy)
    status = workload.status
    if code in (Code.SUSPENDED, Code.PREEMPTED, Code.MOVED):
        # Time spent suspended, preempted or on the move is not time it ran: the clock of max_duration begins anew.
        status = replace(status, started_at=None)
    if status.phase is Phase.PENDING:
        return change_to(workload, replace(status, reason=reason, since=now, asked_at=None, ask_again_at=None))
    # A start that was stopped is over; the next one gets a number of its own.
    attempt = status.attempt if status.phase is Phase.RESTARTING else status.attempt + 1
    return change_to(workload, move(status, Phase.PENDING, reason, now, attempt=attempt, retry_at=None))


def wait(
    workload: Workload,
    reason: Reason,
    now: float,
    *,
    asked_at: float | None = None,
    ask_again_at: float | None = None,
) -> list[Change]:
    """Say why it waits, once for each reason; and since when nodes are asked for, or when they are again."""
    status = replace(workload.status, asked_at=asked_at, ask_again_at=ask_again_at)
    if status.phase is Phase.RESTARTING:
        return [change_to(workload, move(status, Phase.PENDING, reason, now, retry_at=None))]
    after = replace(status, reason=reason)
    return [] if after == workload.status else [change_to(workload, after)]
