"""Replaces the spec of an existing run or sweep: when that is allowed, what must stay, and the effect on its status.

The spec of a run changes only while no pod of it is alive or about to be, so that all pods of an attempt have the same
spec. That of a sweep changes at any time, but only in how many trials there are, so that all trials can be compared.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from fairlead.errors import Conflict
from fairlead.policy.kinds.sweep import detail_of, why_at_its_end
from fairlead.specs.formats.differences import Difference, differences
from fairlead.specs.sweep import CHANGEABLE_KEYS, Sweep
from fairlead.specs.training import Training
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.plan import Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AnyWorkload, ElasticSize, Phase, Status, Workload
from fairlead.text.quantities import plural

CHANGEABLE = (Phase.PENDING, Phase.SUSPENDED, Phase.FAILED, Phase.STOPPED)
CHANGED = "Changed"
PLACE_STAYS = (
    "its checkpoints are there, so it would start at step 0. Set `checkpoint.from` too to start from another checkpoint"
)


def check_update(run: AnyWorkload, spec: WorkloadSpec) -> tuple[Difference, ...]:
    """Return the changes in a new spec of a run or sweep; empty if it equals the current one.

    Raises:
        Conflict: The run's phase does not allow it, a fixed value differs, or it is of another kind.
    """
    if isinstance(spec, Sweep) is not isinstance(run.spec, Sweep) or not isinstance(run.spec, Training | Sweep):
        raise Conflict(f"{run.spec.name} is a {type(run.spec).__name__}, and no {type(spec).__name__}.")
    diffs = differences(run.spec, spec)
    if not diffs:
        return ()
    if isinstance(spec, Sweep):
        _check_sweep(cast("Workload[Sweep]", run), spec, diffs)
        return diffs
    assert isinstance(spec, Training), "checked above"
    check_phase(run)
    for difference in diffs:
        why = _why_it_stays(run, spec, difference.key)
        if why is not None:
            raise Conflict(
                f"{run.spec.name}: {difference.key} cannot change ({difference.old} -> {difference.new}): {why}."
            )
    return diffs


def _check_sweep(sweep: Workload[Sweep], spec: Sweep, changes: Iterable[Difference]) -> None:
    name, num_submitted = spec.name, detail_of(sweep).submitted
    fixed = [difference for difference in changes if difference.key.partition(".")[0] not in CHANGEABLE_KEYS]
    if fixed:
        keys = ", ".join(f"`{key}`" for key in CHANGEABLE_KEYS)
        raise Conflict(
            f"{name}: {fixed[0].key} cannot change ({fixed[0].old} -> {fixed[0].new}): its trials could not be "
            f"compared with those before. Only {keys} may; `fairlead run` submits it as a new sweep."
        )
    if spec.engine is not None:
        raise Conflict(f"{name}: its trials are chosen by {spec.engine}, which was told of them when it began.")
    if spec.trials is not None and spec.trials < num_submitted:
        raise Conflict(f"{name}: trials: {spec.trials} is fewer than it has had, {plural(num_submitted, 'trial')}.")
    if sweep.status.phase is Phase.SUCCEEDED and (why := why_at_its_end(sweep, spec)) is not None:
        raise Conflict(f"{name} has succeeded: {why}.")


def check_phase(run: AnyWorkload) -> None:
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
    failures = replace(
        status.failures, program=0, disruptions=0, last=None, step=None, retry_at=None, refusals=0
    )  # fmt: skip
    return replace(
        status, failures=failures, queue=status.queue.without_request(), size=ElasticSize(),
        migration=replace(status.migration, seats=()), measured=replace(status.measured, requests=None),
    )  # fmt: skip


def changed(diffs: Iterable[Difference]) -> Event:
    """Return the event of a spec change."""
    return Event(type=CHANGED, reason=Reason(code=Code.SPEC_CHANGED, message=", ".join(map(str, diffs))))


def changed_meanwhile(name: str) -> str:
    """Return the error for a spec based on a version of the run that has changed since."""
    return f"{name} has changed while its new spec was made; look at it with `fairlead status {name}`, then try again."


def _why_it_stays(run: AnyWorkload, spec: Training, key: str) -> str | None:
    if key == "name":
        return "its logs, checkpoints and history are stored under it. Submit a new run under the new name"
    if key == "team":
        return "the team is where it was submitted to. Submit a new run there"
    if key == "checkpoint.to" and has_saved(run) and spec.checkpoint.origin is None:
        return PLACE_STAYS
    return None


def has_saved(run: AnyWorkload) -> bool:
    """Return whether the run has reported a checkpoint."""
    return run.progress is not None and run.progress.checkpoint_step is not None
