"""Creates versions of models on a cluster from checkpoints of its runs in an object store.

The content is copied within the store, beside the checkpoints of all runs that share the place, and addressed by the
hash of its files. Its manifest is written last, so that an interrupted copy is never taken for a complete one.

See decision 94.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.cluster.chosen_checkpoint import ChosenCheckpoint, choose
from fairlead.cluster.kubernetes.client.user_client import UserClient
from fairlead.cluster.kubernetes.manifests.pod_environment import checkpoint_place
from fairlead.cluster.model_versions import find_version
from fairlead.control.models import read_objective, without_metric
from fairlead.control.pipelines.submission import pipeline_of
from fairlead.errors import Conflict, InvalidSpec, NotFound
from fairlead.frozen import dataclass
from fairlead.runtime.checkpoint.manifest import MANIFEST, DamagedError, Manifest, verify
from fairlead.runtime.checkpoint.remote import FsspecStore, open_remote
from fairlead.runtime.checkpoint.store import step_name
from fairlead.runtime.places import is_url, open_place, translated
from fairlead.specs.constraints import NAME
from fairlead.specs.model_reference import BEST, LATEST, ModelReference, read_reference
from fairlead.specs.sweep import Sweep, values_of
from fairlead.specs.training import Training
from fairlead.state.models import ModelContent, ModelVersion
from fairlead.state.series import usual_goal
from fairlead.state.snapshot import Workload

FOLDER = "fairlead-models"
SOURCES = "Give a run of the cluster, run://RUN@best, run://RUN@STEP, or NAME@VERSION of another model"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copied:
    """Content copied into the store.

    Attributes:
        place: A directory of the store that has only this checkpoint.
    """

    place: str
    digest: str
    size_bytes: int


def push(
    cluster: UserClient,
    name: str,
    source: str,
    *,
    metrics: Mapping[str, float] | None = None,
    objective: str | None = None,
) -> tuple[ModelVersion, bool]:
    """Create a version of a model, and return whether it is new: the same content from the same place is one version.

    Args:
        source: A run or sweep of the cluster, ``run://NAME@best`` or ``run://NAME@STEP``, or a version of a model.
        metrics: Metrics in addition to those that the run reported.
        objective: The metric by which versions compare, such as ``loss`` or ``accuracy:maximize``.

    Raises:
        InvalidSpec: The name or the objective is invalid.
        NotFound: There is no such source, or it has no checkpoint.
        Conflict: The source cannot be a model of the cluster.
        RuntimeFault: The object store cannot be reached, or needs a package that is not installed.
    """
    if (problem := NAME.problem(name)) is not None:
        raise InvalidSpec((f"The model's name: {problem}.",))
    by = None if objective is None else read_objective(objective)
    made = _of_source(cluster, source)
    all_metrics = {**made.metrics, **(metrics or {})}
    if by is not None and by[0] not in all_metrics:
        raise without_metric(source, by[0], all_metrics)
    if by is None and made.objective in all_metrics and made.objective is not None and made.goal is not None:
        by = made.objective, made.goal
    return cluster.add_model(
        ModelVersion(
            name=name,
            version=0,
            digest=made.digest,
            content=made.content,
            size_bytes=made.size_bytes,
            created_at=time.time(),
            metrics=all_metrics,
            objective=None if by is None else by[0],
            goal=None if by is None else by[1],
            lineage=made.lineage,
            place=made.place,
        )
    )


@contextmanager
def fetched(version: ModelVersion) -> Iterator[Path]:
    """Download the content of a version to this machine for the duration of the block.

    Raises:
        Conflict: The content is missing or damaged.
        RuntimeFault: The object store cannot be reached, or needs a package that is not installed.
    """
    assert version.place is not None, "a version of a cluster has a place"
    store = open_remote(version.place, scratch=None)
    steps = store.steps()
    if not steps:
        raise Conflict(f"The content of {version} is gone: {version.place} has no checkpoint. Push it again.")
    manifest = _manifest(store, steps[-1])
    directory = store.fetch(steps[-1], manifest.files)
    try:
        verify(directory, manifest, manifest.files)
        yield directory
    except DamagedError as error:
        raise Conflict(f"The content of {version} is damaged: {error}. Push it again.") from error
    finally:
        store.release(directory)


def _of_source(cluster: UserClient, text: str) -> ModelVersion:
    """Return a version with the facts of its source, after copying its content into the store."""
    reference = read_reference(text)
    if reference is not None and not reference.is_run:
        other = find_version(cluster, reference)
        lineage = {"kind": "model", "model": str(other), "from": dict(other.lineage)}
        return ModelVersion(
            name=other.name, version=0, digest=other.digest, content=other.content, size_bytes=other.size_bytes,
            created_at=0.0, metrics=other.metrics, objective=other.objective, goal=other.goal, lineage=lineage,
            place=other.place,
        )  # fmt: skip
    if reference is None and NAME.problem(text) is not None:
        raise NotFound(f"{text!r} is on this machine, if anywhere, and not on the cluster. {SOURCES}.")
    workload = cluster.find(text if reference is None else reference.name)
    if isinstance(workload.spec, Training) and pipeline_of(workload.spec) is not None:
        raise Conflict(f"{text} is a pipeline; push the run of one of its steps.")
    if reference is None:
        which = LATEST if isinstance(workload.spec, Training) else BEST
        reference = ModelReference(name=text, which=which, is_run=True)
    chosen = choose(cluster, reference, workload, lambda run: open_remote(_place_of(run), scratch=None).steps())
    metrics, by = _checkpoint_metrics(chosen, workload)
    copied = _copy(chosen.run, chosen.step)
    return ModelVersion(
        name=workload.spec.name, version=0, digest=copied.digest, content=ModelContent.CHECKPOINT,
        size_bytes=copied.size_bytes, created_at=0.0, metrics=metrics, objective=by,
        goal=_goal(workload, by), lineage=_lineage(cluster, chosen), place=copied.place,
    )  # fmt: skip


def _checkpoint_metrics(chosen: ChosenCheckpoint, workload: Workload[Any]) -> tuple[dict[str, float], str | None]:
    """Return the metrics of a checkpoint and the one by which it compares.

    If the series was lost with its pods, the last report supplies them, provided it was at this step.
    """
    metrics, by = dict(chosen.metrics), None if chosen.objective is None else chosen.objective[0]
    progress = chosen.run.progress
    if not metrics and progress is not None and progress.step == chosen.step:
        metrics = dict(progress.metrics) | ({"loss": progress.loss} if progress.loss is not None else {})
    return metrics, by or ("loss" if "loss" in metrics else None)


def _goal(workload: Workload[Any], metric: str | None) -> Any:
    if metric is None:
        return None
    objective = workload.spec.objective if isinstance(workload.spec, Sweep) else None
    return objective.goal if objective is not None else usual_goal(metric)


def _place_of(run: Workload) -> str:
    """Return the location of the checkpoints of a run, which this machine must be able to reach.

    Raises:
        Conflict: It cannot reach it.
    """
    name, place = run.spec.name, checkpoint_place(run, None)
    if place is None:
        raise Conflict(
            f"The run {name} has no `checkpoint.to`: its checkpoints are gone with its pods, or where the operator "
            "keeps those of all runs. Give it an object store, such as `checkpoint: s3://bucket/runs`."
        )
    if not is_url(place):
        raise Conflict(
            f"The checkpoints of {name} are in {place}, on a volume that only pods reach. Models of a cluster are kept "
            "in an object store: give the run `checkpoint: s3://bucket/runs`, or begin one that has that "
            f"with `checkpoint.from: {name}`."
        )
    return place


def _copy(run: Workload, step: int) -> _Copied:
    """Copy a checkpoint within its store, unless the copy exists.

    Raises:
        Conflict: The checkpoint is damaged, or was replaced by a newer one.
    """
    place, to = _place_of(run), str(run.spec.checkpoint.to).rstrip("/")
    store = open_remote(place, scratch=None)
    manifest = _manifest(store, step)
    files = sorted((name, facts.sha256) for name, facts in manifest.files.items())
    digest = hashlib.sha256(json.dumps(files).encode("utf-8", "surrogatepass")).hexdigest()
    stored_at = f"{to}/{FOLDER}/{digest}"
    copied = _Copied(place=stored_at, digest=digest, size_bytes=manifest.size)
    remote = open_remote(stored_at, scratch=None)
    if remote.steps():
        return copied
    system, source = open_place(f"{place}/{step_name(step)}", what="models")
    _, target = open_place(f"{stored_at}/{step_name(step)}", what="models")
    what = f"the checkpoint of {run.spec.name} cannot be copied to {stored_at}"
    try:
        for name, facts in manifest.files.items():
            one, other = f"{source}/{name}", f"{target}/{name}"
            translated(partial(system.cp_file, one, other), what)
            size = int(translated(partial(system.info, other), what)["size"])
            if size != facts.size:
                raise Conflict(f"The checkpoint {place}/{step_name(step)} is damaged: {name} has {size} bytes.")
    except FileNotFoundError as error:
        raise Conflict(
            f"The checkpoint {place}/{step_name(step)} is damaged, or has made way for a newer one; push again."
        ) from error
    translated(partial(system.pipe_file, f"{target}/{MANIFEST}", manifest.to_json()), what)
    return copied


def _manifest(store: FsspecStore, step: int) -> Manifest:
    try:
        return store.manifest(step)
    except DamagedError as error:
        raise Conflict(f"The checkpoint {store.place}/{step_name(step)} is damaged: {error}.") from error


def _lineage(cluster: UserClient, chosen: ChosenCheckpoint) -> dict[str, Any]:
    run = chosen.run
    code = cluster.code(run.uid)
    files = sorted((file.path, file.digest, file.executable) for file in code.files or ())
    return {
        "kind": "run",
        "run": run.spec.name,
        "uid": run.uid,
        "team": run.spec.team,
        "parent": run.parent,
        "attempt": run.status.attempt,
        "step": chosen.step,
        "command": run.spec.run,
        "image": run.spec.image,
        "parameters": dict(values_of(run.spec)),
        "code": {
            "digest": hashlib.sha256(json.dumps(files).encode()).hexdigest() if code.files is not None else None,
            "commit": (code.git or {}).get("commit"),
            "dirty": (code.git or {}).get("dirty"),
        },
    }
