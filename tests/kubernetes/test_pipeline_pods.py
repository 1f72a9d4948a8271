"""The driver of a pipeline out of its zip file, by a bare interpreter: journal, outputs, reasons."""

import base64
import contextlib
import gzip
import json
import os
import random
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fairlead.cluster.kubernetes.manifests import driver_bundle, runtime_bundle
from fairlead.cluster.kubernetes.manifests.pods import render_pod
from fairlead.cluster.port import LogLine
from fairlead.control.pipelines.object_place import ObjectDocuments
from fairlead.control.pipelines.submission import pipeline_of
from fairlead.control.pipelines.task_lines import MOST_MESSAGE, MOST_TASKS, read_task_lines
from fairlead.errors import InvalidSpec
from fairlead.policy.kinds.steps import Task
from fairlead.specs.formats.packing import packed, unpacked
from fairlead.specs.formats.reading import parse
from fairlead.specs.formats.serialization import to_json
from fairlead.specs.pipeline import WATCH_VARIABLE, Pipeline
from fairlead.specs.workload import PIPELINE_VARIABLE
from tests.builders import training
from tests.kubernetes.builders import SETTINGS, a_creation, a_workload
from tests.kubernetes.test_runtime_bundle import TIMEOUT_S, Container
from tests.s3 import S3
from tests.waiting import until

ROUNDS = 10

CHAIN = """
kind: Pipeline
name: churn
steps:
  prepare:
    run: |
      echo prepare >> $LEDGER
      cat given > $FAIRLEAD_OUTPUT_DATA
      echo '["n", "s"]' > $FAIRLEAD_OUTPUT_REGIONS
    outputs: [data, regions]
    code: [given]
  train:
    needs: [prepare]
    each_of: prepare.regions
    run: |
      echo train $FAIRLEAD_ITEM >> $LEDGER
      while [ -e hold ]; do sleep 0.05; done
      cat $FAIRLEAD_INPUT_PREPARE_DATA > $FAIRLEAD_OUTPUT_MODEL
    outputs: [model]
    code: [none]
  check:
    needs: [train]
    run: cat $FAIRLEAD_INPUT_TRAIN_MODEL/1 > $FAIRLEAD_OUTPUT_VALUE
    outputs: [value]
    gate: value > 1
    code: [none]
"""


class Pods:
    """Pods of one pipeline after another, which have a place in common.

    Args:
        place: A directory, or a URL that fsspec knows.
        environ: More variables of the pods.
    """

    def __init__(self, path: Path, place: str, **environ: str) -> None:
        self.path = path
        self.environ = environ
        self.place = place
        self.ledger = path / "ledger"
        self.work = path / "work"
        self.work.mkdir()
        (self.work / "given").write_text("5\n")
        (path / "driver.pyz").write_bytes(driver_bundle.bundle())

    def start(
        self, run: str, attempt: int = 0, *, text: str = CHAIN, workdir: Path | None = None
    ) -> "subprocess.Popen[str]":
        directory = self.path / f"{run}-{attempt}"
        directory.mkdir()
        container = Container(directory, sys.executable)
        env = {
            "FAIRLEAD_POD_DIR": str(container.pod_dir), "FAIRLEAD_RUN_DIR": str(directory / "run"), "WORLD_SIZE": "1",
            "FAIRLEAD_CHECKPOINT_TO": f"{self.place}/churn-{run}", "FAIRLEAD_RUN_UID": run,
            "FAIRLEAD_TEAM": "research", "LEDGER": str(self.ledger), PIPELINE_VARIABLE: packed(spec(text)),
            "FSSPEC_FILE_AUTO_MKDIR": "yes", **self.environ,
        }  # fmt: skip
        # A volume needs nothing but the interpreter.
        flags = "" if "://" in self.place else "-S "
        command = f"{sys.executable} {flags}{self.path / 'driver.pyz'}"
        return container.start(command, env=env, workdir=str(workdir or self.work))

    def run(
        self, run: str, attempt: int = 0, *, text: str = CHAIN, workdir: Path | None = None
    ) -> tuple[int, list[str]]:
        pod = self.start(run, attempt, text=text, workdir=workdir)
        out, _ = pod.communicate(timeout=TIMEOUT_S)
        return pod.returncode, [line[3:] for line in out.splitlines()]

    def did(self) -> list[str]:
        return sorted(self.ledger.read_text().splitlines()) if self.ledger.exists() else []


@pytest.fixture(params=["a volume", "a store"])
def pods(request: pytest.FixtureRequest, tmp_path: Path) -> Pods:
    """With both kinds of places; the store is this machine's own files, but spoken to as a store."""
    scheme = "" if request.param == "a volume" else "local://"
    return Pods(tmp_path, f"{scheme}{tmp_path / 'place'}")


@pytest.fixture
def on_a_volume(tmp_path: Path) -> Pods:
    return Pods(tmp_path, str(tmp_path / "place"))


def kill_container(pod: "subprocess.Popen[str]") -> None:
    """Kill all that a pod has started, as the kernel does with a container; its shim says so and ends."""
    shim = psutil.Process(pod.pid)

    def is_over() -> bool:
        # What is started while the others are listed is killed the next time.
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in shim.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        return pod.poll() is not None

    until(is_over, "end of the pod")


def spec(text: str = CHAIN) -> Pipeline:
    (found,) = parse(text)
    assert isinstance(found, Pipeline)
    return found


def tasks(lines: list[str], text: str = CHAIN) -> dict[str, Task]:
    """Read from the output of a driver what became of each task."""
    said = [LogLine(at=float(at), attempt=0, rank=0, stream="o", text=line) for at, line in enumerate(lines)]
    return {task.name: task for each in read_task_lines(spec(text), said).steps.values() for task in each}


@pytest.mark.slow
def test_what_steps_return_is_taken_by_the_next_pipeline_which_says_why(pods: Pods) -> None:
    code, out = pods.run("one")
    assert (code, out[-1]) == (0, "fairlead: 4 steps ran"), out
    assert pods.did() == ["prepare", "train n", "train s"]
    assert {name: task.phase.value for name, task in tasks(out).items()} == dict.fromkeys(
        ("prepare", "train[0]", "train[1]", "check"), "Succeeded"
    )
    code, out = pods.run("two")
    assert (code, out[-1]) == (0, "fairlead: 4 steps unchanged")
    assert tasks(out)["prepare"].message.startswith("unchanged since run one")
    (pods.work / "given").write_text("0\n")
    code, out = pods.run("three")
    assert code == 1
    assert pods.did() == ["prepare", "prepare", "train n", "train n", "train s", "train s"]
    assert "code given has changed" in tasks(out)["prepare"].message
    assert "prepare.data has changed" in tasks(out)["train[0]"].message
    assert tasks(out)["check"].message == "gate: `value > 1` does not hold: value is 0"


@pytest.mark.parametrize("index", [str(MOST_TASKS), "9" * 8, "9" * 12, "9" * 5000])
def test_a_line_with_an_index_that_no_step_has_fills_no_memory(index: str) -> None:
    hostile = f"fairlead: step train[{index}] Running"
    lines = [hostile, "fairlead: step train[1] Running", hostile, "fairlead: step prepare Succeeded"]
    assert {name: task.phase.value for name, task in tasks(lines).items()} == {
        "prepare": "Succeeded", "train[0]": "Waiting", "train[1]": "Running", "check": "Waiting",
    }  # fmt: skip


def test_a_long_message_of_a_step_is_cut() -> None:
    found = tasks([f"fairlead: step train[1] Failed: {'x' * 60_000}"])
    assert found["train[1]"].message == "x" * MOST_MESSAGE


@pytest.mark.slow
def test_a_pod_that_was_killed_is_followed_by_one_that_goes_on(pods: Pods) -> None:
    (pods.work / "hold").touch()
    first = pods.start("one")
    until(lambda: pods.did() == ["prepare", "train n", "train s"])
    kill_container(first)
    first.communicate(timeout=TIMEOUT_S)
    assert first.returncode == 137
    (pods.work / "hold").unlink()
    code, out = pods.run("one", 1)
    assert (code, out[-1]) == (0, "fairlead: 4 steps ran"), out
    # What was cut short began anew, what was done did not.
    assert pods.did() == ["prepare", "train n", "train n", "train s", "train s"]
    assert tasks(out)["prepare"].phase.value == "Succeeded"  # told once more, as the first pod's output may be gone
    code, out = pods.run("one", 2)
    assert (code, out[-1]) == (0, "fairlead: 4 steps ran"), "it is over, and says so again"
    assert len(pods.did()) == 5


def test_a_pod_waits_for_one_that_was_given_up_and_still_lives(on_a_volume: Pods) -> None:
    pods = on_a_volume
    (pods.work / "hold").touch()
    first = pods.start("one")
    until(lambda: pods.did() == ["prepare", "train n", "train s"])
    second = pods.start("one", 1)
    assert second.stdout is not None
    assert "waits for another pod of this run" in second.stdout.readline()
    (pods.work / "hold").unlink()
    assert first.wait(timeout=TIMEOUT_S) == 0
    out, _ = second.communicate(timeout=TIMEOUT_S)
    assert second.returncode == 0, out
    first.communicate(timeout=TIMEOUT_S)
    assert pods.did() == ["prepare", "train n", "train s"]


@pytest.mark.long
def test_whatever_is_killed_no_step_is_run_again_once_it_is_done(pods: Pods) -> None:
    """Kills the driver and all that it has started at random, until a pod comes to the end."""

    def before(number: int) -> str:
        return f"s{number - 1}" if number else ""

    chain = "".join(
        f"  s{number}: {{needs: [{before(number)}], outputs: [value], code: [none], "
        f"run: 'sleep 0.1; echo done s{number} >> $LEDGER; "
        f"echo {number} > $FAIRLEAD_OUTPUT_VALUE'}}\n"
        for number in range(12)
    )
    num_kills = 0
    text, dice = f"kind: Pipeline\nname: churn\nsteps:\n{chain}", random.Random(16)
    for number in range(ROUNDS):
        run, attempt, kept = f"r{number}", 0, set[str]()
        pods.ledger.unlink(missing_ok=True)
        while True:
            pod = pods.start(run, attempt, text=text + f"env: {{ROUND: '{number}'}}\n")
            try:
                out, _ = pod.communicate(timeout=dice.uniform(0.2, 1.5) if attempt < 10 else TIMEOUT_S)
            except subprocess.TimeoutExpired:
                kill_container(pod)
                num_kills += 1
                out, _ = pod.communicate(timeout=TIMEOUT_S)
            told = tasks([line[3:] for line in out.splitlines()], text)
            said = {name for name, task in told.items() if task.phase.is_good}
            began = [line.split()[3] for line in out.splitlines() if " Running" in line]
            assert not kept & set(began), "what was told as done is not begun again"
            kept |= said
            if pod.returncode == 0:
                break
            attempt += 1
        assert len(kept) == 12
        # A program that was killed between its last command and the record of its end has run twice; no other has.
        assert sorted(set(pods.did())) == sorted(f"done s{number}" for number in range(12))
        assert len(pods.did()) <= 12 + attempt
    assert num_kills > ROUNDS


@pytest.mark.slow
def test_another_image_or_set_up_runs_the_steps_again(on_a_volume: Pods) -> None:
    pods = on_a_volume
    pods.run("one")
    code, out = pods.run("two", text=f"{CHAIN}image: python:3.13\n")
    assert code == 0
    assert "image has changed" in tasks(out)["prepare"].message
    code, out = pods.run("three", text=f"{CHAIN}image: python:3.13\nsetup: 'true'\n")
    assert "setup has changed" in tasks(out)["prepare"].message


def test_a_large_file_counts_by_its_content_as_its_times_are_those_of_its_unpacking(on_a_volume: Pods) -> None:
    pods = on_a_volume
    text = "kind: Pipeline\nname: churn\nsteps: {prepare: 'true'}\n"
    large = pods.work / "large"
    for letter, run in (("a", "one"), ("b", "two")):
        with large.open("wb") as file:
            file.truncate(17 * 2**20)
            file.write(letter.encode())
        os.utime(large, (0, 0))
        _, out = pods.run(run, text=text)
    assert "fairlead: step prepare Running: code large has changed" in out


def test_what_git_ignores_is_no_code_in_a_pod_either(on_a_volume: Pods) -> None:
    pods = on_a_volume
    text = "kind: Pipeline\nname: churn\nsteps: {prepare: 'true'}\n"
    (pods.work / ".gitignore").write_text("*.log\n")
    code, out = pods.run("one", text=text)
    assert (code, out[-1]) == (0, "fairlead: 1 step ran"), out
    (pods.work / "train.log").write_text("step 7\n")
    code, out = pods.run("two", text=text)
    assert (code, out[-1]) == (0, "fairlead: 1 step unchanged"), out


def test_an_image_whose_programs_start_at_its_root_is_to_say_where_the_code_is(on_a_volume: Pods) -> None:
    code, out = on_a_volume.run("one", workdir=Path("/"))
    assert code == 2
    assert "programs start in /, and all files there would be the code" in out[-1]


PLAIN = to_json(training("train"))


@pytest.mark.parametrize("value", ["hello", "{}", "hell", "H4sIAAAA", PLAIN, base64.b64encode(b"plain").decode(), ""])
def test_a_variable_that_holds_no_pipeline_is_told_and_makes_no_trouble_for_readers(value: str) -> None:
    with pytest.raises(InvalidSpec, match=r"FAIRLEAD_PIPELINE: it holds no pipeline: .*; leave it out"):
        unpacked(value)
    assert pipeline_of(replace(training("train"), env={PIPELINE_VARIABLE: value})) is None


def test_a_pipeline_of_few_bytes_that_become_many_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.specs.formats.packing.MOST_BYTES", 100_000)
    value = base64.b64encode(gzip.compress(b" " * 100_001)).decode()
    with pytest.raises(InvalidSpec, match="it has more than 100000 bytes"):
        unpacked(value)
    with pytest.raises(InvalidSpec, match="its end is missing"):
        unpacked(base64.b64encode(gzip.compress(b"x" * 999)[:-9]).decode())


def test_a_pod_that_watches_data_has_all_that_looks_for_drift(on_a_volume: Pods) -> None:
    given = on_a_volume.work / "given"
    drift = {"data": str(given), "column": "loss", "cost": 5.0}
    on_a_volume.environ = {WATCH_VARIABLE: json.dumps({"data": [str(given)], "every_s": 0.1, "drift": drift})}
    pod = on_a_volume.start("one")
    report = on_a_volume.path / "one-0" / "local" / "pod" / "rank-0.json"
    until(lambda: report.exists() and "seen" in json.loads(report.read_text()), "look at data", timeout_s=TIMEOUT_S)
    kill_container(pod)
    out, _ = pod.communicate(timeout=TIMEOUT_S)
    assert "Traceback" not in out


def test_a_bare_interpreter_imports_every_module_that_only_the_driver_needs(tmp_path: Path) -> None:
    archives = {"runtime.pyz": runtime_bundle.bundle(), "driver.pyz": driver_bundle.bundle()}
    for name, content in archives.items():
        (tmp_path / name).write_bytes(content)
    with zipfile.ZipFile(tmp_path / "driver.pyz") as archive:
        # Specs and texts are bundled as whole folders, with readers that a pod never imports.
        folders = ("fairlead/cluster/", "fairlead/control/", "fairlead/policy/")
        paths = [Path(name) for name in archive.namelist() if name.startswith(folders)]
    modules = [".".join((path.parent if path.stem == "__init__" else path.with_suffix("")).parts) for path in paths]
    assert "fairlead.control.pipelines.driver" in modules
    program = (
        "import importlib, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import fairlead\n"
        "fairlead.__path__.append(sys.argv[2] + '/fairlead')\n"
        "for name in sys.argv[3:]: importlib.import_module(name)\n"
    )
    argv = [sys.executable, "-I", "-S", "-c", program, *(str(tmp_path / name) for name in archives), *modules]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_only_the_pods_of_drivers_have_the_driver() -> None:
    plain = training("train")
    driver = replace(plain, env={PIPELINE_VARIABLE: packed(spec())})
    rendered = [render_pod(a_workload(each), a_creation(), SETTINGS) for each in (plain, driver)]
    volumes = [each["spec"]["volumes"][0] for each in rendered]
    assert volumes[0] == {"name": "fairlead-runtime", "configMap": {"name": SETTINGS.runtime}}
    names = [source["configMap"]["name"] for source in volumes[1]["projected"]["sources"]]
    assert names == [SETTINGS.runtime, driver_bundle.bundle_name()]
    bundle = driver_bundle.render_bundle("research")
    assert len(json.dumps(bundle)) < runtime_bundle.MOST_BYTES * 2 // 5
    assert base64.b64decode(bundle["binaryData"]["driver.pyz"]) == driver_bundle.bundle()


def test_a_long_pipeline_is_packed_and_read_back() -> None:
    steps = "".join(f"  s{number}: python train.py --part {number}\n" for number in range(2000))
    long = spec(f"kind: Pipeline\nname: long\nsteps:\n{steps}")
    assert len(packed(long)) < 65_536
    assert unpacked(packed(long)) == long
    assert unpacked(packed(spec())) == spec()


@pytest.mark.slow
def test_a_store_that_cannot_be_reached_or_is_damaged_is_told(tmp_path: Path) -> None:
    pods = Pods(tmp_path, f"local://{tmp_path / 'place'}")
    code, _ = pods.run("one")
    assert code == 0
    for kept in (tmp_path / "place").rglob("*.tar"):
        kept.write_bytes(b"")
    (pods.work / "none").write_text("")  # the code of the steps that read what the first one returned
    code, out = pods.run("two")
    assert code == 1
    (damaged,) = (line.split()[1] for line in out if "is not what was kept there; delete it, and the next" in line)
    Path(damaged.removeprefix("local://")).unlink()
    _, out = pods.run("anew")
    assert tasks(out)["prepare"].message.endswith("(its output data is not there any more)"), out
    assert tasks(out)["prepare"].phase.value == "Succeeded"
    (tmp_path / "place").rename(tmp_path / "gone")
    (tmp_path / "place").write_text("")
    code, out = pods.run("three")
    assert code == 1
    assert any("Not a directory" in line for line in out), out


def test_what_a_kill_cuts_short_in_a_store_of_files_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    documents = ObjectDocuments(f"local://{tmp_path / 'place'}")
    monkeypatch.setattr(documents.system, "auto_mkdir", True)
    documents.write("results/one", "before")
    (tmp_path / "file").write_text("content")
    with monkeypatch.context() as patched:
        patched.setattr("fsspec.implementations.local.LocalFileOpener.write", die)
        for name in ("results/one", "results/two"):
            with pytest.raises(Killed):
                documents.write(name, "after")
        with pytest.raises(Killed):
            documents.send(tmp_path / "file", "outputs/three")
    assert documents.read("results/one") == "before"
    assert documents.names("results") == ["one"]
    assert not documents.has("outputs/three")
    documents.send(tmp_path / "file", "outputs/three")
    assert documents.read("outputs/three") == "content"


@pytest.mark.slow
def test_a_pipeline_whose_place_is_an_s3_store(s3: S3, tmp_path: Path) -> None:
    pods = Pods(tmp_path, "s3://models/pipelines", **s3.environ)
    code, out = pods.run("one")
    assert (code, out[-1]) == (0, "fairlead: 4 steps ran"), out
    code, out = pods.run("one", 1)
    assert (code, out[-1]) == (0, "fairlead: 4 steps ran"), out
    code, out = pods.run("two")
    assert (code, out[-1]) == (0, "fairlead: 4 steps unchanged"), out
    assert pods.did() == ["prepare", "train n", "train s"]
    assert tasks(out)["prepare"].message.startswith("unchanged since run one")
    (pods.work / "none").write_text("")  # so that the others fetch what the first one returned
    code, out = pods.run("three")
    assert (code, out[-1]) == (0, "fairlead: 3 steps ran, 1 unchanged"), out
    s3.stop()
    code, out = pods.run("four")
    assert code == 1
    assert any("s3://models/pipelines" in line for line in out), out
