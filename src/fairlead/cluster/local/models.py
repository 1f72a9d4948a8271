"""Finds a model on this machine that somebody refers to: a version that was pushed, or a run's checkpoint."""

import os
from pathlib import Path
from typing import Any, Protocol

from fairlead.cluster.chosen_checkpoint import choose
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.pod_spec import checkpoint_place
from fairlead.cluster.model_versions import ModelVersions, find_version
from fairlead.errors import Conflict, NotFound
from fairlead.frozen import dataclass
from fairlead.runtime.checkpoint.directory import Directory
from fairlead.runtime.checkpoint.store import step_name
from fairlead.runtime.places import is_url
from fairlead.specs.goal import Goal
from fairlead.specs.model_reference import FORMS, RUN_SCHEME, ModelReference, read_reference
from fairlead.state.models import Content, ModelVersion
from fairlead.state.snapshot import Workload


class Machine(ClusterClient, ModelVersions, Protocol):
    """The runs and models of this machine, and where they are."""

    @property
    def home(self) -> Home: ...


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


def resolve(cluster: Machine, text: str, team: str | None = None) -> ResolvedModel:
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


def path_of(cluster: Machine, text: str, team: str | None, base: Path) -> Path:
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


def _of_version(cluster: Machine, version: ModelVersion) -> ResolvedModel:
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


def resolve_run(cluster: Machine, reference: ModelReference, found: Workload[Any]) -> ResolvedModel:
    """The checkpoint of a run that is meant, or of a sweep's best trial.

    Raises:
        NotFound: There is none.
        Conflict: It is not on this machine, or a run with checkpoints is not what is meant.
    """

    def root_of(run: Workload) -> Path:
        place = checkpoint_place(cluster.home, run)
        if is_url(place) and not place.startswith("file://"):
            raise Conflict(
                f"The checkpoints of {run.spec.name} are in {place}, not on this machine; only those here can be used."
            )
        return Path(place.removeprefix("file://"))

    chosen = choose(cluster, reference, found, lambda run: Directory(root_of(run)).steps())
    run, step, root = chosen.run, chosen.step, root_of(chosen.run)
    return ResolvedModel(
        said=f"the checkpoint of {run.spec.name} at step {step}",
        path=root / step_name(step),
        content=Content.CHECKPOINT,
        place=root if step == chosen.newest else _only(cluster, run.uid, root, step),
        run=run,
        step=step,
        metrics=chosen.metrics,
        objective=chosen.objective,
    )


def _only(cluster: Machine, uid: str, root: Path, step: int) -> Path:
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
