"""The place to debug a run in: its code as it ran, its data and variables, at its newest checkpoint."""

from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.packages.place import place_of
from fairlead.cluster.local.packages.requests import request_of
from fairlead.control.debugging import debug_session
from fairlead.errors import Conflict
from fairlead.runtime.podfiles import write_json
from fairlead.specs.data import DataSource
from fairlead.specs.environment import PythonEnvironment
from fairlead.specs.training import Training
from fairlead.state.snapshot import Progress, Workload


@pytest.fixture
def work(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    (directory / "train.py").write_text("print(1)\n")
    return directory


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    return LocalCluster.open(tmp_path / "state")


def submitted(cluster: LocalCluster, work: Path, **changes: object) -> Workload:
    spec = Training(name="net", run="python train.py", workdir=str(work), env={"SEED": "1"}, **changes)  # type: ignore[arg-type]
    return cluster.submit(spec, environ={})


def test_a_session_has_the_code_as_it_ran_and_keeps_edits_there(cluster: LocalCluster, work: Path) -> None:
    run = submitted(cluster, work)
    (work / "train.py").write_text("print(2)\n")
    session = debug_session(cluster, cluster.home, run)
    copy = session.directory / "train.py"
    assert copy.read_text() == "print(1)\n"
    copy.write_text("print(3)\n")
    again = debug_session(cluster, cluster.home, run)
    assert again.directory == session.directory
    assert copy.read_text() == "print(3)\n"


def test_a_session_stands_at_the_newest_checkpoint_with_the_variables_of_the_run(
    cluster: LocalCluster, work: Path
) -> None:
    data = {"train": DataSource(origin=str(work))}
    run = replace(submitted(cluster, work, data=data), progress=Progress(step=45, checkpoint_step=40, updated_at=1.0))
    session = debug_session(cluster, cluster.home, run)
    place = str(cluster.home.run(run.uid) / "checkpoints")
    assert session.checkpoint == (place, 40)
    assert session.variables["FAIRLEAD_CHECKPOINT_FROM"] == place
    assert session.variables["SEED"] == "1"
    assert session.variables["PYTHONPATH"].endswith(str(cluster.home.path / "library"))
    assert session.variables["FAIRLEAD_DATA_TRAIN"] == str(work)
    workspace = session.workspace
    assert (workspace.name, workspace.workdir) == ("debug-net", str(session.directory))
    assert (workspace.checkpoint.origin, workspace.env, workspace.data) == (place, {"SEED": "1"}, data)


def test_a_run_without_kept_code_is_debugged_in_its_directory(cluster: LocalCluster, work: Path) -> None:
    session = debug_session(cluster, cluster.home, submitted(cluster, work, snapshot=False))
    assert session.directory == work
    assert session.why_live == "the spec says `snapshot: false`"
    assert session.checkpoint is None


def test_a_session_has_the_packages_of_the_run_in_the_versions_of_its_lock(cluster: LocalCluster, work: Path) -> None:
    asked = PythonEnvironment(packages=("--no-index", "fl_one"))
    run = submitted(cluster, work, environment=asked)
    assert debug_session(cluster, cluster.home, run).workspace.environment == asked, "it has no lock yet"
    request = request_of(run.spec, cluster.home, run.uid)
    assert request is not None
    lock = '[[packages]]\nname = "fl-one"\nversion = "1.0"\n'
    (cluster.home.packages_of(run.uid) / f"{request['digest']}.toml").write_text(lock)
    session = debug_session(cluster, cluster.home, run)
    environment = session.workspace.environment
    assert environment is not None
    assert environment.file is not None
    assert environment.python == request["python"][1]
    assert Path(environment.file).read_text() == "--no-index\nfl-one==1.0\n"
    assert session.lacks_packages
    place = place_of(cluster.home, request["digest"])
    built = cluster.home.packages / "built" / "abc"
    built.mkdir(parents=True)
    (built / "complete").touch()
    place.record.parent.mkdir(parents=True)
    write_json(place.record, {"directory": "abc"})
    session = debug_session(cluster, cluster.home, run)
    assert not session.lacks_packages
    assert session.variables["PATH"].startswith(f"{built}/bin:")


def test_kept_code_that_is_gone_is_told(cluster: LocalCluster, work: Path) -> None:
    run = submitted(cluster, work)
    for path in sorted((cluster.home.path / "code" / "objects").rglob("*"), reverse=True):
        if path.is_file() and b"print" in path.read_bytes():
            path.unlink()
    with pytest.raises(Conflict, match=r"train\.py cannot be read any more"):
        debug_session(cluster, cluster.home, run)
