"""Judges one replica of an endpoint: a gang whose program should run until it is stopped.

It differs from a training run in three ways. It is Running only once its probe succeeds. Any exit of its program counts
as a failure. And it is restarted for as long as it is wanted, with growing delays: its endpoint judges whether a
revision works.
"""

from dataclasses import replace

from fairlead.policy.kinds import training
from fairlead.policy.kinds.failures import Blame, Failure, diagnose
from fairlead.policy.kinds.record import LeafKind
from fairlead.policy.kinds.retries import Again
from fairlead.policy.queue.changes import change_to
from fairlead.specs.serving import Replica
from fairlead.state.phase_transitions import move
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Pod, PodPhase, Snapshot, Workload

# A replica that has served for this long failed for another reason than before: it is restarted at once.
STEADY_S = 60.0


def judge(workload: Workload, pods: tuple[Pod, ...], snapshot: Snapshot, now: float) -> Change | None:
    """Return the change that a replica needs apart from placement, or None."""
    status = workload.status
    if workload.intent is not Intent.RUN or status.phase not in (Phase.STARTING, Phase.RUNNING):
        return training.judge(workload, pods, snapshot, now)
    own = tuple(pod for pod in pods if pod.attempt == status.attempt)
    failure = _ended_by_itself(own) or diagnose(workload.gang, own, snapshot.nodes, workload.progress, now)
    if failure is not None and failure.blame is not Blame.QUOTA:
        live = tuple(pod for pod in pods if not pod.phase.is_final)
        return training.after_failure(workload, live, failure, restart_of(workload, now), now)
    change = training.judge(workload, pods, snapshot, now)
    after = None if change is None or change.status is None else change.status.phase
    if status.phase is Phase.STARTING and after is Phase.RUNNING:
        return wait_for_probe(workload, own, now)
    return change


def _ended_by_itself(own: tuple[Pod, ...]) -> Failure | None:
    ended = next((pod for pod in own if pod.phase is PodPhase.SUCCEEDED and pod.terminating_since is None), None)
    if ended is None:
        return None
    reason = Reason(
        code=Code.PROGRAM_FAILED,
        message="its server ended by itself, with exit code 0",
        remedy="A server has to stay in the foreground for as long as it serves.",
    )
    return Failure(blame=Blame.PROGRAM, reason=reason)


def restart_of(workload: Workload, now: float) -> Again:
    """Return when it starts again: at once after it has served for a while, else after a delay that doubles."""
    status, spec = workload.status, workload.spec
    steady = status.phase is Phase.RUNNING and now - status.since >= STEADY_S
    count = 1 if steady else status.failures.disruptions + 1
    wait_s = 0.0 if count == 1 else min(spec.retry.max_backoff_s, spec.retry.backoff_s * 2.0 ** min(count - 2, 30))
    return Again(at=now + wait_s, program_failures=status.failures.program, disruptions=count)


def wait_for_probe(workload: Workload, own: tuple[Pod, ...], now: float) -> Change | None:
    """Return the change to Running of a started server if its probe succeeds; else the reason why it is not ready.

    A server without a probe is ready once it has started.
    """
    status = workload.status
    probe: str | None = getattr(workload.spec, "probe", "/")
    if probe is None or all(pod.ready for pod in own):
        state = "its server has started, and has no probe" if probe is None else "it answers its probe"
        reason = Reason(code=Code.RANKS_STARTED, message=state)
        return change_to(workload, move(status, Phase.RUNNING, reason, now))
    message = next((pod.message for pod in own if pod.message is not None and not pod.ready), None)
    reason = Reason(code=Code.NOT_READY, message=message or f"its server has started; waits for an answer on {probe}")
    if status.reason == reason:
        return None
    changed = change_to(workload, replace(status, reason=reason))
    # One event only: the message changes from try to try.
    return replace(changed, event=None) if status.reason.code is Code.NOT_READY else changed


KIND = LeafKind(spec=Replica, judge=judge)
