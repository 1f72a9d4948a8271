"""Steps that are runs, with a driver in a pod: what it asks for and is told, killed anywhere; and what is refused."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.manifests.pipeline_driver import with_driver
from fairlead.cluster.kubernetes.manifests.pods import REPORTER, render_pod
from fairlead.cluster.local.pod_files import progress_of
from fairlead.control.pipelines.artefacts import Artefacts, SharedArtefacts
from fairlead.control.pipelines.driver import PipelineDriver, Surroundings
from fairlead.control.pipelines.object_place import ObjectArtefacts, ObjectDocuments, StoreExchange
from fairlead.control.pipelines.pod_children import MOST_REQUESTED, PodChildren
from fairlead.control.pipelines.result_files import FileDocuments, ResultFiles
from fairlead.errors import InvalidSpec
from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.step_runs import asked_children
from fairlead.policy.kinds.steps import Task
from fairlead.runtime.errors import StoreUnavailable
from fairlead.runtime.progress import Reporter
from fairlead.runtime.reporting import MOST_REPORT_BYTES, pack_report
from fairlead.runtime.step_files import fetch_given, number_of, send_returned
from fairlead.specs.formats.reading import parse
from fairlead.specs.overlay import RANKS
from fairlead.specs.pipeline import DRIVER, STEP_DIR, Pipeline
from fairlead.specs.sweep import Sweep
from fairlead.specs.training import Training
from fairlead.state.snapshot import AnyWorkload
from tests.kubernetes.builders import SETTINGS, a_creation, a_workload
from tests.kubernetes.test_runtime_bundle import Container
from tests.s3 import S3

ROUNDS = 10
VOLUME: dict[str, Any] = {"name": "team", "persistentVolumeClaim": {"claimName": "team"}}
MOUNT = {"name": "team", "mountPath": "/team"}


def parsed(spec: dict[str, Any]) -> Pipeline:
    (found,) = parse(json.dumps({"kind": "Pipeline", "name": "churn", **spec}))
    assert isinstance(found, Pipeline)
    return found


def mounting(volume: dict[str, Any] = VOLUME, mount: dict[str, Any] = MOUNT) -> dict[str, Any]:
    return {"spec": {"volumes": [volume], "containers": [{"name": RANKS, "volumeMounts": [mount]}]}}


ELSEWHERE = mounting(VOLUME, {**MOUNT, "subPath": "other"})
DRIFTING = {"data": "losses.csv", "column": "loss", "cost": 5}


def on_a_volume(**changes: Any) -> Pipeline:
    spec = {
        "checkpoint": "/team/runs",
        "image": "python:3.12",
        "setup": "pip list",
        "workdir": ".",
        "kubernetes": mounting(),
        "steps": {"train": {"training": {"run": "train"}}},
    }
    return parsed({key: value for key, value in {**spec, **changes}.items() if value is not None})


def test_runs_have_from_their_pipeline_what_they_do_not_say_themselves() -> None:
    steps = {
        "train": {"training": {"run": "train"}},
        "tune": {"sweep": {"parameters": {"lr": "0.1 | 1"}, "trial": {"run": "tune", "image": "other:1"}}},
    }
    whole = with_driver(on_a_volume(steps=steps, labels={"pipeline": "churn"}))
    train, tune = whole.steps["train"].program, whole.steps["tune"].program
    assert train is not None
    assert tune is not None
    assert (train.image, train.setup, train.workdir) == ("python:3.12", "pip list", ".")
    assert (tune.image, tune.checkpoint.to, tune.kubernetes) == ("other:1", "/team/runs", whole.kubernetes)
    driver = whole.driver
    assert driver is not None
    assert (driver.name, driver.resources.cpu_milli) == ("churn-driver", 200)
    assert with_driver(whole) == whole


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"checkpoint": None}, "what steps return has to outlive the pods that run them"),
        ({"checkpoint": "/elsewhere"}, "is on no volume of the pipeline that outlives its pods"),
        (
            {"steps": {"train": {"training": {"run": "a", "kubernetes": ELSEWHERE}}}},
            "it does not mount the volume of /team/runs as the pipeline does",
        ),
        ({"on": {"drift": DRIFTING}}, "on.drift.data: losses.csv is on no volume of the pipeline"),
        ({"on": {"data": ["/team/raw", "raw.csv"]}}, "on.data: raw.csv is on no volume of the pipeline"),
        ({"name": "a" * 36, "schedule": "0 3 * * *"}, "its runs would be named"),
    ],
)  # fmt: skip
def test_what_a_cluster_cannot_carry_out_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        with_driver(on_a_volume(**changes))
    assert sentence in str(refused.value)


@pytest.mark.parametrize("mount", [MOUNT, {**MOUNT, "readOnly": True}])
def test_drift_is_looked_for_by_a_run_that_is_told_in_a_file_from_where_rows_count(mount: dict[str, Any]) -> None:
    drift = {**DRIFTING, "data": "/team/losses.csv"}
    writes = mounting(VOLUME, MOUNT)["spec"]["containers"][0]["volumeMounts"][0]
    mounts = {"spec": {"volumes": [VOLUME, {**VOLUME, "name": "seen"}], "containers": [{"name": RANKS, "volumeMounts": [
        {**writes, "mountPath": "/places"}, {**mount, "name": "seen"}]}]}}  # fmt: skip
    on = {"drift": drift, "every": "5s"}
    watch = with_driver(on_a_volume(checkpoint="/places/runs", on=on, kubernetes=mounts)).watch
    assert watch is not None
    asked = json.loads(watch.env["FAIRLEAD_WATCH"])
    assert (asked["data"], asked["every_s"], asked["drift"]["data"]) == ([], 5.0, "/team/losses.csv")
    pod = render_pod(a_workload(watch, parent="p"), a_creation(), SETTINGS)["spec"]
    assert any(each["mountPath"] == "/fairlead/family" for each in pod["containers"][0]["volumeMounts"])
    # Nobody waits for the next look, so that it is not asked each second.
    assert pod["initContainers"][0]["command"][-1] != "1.0"
    assert with_driver(on_a_volume(on={"drift": {**DRIFTING, "data": "s3://bucket/losses.csv"}})).watch is not None


def test_the_pod_of_a_driver_that_asks_is_told_in_a_file_and_reports_each_second() -> None:
    driver = with_driver(on_a_volume()).driver
    pod = render_pod(a_workload(driver, parent="p"), a_creation(), SETTINGS)["spec"]
    assert pod["initContainers"][0]["command"][-1] == "1.0"
    assert {"name": "fairlead-family", "mountPath": "/fairlead/family", "readOnly": True} in pod["containers"][0][
        "volumeMounts"
    ]
    (volume,) = (each for each in pod["volumes"] if each["name"] == "fairlead-family")
    (item,) = volume["downwardAPI"]["items"]
    assert item == {"path": "runs", "fieldRef": {"fieldPath": "metadata.annotations['fairlead.dev/family']"}}
    alone = render_pod(a_workload(driver), a_creation(), SETTINGS)["spec"]
    assert [each["name"] for each in alone["initContainers"]] == [REPORTER]
    assert "fairlead-family" not in json.dumps(alone)


class Killed(BaseException):
    """The driver is killed here."""


class Operator(PodChildren):
    """Hears what is asked and answers, as the operator does, when the driver looks; kills it where it is told to."""

    def __init__(self, world: "World", reporter: Reporter, dies: random.Random | None) -> None:
        super().__init__(world.path / "told", reporter)
        self._world = world
        self._dies = dies

    def _maybe_die(self) -> None:
        if self._dies is not None and self._dies.random() < 0.4:
            raise Killed

    def submit(self, task: Task, variables: Any) -> str | None:
        self._maybe_die()
        answer = super().submit(task, variables)
        self._maybe_die()
        return answer

    def has_changed(self) -> bool:
        self._world.look()
        self._maybe_die()
        return super().has_changed()

    def collect(self, *args: Any) -> Any:
        self._maybe_die()
        found = super().collect(*args)
        self._maybe_die()
        return found


class World:
    """A volume, a pipeline's children on it, and one driver after another.

    Args:
        place: A URL in place of the volume.
    """

    def __init__(self, path: Path, spec: dict[str, Any], place: str | None = None) -> None:
        self.path = path
        self.place = place
        self.pipeline = parsed({**spec, "checkpoint": place or str(path / "place")})
        self.driver = a_workload(Training(name="churn-driver", run="driver"), uid="d1", parent="p")
        self.children: dict[str, AnyWorkload] = {DRIVER: self.driver}
        self.told: dict[str, dict[str, Any]] = {}
        self.code = 0
        (path / "work").mkdir(parents=True)
        (path / "pod").mkdir()

    def look(self) -> None:
        report = json.loads((self.path / "pod" / "rank-0.json").read_text())
        asks = progress_of(report).asks
        for name, spec in asked_children(self.pipeline, Family(children=self.children), asks).items():
            self.children[name] = a_workload(spec if isinstance(spec, Training) else None, uid=f"uid-{name}")
            self.told[name] = self._run(name, spec)
        told = json.dumps({"wanted": True, "runs": self.told})
        (self.path / "told.new").write_text(told)
        (self.path / "told.new").rename(self.path / "told")

    def _run(self, name: str, spec: Training | Sweep) -> dict[str, Any]:
        if isinstance(spec, Sweep):
            best = {"run": f"churn-{name}-1", "parameters": {"lr": 0.3}, "value": 0.5}
            return {"run": f"churn-{name}", "phase": "Succeeded", "over": True, "took_s": 2.0, "best": best}
        code = self._carry_out(name, spec)
        found = {"run": f"churn-{name}", "over": True, "took_s": 1.0}
        if code:
            return {**found, "phase": "Failed", "failed": True, "message": f"exit code {code}"}
        return {**found, "phase": "Succeeded"}

    def _carry_out(self, name: str, spec: Training) -> int:
        env = {**os.environ, **spec.env, "LEDGER": str(self.path / "ledger")}
        if self.place is not None:
            here = self.path / f"pod-{name}"
            env = {key: value.replace(STEP_DIR, str(here)) for key, value in env.items()}
            fetch_given(env["FAIRLEAD_STEP_GIVEN"], here)
        ended = subprocess.run(["sh", "-c", spec.run], env=env, cwd=self.path / "work", timeout=60, check=False)
        if self.place is not None and ended.returncode == 0:
            send_returned(env["FAIRLEAD_STEP_RETURNS"], here, number_of(0, 0))
        return ended.returncode

    def drive(self, dies: random.Random | None = None) -> dict[str, str]:
        """One driver to its end, or until it is killed; the phases of the tasks then."""
        files = self.path / "place" / f"churn-driver-{self.driver.uid}"
        files.mkdir(parents=True, exist_ok=True)
        reporter = Reporter(rank=0, world_size=1, directory=self.path / "pod")
        reporter.fact(asks=[])
        store: Path = self.path / "place" / "fairlead-artefacts"
        around = Surroundings(
            workdir=self.path / "work", files=files, checkpoints=str(files / "checkpoints"), run=self.driver.uid,
            environ={**os.environ, "LEDGER": str(self.path / "ledger")}, is_in_pod=True,
            children=Operator(self, reporter, dies),
        )  # fmt: skip
        artefacts: Artefacts = SharedArtefacts(store)
        results = ResultFiles(FileDocuments(store))
        if self.place is not None:
            own = ObjectDocuments(f"{self.place}/churn-driver-{self.driver.uid}")
            shared = ObjectDocuments(f"{self.place}/fairlead-artefacts")
            around = replace(around, exchange=StoreExchange(own, shared.place))
            artefacts, results = ObjectArtefacts(files / "kept", shared), ResultFiles(shared)
        driver = PipelineDriver(self.pipeline, artefacts, results, around, reporter)
        self.code = driver.run()
        return {task.name: task.phase.value for tasks in driver._progress.steps.values() for task in tasks}

    @property
    def ledger(self) -> list[str]:
        place = self.path / "ledger"
        return sorted(place.read_text().split()) if place.exists() else []


def noted(name: str, then: str = "true") -> str:
    return f"echo {name} >> $LEDGER; {then}"


CHAIN = {
    "steps": {
        "prepare": {"run": noted("prepare", "echo 5 > $FAIRLEAD_OUTPUT_DATA"), "outputs": ["data"]},
        "tune": {
            "needs": ["prepare"],
            "outputs": ["parameters", "value"],
            "sweep": {"parameters": {"lr": "0.1 | 1"}, "objective": "loss", "trial": {"run": "tune"}},
        },
        "train": {
            "needs": ["prepare", "tune"],
            "each": ["north", "south"],
            "outputs": ["model"],
            "training": {
                "run": noted(
                    "train-$FAIRLEAD_ITEM",
                    "cat $FAIRLEAD_INPUT_PREPARE_DATA $FAIRLEAD_INPUT_TUNE_PARAMETERS > $FAIRLEAD_OUTPUT_MODEL",
                )
            },
        },
        "check": {
            "needs": ["train"],
            "outputs": ["all"],
            "training": {"run": noted("check", "cat $FAIRLEAD_INPUT_TRAIN_MODEL/1 > $FAIRLEAD_OUTPUT_ALL")},
        },
        "report": {"needs": ["check"], "run": noted("report", "grep -q 0.3 $FAIRLEAD_INPUT_CHECK_ALL")},
    }
}
ALL = ["check", "prepare", "report", "train-north", "train-south"]


@pytest.fixture(params=["a volume", "a store"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The store is this machine's own files, but spoken to as a store."""
    monkeypatch.setenv("FSSPEC_FILE_AUTO_MKDIR", "yes")
    return f"local://{tmp_path / 'store'}" if request.param == "a store" else None


def test_runs_and_sweeps_are_handed_what_commands_return_and_hand_on_theirs(tmp_path: Path, place: str | None) -> None:
    world = World(tmp_path, CHAIN, place)
    assert set(world.drive().values()) == {"Succeeded"}
    assert (world.code, world.ledger) == (0, ALL)
    assert json.loads((tmp_path / "pod" / "rank-0.json").read_text())["asks"] == []
    # The next run of the pipeline takes all of it.
    world.driver = replace(world.driver, uid="d2")
    world.children = {DRIVER: world.driver}
    world.told = {}
    assert set(world.drive().values()) == {"Cached"}
    assert world.ledger == ALL


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_driver_that_is_killed_anywhere_has_each_run_submitted_once(
    tmp_path: Path, place: str | None, seed: int
) -> None:
    world, dies, kills = World(tmp_path, CHAIN, place), random.Random(seed), 0
    while True:
        try:
            phases = world.drive(dies if kills < 30 else None)
            break
        except Killed:
            kills += 1
    assert kills > 0
    assert set(phases.values()) == {"Succeeded"}
    assert [each for each in world.ledger if each.startswith(("train", "check"))] == ALL[:1] + ALL[3:]
    assert sorted(world.children) == ["check", DRIVER, "train-0", "train-1", "tune"]


class Pods(World):
    """Whose runs are pods of the real program, and whose store is asked by these too."""

    def _carry_out(self, name: str, spec: Training) -> int:
        codes = []
        for index in range(spec.nodes):
            directory = self.path / f"{name}-{index}"
            directory.mkdir()
            container = Container(directory, sys.executable)
            env = {**spec.env, "LEDGER": str(self.path / "ledger"), "FAIRLEAD_ATTEMPT": "0", **self.environ}
            env = {key: value.replace(STEP_DIR, str(directory / "local" / "step")) for key, value in env.items()}
            own = {"FAIRLEAD_POD_DIR": str(container.pod_dir), "FAIRLEAD_RUN_DIR": str(directory / "local" / "run")}
            code, self.said = container.run(
                spec.run, env={**env, **own, "NODE": str(index)}, ranks=1, **self.ranks(index)
            )
            codes.append(code)
        return max(codes)

    @staticmethod
    def ranks(index: int) -> dict[str, Any]:
        return {} if index == 0 else {"uid": f"other-{os.getpid()}-{index}"}

    environ: dict[str, str]
    said = ""


@pytest.mark.slow
def test_pods_of_a_step_fetch_what_it_is_given_and_send_what_it_returns(s3: S3, tmp_path: Path) -> None:
    world = Pods(tmp_path, CHAIN, "s3://models/pipelines")
    world.environ = s3.environ
    assert set(world.drive().values()) == {"Succeeded"}, world.said
    assert (world.code, world.ledger) == (0, ALL)
    names = {path.name for path in (s3.directory / "models" / "pipelines").rglob("*") if path.parent.name == "returned"}
    assert names == {"000000-000000.tar"}
    # A store that takes nothing more fails the run, whatever its program says, and tells why.
    world = Pods(tmp_path / "other", {"steps": {"train": {"outputs": ["model"], "training": {
        "run": f"echo 5 > $FAIRLEAD_OUTPUT_MODEL; kill -9 {s3.process.pid if s3.process else 0}"}}}},
        "s3://models/others")  # fmt: skip
    world.environ = s3.environ
    with pytest.raises(StoreUnavailable):
        world.drive()
    assert "fairlead: what it returns cannot be kept: " in world.said


def test_a_run_that_fails_or_is_deleted_fails_its_step_and_says_why(tmp_path: Path) -> None:
    steps = {"train": {"training": {"run": "exit 3"}}, "after": {"needs": ["train"], "run": "true"}}
    world = World(tmp_path, {"steps": steps})
    assert world.drive() == {"train": "Failed", "after": "Skipped"}
    assert world.code == 1


def test_what_is_not_over_is_waited_for_and_what_vanishes_is_missed(tmp_path: Path) -> None:
    told, reporter = tmp_path / "told", Reporter(rank=0, world_size=1, directory=tmp_path)
    children, task = PodChildren(told, reporter), Task(step="train")
    assert not children.has_changed()
    assert children.submit(task, {}) is None
    assert (children.find(task), children.is_gone(task)) == (None, False)
    told.write_text("")
    assert not children.has_changed()
    for runs, phase, gone in (
        ({"train": {"run": "churn-train", "phase": "Running"}}, "Running", False),
        ({}, None, True),
    ):
        (tmp_path / "new").write_text(json.dumps({"wanted": True, "runs": runs}))
        (tmp_path / "new").rename(told)
        assert children.has_changed()
        found = children.find(task)
        assert (None if found is None else found.phase, children.is_gone(task)) == (phase, gone)
        assert found is None or not found.is_over


def test_no_more_is_asked_for_at_once_than_a_report_holds(tmp_path: Path) -> None:
    reporter = Reporter(rank=0, world_size=1, directory=tmp_path)
    children = PodChildren(tmp_path / "told", reporter)
    for index in range(2 * MOST_REQUESTED):
        task = Task(step="train", index=index, item=f"shard-{index:05}.parquet")
        if not children.has_room(task):
            break
        children.submit(task, {})
    assert 50 < index <= MOST_REQUESTED
    line = pack_report(str(tmp_path))
    assert len(line) < MOST_REPORT_BYTES
    assert len(progress_of(json.loads(line)["progress"]).asks) == index
    with pytest.raises(OSError, match="too many to reach a run of its own"):
        children.submit(Task(step="train", index=999, item="é" * 1000), {})
