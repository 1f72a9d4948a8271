"""What to do next for every training run: the one decision that the live loop, ``plan`` and the simulator share.

Each workload is judged on its own by comparing what is wanted with what is true; then those that wait are placed in
order. At most one change for each workload comes out, complete in itself.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any

from fairlead.policy.failures import Blame, Failure, diagnose
from fairlead.policy.growing import Growing, Waits
from fairlead.policy.lifecycle import move
from fairlead.policy.placement import Rooms, place, rooms, why_waiting
from fairlead.policy.quantities import plural, say_duration
from fairlead.policy.retries import GiveUp, retry
from fairlead.policy.shapes import Shape
from fairlead.state.plan import Change, CreatePod, Event, Plan, TerminatePod
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Pod, PodPhase, Snapshot, Status, Workload

# The other ranks of a failed gang wait in a collective that cannot end; they get this long to write their last lines.
TEARDOWN_GRACE_S = 1.0

# Looking a member up on its enumeration takes longer than all else in _is_quiet.
_RUN, _RUNNING, _POD_RUNNING = Intent.RUN, Phase.RUNNING, PodPhase.RUNNING


def decide(snapshot: Snapshot, now: float) -> Plan:
    """The changes to make now; an empty plan when all is as it should be."""
    pods = _current_pods(snapshot)
    changes: list[Change] = []
    waiting: list[Workload] = []
    for workload in snapshot.workloads:
        found = pods[workload.uid]
        if _is_quiet(workload, found):
            continue
        own = tuple(sorted(found, key=lambda pod: (pod.attempt, pod.index)))
        change = _judge(workload, own, snapshot, now)
        if change is not None:
            changes.append(change)
        elif _wants_to_start(workload, now) and all(pod.phase.is_final for pod in own):
            waiting.append(workload)
    return Plan(changes=(*changes, *_start(waiting, snapshot, pods, now)))


def _current_pods(snapshot: Snapshot) -> dict[str, list[Pod]]:
    """Pods of each workload, of any attempt."""
    grouped: dict[str, list[Pod]] = defaultdict(list)
    for pod in snapshot.pods:
        grouped[pod.workload_uid].append(pod)
    return grouped


def _is_quiet(workload: Workload, pods: list[Pod]) -> bool:
    """Whether it plainly runs on as wanted and time alone changes nothing: most runs, which need no judgement."""
    spec, status = workload.spec, workload.status
    if (
        status.phase is not _RUNNING
        or workload.intent is not _RUN
        or spec.max_duration_s is not None
        or spec.stall_timeout_s is not None
        or len(pods) != spec.nodes
    ):
        return False
    for pod in pods:  # noqa: SIM110 (a generator takes twice as long, and this is for thousands)
        if pod.phase is not _POD_RUNNING or pod.exits or pod.attempt != status.attempt:
            return False
    return True


def _judge(workload: Workload, pods: tuple[Pod, ...], snapshot: Snapshot, now: float) -> Change | None:
    """What the workload needs apart from being placed; None for nothing."""
    live = tuple(pod for pod in pods if not pod.phase.is_final)
    phase, intent = workload.status.phase, workload.intent
    if phase.is_final:
        return _after_the_end(workload, live, snapshot, now)
    if phase is Phase.STOPPING:
        return _settle(workload, pods, live, now) if not live else _keep_stopping(workload, live)
    if intent is not Intent.RUN:
        return _obey(workload, live, now)
    deadline = _deadline(workload, live, now)
    if deadline is not None:
        return deadline
    if phase in (Phase.STARTING, Phase.RUNNING):
        return _watch(workload, pods, live, snapshot, now)
    if phase is Phase.PENDING and workload.status.reason.code is Code.SUSPENDED:
        return _requeue(workload, Code.RESUMED, "resumed; waits to be placed", now)
    if phase is Phase.RESTARTING and live:
        return _terminate(workload, live, TEARDOWN_GRACE_S)
    return None


def _after_the_end(workload: Workload, live: tuple[Pod, ...], snapshot: Snapshot, now: float) -> Change | None:
    if live:
        return _terminate(workload, live, 0.0)
    if workload.intent is Intent.DELETE:
        return Change(workload_uid=workload.uid, version=workload.version, forget=True)
    if workload.intent is not Intent.RUN:
        return None
    if workload.status.phase is Phase.SUCCEEDED:
        return Change(workload_uid=workload.uid, version=workload.version, intent=Intent.STOP)
    name = workload.spec.team, workload.spec.name
    if any((each.spec.team, each.spec.name) == name and not each.status.phase.is_final for each in snapshot.workloads):
        message = f"it cannot be resumed while another unfinished run is named {workload.spec.name}"
        taken = Reason(code=Code.NAME_TAKEN, message=message, remedy="Resume it when that one is over.")
        return Change(
            workload_uid=workload.uid,
            version=workload.version,
            intent=Intent.STOP,
            event=Event(type="NotResumed", reason=taken),
        )
    reason = Reason(code=Code.RESUMED, message=f"resumed after it had {workload.status.phase.value.lower()}")
    # A person has looked at it and asked for more: the retry counts and the clock of max_duration begin anew.
    status = move(
        workload.status, Phase.PENDING, reason, now,
        attempt=workload.status.attempt + 1, started_at=None, finished_at=None, program_failures=0, disruptions=0,
        last_failure=None, failed_step=None, retry_at=None,
    )  # fmt: skip
    return _change(workload, status)


def _obey(workload: Workload, live: tuple[Pod, ...], now: float) -> Change | None:
    """Stop, suspend or delete a workload that is neither final nor stopping."""
    status = workload.status
    if workload.intent is Intent.SUSPEND:
        if status.phase is Phase.PENDING and status.reason.code is Code.SUSPENDED:
            return None
        after, code, asked = Phase.PENDING, Code.SUSPENDED, Code.SUSPEND_REQUESTED
        message, remedy = "suspended on request", f"`fairlead resume {workload.spec.name}` lets it go on."
    else:
        after, code, asked = Phase.STOPPED, Code.STOPPED, Code.STOP_REQUESTED
        message, remedy = "stopped on request", f"`fairlead resume {workload.spec.name}` lets it go on."
        if workload.intent is Intent.DELETE:
            asked, message, remedy = Code.DELETE_REQUESTED, "stopped to be deleted", None
    final = Reason(code=code, message=message, remedy=remedy)
    if live or status.phase in (Phase.STARTING, Phase.RUNNING):
        why = Reason(code=asked, message=f"{asked.value.removesuffix('Requested').lower()} was requested")
        return _stop(workload, live, after, final, why, now)
    if after is Phase.PENDING:
        return _requeue(workload, code, message, now, remedy=remedy)
    return _change(workload, move(status, after, final, now))


def _deadline(workload: Workload, live: tuple[Pod, ...], now: float) -> Change | None:
    limit, started = workload.spec.max_duration_s, workload.status.started_at
    if limit is None or started is None or now - started < limit:
        return None
    reason = Reason(
        code=Code.DEADLINE_EXCEEDED,
        message=f"it ran for {say_duration(limit)}, which is its `max_duration`",
        remedy=f"`fairlead resume {workload.spec.name}` gives it as long again, from its newest checkpoint.",
    )
    if live:
        return _stop(workload, live, Phase.FAILED, reason, reason, now)
    return _change(workload, move(workload.status, Phase.FAILED, reason, now))


def _watch(
    workload: Workload, pods: tuple[Pod, ...], live: tuple[Pod, ...], snapshot: Snapshot, now: float
) -> Change | None:
    """Follow a gang that is starting or running."""
    status = workload.status
    own = tuple(pod for pod in pods if pod.attempt == status.attempt)
    failure = diagnose(workload.spec, own, snapshot.nodes, workload.progress, now)
    if failure is None and len(own) < workload.spec.nodes:
        gone = Reason(code=Code.POD_LOST, message=f"{plural(workload.spec.nodes - len(own), 'pod')} of it vanished")
        failure = Failure(blame=Blame.INFRASTRUCTURE, reason=gone)
    if failure is not None:
        return _after_failure(workload, live, failure, now)
    if all(pod.phase is PodPhase.SUCCEEDED for pod in own):
        took = say_duration(now - (status.started_at or now))
        return _change(workload, move(status, Phase.SUCCEEDED, _completed(workload, took), now))
    if status.phase is Phase.STARTING and all(pod.phase is not PodPhase.CREATED and pod.started_at for pod in own):
        ranks = plural(workload.spec.world_size, "rank")
        reason = Reason(code=Code.RANKS_STARTED, message=f"{ranks} on {plural(len(own), 'node')} started")
        return _change(workload, move(status, Phase.RUNNING, reason, now))
    return None


def _completed(workload: Workload, took: str) -> Reason:
    step = workload.progress.step if workload.progress is not None else None
    steps = "" if step is None else f" after {plural(step, 'step')}"
    return Reason(code=Code.COMPLETED, message=f"every rank ended well{steps}, {took} after its first start")


def _after_failure(workload: Workload, live: tuple[Pod, ...], failure: Failure, now: float) -> Change:
    progress = workload.progress
    verdict = retry(workload.spec, workload.status, failure, progress, now)
    reached = [step for step in (progress.step if progress else None, workload.status.failed_step) if step is not None]
    step = max(reached, default=None)
    counters = {"program_failures": verdict.program_failures, "disruptions": verdict.disruptions}
    remember = {"last_failure": failure.reason, "failed_step": step, **counters}
    if isinstance(verdict, GiveUp):
        reason = replace(failure.reason, message=f"{failure.reason.message}; {verdict.why}")
        if not live:
            return _change(workload, move(workload.status, Phase.FAILED, reason, now, **remember))
        return _stop(workload, live, Phase.FAILED, reason, reason, now, grace_s=TEARDOWN_GRACE_S, **remember)
    wait = verdict.at - now
    again = "restarts at once" if wait <= 0 else f"restarts in {say_duration(wait)}"
    since = None if progress is None else progress.checkpoint_step
    origin = "" if since is None else f" from its checkpoint of step {since}"
    reason = replace(failure.reason, message=f"{failure.reason.message}; it {again}{origin}")
    status = move(
        workload.status, Phase.RESTARTING, reason, now,
        attempt=workload.status.attempt + 1, retry_at=verdict.at, **remember,
    )  # fmt: skip
    return replace(_change(workload, status), terminate=_notices(live, TEARDOWN_GRACE_S))


def _settle(workload: Workload, pods: tuple[Pod, ...], live: tuple[Pod, ...], now: float) -> Change:
    """No pod of a stopping workload lives any more."""
    status = workload.status
    own = [pod for pod in pods if pod.attempt == status.attempt]
    if workload.intent is Intent.DELETE and status.next_phase is Phase.PENDING:
        after, reason = Phase.STOPPED, Reason(code=Code.STOPPED, message="stopped to be deleted")
    elif workload.intent is Intent.STOP and status.next_phase is Phase.PENDING:
        after, reason = Phase.STOPPED, Reason(code=Code.STOPPED, message="stopped on request")
    else:
        after, reason = status.next_phase or Phase.STOPPED, status.next_reason or status.reason
    if len(own) == workload.spec.nodes and all(_ended_well(pod) for pod in own) and after is not Phase.FAILED:
        after, reason = Phase.SUCCEEDED, _completed(workload, say_duration(now - (status.started_at or now)))
    step = workload.progress.stopped_step if workload.progress is not None else None
    if step is not None and after is not Phase.SUCCEEDED:
        reason = replace(reason, message=f"{reason.message}; its checkpoint is of step {step}")
    if after is Phase.PENDING:
        return _requeue(workload, reason.code, reason.message, now, remedy=reason.remedy)
    return _change(workload, move(status, after, reason, now))


def _ended_well(pod: Pod) -> bool:
    """Every rank ended with exit code 0 and none of them because of the stop notice."""
    notice = pod.terminating_since
    return pod.phase is PodPhase.SUCCEEDED and (notice is None or all(exit_.at <= notice for exit_ in pod.exits))


def _keep_stopping(workload: Workload, live: tuple[Pod, ...]) -> Change | None:
    """Every live pod has its stop notice, also one that was created since."""
    return _terminate(workload, live, workload.spec.grace_s)


def _stop(
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
    status = move(workload.status, Phase.STOPPING, why, now, **changes)
    status = replace(status, next_phase=after, next_reason=final)
    grace = workload.spec.grace_s if grace_s is None else grace_s
    return replace(_change(workload, status), terminate=_notices(live, grace))


def _terminate(workload: Workload, live: tuple[Pod, ...], grace_s: float) -> Change | None:
    notices = _notices(live, grace_s)
    if not notices:
        return None
    return Change(workload_uid=workload.uid, version=workload.version, terminate=notices)


def _notices(live: tuple[Pod, ...], grace_s: float) -> tuple[TerminatePod, ...]:
    return tuple(TerminatePod(pod_uid=pod.uid, grace_s=grace_s) for pod in live if pod.terminating_since is None)


def _requeue(workload: Workload, code: Code, message: str, now: float, *, remedy: str | None = None) -> Change:
    reason = Reason(code=code, message=message, remedy=remedy)
    status = workload.status
    if code is Code.SUSPENDED:
        # Time spent suspended is not time it ran: the clock of max_duration begins anew when it is resumed.
        status = replace(status, started_at=None)
    if status.phase is Phase.PENDING:
        return _change(workload, replace(status, reason=reason, since=now, asked_at=None, ask_again_at=None))
    # A start that was stopped is over; the next one gets a number of its own.
    attempt = status.attempt if status.phase is Phase.RESTARTING else status.attempt + 1
    return _change(workload, move(status, Phase.PENDING, reason, now, attempt=attempt, retry_at=None))


def _change(workload: Workload, status: Status) -> Change:
    """A change of status with its event; a run that ends is no longer wanted to run."""
    ended = status.phase.is_final and workload.intent is Intent.RUN
    return Change(
        workload_uid=workload.uid,
        version=workload.version,
        status=status,
        intent=Intent.STOP if ended else None,
        event=Event(type=status.phase.value, reason=status.reason),
    )


def _wants_to_start(workload: Workload, now: float) -> bool:
    status = workload.status
    if workload.intent is not Intent.RUN or status.phase not in (Phase.PENDING, Phase.RESTARTING):
        return False
    return status.phase is Phase.PENDING or status.retry_at is None or now >= status.retry_at


def _start(waiting: list[Workload], snapshot: Snapshot, pods: dict[str, list[Pod]], now: float) -> list[Change]:
    """Place those that wait: higher priority first, then first come. Nobody overtakes one that does not fit."""
    if not waiting:
        return []
    free = rooms(snapshot.nodes, snapshot.pods, _history(snapshot))
    holders = {
        w.spec.name: w.spec.resources for w in snapshot.workloads if any(not p.phase.is_final for p in pods[w.uid])
    }
    changes: list[Change] = []
    growing = Growing(snapshot, now)
    blocked_by: Workload | None = None
    for workload in sorted(waiting, key=lambda w: (-w.spec.priority, w.created_at, w.uid)):
        if blocked_by is not None:
            changes.extend(_wait(workload, growing.wait(workload, _behind(workload, blocked_by)), now))
            continue
        never = growing.why_never(workload.spec)
        if never is not None:
            changes.append(_change(workload, move(workload.status, Phase.FAILED, never, now)))
            continue
        started = _try_to_start(workload, free, now)
        if started is None:
            waits = growing.wait(workload, why_waiting(workload.spec, free, holders))
            blocked_by = workload if waits.holds_up else None
            changes.extend(_wait(workload, waits, now))
            continue
        changes.append(started)
        holders[workload.spec.name] = workload.spec.resources
    return changes


def _history(snapshot: Snapshot) -> Iterator[Shape]:
    """What was asked for, oldest first, one for each member of a gang."""
    for workload in sorted(snapshot.workloads, key=lambda w: (w.created_at, w.uid)):
        yield from repeat(Shape.of(workload.spec.resources), workload.spec.nodes)


def _try_to_start(workload: Workload, free: Rooms, now: float) -> Change | None:
    spec, status = workload.spec, workload.status
    placed = place(spec, free)
    if placed is None:
        return None
    where = ", ".join(sorted({item.node for item in placed}))
    message = f"{plural(spec.nodes, 'pod')} with {plural(spec.world_size, 'rank')} placed on {where}"
    reason = Reason(code=Code.PLACED, message=message)
    started = status.started_at if status.started_at is not None else now
    create = tuple(
        CreatePod(attempt=status.attempt, index=item.index, node=item.node, grant=item.grant) for item in placed
    )
    starting = move(status, Phase.STARTING, reason, now, started_at=started, asked_at=None, ask_again_at=None)
    return replace(_change(workload, starting), create=create)


def _behind(workload: Workload, first: Workload) -> Reason:
    why = "was submitted earlier" if first.spec.priority == workload.spec.priority else "has a higher priority"
    return Reason(
        code=Code.WAITING_FOR_TURN,
        message=f"waits its turn behind {first.spec.name}, which {why} and does not fit yet",
        remedy=f"A higher `priority` than {first.spec.priority} would put it first.",
    )


def _wait(workload: Workload, waits: Waits, now: float) -> list[Change]:
    """Say why it waits, once for each reason."""
    status = workload.status
    asks: Any = {"asked_at": waits.asked_at, "ask_again_at": waits.ask_again_at}
    if status.phase is Phase.RESTARTING:
        return [_change(workload, move(status, Phase.PENDING, waits.reason, now, retry_at=None, **asks))]
    after = replace(status, reason=waits.reason, **asks)
    return [] if after == status else [_change(workload, after)]
