"""Replaces the spec of an existing run: when that is allowed, what must stay, and the effect on its status.

A spec changes only while no pod of the run is alive or about to be, so that all pods of an attempt have the same spec.
"""

from collections.abc import Iterable
from dataclasses import replace

from fairlead.errors import Conflict
from fairlead.specs.formats.differences import Difference, differences
from fairlead.specs.training import Training
from fairlead.state.plan import Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Phase, Status, Workload

CHANGEABLE = (Phase.PENDING, Phase.SUSPENDED, Phase.FAILED, Phase.STOPPED)
CHANGED = "Changed"
PLACE_STAYS = (
    "its checkpoints are there, so it would start at step 0. Set `checkpoint.from` too to start from another checkpoint"
)


def check_update(run: Workload, spec: Training) -> tuple[Difference, ...]:
    """Return the changes in a new spec; empty if it equals the current one.

    Raises:
        Conflict: The run's phase does not allow it, or a fixed value differs.
    """
    found = differences(run.spec, spec)
    if not found:
        return ()
    check_phase(run)
    for difference in found:
        why = _why_it_stays(run, spec, difference.key)
        if why is not None:
            raise Conflict(
                f"{run.spec.name}: {difference.key} cannot change ({difference.old} -> {difference.new}): {why}."
            )
    return found


def check_phase(run: Workload) -> None:
    """Refuse a change of a run with possibly live pods, or which is over for good.

    Raises:
        Conflict: The change is refused.
    """
    name, phase = run.spec.name, run.status.phase
    if phase is Phase.SUCCEEDED:
        raise Conflict(
            f"{name} has succeeded, so there is nothing left to do, and its spec cannot change. `fairlead run` submits "
            "it as a new run."
        )
    if phase not in CHANGEABLE:
        raise Conflict(
            f"{name} is {phase.value} with the spec that it was started with. Suspend it first: "
            f"`fairlead suspend {name}`, then `fairlead resume {name}` with the same changes."
        )


def updated_status(status: Status) -> Status:
    """Return the status with a new spec: decisions for the old one are void, and its failures no longer count."""
    return replace(
        status, program_failures=0, disruptions=0, last_failure=None, failed_step=None, retry_at=None, refusals=0,
        asked_at=None, ask_again_at=None, seats=(), nodes=None, room_since=None, requests=None, is_kept_small=False,
    )  # fmt: skip


def changed(found: Iterable[Difference]) -> Event:
    """Return the event of a spec change."""
    return Event(type=CHANGED, reason=Reason(code=Code.SPEC_CHANGED, message=", ".join(map(str, found))))


def changed_meanwhile(name: str) -> str:
    """Return the error for a spec based on a version of the run that has changed since."""
    return f"{name} has changed while its new spec was made; look at it with `fairlead status {name}`, then try again."


def _why_it_stays(run: Workload, spec: Training, key: str) -> str | None:
    if key == "name":
        return "its logs, checkpoints and history are stored under it. Submit a new run under the new name"
    if key == "team":
        return "the team is where it was submitted to. Submit a new run there"
    if key == "checkpoint.to" and has_saved(run) and spec.checkpoint.origin is None:
        return PLACE_STAYS
    return None


def has_saved(run: Workload) -> bool:
    """Return whether the run has reported a checkpoint."""
    return run.progress is not None and run.progress.checkpoint_step is not None
