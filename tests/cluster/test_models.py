"""Versions of models: what a reference means, what a push keeps, and that a killed push leaves all or nothing."""

import errno
import io
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.models import resolve
from fairlead.cluster.model_versions import find_version
from fairlead.control.models import INCOMING, promote, push
from fairlead.errors import Conflict, FairleadError, InvalidSpec, NoRoom, NotFound
from fairlead.runtime.checkpoint.manifest import MANIFEST, Manifest, seal
from fairlead.runtime.checkpoint.store import step_name
from fairlead.runtime.federation.flower_app import MODEL, save_round
from fairlead.runtime.federation.settings import server_files
from fairlead.specs.federation import SERVER, Federation, Site
from fairlead.specs.goal import Goal
from fairlead.specs.model_reference import ModelReference, read_reference
from fairlead.specs.training import Checkpoint
from fairlead.state.models import ModelContent, ModelVersion, best_version
from fairlead.state.plan import child_uid
from tests.builders import training


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    return LocalCluster.open(tmp_path / "home")


def checkpoint(place: Path, step: int, text: str) -> Path:
    """A complete checkpoint of one file."""
    made = place / step_name(step)
    made.mkdir(parents=True)
    (made / "weights").write_text(text)
    manifest = Manifest(
        step=step, world_size=1, run="r", attempt=0, created_at=1.0, files={"weights": seal(made / "weights")}
    )
    (made / MANIFEST).write_bytes(manifest.to_json())
    return made


def version(number: int, *, objective: str | None = "loss", **metrics: float) -> ModelVersion:
    return ModelVersion(
        name="m", version=number, digest="0" * 64, content=ModelContent.FILE, size_bytes=1, created_at=0.0,
        metrics=metrics, objective=objective, goal=None if objective is None else Goal.MINIMIZE,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("churn@production", ModelReference(name="churn", which="production")),
        ("churn@best", ModelReference(name="churn", which="best")),
        ("churn@3", ModelReference(name="churn", which="3")),
        ("run://rates@best", ModelReference(name="rates", which="best", is_run=True)),
        ("run://rates", ModelReference(name="rates", which="latest", is_run=True)),
        ("run://rates@production", None),
        ("churn", None),
        ("churn@", None),
        ("./churn@3", None),
        ("s3://bucket/user@host", None),
    ],
)
def test_a_reference_is_read_as_what_it_says(text: str, meant: ModelReference | None) -> None:
    assert read_reference(text) == meant


def test_the_best_version_is_that_of_the_newest_objective_and_the_newest_of_equals() -> None:
    versions = [version(1, loss=0.5), version(2, loss=0.1), version(3, loss=0.1), version(4, accuracy=1.0)]
    assert best_version(versions) == versions[2]
    assert best_version([version(1, objective=None, loss=0.5)]) is None
    assert best_version([]) is None


def test_a_file_that_was_pushed_stays_as_it_was(cluster: LocalCluster, tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    source.write_text("first")
    pushed, is_new = push(cluster, "churn", str(source), metrics={"accuracy": 0.9}, objective="accuracy:maximize")
    source.write_text("second")
    assert is_new
    found = resolve(cluster, "churn@best")
    assert (found.version, found.path.read_text(), found.content) == (pushed, "first", ModelContent.FILE)
    assert push(cluster, "churn", str(source))[0].version == 2
    assert resolve(cluster, "churn@latest").path.read_text() == "second"


def test_the_same_content_from_the_same_place_is_one_version(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("w")
    first, _ = push(cluster, "churn", str(tmp_path / "weights"))
    assert push(cluster, "churn", str(tmp_path / "weights")) == (first, False)


def test_metrics_of_a_later_push_are_added_to_the_version_that_is_there(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("w")
    first, _ = push(cluster, "churn", str(tmp_path / "weights"), metrics={"loss": 0.4, "auc": 0.8})
    again, is_new = push(cluster, "churn", str(tmp_path / "weights"), metrics={"auc": 0.9}, objective="auc:maximize")
    assert (again.version, is_new) == (first.version, False)
    assert (again.metrics, again.objective) == ({"loss": 0.4, "auc": 0.9}, "auc")
    assert cluster.models("churn") == (again,)


def test_a_stage_has_one_version(cluster: LocalCluster, tmp_path: Path) -> None:
    for text in "ab":
        (tmp_path / "weights").write_text(text)
        push(cluster, "churn", str(tmp_path / "weights"))
    assert promote(cluster, "churn@1", "production")[1] is None
    now, before = promote(cluster, "churn@latest", "production")
    assert (now.version, before and before.version) == (2, 1)
    assert [each.stage for each in cluster.models("churn")] == [None, "production"]
    assert promote(cluster, "churn@production", "production")[1] is None


def test_a_run_begins_from_a_version_of_a_checkpoint(cluster: LocalCluster, tmp_path: Path) -> None:
    checkpoint(tmp_path / "kept", 5, "w5")
    checkpoint(tmp_path / "kept", 9, "w9")
    push(cluster, "churn", f"{tmp_path}/kept/{step_name(5)}")
    push(cluster, "churn", f"{tmp_path}/kept")
    first, second = resolve(cluster, "churn@1"), resolve(cluster, "churn@2")
    assert ((first.path / "weights").read_text(), first.step) == ("w5", 5)
    assert ((second.path / "weights").read_text(), second.step) == ("w9", 9)
    spec = training(name="tuned", run="true", checkpoint=Checkpoint(origin="churn@1"))
    prepared = cluster.prepare(spec, tmp_path).spec
    assert prepared.checkpoint.origin == str(first.place)


def test_a_damaged_checkpoint_makes_no_version(cluster: LocalCluster, tmp_path: Path) -> None:
    (checkpoint(tmp_path / "kept", 5, "w5") / "weights").write_text("xx")
    with pytest.raises(Conflict, match="is damaged"):
        push(cluster, "churn", f"{tmp_path}/kept")
    assert cluster.models() == ()
    assert list((cluster.home.artefacts / INCOMING).iterdir()) == []


def test_pushing_again_puts_back_what_was_damaged(cluster: LocalCluster, tmp_path: Path) -> None:
    checkpoint(tmp_path / "kept", 5, "w5")
    (tmp_path / "weights").write_text("w")
    for name, source in (("churn", tmp_path / "kept"), ("plain", tmp_path / "weights")):
        pushed, _ = push(cluster, name, str(source))
        path = resolve(cluster, f"{name}@1").path
        damaged = path / "weights" if path.is_dir() else path
        text = damaged.read_text()
        damaged.chmod(0o600)
        damaged.write_text("")  # as a power cut may leave it
        assert push(cluster, name, str(source)) == (pushed, False)
        assert damaged.read_text() == text
    assert list((cluster.home.artefacts / INCOMING).iterdir()) == []


def test_what_is_pushed_is_on_the_disk_before_a_row_names_it(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(os.fstat(fd).st_ino))
    checkpoint(tmp_path / "kept", 5, "w5")
    pushed, _ = push(cluster, "churn", str(tmp_path / "kept"))
    kept = cluster.home.artefact(pushed.digest)
    assert {path.stat().st_ino for path in (*kept.rglob("*"), kept, kept.parent)} <= synced


def test_a_disk_that_gets_full_while_a_model_is_pushed_is_told_as_that(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(tmp_path / "kept", 5, "w5")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "weights").write_text("w")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", full)
    for source in ("kept", "plain"):
        with pytest.raises(NoRoom, match="state directory"):
            push(cluster, "churn", str(tmp_path / source))
    assert list((cluster.home.artefacts / INCOMING).iterdir()) == []


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nobody", "no run named 'nobody'"),
        ("./nowhere", "There is no file './nowhere'"),
        ("run://nobody@best", "no run named 'nobody'"),
        ("other@1", "No model is named 'other'"),
        ("A model", "is not a source"),
    ],
)
def test_a_source_that_is_not_there_is_refused(cluster: LocalCluster, source: str, says: str) -> None:
    with pytest.raises(NotFound, match=says):
        push(cluster, "churn", source)


def test_mistakes_are_told_with_what_is_allowed(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("w")
    source = str(tmp_path / "weights")
    mistakes: list[tuple[type[FairleadError], str, tuple[str, ...]]] = [
        (InvalidSpec, "use lower-case letters", ("My model", source)),
        (InvalidSpec, "give a metric, such as `loss`", ("churn", source, "accuracy:up")),
        (Conflict, "Give it with `--metric accuracy=VALUE`", ("churn", source, "accuracy")),
    ]
    for kind, says, (name, given, *objective) in mistakes:
        with pytest.raises(kind, match=says):
            push(cluster, name, given, objective=objective[0] if objective else None)
    push(cluster, "churn", source)
    with pytest.raises(NotFound, match=r"no version 7; it has: 1\."):
        resolve(cluster, "churn@7")
    with pytest.raises(NotFound, match="churn@best --to staging"):
        resolve(cluster, "churn@staging")
    with pytest.raises(NotFound, match="Push one with --objective"):
        resolve(cluster, "churn@best")
    with pytest.raises(InvalidSpec, match="is not a stage"):
        promote(cluster, "churn@1", "best")
    with pytest.raises(NotFound, match="is not a version of a model"):
        promote(cluster, "run://churn@best", "production")
    with pytest.raises(Conflict, match="is a file, not a checkpoint"):
        cluster.prepare(training(run="true", checkpoint=Checkpoint(origin="churn@1")), tmp_path)


KILLED = """
import os, signal, sys
from pathlib import Path
from fairlead.cluster.local import model_tables
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control import models
from fairlead.control.pipelines.artefacts import Artefacts
die = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
owner, name = {"copy": (Artefacts, "keep"), "row": (LocalCluster, "add_model"),
               "commit": (model_tables.ModelTables, "versions")}[sys.argv[1]]
setattr(owner, name, die)
models.push(LocalCluster.open(Path(sys.argv[2])), "churn", sys.argv[3])
"""


@pytest.mark.parametrize("where", ["copy", "row", "commit"])
def test_a_killed_push_leaves_no_version_and_the_next_one_cleans_up(
    cluster: LocalCluster, tmp_path: Path, where: str
) -> None:
    checkpoint(tmp_path / "kept", 5, "w5")
    argv = [sys.executable, "-c", KILLED, where, os.fspath(cluster.home.path), os.fspath(tmp_path / "kept")]
    assert subprocess.run(argv, check=False, timeout=60).returncode == -signal.SIGKILL
    assert cluster.models() == ()
    pushed, is_new = push(cluster, "churn", str(tmp_path / "kept"))
    assert (pushed.version, is_new) == (1, True)
    assert list((cluster.home.artefacts / INCOMING).iterdir()) == []
    assert find_version(cluster, ModelReference(name="churn", which="1")) == pushed


def test_the_model_of_a_federations_last_round_is_a_file_of_named_arrays_with_its_loss(cluster: LocalCluster) -> None:
    federation = cluster.submit(Federation(name="digits", app="app", sites={"north": Site()}))
    with pytest.raises(NotFound, match="digits has no model yet"):
        push(cluster, "digits", "digits")
    files = server_files(cluster.home.run(child_uid(federation.uid, SERVER)))
    files.mkdir(parents=True)
    wanted = {"layer.weight": np.arange(6.0).reshape(2, 3), "bias": np.array([1, 2])}

    class AsFlower:
        """An array as Flower serializes it."""

        def __init__(self, array: np.ndarray) -> None:
            content = io.BytesIO()
            np.save(content, array, allow_pickle=False)
            self.dtype, self.shape, self.stype, self.data = str(array.dtype), array.shape, "np", content.getvalue()

    save_round(files / MODEL, 3, {name: AsFlower(array) for name, array in wanted.items()})
    version, is_new = push(cluster, "digits", "digits", metrics={"accuracy": 0.9})
    assert is_new
    assert (version.lineage["round"], version.content, version.metrics) == (3, ModelContent.FILE, {"accuracy": 0.9})
    with np.load(resolve(cluster, "digits@1").path, allow_pickle=False) as stored:
        assert {name: stored[name].tolist() for name in stored.files} == {
            name: array.tolist() for name, array in wanted.items()
        }
    assert push(cluster, "digits", "digits") == (version, False)
    (files / MODEL).write_bytes(b"half of it")
    with pytest.raises(Conflict, match="cannot be read"):
        push(cluster, "digits", "digits")
