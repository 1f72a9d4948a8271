"""Defines the lifecycle of a workload as one table of all transitions between phases. Any other transition is a bug."""

from collections.abc import Mapping
from typing import Any

from fairlead.frozen import replace
from fairlead.state.reasons import Reason
from fairlead.state.run_times import active_until, ran_until
from fairlead.state.snapshot import AfterStop, Phase, Status, Warned

MOVES: dict[tuple[Phase, Phase], str] = {
    (Phase.PENDING, Phase.STARTING): "the whole gang was placed",
    (Phase.PENDING, Phase.SUSPENDED): "suspended before it started",
    (Phase.PENDING, Phase.STOPPED): "stopped before it started",
    (Phase.PENDING, Phase.FAILED): "no node can ever hold it, or its time is over",
    (Phase.STARTING, Phase.RUNNING): "every rank was started",
    (Phase.STARTING, Phase.SUCCEEDED): "all ranks succeeded before it was seen running",
    (Phase.STARTING, Phase.RESTARTING): "the start failed and may be repeated",
    (Phase.STARTING, Phase.STOPPING): "asked to stop, or failing for good while pods live",
    (Phase.STARTING, Phase.FAILED): "failed for good, no pod lives",
    (Phase.RUNNING, Phase.SUCCEEDED): "every rank ended with exit code 0",
    (Phase.RUNNING, Phase.RESTARTING): "a failure that may be retried",
    (Phase.RUNNING, Phase.STOPPING): "asked to stop, or failing for good while pods live",
    (Phase.RUNNING, Phase.FAILED): "failed for good, no pod lives",
    (Phase.RESTARTING, Phase.STARTING): "the whole gang was placed again",
    (Phase.RESTARTING, Phase.PENDING): "it waits for room",
    (Phase.RESTARTING, Phase.SUSPENDED): "suspended between two starts",
    (Phase.RESTARTING, Phase.STOPPING): "asked to stop while pods of the failed start live",
    (Phase.RESTARTING, Phase.STOPPED): "stopped between two starts",
    (Phase.RESTARTING, Phase.FAILED): "its time is over, or no node can hold it any more",
    (Phase.STOPPING, Phase.STARTING): "it stopped to change its size, and was placed again",
    (Phase.STOPPING, Phase.STOPPED): "no pod lives any more",
    (Phase.STOPPING, Phase.FAILED): "no pod lives any more, and it had failed for good",
    (Phase.STOPPING, Phase.PENDING): "no pod lives any more, and it waits to be placed again",
    (Phase.STOPPING, Phase.SUSPENDED): "no pod lives any more, and it was asked to suspend",
    (Phase.STOPPING, Phase.SUCCEEDED): "all ranks had succeeded when the stop notice came",
    (Phase.SUSPENDED, Phase.PENDING): "resumed",
    (Phase.SUSPENDED, Phase.STOPPED): "stopped while suspended",
    (Phase.STOPPED, Phase.PENDING): "resumed",
    (Phase.FAILED, Phase.PENDING): "resumed",
}

PARENT_MOVES: dict[tuple[Phase, Phase], str] = {
    (Phase.PENDING, Phase.RUNNING): "its kind has judged it for the first time",
    (Phase.PENDING, Phase.STOPPING): "asked to stop, or over, while children are not",
    (Phase.PENDING, Phase.SUSPENDED): "suspended before anything was submitted",
    (Phase.PENDING, Phase.STOPPED): "stopped before anything was submitted",
    (Phase.PENDING, Phase.SUCCEEDED): "there was nothing to do, or nothing left",
    (Phase.PENDING, Phase.FAILED): "it cannot go on",
    (Phase.RUNNING, Phase.STOPPING): "asked to stop, or over, while children are not",
    (Phase.RUNNING, Phase.SUSPENDED): "suspended while no child ran",
    (Phase.RUNNING, Phase.STOPPED): "stopped while no child ran",
    (Phase.RUNNING, Phase.SUCCEEDED): "it has what was wanted",
    (Phase.RUNNING, Phase.FAILED): "it cannot go on",
    (Phase.STOPPING, Phase.SUSPENDED): "all children are over or Suspended",
    (Phase.STOPPING, Phase.STOPPED): "all children are over",
    (Phase.STOPPING, Phase.SUCCEEDED): "all children are over, and it had what was wanted",
    (Phase.STOPPING, Phase.FAILED): "all children are over, and it could not go on",
    (Phase.SUSPENDED, Phase.PENDING): "resumed",
    (Phase.SUSPENDED, Phase.STOPPING): "stopped while suspended, as its children are",
    (Phase.SUSPENDED, Phase.STOPPED): "stopped while suspended",
    (Phase.STOPPED, Phase.PENDING): "resumed",
    (Phase.FAILED, Phase.PENDING): "resumed",
    (Phase.SUCCEEDED, Phase.PENDING): "its spec was changed, so that more is to be done",
}
"""The lifecycle of a parent, which follows its children: it never starts, and fails only for good."""


def move(status: Status, to: Phase, reason: Reason, now: float, **changes: Any) -> Status:
    """Return the status after a transition; ``changes`` are further fields of Status.

    Raises:
        ValueError: The table has no such transition.
    """
    if status.phase is Phase.RUNNING and to in (Phase.STOPPING, Phase.SUCCEEDED):
        changes.setdefault("run_time", replace(status.run_time, saved_s=ran_until(status, now)))
    if status.phase is Phase.RUNNING:  # nodes were requested for pods that it had lost
        changes["queue"] = changes.get("queue", status.queue).without_request()
    changes["warning"] = Warned()
    return _move(MOVES, status, to, reason, now, changes)


def move_parent(status: Status, to: Phase, reason: Reason, now: float, **changes: Any) -> Status:
    """Return the status of a parent after a transition, as ``move`` does, by the table of parents."""
    return _move(PARENT_MOVES, status, to, reason, now, changes)


def _move(
    moves: Mapping[tuple[Phase, Phase], str],
    status: Status,
    to: Phase,
    reason: Reason,
    now: float,
    changes: dict[str, Any],
) -> Status:
    if (status.phase, to) not in moves:
        raise ValueError(f"no move from {status.phase} to {to}")
    changes["run_time"] = replace(changes.get("run_time", status.run_time), active_s=active_until(status, now))
    if changes.get("attempt", status.attempt) != status.attempt:
        changes["failures"] = replace(changes.get("failures", status.failures), lost_pods=())
    moved = replace(status, phase=to, reason=reason, since=now, after_stop=AfterStop(), **changes)
    return replace(moved, finished_at=now) if to.is_final else moved
