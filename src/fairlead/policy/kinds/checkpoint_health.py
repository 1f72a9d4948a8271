"""Judges whether a run's checkpoints come as its spec promises, and a run's end if the last one failed.

The newest complete checkpoint is late when it is three intervals old. A run that saves properly is never so late: its
training waits at one interval. So this warning concerns full or slow storage, and programs that never call
``run.checkpoint``.
"""

import math
from dataclasses import replace

from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Phase, Progress, Status, Warned, Workload
from fairlead.text.quantities import describe_duration, plural

LATE_TIMES = 3
"""A checkpoint is late when the newest complete one is this many intervals old."""
LEAST_LATE_S = 60.0
"""The minimum age in seconds of a late checkpoint: before that a program may still be loading data."""
SILENT_S = 600.0
"""The limit with an interval in steps if the program reports none, and with an interval not chosen yet."""

_CALL = "Call `run.checkpoint(step)` after every step, as in docs/checkpoints.md, or take `checkpoint.every` away."


def warning(run: Workload, now: float) -> Reason | None:
    """Return the problem with a run's checkpoints; None without one, or if the run is not Running or promises none."""
    wish, status = run.spec.checkpoint, run.status
    if status.phase is not Phase.RUNNING:
        return None
    progress = run.progress
    if progress is not None and progress.updated_at < status.since:
        progress = None  # of an earlier start
    saved_at = None if progress is None else progress.checkpoint_at
    since = status.since if saved_at is None else max(status.since, saved_at)
    age_s = now - since
    if progress is not None and progress.saves_failed:
        return _failing(progress, age_s)
    if wish.every_s is not None:
        is_late, every = age_s > max(LATE_TIMES * wish.every_s, LEAST_LATE_S), describe_duration(wish.every_s)
        behind = describe_duration(age_s)
    elif wish.every_auto:
        chosen_s = None if progress is None else progress.checkpoint_interval_s
        is_late = age_s > (SILENT_S if chosen_s is None else max(LATE_TIMES * chosen_s, LEAST_LATE_S))
        every = "auto" if chosen_s is None else f"auto, now {describe_duration(chosen_s)}"
        behind = describe_duration(age_s)
    elif wish.every_steps is not None:
        every = plural(wish.every_steps, "step")
        if progress is not None and progress.step is not None:
            steps = progress.step - (progress.checkpoint_step or 0)
            is_late, behind = steps > LATE_TIMES * wish.every_steps, plural(steps, "step")
        else:
            is_late, behind = age_s > SILENT_S, describe_duration(age_s)
    else:
        return None
    if not is_late:
        return None
    if progress is None or progress.saves_failed is None:
        why, remedy = "the program has not called `run.checkpoint` yet", _CALL
    else:
        why, remedy = "no save was complete since", "If saves take that long, raise `checkpoint.every`."
        if wish.every_auto:
            remedy = "If saves take that long, the place of the checkpoints is too slow: `checkpoint.to` names another."
    message = f"no checkpoint for {behind}, although `checkpoint.every` is {every}: {why}"
    return Reason(code=Code.CHECKPOINT_LATE, message=message, remedy=remedy)


def late_at(run: Workload) -> float | None:
    """Return until when a run's checkpoints are fine if it reports nothing more; infinity for always.

    None if a problem may exist already.
    """
    wish, progress, status = run.spec.checkpoint, run.progress, run.status
    if progress is None:
        times = (None if wish.every_s is None else max(LATE_TIMES * wish.every_s, LEAST_LATE_S), SILENT_S)
        if wish.every_s is None and not wish.every_auto and wish.every_steps is None:
            return math.inf
        return status.since + (SILENT_S if times[0] is None else times[0])
    if wish.every_s is None and not wish.every_auto and wish.every_steps is None and not progress.saves_failed:
        return math.inf
    return None


def warned(run: Workload, now: float, first: Reason | None = None, *, otherwise: Reason | None = None) -> Status | None:
    """Return the status with the current warning; None if that was reported and its age has not doubled.

    Args:
        first: The warning that matters more than one about checkpoints; None for none.
        otherwise: The warning if there is no problem with the checkpoints.
    """
    current, shown, told_at = first or warning(run, now) or otherwise, run.status.warning.reason, run.status.warning.at
    if current is None:
        return None if shown is None else replace(run.status, warning=Warned())
    is_known = shown is not None and shown.code is current.code
    if is_known and told_at is not None and now - run.status.since < 2 * (told_at - run.status.since):
        return None
    return replace(run.status, warning=Warned(reason=current, at=now))


def unsaved(progress: Progress | None) -> str | None:
    """Return that the last checkpoint could not be saved and which one exists, as a clause; None if it was saved."""
    if progress is None or not progress.saves_failed or progress.save_failed_step is None:
        return None
    newest = "there is no complete one"
    if progress.checkpoint_step is not None:
        newest = f"the newest complete one is of step {progress.checkpoint_step}"
    problem = progress.save_problem or "cause unknown"
    return f"its last checkpoint (step {progress.save_failed_step}) could not be saved: {problem}; {newest}"


def _failing(progress: Progress, age_s: float) -> Reason:
    assert progress.saves_failed
    saves = plural(progress.saves_failed, "save")
    message = (
        f"no checkpoint for {describe_duration(age_s)}: {saves} failed: {progress.save_problem or 'cause unknown'}"
    )
    newest = progress.checkpoint_step
    origin = "from the beginning" if newest is None else f"from step {newest}"
    remedy = f"Fix that; the next save is tried when it is due. Until one is complete, a restart continues {origin}."
    return Reason(code=Code.CHECKPOINT_FAILING, message=message, remedy=remedy)
