"""Says which intents a workload may get, whether it is over, and how statuses of earlier versions read now."""

from dataclasses import replace
from typing import TYPE_CHECKING

from fairlead.deferred import deferred
from fairlead.errors import Conflict
from fairlead.policy.kinds.table import parent_of
from fairlead.state.reasons import Code
from fairlead.state.snapshot import AnyWorkload, Intent, Phase, Status

if TYPE_CHECKING:
    from fairlead.specs import sweep
else:
    sweep = deferred("fairlead.specs.sweep")


def check_intent(run: AnyWorkload, intent: Intent) -> None:
    """Refuse an intent that a run can no longer fulfil.

    Raises:
        Conflict: The run is over, or about to be.
    """
    name, phase = run.spec.name, run.status.phase
    if intent is Intent.SUSPEND and phase.is_final:
        raise Conflict(f"{name} is {phase.value}; only an unfinished run can be suspended.")
    if intent is Intent.RUN and phase is Phase.SUCCEEDED:
        raise Conflict(f"{name} has succeeded; there is nothing left to do. {_anew(run)}")
    if intent is Intent.RUN:
        check_not_ending(run)


def check_not_ending(run: AnyWorkload) -> None:
    """Refuse to resume a run that is about to end although it is to run.

    Raises:
        Conflict: It is.
    """
    name, phase, after = run.spec.name, run.status.phase, run.status.after_stop.phase
    # The intent is RUN already, so that setting it again would have no effect.
    if run.intent is Intent.RUN and phase is Phase.STOPPING and after is not None and after.is_final:
        raise Conflict(f"{name} is not yet {after.value}: {run.status.reason.message}; resume it when it is.")


def _anew(run: AnyWorkload) -> str:
    if isinstance(run.spec, sweep.Sweep):
        more = min(2 * run.spec.num_trials, sweep.MAX_TRIALS)
        if has_more(replace(run, spec=replace(run.spec, trials=more))):
            return f"`fairlead resume {run.spec.name} --set trials={more}` tries more of the same search."
    return "`fairlead run` submits it as a new run."


def is_over(run: AnyWorkload) -> bool:
    """Return whether a run has ended and was not resumed since; an unprocessed resume counts."""
    phase = run.status.phase
    if not phase.is_final or run.intent is not Intent.RUN:
        return phase.is_final
    return phase is Phase.SUCCEEDED and not has_more(run)


def has_more(run: AnyWorkload) -> bool:
    """Return whether a run that has succeeded has more to do, by a spec that has changed since."""
    kind = parent_of(run.spec)
    return kind is not None and kind.has_more is not None and kind.has_more(run)


def upgraded(status: Status) -> Status:
    """Convert a status from an older version, in which a suspended run was Pending with that reason."""
    after, why = status.after_stop.phase, status.after_stop.reason
    if status.phase is Phase.PENDING and status.reason.code is Code.SUSPENDED:
        return replace(status, phase=Phase.SUSPENDED)
    if after is Phase.PENDING and why is not None and why.code is Code.SUSPENDED:
        return replace(status, after_stop=replace(status.after_stop, phase=Phase.SUSPENDED))
    return status
