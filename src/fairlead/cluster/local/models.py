"""Finds a model on this machine that somebody refers to: a version that was pushed, or a run's checkpoint."""

import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.cluster.local.pod_spec import checkpoint_place
from fairlead.errors import Conflict, NotFound
from fairlead.policy.kinds.parents import child_name
from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.sweep import trials_of
from fairlead.policy.search.trials import TrialState, ranked
from fairlead.runtime.checkpoint.directory import Directory
from fairlead.runtime.checkpoint.store import step_name
from fairlead.runtime.places import is_url
from fairlead.specs.goal import Goal
from fairlead.specs.model_reference import BEST, FORMS, LATEST, RUN_SCHEME, ModelReference, read_reference
from fairlead.specs.sweep import Sweep
from fairlead.specs.training import Training
from fairlead.state.models import Content, ModelVersion, best_version
from fairlead.state.series import Point, usual_goal
from fairlead.state.snapshot import Workload

if TYPE_CHECKING:
    from fairlead.cluster.local.cluster import LocalCluster

MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """A model that is on this machine.

    Attributes:
        said: Which it is, in a few words.
        path: The file or directory itself; of a checkpoint the directory of its step.
        content: What is there.
        place: A directory that has this checkpoint and no other, for ``checkpoint.from``; None for other content.
        version: What was pushed; None for a run's checkpoint.
        run: Whose checkpoint it is; None for a version.
        step: Of a run's checkpoint.
        metrics: What it reached, as far as that is known.
        objective: The metric by which it compares with others, and which values of that are good ones.
    """

    said: str
    path: Path
    content: Content
    place: Path | None = None
    version: ModelVersion | None = None
    run: Workload | None = None
    step: int | None = None
    metrics: dict[str, float]
    objective: tuple[str, Goal] | None = None


def resolve(cluster: "LocalCluster", text: str, team: str | None = None) -> ResolvedModel:
    """The model that a reference means now.

    Args:
        text: NAME@STAGE, NAME@best, NAME@latest, NAME@VERSION, run://NAME, run://NAME@best or run://NAME@STEP.
        team: Of the run; None for any.

    Raises:
        NotFound: It is no reference, or there is no such model, version or checkpoint.
        Conflict: What it means is not on this machine, or is several things.
    """
    reference = read_reference(text)
    if reference is None:
        raise NotFound(f"{text!r} is no model. Give {FORMS}.")
    if reference.is_run:
        return resolve_run(cluster, reference, cluster.find(reference.name, team))
    return _of_version(cluster, find_version(cluster, reference))


def path_of(cluster: "LocalCluster", text: str, team: str | None, base: Path) -> Path:
    """Find the place on this machine of a model that is given by a reference or as a path.

    Args:
        base: To which a relative path is relative.

    Raises:
        NotFound: There is no such model, version, checkpoint, file or directory.
        Conflict: It is not on this machine, or is several things.
    """
    if text.startswith(RUN_SCHEME) or read_reference(text) is not None:
        return resolve(cluster, text, team).path
    if is_url(text):
        raise Conflict(f"{text} is not on this machine. Give a path, {FORMS}.")
    path = Path(os.path.normpath(base / Path(text).expanduser()))
    if not path.exists():
        raise NotFound(f"{path} is not there. Correct the path, or train it first.")
    return path


def find_version(cluster: "LocalCluster", reference: ModelReference) -> ModelVersion:
    """The version that a reference to a pushed model means now.

    Raises:
        NotFound: There is none.
    """
    name, which = reference.name, reference.which
    versions = cluster.models(name)
    if not versions:
        names = sorted({each.name for each in cluster.models()})
        near = difflib.get_close_matches(name, names, MOST_NAMED) or names[:MOST_NAMED]
        known = f"; there are: {', '.join(near)}" if near else ""
        raise NotFound(f"No model is named {name!r}{known}. `fairlead model push {name} RUN` makes a version of one.")
    if which == LATEST:
        return versions[-1]
    if which == BEST:
        best = best_version(versions)
        if best is None:
            raise NotFound(
                f"No version of {name} has a metric by which it is better than others. "
                f"Push one with --objective, such as `fairlead model push {name} RUN --objective loss`."
            )
        return best
    number = reference.number
    found = next((each for each in versions if each.version == number or each.stage == which), None)
    if found is None:
        there = ", ".join(f"{each.version}" + (f" ({each.stage})" * (each.stage is not None)) for each in versions)
        what = f"no version {which}" if number is not None else f"no version at the stage {which!r}"
        remedy = (
            "" if number is not None else f" `fairlead model promote {name}@best --to {which}` gives one that stage."
        )
        raise NotFound(f"{name} has {what}; it has: {there}.{remedy}")
    return found


def _of_version(cluster: "LocalCluster", version: ModelVersion) -> ResolvedModel:
    kept = cluster.home.artefact(version.digest)
    if not os.path.lexists(kept):
        raise Conflict(f"The content of {version} is gone: {kept} is not there. Push it again.")
    place = kept if version.content is Content.CHECKPOINT else None
    steps = Directory(kept).steps() if place is not None else []
    if place is not None and not steps:
        raise Conflict(f"The content of {version} is damaged: {kept} has no checkpoint any more. Push it again.")
    objective = None if version.objective is None or version.goal is None else (version.objective, version.goal)
    return ResolvedModel(
        said=str(version) + (f", {version.stage}" if version.stage is not None else ""),
        path=kept / step_name(steps[-1]) if steps else kept,
        content=version.content,
        place=place,
        version=version,
        step=steps[-1] if steps else None,
        metrics=dict(version.metrics),
        objective=objective,
    )


def resolve_run(cluster: "LocalCluster", reference: ModelReference, found: Workload[Any]) -> ResolvedModel:
    """The checkpoint of a run that is meant, or of a sweep's best trial.

    Raises:
        NotFound: There is none.
        Conflict: It is not on this machine, or a run with checkpoints is not what is meant.
    """
    objective: tuple[str, Goal] | None = None
    run = found
    if isinstance(found.spec, Sweep):
        if found.spec.objective is not None:
            objective = found.spec.objective.metric, found.spec.objective.goal
        run = best_trial(cluster, found, reference)
    if not isinstance(run.spec, Training):
        raise Conflict(f"{found.spec.name} is a {type(found.spec).__name__} and has no checkpoints; name a run.")
    name = run.spec.name
    place = checkpoint_place(cluster.home, run)
    if is_url(place) and not place.startswith("file://"):
        raise Conflict(f"The checkpoints of {name} are in {place}, not on this machine; only those here can be used.")
    root = Path(place.removeprefix("file://"))
    steps = Directory(root).steps()
    if not steps:
        raise NotFound(f"The run {name} has no complete checkpoint. Name one that has; `fairlead status {name}` tells.")
    series = cluster.series(run.uid)
    if objective is None and "loss" in series:
        objective = "loss", usual_goal("loss")
    step = _step(reference, name, steps, series, objective, is_trial=run is not found)
    return ResolvedModel(
        said=f"the checkpoint of {name} at step {step}",
        path=root / step_name(step),
        content=Content.CHECKPOINT,
        place=root if step == steps[-1] else _only(cluster, run.uid, root, step),
        run=run,
        step=step,
        metrics={metric: value for metric, points in series.items() if (value := _value_at(points, step)) is not None},
        objective=objective,
    )


def best_trial(cluster: "LocalCluster", found: Workload[Any], reference: ModelReference) -> Workload[Any]:
    """The trial of a sweep that is the best of those that succeeded.

    Raises:
        NotFound: None is.
        Conflict: Another one is meant.
    """
    name = found.spec.name
    if reference.which != BEST:
        raise Conflict(f"{name} is a Sweep. `run://{name}@best` is its best trial; or name a trial, {name}-0.")
    assert isinstance(found.spec, Sweep)
    if found.spec.objective is None:
        raise NotFound(f"{name} has no objective, so that none of its runs is better than another; name one of them.")
    children = {child.spec.name.removeprefix(child_name(found, "")): child for child in cluster.children(found.uid)}
    trials = ranked(trials_of(found, Family(children=children)), found.spec.objective.goal)
    best = next((each for each in trials if each.state is TrialState.SUCCEEDED), None)
    if best is None:
        raise NotFound(f"No trial of {name} has succeeded yet.")
    return children[str(best.number)]


def _step(
    reference: ModelReference,
    name: str,
    steps: list[int],
    series: "dict[str, tuple[Point, ...]] | Any",
    objective: tuple[str, Goal] | None,
    *,
    is_trial: bool,
) -> int:
    """The step that a reference means, of those that have a complete checkpoint."""
    number = reference.number
    if number is not None:
        if number not in steps:
            there = ", ".join(map(str, steps[-MOST_NAMED:]))
            raise NotFound(f"The run {name} has no complete checkpoint of step {number}; it has: {there}.")
        return number
    if reference.which == LATEST or is_trial:
        return steps[-1]
    if objective is None:
        raise NotFound(f"The run {name} told no loss, so that none of its checkpoints is better than another.")
    metric, goal = objective
    values = {step: value for step in steps if (value := _value_at(series[metric], step)) is not None}
    return min(values, key=lambda step: (goal.sign * values[step], -step), default=steps[-1])


def _value_at(points: tuple[Point, ...], step: int) -> float | None:
    """The last value that was told up to a step."""
    known = [each for each in points if each.step is not None and each.step <= step]
    return max(known, key=lambda each: (each.step or 0, each.attempt, each.at)).value if known else None


def _only(cluster: "LocalCluster", uid: str, root: Path, step: int) -> Path:
    """A directory that shows one checkpoint of several, for as long as the run keeps that."""
    place = cluster.home.run(uid) / "chosen" / str(step)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    link = place / step_name(step)
    if not link.is_symlink():
        temporary = place / f".{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(root / step_name(step))
        temporary.replace(link)
    return place
