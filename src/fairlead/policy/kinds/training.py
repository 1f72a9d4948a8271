"""Judges a training run by itself: compares its intent with its observed state, and returns the consequence.

Placement is decided elsewhere, for all pending runs together.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.frozen import replace
from fairlead.policy.disruption.node_reclaims import reclaim
from fairlead.policy.health.incidents import blamed_program, failed_on, is_of_program, made_progress, with_incident
from fairlead.policy.kinds import checkpoint_health as checkpoints
from fairlead.policy.kinds import (
    hangs,
    idleness,
    lost_pods,
    preflights,
    preparing,
    silent_nodes,
    slow_rank,
    unconfirmed_ends,
)
from fairlead.policy.kinds.engines import hand_over, tell_wait
from fairlead.policy.kinds.failures import Blame, Failure, diagnose
from fairlead.policy.kinds.record import LeafKind
from fairlead.policy.kinds.retries import Again, GiveUp, longest_wait_s, retry, retry_refused
from fairlead.policy.kinds.right_sizing import more_gpu_memory, more_memory, size, used_by
from fairlead.policy.kinds.slow_starts import tell
from fairlead.policy.kinds.table import parent_of
from fairlead.policy.queue.budgets import budget_overspent, run_overspent
from fairlead.policy.queue.changes import change_to, notices, requeue, stop, terminate
from fairlead.policy.scaling import elastic
from fairlead.policy.scaling.elastic import is_resizing
from fairlead.policy.strategy.probing import follow
from fairlead.specs.quantities import format_duration
from fairlead.specs.training import DECADE_S, Training
from fairlead.state.phase_transitions import move
from fairlead.state.plan import Change, Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.run_times import active_until, ran_until
from fairlead.state.snapshot import (
    FailureHistory,
    Intent,
    Phase,
    Pod,
    PodPhase,
    Progress,
    Requests,
    Snapshot,
    Usage,
    Workload,
)
from fairlead.state.split_probing import Probing, untried
from fairlead.text.quantities import describe_duration, plural

if TYPE_CHECKING:
    from fairlead.policy.strategy.probing import Verdict

# The other ranks of a failed gang are blocked in a collective; they get this long to write their last lines.
TEARDOWN_GRACE_S = 1.0
# As a pod's supervising process says it (runtime/meeting.py).
NEVER_MET = "no rank of it connected to another"
# The stacks of a hung gang are taken first, which takes a second, or a few with py-spy or gdb.
STACKS_GRACE_S = 10.0


def judge(workload: Workload, pods: tuple[Pod, ...], snapshot: Snapshot, now: float) -> Change | None:
    """Return the change that the workload needs apart from placement, or None."""
    live = tuple(pod for pod in pods if not pod.phase.is_final)
    phase, intent = workload.status.phase, workload.intent
    if phase.is_final:
        return _after_the_end(workload, live, snapshot, now)
    if phase is Phase.STOPPING:
        if live:
            return _keep_stopping(workload, live) or unconfirmed_ends.tell(workload, live, now)
        if not _is_placed_again(workload, pods):
            return _settle(workload, pods, snapshot, now)
    if intent is not Intent.RUN:
        return _obey(workload, live, snapshot, now)
    sized = size(workload, snapshot) if workload.spec.resources.is_auto else None
    if sized is not None:
        return sized
    deadline = _deadline(workload, live, now)
    if deadline is not None:
        return deadline
    unpaid = _unpaid(workload, live, snapshot, now)
    if unpaid is not None:
        return unpaid
    if phase in (Phase.STARTING, Phase.RUNNING):
        return _watch(workload, pods, live, snapshot, now)
    if phase is Phase.SUSPENDED:
        return requeue(workload, Code.RESUMED, "resumed; waits to be placed", now)
    if phase is Phase.RESTARTING and live:
        unsaid = terminate(workload, live, _teardown_s(workload, workload.status.reason))
        return unsaid or unconfirmed_ends.tell(workload, live, now)
    if workload.preparation is not None and not live:
        return preparing.wait(workload, workload.preparation, now)
    if workload.spec.engine is not None and not live:
        return hand_over(workload, snapshot, now)
    if phase is Phase.RESTARTING:
        return unconfirmed_ends.tell(workload, live, now) or _tell_hang(workload, pods, now)
    return None


def _after_the_end(workload: Workload, live: tuple[Pod, ...], snapshot: Snapshot, now: float) -> Change | None:
    if live:
        return terminate(workload, live, 0.0)
    if workload.intent is Intent.DELETE:
        return Change(workload_uid=workload.uid, version=workload.version, forget=True)
    if workload.intent is not Intent.RUN:
        return None
    if workload.status.phase is Phase.SUCCEEDED:
        return Change(workload_uid=workload.uid, version=workload.version, intent=Intent.STOP)
    name = workload.spec.team, workload.spec.name
    workloads = (*snapshot.workloads, *snapshot.parents)
    if any((run.spec.team, run.spec.name) == name and not run.status.phase.is_final for run in workloads):
        message = f"it cannot be resumed while another unfinished run is named {workload.spec.name}"
        taken = Reason(code=Code.NAME_TAKEN, message=message, remedy="Resume it when that one is over.")
        return Change(
            workload_uid=workload.uid,
            version=workload.version,
            intent=Intent.STOP,
            event=Event(type="NotResumed", reason=taken),
        )
    reason = Reason(code=Code.RESUMED, message=f"resumed after it had {workload.status.phase.value.lower()}")
    # A resume by a user resets the retry counts and the clock of max_duration.
    status = workload.status
    status = move(
        status, Phase.PENDING, reason, now, attempt=status.attempt + 1, started_at=None, finished_at=None,
        failures=FailureHistory(nodes=status.failures.nodes), queue=replace(status.queue, raised=0),
        size=replace(status.size, is_kept_small=False),
    )  # fmt: skip
    return change_to(workload, status)


def _obey(workload: Workload, live: tuple[Pod, ...], snapshot: Snapshot, now: float) -> Change | None:
    """Return the change that stops, suspends or deletes a workload that is neither final nor stopping."""
    status = workload.status
    if workload.intent is Intent.SUSPEND:
        if status.phase is Phase.SUSPENDED:
            return None
        after, code, request_code = Phase.SUSPENDED, Code.SUSPENDED, Code.SUSPEND_REQUESTED
        message, remedy = "suspended on request", f"`fairlead resume {workload.spec.name}` continues it."
    else:
        after, code, request_code = Phase.STOPPED, Code.STOPPED, Code.STOP_REQUESTED
        message, remedy = "stopped on request", f"`fairlead resume {workload.spec.name}` continues it."
        if workload.intent is Intent.DELETE:
            request_code, message, remedy = Code.DELETE_REQUESTED, "stopped to be deleted", None
        elif (by_parent := _stopped_by_parent(workload, snapshot)) is not None:
            message, remedy = by_parent, None
    final = Reason(code=code, message=message, remedy=remedy)
    if live or status.phase in (Phase.STARTING, Phase.RUNNING):
        requested = f"{request_code.value.removesuffix('Requested').lower()} was requested"
        why = Reason(code=request_code, message=f"{requested}; {_awaited(workload)}" if live else requested)
        return stop(workload, live, after, final, why, now)
    if after is Phase.SUSPENDED:
        return requeue(workload, code, message, now, remedy=remedy)
    return change_to(workload, move(status, after, final, now))


def _stopped_by_parent(workload: Workload, snapshot: Snapshot) -> str | None:
    """Return why its parent has stopped it; None if a user has."""
    if workload.parent is None:
        return None
    for parent in snapshot.parents:
        if parent.uid == workload.parent:
            kind = parent_of(parent.spec)
            return None if kind is None or kind.why_stopped is None else kind.why_stopped(parent, workload)
    return None


def _awaited(workload: Workload) -> str:
    """Describe what a run with a stop notice does before it ends, and how long it may take."""
    grace, progress = describe_duration(workload.spec.grace_s), workload.progress
    if progress is None or progress.step is None:
        return f"waiting for its ranks to end (grace {grace})"
    return f"waiting for it to save a checkpoint of step {progress.step} (grace {grace})"


def _deadline(workload: Workload, live: tuple[Pod, ...], now: float) -> Change | None:
    limit, started = workload.spec.max_duration_s, workload.status.started_at
    if limit is None or started is None or now - started < limit:
        return None
    reason = Reason(
        code=Code.DEADLINE_EXCEEDED,
        message=f"it ran for {describe_duration(limit)}, which is its `max_duration`",
        remedy=f"`fairlead resume {workload.spec.name}` continues it from its newest checkpoint, for another "
        f"{describe_duration(limit)}; with "
        f"`--set max_duration={format_duration(min(2 * limit, DECADE_S))}` for longer.",
    )
    if live:
        return stop(workload, live, Phase.FAILED, reason, reason, now)
    return change_to(workload, move(workload.status, Phase.FAILED, reason, now))


def _unpaid(workload: Workload, live: tuple[Pod, ...], snapshot: Snapshot, now: float) -> Change | None:
    """End a run that has reached its ``max_cost``; stop one whose team has no budget left, to wait."""
    reason = run_overspent(workload, snapshot)
    if reason is not None:
        if live:
            return stop(workload, live, Phase.FAILED, reason, reason, now)
        return change_to(workload, move(workload.status, Phase.FAILED, reason, now))
    reason = budget_overspent(workload, snapshot) if live else None
    return None if reason is None else stop(workload, live, Phase.PENDING, reason, reason, now)


def _watch(
    workload: Workload, pods: tuple[Pod, ...], live: tuple[Pod, ...], snapshot: Snapshot, now: float
) -> Change | None:
    """Judge a gang that is starting or running."""
    status = workload.status
    current = tuple(pod for pod in pods if lost_pods.is_current(pod, status))
    used = used_by(workload, current)
    goes_on = lost_pods.go_on(workload, current, snapshot.nodes, now)
    if goes_on is not None:
        return goes_on
    num_vanished = lost_pods.num_expected(workload) - len(current)
    own = lost_pods.counted(current, now) if status.failures.lost_pods else current
    failure = diagnose(workload.gang, own, snapshot.nodes, workload.progress, now)
    if failure is None and num_vanished > 0:
        gone = Reason(code=Code.POD_LOST, message=f"{plural(num_vanished, 'pod')} of it vanished")
        failure = Failure(blame=Blame.INFRASTRUCTURE, reason=gone)
    if failure is not None and failure.blame is Blame.QUOTA:
        return _withdraw(workload, live, failure.reason, now)
    if untried(workload.spec, status.measured.probing):
        tried = follow(workload, own, failure, now)
        if tried is not None:
            return _after_probe(workload, live, tried, now)
    if failure is not None:
        more = {Code.OUT_OF_MEMORY: more_memory, Code.GPU_OUT_OF_MEMORY: more_gpu_memory}.get(failure.reason.code)
        larger = None if more is None else more(workload, snapshot.nodes)
        if larger is not None:
            # It was given too little memory, which does not count as its own failure.
            again = Again(
                at=now, program_failures=status.failures.program, disruptions=status.failures.disruptions
            )  # fmt: skip
            return after_failure(workload, live, failure, again, now, requests=larger, usage=used)
        if failure.reason.code in preflights.CODES and workload.is_to_be_tested:
            # Its program has not failed, and has not even started.
            counted = preflights.counted(status.failures, failure.reason.code)
            again = Again(at=now, program_failures=counted.program, disruptions=counted.disruptions)
            tested = replace(workload, status=replace(status, failures=counted))
            change = after_failure(tested, live, failure, again, now, usage=used)
            return with_incident(change, workload, failure, own, now, progressed=True)
        verdict = retry(workload.spec, status, failure, workload.progress, now)
        progressed = made_progress(workload, verdict.disruptions, now)
        nodes = failed_on(workload, failure, own, progressed=progressed)
        shown = blamed_program(failure, nodes) if is_of_program(failure, nodes) else failure
        change = after_failure(workload, live, shown, verdict, now, usage=used, nodes=nodes)
        return with_incident(change, workload, failure, own, now, progressed=progressed)
    must_leave = reclaim(workload.spec, (pod for pod in current if not pod.phase.is_final), snapshot.nodes)
    if must_leave is not None and lost_pods.leaving_alone(workload, current, snapshot.nodes):
        leaves = lost_pods.leave(workload, current, snapshot.nodes)
        if leaves is not None:
            return leaves
    elif must_leave is not None:
        why = must_leave.reason
        failures = replace(status.failures, last=why)
        return stop(workload, live, Phase.PENDING, why, why, now, grace_s=must_leave.grace_s, failures=failures)
    if all(pod.phase is PodPhase.SUCCEEDED for pod in own):
        began = status.started_at if status.started_at is not None else _began(own, now)
        measured = replace(status.measured, usage=used)
        return change_to(
            workload, move(status, *_outcome(workload, own, now), now, started_at=began, measured=measured)
        )
    if status.phase is Phase.STARTING and all(pod.phase is not PodPhase.CREATED and pod.started_at for pod in own):
        ranks = plural(workload.gang.world_size, "rank")
        cluster = "" if own[0].cluster is None else f" of cluster {own[0].cluster}"
        message = f"{ranks} {_where(own)}{cluster} started{elastic.outlook(workload)}"
        reason = Reason(code=Code.RANKS_STARTED, message=message)
        refusals = 0 if workload.spec.most_nodes is None else status.failures.refusals
        # A run started by an engine has waited there until now, which does not count as run time.
        began = now if status.started_at is None else status.started_at
        is_tested = workload.spec.preflight is not None
        failures = replace(status.failures, refusals=refusals, avoided_nodes=(), is_tested=is_tested)
        running = move(status, Phase.RUNNING, reason, now, started_at=began, failures=failures)
        return change_to(workload, running)
    if status.phase is Phase.STARTING:
        return _tell_delay(workload, own, now)
    return (
        idleness.act(workload, live, snapshot.nodes, now)
        or lost_pods.came_back(workload, current)
        or _warn(workload, live, snapshot, now)
    )


def _after_probe(workload: Workload, live: tuple[Pod, ...], verdict: "Verdict", now: float) -> Change:
    """Restart a run with the next split to try, or with the chosen one; no failure is counted."""
    status = workload.status
    if verdict.failure is not None:
        over = GiveUp(
            why="there is no other split to try", program_failures=status.failures.program,
            disruptions=status.failures.disruptions,
        )  # fmt: skip
        return after_failure(workload, live, verdict.failure, over, now, probing=verdict.probing)
    moved = move(
        status, Phase.RESTARTING, verdict.reason, now,
        attempt=status.attempt + 1, failures=replace(status.failures, retry_at=now), run_time=status.run_time,
        measured=replace(status.measured, probing=verdict.probing),
    )  # fmt: skip
    return replace(
        change_to(workload, moved),
        terminate=notices(live, min(TEARDOWN_GRACE_S, workload.spec.grace_s)),
        event=Event(type=verdict.reason.code.value, reason=verdict.reason),
    )


def _began(pods: tuple[Pod, ...], now: float) -> float:
    """Return the start of the first pod of a gang that was never seen running."""
    return min((pod.started_at for pod in pods if pod.started_at is not None), default=now)


_TOLD = frozenset({Code.CHECKPOINT_LATE, Code.IDLE, Code.NODE_SILENT, Code.SLOW_RANK})


def _warn(workload: Workload, live: tuple[Pod, ...], snapshot: Snapshot, now: float) -> Change | None:
    """Record the warning of a running run; with an event, except for failed saves, which have their own."""
    first = silent_nodes.reason(workload, live, snapshot.nodes)
    otherwise = slow_rank.reason(workload, live, snapshot.nodes) or idleness.announced(
        workload, live, snapshot.nodes, now
    )
    status = checkpoints.warned(workload, now, first, otherwise=otherwise)
    if status is None:
        return None
    reason = status.warning.reason
    event = None if reason is None or reason.code not in _TOLD else Event(type=reason.code.value, reason=reason)
    return Change(workload_uid=workload.uid, version=workload.version, status=status, event=event)


def _where(own: Sequence[Pod]) -> str:
    """Describe where the pods of a gang are: the nodes, and how many pods where some share one."""
    nodes = {pod.node for pod in own}
    if len(nodes) == len(own) or "" in nodes:
        return f"on {plural(len(own), 'node')}"
    return f"in {plural(len(own), 'pod')} on {plural(len(nodes), 'node')}"


def _tell_delay(workload: Workload, own: tuple[Pod, ...], now: float) -> Change | None:
    """Report why a gang does not start yet; once, since the message changes from try to try."""
    delayed = next((pod for pod in own if pod.message is not None and pod.started_at is None), None)
    if workload.spec.engine is not None and delayed is not None:
        return tell_wait(workload, delayed)
    if delayed is not None:
        message: str | None = f"pod {delayed.index} of {workload.gang.nodes} has not started: {delayed.message}"
    else:
        delays = (tell(pod, workload.gang.nodes, now) for pod in own if workload.spec.engine is None)
        message = next((delay for delay in delays if delay is not None), None)
    if (message is not None) == (workload.status.reason.code is Code.START_DELAYED):
        return preflights.announce(workload) if message is None else None
    if message is None:
        reason = Reason(code=Code.PLACED, message="its pods are no longer blocked; they start")
    else:
        reason = Reason(code=Code.START_DELAYED, message=message)
    return change_to(workload, replace(workload.status, reason=reason))


def _outcome(workload: Workload, pods: Sequence[Pod], now: float) -> tuple[Phase, Reason]:
    """Return the phase and reason of a run whose ranks all succeeded; Failed in cases of docs/decisions/0016."""
    step = workload.progress.step if workload.progress is not None else None
    steps = "" if step is None else f" after {plural(step, 'step')}"
    status = workload.status
    # A short run may be over before it was seen Running.
    unseen_s = now - status.since if status.phase is Phase.STARTING else 0.0
    ran = describe_duration(active_until(status, now) + unseen_s)
    message = f"all ranks succeeded{steps} in {ran}"
    lost = checkpoints.unsaved(workload.progress)
    if lost is None:
        return Phase.SUCCEEDED, _alone(workload, pods, message) or Reason(code=Code.COMPLETED, message=message)
    saved = workload.progress is not None and workload.progress.checkpoint_step is not None
    again = "from there" if saved else "anew"
    remedy = f"Fix that; then `fairlead resume {workload.spec.name}` trains {again} and saves."
    return Phase.FAILED, Reason(code=Code.LAST_CHECKPOINT_FAILED, message=f"{message}; {lost}", remedy=remedy)


def _alone(workload: Workload, pods: Sequence[Pod], message: str) -> Reason | None:
    """Return a reason that says that the ranks of a gang never met; None if they did, or nothing is known."""
    latest = [pod for pod in pods if pod.attempt == workload.status.attempt]
    if not latest or any(pod.message != NEVER_MET for pod in latest):
        return None
    return Reason(
        code=Code.RANKS_NEVER_MET,
        message=f"{message}, but its {workload.gang.world_size} ranks never met: none connected to another at "
        "MASTER_ADDR and MASTER_PORT, so that each worked alone",
        remedy="If they are to train together, start the program itself, as in `run: python train.py`, and let it call "
        "`init_process_group`: a launcher in a script starts a gang of its own for each rank.",
    )


def after_failure(
    workload: Workload,
    live: tuple[Pod, ...],
    failure: Failure,
    verdict: Again | GiveUp,
    now: float,
    *,
    requests: Requests | None = None,
    usage: Usage | None = None,
    nodes: tuple[str, ...] | None = None,
    probing: Probing | None = None,
) -> Change:
    """Return the change of a failed gang: it restarts or has failed for good, by the verdict.

    Args:
        requests: What it requests from now on; None if that stays.
        usage: Its peak usage; None if that stays.
        nodes: The nodes on which its last failures in a row began; None if these stay.
        probing: The results of the splits that it tried; None if these stay.
    """
    progress, status = workload.progress, workload.status
    reached = [step for step in (progress.step if progress else None, status.failures.step) if step is not None]
    failures = replace(
        status.failures, program=verdict.program_failures, disruptions=verdict.disruptions, last=failure.reason,
        step=max(reached, default=None), nodes=status.failures.nodes if nodes is None else nodes,
        avoided_nodes=tuple(sorted({*status.failures.avoided_nodes, *failure.nodes})),
    )  # fmt: skip
    measured = replace(
        status.measured, requests=requests or status.measured.requests, usage=usage or status.measured.usage,
        probing=probing or status.measured.probing,
    )  # fmt: skip
    if isinstance(verdict, GiveUp):
        remedy = failure.remedy(workload.spec.name, is_over=True)
        # The last words of a pipeline's driver may be what was said of the run of a step.
        failure_message = failure.reason.message
        message = failure_message if verdict.why in failure_message else f"{failure_message}; {verdict.why}"
        reason = replace(failure.reason, message=message, remedy=remedy)
        if not live:
            return change_to(workload, move(status, Phase.FAILED, reason, now, failures=failures, measured=measured))
        return stop(
            workload, live, Phase.FAILED, reason, reason, now, grace_s=_teardown_s(workload, reason),
            failures=failures, measured=measured,
        )  # fmt: skip
    wait = verdict.at - now
    again = "restarts at once" if wait <= 0 else f"restarts in {describe_duration(wait)}"
    origin = "" if progress is None else describe_origin(progress)
    if requests is not None:
        origin += f" with {requests.why}"
    remedy = None if requests else failure.remedy(workload.spec.name, is_over=False)
    reason = replace(failure.reason, message=f"{failure.reason.message}; it {again}{origin}", remedy=remedy)
    status = move(
        status, Phase.RESTARTING, reason, now, attempt=status.attempt + 1,
        failures=replace(failures, retry_at=verdict.at), measured=measured,
        run_time=replace(status.run_time, saved_s=ran_up_to_checkpoint_s(workload)),
    )  # fmt: skip
    return replace(change_to(workload, status), terminate=notices(live, _teardown_s(workload, reason)))


def describe_origin(progress: Progress) -> str:
    """Describe from where a run resumes."""
    disk, memory = progress.checkpoint_step, progress.memory_step
    if memory is not None and (disk is None or memory > disk):
        return f" from its checkpoint of step {memory} in memory"
    return "" if disk is None else f" from its checkpoint of step {disk}"


def _withdraw(workload: Workload, live: tuple[Pod, ...], refused: Reason, now: float) -> Change:
    """Withdraw all pods of a gang after a quota refused one, and wait for room in that quota."""
    within = describe_duration(longest_wait_s(workload.spec))
    reason = replace(refused, remedy=f"It starts by itself once there is room, at most {within} later.")
    failures = workload.status.failures
    failures = replace(failures, retry_at=retry_refused(workload, now), refusals=failures.refusals + 1)
    grace_s = _teardown_s(workload, reason)
    return stop(workload, live, Phase.PENDING, reason, reason, now, grace_s=grace_s, failures=failures)


def _tell_hang(workload: Workload, pods: tuple[Pod, ...], now: float) -> Change | None:
    """Report which rank hung and where, once, after the pods of that attempt have ended.

    A hang that the program caused counts as its failure, in place of one of the infrastructure.
    """
    status = workload.status
    hang = _hang(workload, pods, status.attempt - 1) if status.reason.code is Code.STALLED else None
    if hang is None or hang.says in status.reason.message:
        return None
    reason = _with_cause(hang, status.reason)
    failures = replace(status.failures, last=_with_cause(hang, status.failures.last or status.reason))
    if hang.is_program:
        failure = Failure(blame=Blame.PROGRAM, reason=failures.last or reason)
        failures = replace(failures, disruptions=max(0, failures.disruptions - 1))
        counted = replace(workload, status=replace(status, failures=failures))
        verdict = retry(workload.spec, counted.status, failure, workload.progress, now)
        if isinstance(verdict, GiveUp):
            return after_failure(counted, (), failure, verdict, now)
        failures = replace(failures, program=verdict.program_failures, retry_at=verdict.at)
        origin = "" if workload.progress is None else describe_origin(workload.progress)
        again = f"it restarts in {describe_duration(verdict.at - now)}{origin}"
        reason = replace(reason, message=f"{failure.reason.message}; {again}")
    new_status = replace(status, reason=reason, failures=failures)
    event = Event(type=Code.STALLED.value, reason=replace(reason, message=hang.says))
    return replace(change_to(workload, new_status), event=event)


def _hang(workload: Workload, pods: tuple[Pod, ...], attempt: int) -> hangs.HangVerdict | None:
    exits = [exit_ for pod in pods if pod.attempt == attempt for exit_ in pod.exits]
    return hangs.judge_hang(exits, workload.gang.world_size)


def _with_cause(hang: hangs.HangVerdict, reason: Reason) -> Reason:
    """Return the reason of a hang with its cause, and with what helps if that is the program."""
    message = f"{hang.says}; {reason.message}"
    return replace(reason, message=message, remedy=hangs.REMEDY if hang.is_program else reason.remedy)


def _teardown_s(workload: Workload, reason: Reason) -> float:
    """Return the grace of the remaining pods of a gang, at most that of its spec unless stacks are taken."""
    if reason.code is Code.STALLED:
        return STACKS_GRACE_S
    return min(TEARDOWN_GRACE_S, workload.spec.grace_s)


def ran_up_to_checkpoint_s(workload: Workload) -> float:
    """Return its run time up to its newest checkpoint, from which it resumes."""
    status, progress = workload.status, workload.progress
    saved_at = None if progress is None else progress.checkpoint_at
    return status.run_time.saved_s if saved_at is None else ran_until(status, saved_at)


def _is_placed_again(workload: Workload, pods: tuple[Pod, ...]) -> bool:
    """Return whether the run, without live pods, stopped only to change its size."""
    return workload.intent is Intent.RUN and is_resizing(workload.status) and not _all_ended_well(workload, pods)


def _all_ended_well(workload: Workload, pods: tuple[Pod, ...]) -> bool:
    own = [pod for pod in pods if lost_pods.is_current(pod, workload.status)]
    return len(own) == lost_pods.num_expected(workload) and all(map(lost_pods.ended_well, own))


def _settle(workload: Workload, pods: tuple[Pod, ...], snapshot: Snapshot, now: float) -> Change:
    """Return the change of a stopping workload without live pods."""
    status = workload.status
    goes_on = status.after_stop.phase in (Phase.PENDING, Phase.SUSPENDED)
    if workload.intent is Intent.DELETE and goes_on:
        after, reason = Phase.STOPPED, Reason(code=Code.STOPPED, message="stopped to be deleted")
    elif workload.intent is Intent.STOP and goes_on:
        after, reason = Phase.STOPPED, Reason(code=Code.STOPPED, message="stopped on request")
    else:
        after, reason = status.after_stop.phase or Phase.STOPPED, status.after_stop.reason or status.reason
    if after is Phase.STOPPED and workload.intent is Intent.STOP and reason.code is Code.STOPPED:
        # A trial that saved its first checkpoint at its stop is paused.
        by_parent = _stopped_by_parent(workload, snapshot)
        reason = reason if by_parent is None else replace(reason, message=by_parent, remedy=None)
    if after is not Phase.FAILED and _all_ended_well(workload, pods):
        after, reason = _outcome(workload, pods, now)
        measured = replace(status.measured, usage=used_by(workload, pods))
        return change_to(workload, move(status, after, reason, now, measured=measured))
    step = workload.progress.stopped_step if workload.progress is not None else None
    lost = checkpoints.unsaved(workload.progress)
    if step is not None:
        reason = replace(reason, message=f"{reason.message}; its checkpoint is of step {step}")
    elif lost is not None:
        reason = replace(reason, message=f"{reason.message}; {lost}")
    if after in (Phase.PENDING, Phase.SUSPENDED):
        return requeue(workload, reason.code, reason.message, now, remedy=reason.remedy)
    hang = _hang(workload, pods, status.attempt) if reason.code is Code.STALLED else None
    if hang is not None:
        failure = _with_cause(hang, status.failures.last or reason)
        failures = replace(status.failures, last=failure)
        return change_to(workload, move(status, after, _with_cause(hang, reason), now, failures=failures))
    return change_to(workload, move(status, after, reason, now))


def _keep_stopping(workload: Workload, live: tuple[Pod, ...]) -> Change | None:
    """Return stop notices for live pods without one, including pods created since."""
    return terminate(workload, live, workload.spec.grace_s)


KIND = LeafKind(spec=Training, judge=judge)
