"""Restarts a run with edited code, for whoever follows edits; no failure is counted. See decision 231."""

from dataclasses import replace

from fairlead.policy.kinds.training import TEARDOWN_GRACE_S, describe_origin, ran_up_to_checkpoint_s
from fairlead.policy.queue.changes import change_to, notices
from fairlead.state.phase_transitions import move
from fairlead.state.plan import Change, Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Pod, Workload
from fairlead.text.lists import listed

MOST_NAMED = 3


def restart(workload: Workload, live: tuple[Pod, ...], edited: tuple[str, ...], code: str, now: float) -> Change | None:
    """Return the change that restarts a run with new code as its next attempt; None if the run has no pods to restart.

    Args:
        edited: Paths of the files that differ from those of the running attempt.
        code: Name of the new code, from which a record of the attempt follows.
    """
    status = workload.status
    if workload.intent is not Intent.RUN or status.phase not in (Phase.STARTING, Phase.RUNNING, Phase.RESTARTING):
        return None
    named = listed(edited, MOST_NAMED)
    attempt = status.attempt + (status.phase is not Phase.RESTARTING)
    verb = "was" if len(edited) == 1 else "were"
    origin = "" if workload.progress is None else describe_origin(workload.progress)
    reason = Reason(
        code=Code.CODE_EDITED,
        message=f"{named or 'code'} {verb} edited; attempt {attempt} runs the code as of now ({code}){origin}",
    )
    failures = replace(status.failures, retry_at=now)
    if status.phase is Phase.RESTARTING:
        again = replace(status, reason=reason, failures=failures)
    else:
        run_time = replace(status.run_time, saved_s=ran_up_to_checkpoint_s(workload))
        again = move(status, Phase.RESTARTING, reason, now, attempt=attempt, failures=failures, run_time=run_time)
    return replace(
        change_to(workload, again),
        terminate=notices(live, min(TEARDOWN_GRACE_S, workload.spec.grace_s)),
        event=Event(type=reason.code.value, reason=reason),
    )
