"""Creates versions of models from runs, outputs of pipelines or files, and promotes them to stages.

The content is copied beside the outputs of pipelines, addressed by its hash, before a row that names it is added. An
interrupted push leaves content without a row, or a partial copy that the next push removes.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.disk_errors import NO_ROOM, explained
from fairlead.cluster.local.models import ResolvedModel, resolve
from fairlead.cluster.local.space import used_bytes
from fairlead.cluster.model_versions import ModelVersions, find_version
from fairlead.control.pipelines.artefacts import Artefacts, content_digest
from fairlead.control.pipelines.lineage import find, lineage_of
from fairlead.control.pipelines.submission import pipeline_of
from fairlead.deferred import deferred
from fairlead.errors import Conflict, InvalidSpec, NotFound
from fairlead.frozen import dataclass
from fairlead.policy.kinds.federation import detail_of as federation_detail
from fairlead.runtime.checkpoint.directory import Directory, sync_directory
from fairlead.runtime.checkpoint.manifest import MANIFEST, DamagedError, verify
from fairlead.runtime.checkpoint.store import STEP_NAME, step_name
from fairlead.runtime.federation.flower_app import MODEL
from fairlead.runtime.federation.settings import server_files
from fairlead.runtime.podfiles import take_lock
from fairlead.specs.constraints import NAME
from fairlead.specs.federation import SERVER, Federation
from fairlead.specs.goal import Goal
from fairlead.specs.model_reference import RUN_SCHEME, read_reference, stage_problem
from fairlead.specs.sweep import values_of
from fairlead.specs.training import Training
from fairlead.state.models import ModelContent, ModelVersion
from fairlead.state.plan import child_uid
from fairlead.state.series import usual_goal
from fairlead.state.snapshot import Workload
from fairlead.untrusted_json import parse_object

if TYPE_CHECKING:
    import numpy as np
else:
    np = deferred("numpy")

INCOMING = "incoming"
MOST_DESCRIPTION_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The files that become a version.

    Attributes:
        keep: Copies the content into the store and returns its hash.
    """

    keep: Callable[[Artefacts], str]
    content: ModelContent
    lineage: Mapping[str, Any]
    metrics: Mapping[str, float] = field(default_factory=dict)
    objective: tuple[str, Goal] | None = None


def push(
    cluster: LocalCluster,
    name: str,
    source: str,
    *,
    metrics: Mapping[str, float] | None = None,
    objective: str | None = None,
) -> tuple[ModelVersion, bool]:
    """Create a version of a model, and return whether it is new: the same content from the same place is one version.

    Args:
        source: A run, ``run://NAME@best`` or ``run://NAME@STEP``; a federation, for the model of its last round;
            RUN/STEP.OUTPUT of a pipeline; or a path.
        metrics: Metrics in addition to those that the run reported.
        objective: The metric by which versions compare, such as ``loss`` or ``accuracy:maximize``.

    Raises:
        InvalidSpec: The name or the objective is invalid.
        NotFound: There is no such source, or it has no checkpoint.
        Conflict: The source cannot be a model.
    """
    if (problem := NAME.problem(name)) is not None:
        raise InvalidSpec((f"The model's name: {problem}.",))
    by = None if objective is None else read_objective(objective)
    origin = _source(cluster, source)
    all_metrics = {**origin.metrics, **(metrics or {})}
    by = by or origin.objective
    if by is not None and by[0] not in all_metrics:
        if objective is not None:
            raise without_metric(source, by[0], all_metrics)
        by = None
    root = cluster.home.artefacts
    try:
        store = Artefacts(root)
        _remove_leftovers(root / INCOMING)
        with store.in_use():
            digest = origin.keep(store)
            place = store.path(digest)
            candidate = ModelVersion(
                name=name,
                version=0,
                digest=digest,
                content=origin.content,
                size_bytes=used_bytes(place) if place.is_dir() else place.stat().st_size,
                created_at=time.time(),
                metrics=all_metrics,
                objective=None if by is None else by[0],
                goal=None if by is None else by[1],
                lineage=origin.lineage,
            )
            return cluster.add_model(candidate)
    except OSError as error:
        raise explained(cluster.home.path, error) from error


def without_metric(source: str, metric: str, metrics: Mapping[str, float]) -> Conflict:
    """Return the error for a source that did not report the metric by which versions compare."""
    known = f"it has: {', '.join(sorted(metrics))}" if metrics else "it has none"
    return Conflict(f"{source} reported no {metric}; {known}. Give it with `--metric {metric}=VALUE`.")


def version_of(cluster: ModelVersions, text: str) -> ModelVersion:
    """Return the version that a text such as NAME@best names.

    Raises:
        NotFound: There is no such version.
    """
    reference = read_reference(text)
    if reference is None or reference.is_run:
        raise NotFound(f"{text!r} is not a version of a model. Give NAME@best, NAME@latest, NAME@3 or NAME@STAGE.")
    return find_version(cluster, reference)


def promote(cluster: ModelVersions, text: str, stage: str) -> tuple[ModelVersion, ModelVersion | None]:
    """Give a version a stage; return it and the previous holder of the stage, None if there was none or it is the same.

    Raises:
        InvalidSpec: The name of the stage is invalid.
        NotFound: There is no such version.
    """
    if (problem := stage_problem(stage)) is not None:
        raise InvalidSpec((f"--to: {problem}.",))
    version = version_of(cluster, text)
    before = next((model for model in cluster.models(version.name) if model.stage == stage), None)
    now = cluster.promote_model(version, stage)
    return now, None if before is None or before.version == now.version else before


def delete(cluster: ModelVersions, text: str) -> ModelVersion:
    """Remove a version and return it. Its number is not reused, and its content stays until it is collected.

    Raises:
        NotFound: There is no such version.
        Conflict: It has a stage.
    """
    reference = read_reference(text)
    if reference is None or reference.is_run or reference.number is None:
        raise NotFound(f"{text!r} is not a version of a model that can be removed. Give its number, such as NAME@3.")
    version = find_version(cluster, reference)
    cluster.remove_model(version)
    return version


def read_objective(text: str) -> tuple[str, Goal]:
    """Parse a metric and its goal.

    Raises:
        InvalidSpec: The text is not an objective.
    """
    metric, colon, goal = text.partition(":")
    if not metric or (colon and goal not in tuple(Goal)):
        raise InvalidSpec((f"--objective {text!r}: give a metric, such as `loss` or `accuracy:maximize`.",))
    return metric, Goal(goal) if colon else usual_goal(metric)


def _source(cluster: LocalCluster, text: str) -> _Source:
    path = Path(text).expanduser()
    if not text.startswith(RUN_SCHEME) and ("/" in text or text in (".", "..")) and os.path.lexists(path):
        return _of_path(path.absolute())
    if "/" in text and not text.startswith(RUN_SCHEME):
        if "." not in text.rpartition("/")[2]:
            raise NotFound(f"There is no file {text!r}. Give a run, RUN/STEP.OUTPUT of a pipeline, or a path.")
        return _of_output(cluster, text)
    reference = read_reference(text)
    if reference is None and NAME.problem(text) is None:
        run = cluster.find(text)
        if isinstance(run.spec, Training) and pipeline_of(run.spec) is not None:
            raise Conflict(f"{text} is a pipeline; name one of its outputs, such as {text}/STEP.OUTPUT.")
        if isinstance(run.spec, Federation):
            return _of_federation(cluster, cast("Workload[Federation]", run))
        which = "@best" if not isinstance(run.spec, Training) else ""
        return _of_model(cluster, resolve(cluster, f"{RUN_SCHEME}{text}{which}"))
    if reference is None:
        raise NotFound(
            f"{text!r} is not a source. Give a run, RUN/STEP.OUTPUT of a pipeline, or a path such as ./{text}."
        )
    return _of_model(cluster, resolve(cluster, text))


def _of_model(cluster: LocalCluster, resolved: ResolvedModel) -> _Source:
    """Return a run's checkpoint or a version of another model as a source."""
    if resolved.version is not None:
        digest = resolved.version.digest
        lineage: dict[str, Any] = {
            "kind": "model",
            "model": str(resolved.version),
            "from": dict(resolved.version.lineage),
        }
        return _Source(
            keep=lambda _: digest, content=resolved.content, lineage=lineage, metrics=resolved.metrics,
            objective=resolved.objective,
        )  # fmt: skip
    assert resolved.run is not None
    assert resolved.step is not None
    run, step, path = resolved.run, resolved.step, resolved.path
    code = cluster.code(run.uid)
    files = sorted((file.path, file.digest, file.executable) for file in code.files or ())
    lineage = {
        "kind": "run",
        "run": run.spec.name,
        "uid": run.uid,
        "team": run.spec.team,
        "parent": run.parent,
        "attempt": run.status.attempt,
        "step": step,
        "command": run.spec.run,
        "parameters": dict(values_of(run.spec)),
        "code": {
            "digest": hashlib.sha256(json.dumps(files).encode()).hexdigest() if code.files is not None else None,
            "commit": (code.git or {}).get("commit"),
            "dirty": (code.git or {}).get("dirty"),
        },
    }
    return _Source(
        keep=lambda store: _copy_checkpoint(store, path, step),
        content=ModelContent.CHECKPOINT,
        lineage=lineage,
        metrics=resolved.metrics,
        objective=resolved.objective,
    )


def _of_output(cluster: LocalCluster, text: str) -> _Source:
    digest = find(cluster, text)
    store = Artefacts(cluster.home.artefacts)
    path = store.path(digest)
    if not store.has(digest):
        raise NotFound(f"The content of {text} is gone: {path} is not there, or was changed after it was stored.")
    content = ModelContent.FILE
    if path.is_dir():
        content = ModelContent.CHECKPOINT if Directory(path).steps() else ModelContent.DIRECTORY
    made = lineage_of(cluster, digest).as_data()
    return _Source(keep=lambda _: digest, content=content, lineage={"kind": "output", "output": text, **made})


def _of_federation(cluster: LocalCluster, federation: Workload[Federation]) -> _Source:
    """Return the model of a federation's last round, which its server saved, as a NumPy archive of named arrays."""
    name, uid = federation.spec.name, federation.uid
    path = server_files(cluster.home.run(child_uid(uid, SERVER))) / MODEL
    if not path.exists():
        raise NotFound(f"{name} has no model yet: its server saves one after each round of an `app`.")
    try:
        number, arrays = saved_arrays(path)
    except (OSError, ValueError, KeyError) as error:
        raise Conflict(f"{name}: the model that its server saved cannot be read: {error}") from error

    def keep(store: Artefacts) -> str:
        with _Incoming(store.root / INCOMING) as room:
            np.savez(room / "content.npz", allow_pickle=False, **arrays)
            return _keep(store, (room / "content.npz").rename(room / "content"))

    detail = federation_detail(federation)
    metrics = {"loss": detail.loss} if detail.loss is not None and detail.round == number else {}
    own = {"kind": "federation", "run": name, "uid": uid, "team": federation.spec.team, "round": number}
    return _Source(keep=keep, content=ModelContent.FILE, lineage=own, metrics=metrics)


def saved_arrays(path: Path) -> tuple[int, dict[str, "np.ndarray"]]:
    """Return the number of the round and the arrays of a model that the server of a federation saved.

    Raises:
        OSError, ValueError, KeyError: It cannot be read.
    """
    with np.load(path, allow_pickle=False) as stored:
        about = parse_object(str(stored["about"]), max_bytes=MOST_DESCRIPTION_BYTES)
        arrays = {
            str(described[0]): np.load(io.BytesIO(stored[f"a{index}"].tobytes()), allow_pickle=False)
            for index, described in enumerate(about["arrays"])
        }
    return int(about["round"]), arrays


def _of_path(path: Path) -> _Source:
    lineage: dict[str, Any] = {"kind": "path", "path": str(path)}
    if path.is_dir():
        steps = Directory(path).steps()
        named = STEP_NAME.fullmatch(path.name)
        if named is not None and (path / MANIFEST).exists():
            path, steps = path.parent, [int(named[1])]
        if steps:
            place, step = path / step_name(steps[-1]), steps[-1]
            return _Source(
                keep=lambda store: _copy_checkpoint(store, place, step),
                content=ModelContent.CHECKPOINT,
                lineage={**lineage, "step": step},
            )
    elif not path.is_file():
        raise Conflict(f"{path} is neither a file nor a directory.")
    content = ModelContent.DIRECTORY if path.is_dir() else ModelContent.FILE

    def keep(store: Artefacts) -> str:
        with _Incoming(store.root / INCOMING) as room:
            copy = room / "content"
            if path.is_dir():
                try:
                    _copy_tree(store, path, copy)
                except shutil.Error as error:  # a link that leads nowhere, a FIFO, a file that cannot be read
                    raise Conflict(f"{path} cannot be copied whole: {error}") from error
            else:
                shutil.copy2(path, copy)
            return _keep(store, copy)

    return _Source(keep=keep, content=content, lineage=lineage)


def _copy_checkpoint(store: Artefacts, path: Path, step: int) -> str:
    """Copy a checkpoint and verify the copy, since the run may have replaced it meanwhile."""
    with _Incoming(store.root / INCOMING) as room:
        place = room / "content"
        try:
            _copy_tree(store, path, place / step_name(step))
            manifest = Directory(place).manifest(step)
            verify(place / step_name(step), manifest, manifest.files)
        except (DamagedError, FileNotFoundError, shutil.Error) as error:
            raise Conflict(f"The checkpoint {path} is damaged, or has made way for a newer one: {error}") from error
        return _keep(store, place)


def _copy_tree(store: Artefacts, source: Path, target: Path) -> None:
    """Copy a directory, with what its links lead to.

    Raises:
        NoRoom: The disk is full, which ``shutil`` would report only in the text of an error about all files.
    """

    def copy(one: str, other: str) -> str:
        try:
            return shutil.copy2(one, other)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise explained(store.root.parent, error) from error
            raise

    shutil.copytree(source, target, copy_function=copy)


def _keep(store: Artefacts, copy: Path) -> str:
    """Move a copy into the store durably (synced to disk) and return its hash.

    Damaged content of the same hash is replaced.
    """
    digest = content_digest(copy)
    place = store.path(digest)
    if os.path.lexists(place) and not _is_whole(place, digest):
        place.rename(copy.with_name("damaged"))
    for path in (*(copy.rglob("*") if copy.is_dir() else ()), copy):
        if path.is_dir() and not path.is_symlink():
            sync_directory(path)
        elif path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    store.keep(copy)
    sync_directory(place.parent)
    sync_directory(store.root)
    return digest


def _is_whole(path: Path, digest: str) -> bool:
    try:
        return content_digest(path) == digest
    except OSError:  # the disk cannot read it any more
        return False


class _Incoming:
    """A temporary directory for a copy in progress, locked until it is removed at the end."""

    def __init__(self, root: Path) -> None:
        self._path = root / uuid.uuid4().hex
        self._lock: int | None = None

    def __enter__(self) -> Path:
        self._path.mkdir(mode=0o700, parents=True)
        self._lock = take_lock(self._path / "lock")
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)


def _remove_leftovers(root: Path) -> None:
    """Remove partial copies of killed processes."""
    for path in root.iterdir() if root.is_dir() else ():
        # One without a lock is being created, or its process was killed before locking it.
        with contextlib.suppress(FileNotFoundError):  # its process is just removing it
            if not (path / "lock").exists():
                if time.time() - path.stat().st_mtime > 60.0:
                    shutil.rmtree(path, ignore_errors=True)
                continue
            lock = take_lock(path / "lock")
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)
