"""Resolves references to models on this machine: a pushed version, or a run's checkpoint."""

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
from fairlead.state.models import ModelContent, ModelVersion
from fairlead.state.snapshot import Workload


class Machine(ClusterClient, ModelVersions, Protocol):
    """The runs and models of this machine, with its state directory."""

    @property
    def home(self) -> Home: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """A model on this machine.

    Attributes:
        description: A short text for messages.
        path: The file or directory itself; of a checkpoint the directory of its step.
        content: Kind of its content.
        place: A directory that holds only this checkpoint, for ``checkpoint.from``; None for other content.
        version: The pushed version; None for a run's checkpoint.
        run: The run of the checkpoint; None for a version.
        step: Step of the checkpoint.
        metrics: Metrics of the model, as far as known.
        objective: The metric by which it is compared with others, with its goal.
    """

    description: str
    path: Path
    content: ModelContent
    place: Path | None = None
    version: ModelVersion | None = None
    run: Workload | None = None
    step: int | None = None
    metrics: dict[str, float]
    objective: tuple[str, Goal] | None = None


def resolve(cluster: Machine, text: str, team: str | None = None) -> ResolvedModel:
    """Return the model to which a reference resolves now.

    Args:
        text: NAME@STAGE, NAME@best, NAME@latest, NAME@VERSION, run://NAME, run://NAME@best or run://NAME@STEP.
        team: Team of the run; None for any.

    Raises:
        NotFound: It is no reference, or there is no such model, version or checkpoint.
        Conflict: The model is not on this machine, or the reference is ambiguous.
    """
    reference = read_reference(text)
    if reference is None:
        raise NotFound(f"{text!r} is not a model. Give {FORMS}.")
    if reference.is_run:
        return resolve_run(cluster, reference, cluster.find(reference.name, team))
    return _of_version(cluster, find_version(cluster, reference))


def path_of(cluster: Machine, text: str, team: str | None, base: Path) -> Path:
    """Return the path on this machine of a model given by a reference or as a path.

    Args:
        base: Directory to which a relative path is relative.

    Raises:
        NotFound: There is no such model, version, checkpoint, file or directory.
        Conflict: The model is not on this machine, or the reference is ambiguous.
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
    artefact = cluster.home.artefact(version.digest)
    if not os.path.lexists(artefact):
        raise Conflict(f"The content of {version} is gone: {artefact} is not there. Push it again.")
    place = artefact if version.content is ModelContent.CHECKPOINT else None
    steps = Directory(artefact).steps() if place is not None else []
    if place is not None and not steps:
        raise Conflict(f"The content of {version} is damaged: {artefact} has no checkpoint any more. Push it again.")
    objective = None if version.objective is None or version.goal is None else (version.objective, version.goal)
    return ResolvedModel(
        description=str(version) + (f", {version.stage}" if version.stage is not None else ""),
        path=artefact / step_name(steps[-1]) if steps else artefact,
        content=version.content,
        place=place,
        version=version,
        step=steps[-1] if steps else None,
        metrics=dict(version.metrics),
        objective=objective,
    )


def resolve_run(cluster: Machine, reference: ModelReference, workload: Workload[Any]) -> ResolvedModel:
    """Return the checkpoint of a run, or of a sweep's best trial, to which a reference resolves.

    Raises:
        NotFound: There is none.
        Conflict: It is not on this machine, or the workload is not a run with checkpoints.
    """

    def root_of(run: Workload) -> Path:
        place = checkpoint_place(cluster.home, run)
        if is_url(place) and not place.startswith("file://"):
            raise Conflict(
                f"The checkpoints of {run.spec.name} are in {place}, not on this machine; only those here can be used."
            )
        return Path(place.removeprefix("file://"))

    chosen = choose(cluster, reference, workload, lambda run: Directory(root_of(run)).steps())
    run, step, root = chosen.run, chosen.step, root_of(chosen.run)
    return ResolvedModel(
        description=f"the checkpoint of {run.spec.name} at step {step}",
        path=root / step_name(step),
        content=ModelContent.CHECKPOINT,
        place=root if step == chosen.newest else _only(cluster, run.uid, root, step),
        run=run,
        step=step,
        metrics=chosen.metrics,
        objective=chosen.objective,
    )


def _only(cluster: Machine, uid: str, root: Path, step: int) -> Path:
    """Create a directory that shows one checkpoint of several, as long as the run keeps that checkpoint."""
    place = cluster.home.run(uid) / "chosen" / str(step)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    link = place / step_name(step)
    if not link.is_symlink():
        temporary = place / f".{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(root / step_name(step))
        temporary.replace(link)
    return place
