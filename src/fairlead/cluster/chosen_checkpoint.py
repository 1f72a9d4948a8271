"""Chooses the checkpoint of a run, or of a sweep's best trial, that a reference means."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairlead.cluster.client import ClusterClient
from fairlead.errors import Conflict, NotFound
from fairlead.frozen import dataclass
from fairlead.policy.kinds.parents import child_name
from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.sweep import trials_of
from fairlead.policy.search.trials import TrialState, ranked
from fairlead.specs.goal import Goal
from fairlead.specs.model_reference import BEST, LATEST, ModelReference
from fairlead.specs.sweep import Sweep
from fairlead.specs.training import Training
from fairlead.state.series import Point, usual_goal
from fairlead.state.snapshot import Workload

MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCheckpoint:
    """The complete checkpoint that a reference resolves to.

    Attributes:
        run: The run that saved it; for a sweep, the trial.
        newest: The newest step of this run with a complete checkpoint.
        metrics: The last reported values up to its step.
        objective: The metric by which the checkpoints are compared, with its goal.
    """

    run: Workload
    step: int
    newest: int
    metrics: dict[str, float]
    objective: tuple[str, Goal] | None


def choose(
    cluster: ClusterClient,
    reference: ModelReference,
    workload: Workload[Any],
    steps_of: Callable[[Workload], Sequence[int]],
) -> ChosenCheckpoint:
    """Choose the checkpoint that a reference to a run means.

    Args:
        workload: The workload of that name.
        steps_of: Lists the steps of which a run has complete checkpoints, ascending.

    Raises:
        NotFound: There is none.
        Conflict: The workload is not a run with checkpoints, or its checkpoints are out of reach.
    """
    objective: tuple[str, Goal] | None = None
    run = workload
    if isinstance(workload.spec, Sweep):
        if workload.spec.objective is not None:
            objective = workload.spec.objective.metric, workload.spec.objective.goal
        run = best_trial(cluster, workload, reference)
    if not isinstance(run.spec, Training):
        raise Conflict(f"{workload.spec.name} is a {type(workload.spec).__name__} and has no checkpoints; name a run.")
    name = run.spec.name
    steps = list(steps_of(run))
    if not steps:
        raise NotFound(
            f"The run {name} has no complete checkpoint. Name one that has; "
            f"`fairlead status {cluster.named(run)}` tells."
        )
    series = cluster.series(run.uid)
    if objective is None and "loss" in series:
        objective = "loss", usual_goal("loss")
    step = _step(reference, name, steps, series, objective, is_trial=run is not workload)
    metrics = {metric: value for metric, points in series.items() if (value := value_at(points, step)) is not None}
    return ChosenCheckpoint(run=run, step=step, newest=steps[-1], metrics=metrics, objective=objective)


def best_trial(cluster: ClusterClient, sweep: Workload[Any], reference: ModelReference) -> Workload[Any]:
    """Return the best trial of a sweep among those that succeeded.

    Raises:
        NotFound: No trial succeeded.
        Conflict: The reference does not ask for the best trial.
    """
    name = sweep.spec.name
    if reference.which != BEST:
        raise Conflict(f"{name} is a Sweep. `run://{name}@best` is its best trial; or name a trial, {name}-0.")
    assert isinstance(sweep.spec, Sweep)
    if sweep.spec.objective is None:
        raise NotFound(f"{name} has no objective, so that none of its runs is better than another; name one of them.")
    children = {child.spec.name.removeprefix(child_name(sweep, "")): child for child in cluster.children(sweep.uid)}
    trials = ranked(trials_of(sweep, Family(children=children)), sweep.spec.objective.goal)
    best = next((trial for trial in trials if trial.state is TrialState.SUCCEEDED), None)
    if best is None:
        raise NotFound(f"No trial of {name} has succeeded yet.")
    return children[str(best.number)]


def value_at(points: tuple[Point, ...], step: int) -> float | None:
    """Return the last value reported up to a step; None without one."""
    known = [point for point in points if point.step is not None and point.step <= step]
    return max(known, key=lambda point: (point.step or 0, point.attempt, point.at)).value if known else None


def _step(
    reference: ModelReference,
    name: str,
    steps: list[int],
    series: Mapping[str, tuple[Point, ...]],
    objective: tuple[str, Goal] | None,
    *,
    is_trial: bool,
) -> int:
    """Return the step that a reference means, among those with a complete checkpoint."""
    number = reference.number
    if number is not None:
        if number not in steps:
            available = ", ".join(map(str, steps[-MOST_NAMED:]))
            raise NotFound(f"The run {name} has no complete checkpoint of step {number}; it has: {available}.")
        return number
    if reference.which == LATEST or is_trial:
        return steps[-1]
    if objective is None:
        raise NotFound(f"The run {name} reported no loss, so none of its checkpoints is better than another.")
    metric, goal = objective
    values = {step: value for step in steps if (value := value_at(series[metric], step)) is not None}
    return min(values, key=lambda step: (goal.sign * values[step], -step), default=steps[-1])
