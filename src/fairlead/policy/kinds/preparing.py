"""Lets a run wait while its environment is being made, and ends it when that failed. See decision 227.

Nothing is held for the run meanwhile: it is placed once its environment is complete.
"""

from dataclasses import replace

from fairlead.policy.queue.changes import change_to
from fairlead.state.phase_transitions import move
from fairlead.state.plan import Change, Event
from fairlead.state.preparations import Preparation
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Phase, Workload


def wait(workload: Workload, preparation: Preparation, now: float) -> Change | None:
    """Return the change of a run that has no live pod and no complete environment; None if all of it is recorded."""
    status = workload.status
    if preparation.has_failed:
        remedy = preparation.remedy or f"Correct `environment`; then `fairlead resume {workload.spec.name}`."
        failed = Reason(code=Code.ENVIRONMENT_FAILED, message=preparation.message, remedy=remedy)
        return change_to(workload, move(status, Phase.FAILED, failed, now))
    reason = Reason(code=Code.PREPARING, message=f"its environment is being prepared: {preparation.message}")
    if status.reason == reason:
        return None
    # Its progress is a reason, and no event of its own.
    is_first = status.reason.code is not Code.PREPARING
    event = Event(type="Preparing", reason=reason) if is_first else None
    return replace(change_to(workload, replace(status, reason=reason)), event=event)
