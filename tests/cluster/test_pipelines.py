"""The driver of a pipeline with real programs: what is handed on, what is run again, what survives a kill."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairlead.cli.commands.lineage import _lines
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.code.keeping import CodeStore
from fairlead.cluster.local.dataset_files import store_dataset
from fairlead.cluster.local.home import Home
from fairlead.control.data import upload_directory
from fairlead.control.pipelines import journal, lineage
from fairlead.control.pipelines.artefacts import Artefacts, content_digest, read_value
from fairlead.control.pipelines.children import Children
from fairlead.control.pipelines.dependencies import Dependencies
from fairlead.control.pipelines.results import Results
from fairlead.control.pipelines.submission import as_workload
from fairlead.policy.kinds.steps import Result, Task, TaskPhase
from fairlead.runtime.podfiles import held
from fairlead.specs.dataset import Dataset
from fairlead.specs.formats.reading import parse
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.pipeline import Pipeline, Step, StepTraining
from fairlead.state.snapshot import Grant, Pod, PodPhase
from tests.builders import training
from tests.s3 import S3, s3, s3_binary
from tests.waiting import until

__all__ = ["s3", "s3_binary"]


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a driver did."""

    code: int
    out: str
    steps: dict[str, list[Task]]

    def why(self, name: str) -> str:
        return next(task.message for tasks in self.steps.values() for task in tasks if task.name == name)

    def phases(self) -> dict[str, str]:
        return {task.name: task.phase.value for tasks in self.steps.values() for task in tasks}


class Place:
    """A working directory, a store, and the files of runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / "work"
        self.work.mkdir()
        self.store = path / "store"

    def start(self, text: str, run: str, cwd: Path | None = None, /, **env: str) -> "subprocess.Popen[str]":
        spec = self._spec(text)
        files = self.path / run
        files.mkdir(exist_ok=True)
        (self.path / "spec.json").write_text(to_json(spec))
        given = {"FAIRLEAD_RUN_DIR": str(files), "FAIRLEAD_POD_DIR": str(files), "FAIRLEAD_RUN_UID": run, **env}
        return subprocess.Popen(
            [sys.executable, "-m", "fairlead.control.pipelines.driver", str(self.path / "spec.json"), str(self.store)],
            cwd=self.work if cwd is None else cwd,
            env={**os.environ, **given},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, text: str, run: str, **env: str) -> Ran:
        driver = self.start(text, run, **env)
        out, _ = driver.communicate(timeout=120)
        return Ran(code=driver.returncode, out=out, steps=self.steps(text, run))

    def run_spec(self, spec: str, run: str, *, cwd: Path, **env: str) -> dict[str, list[Task]]:
        """Return the steps of a stored pipeline after it was run in a directory."""
        files = self.path / run
        files.mkdir()
        (self.path / "spec.json").write_text(spec)
        given = {"FAIRLEAD_RUN_DIR": str(files), "FAIRLEAD_POD_DIR": str(files), "FAIRLEAD_RUN_UID": run, **env}
        argv = ["-m", "fairlead.control.pipelines.driver", str(self.path / "spec.json"), str(self.store)]
        subprocess.run([sys.executable, *argv], cwd=cwd, env={**os.environ, **given}, timeout=120, check=False)
        pipeline = from_json(spec)
        assert isinstance(pipeline, Pipeline)
        return journal.read(files / journal.NAME, pipeline).steps

    def steps(self, text: str, run: str) -> dict[str, list[Task]]:
        return journal.read(self.path / run / journal.NAME, self._spec(text)).steps

    def _spec(self, text: str) -> Pipeline:
        (spec,) = parse(text, default_name="p")
        assert isinstance(spec, Pipeline)
        return spec


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


CHAIN = """
kind: Pipeline
steps:
  prepare:
    run: |
      mkdir $FAIRLEAD_OUTPUT_DATA
      cat given > $FAIRLEAD_OUTPUT_DATA/part
      echo '["n", "s"]' > $FAIRLEAD_OUTPUT_SHARDS
    outputs: [data, shards]
    code: [given]
  train:
    needs: [prepare]
    each_of: prepare.shards
    run: echo "$FAIRLEAD_ITEM $(cat $FAIRLEAD_INPUT_PREPARE_DATA/part)" > $FAIRLEAD_OUTPUT_MODEL
    outputs: [model]
    code: [train.sh]
  join:
    needs: [train]
    run: cat $FAIRLEAD_INPUT_TRAIN_MODEL/0 $FAIRLEAD_INPUT_TRAIN_MODEL/1; echo 0.95 > $FAIRLEAD_OUTPUT_ACCURACY
    outputs: [accuracy]
    gate: accuracy > 0.9
    code: [join.sh]
"""


def test_a_step_that_has_changed_runs_once_when_what_it_needs_is_taken_from_the_cache(place: Place) -> None:
    count = place.path / "count"
    text = """
kind: Pipeline
steps:
  prepare: {run: echo 1 > $FAIRLEAD_OUTPUT_DATA, outputs: [data]}
  clean: {needs: [prepare], run: cp $FAIRLEAD_INPUT_PREPARE_DATA $FAIRLEAD_OUTPUT_DATA, outputs: [data]}
  train: {needs: [prepare, clean], run: echo WORD >> COUNT}
  publish: {needs: [train], run: echo WORD >> COUNT}
""".replace("COUNT", str(count))
    for number, word in enumerate(("one", "two", "three")):
        ran = place.run(text.replace("WORD", word), f"r{number}")
        assert ran.code == 0, ran.out
    assert count.read_text().split() == ["one", "one", "two", "two", "three", "three"]


def test_a_failed_step_is_told_once_at_the_end(place: Place) -> None:
    ran = place.run("kind: Pipeline\nsteps:\n  a: exit 3\n  b: echo well\n", "r1")
    (said,) = [line for line in ran.out.splitlines() if "step a failed" in line]
    assert said.startswith("fairlead: step a failed: its program ended with exit code 3")
    assert (ran.code, said.endswith("; 1 step ran, 1 failed")) == (1, True)


def test_outputs_are_handed_on_and_what_is_unchanged_is_not_run(place: Place) -> None:
    (place.work / "given").write_text("one")
    first = place.run(CHAIN, "r1")
    assert (first.code, set(first.phases().values())) == (0, {"Succeeded"})
    assert "[join] n one\n[join] s one\n" in first.out
    second = place.run(CHAIN, "r2")
    assert (second.code, set(second.phases().values())) == (0, {"Cached"})
    assert second.why("train[1]") == "unchanged since run r1"
    (place.work / "given").write_text("two")
    third = place.run(CHAIN, "r3")
    assert third.why("prepare").endswith("(code given has changed)")
    assert third.why("train[0]").endswith("(prepare.data has changed)")
    assert third.why("join").endswith("(train[0].model has changed, train[1].model has changed)")


def test_a_step_that_returns_the_same_lets_those_behind_it_be(place: Place) -> None:
    (place.work / "given").write_text("one")
    place.run(CHAIN, "r1")
    again = place.run(CHAIN.replace("mkdir", "mkdir -p"), "r2")
    assert again.why("prepare").endswith("(command has changed)")
    assert again.phases() == {"prepare": "Succeeded", "train[0]": "Cached", "train[1]": "Cached", "join": "Cached"}


ENV = "kind: Pipeline\nenv: {SEED: '1'}\nsteps: {a: 'echo $SEED'}\n"


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (ENV, ENV.replace("'1'", "'2'"), "variable SEED has changed"),
        (ENV, "kind: Pipeline\nsteps: {a: 'echo $SEED'}\n", "variable SEED is gone"),
        (ENV, ENV.replace("{a: 'echo $SEED'}", "{a: {run: 'echo $SEED', cache: {off: true}}}"), "cache: off"),
    ],
)
def test_what_makes_a_step_run_is_named(place: Place, before: str, after: str, why: str) -> None:
    assert place.run(before, "r1").phases() == {"a": "Succeeded"}
    assert place.run(after, "r2").why("a").endswith(f"({why})")


def test_the_version_of_data_decides_whether_a_step_that_reads_it_runs_again(place: Place, s3: S3) -> None:
    (place.path / "rows").mkdir()

    def push(content: str) -> None:
        (place.path / "rows" / "a.csv").write_text(content)
        upload_directory(place.path / "rows", "s3://models/rows")

    push("1,2")
    store_dataset(place.path / "datasets", Dataset(name="rows", origin="s3://models/rows"))
    text = """
kind: Pipeline
steps:
  url: {run: echo url, inputs: ["s3://models/rows"]}
  name: {run: echo name, inputs: [rows]}
  absent: {run: echo absent, inputs: [rows@2]}
  code: echo code
"""
    first = place.run(text, "r1")
    assert first.phases() == {"url": "Succeeded", "name": "Succeeded", "code": "Succeeded", "absent": "Failed"}
    assert "the Dataset rows has no version 2; give rows alone, as it has none" in first.why("absent")
    same = place.run(text, "r2")
    assert [same.phases()[name] for name in ("url", "name", "code")] == ["Cached"] * 3
    push("1,3")
    changed = place.run(text, "r3")
    assert changed.why("url").endswith("(input s3://models/rows has changed)")
    assert changed.why("name").endswith("(input rows has changed)")
    assert changed.phases()["code"] == "Cached"


def test_the_version_of_the_data_of_a_run_is_what_its_step_depends_on(tmp_path: Path) -> None:
    (spec,) = parse(
        "kind: Pipeline\nname: p\nsteps: {train: {training: {run: python t.py, data: "
        "{train: {from: s3://b/c, version: 0123456789abcdef}}}}}\n"
    )
    assert isinstance(spec, Pipeline)
    results = Results(tmp_path / "results.db")
    parts = Dependencies(spec, tmp_path, {}, results, tmp_path / "state").of(Task(step="train"), {})
    results.close()
    assert parts["input data.train"] == "0123456789abcdef"


def test_a_file_that_describes_a_pipeline_is_no_code(place: Place) -> None:
    (place.work / "p.yaml").write_text("kind: Pipeline\nsteps: {a: x}\n")
    place.run(ENV, "r1")
    (place.work / "p.yaml").write_text("kind: Pipeline\nsteps: {b: x}\n")
    assert place.run(ENV, "r2").phases() == {"a": "Cached"}
    (place.work / "settings.yaml").write_text("lr: 1\n")
    assert place.run(ENV, "r3").why("a").endswith("(code settings.yaml is new)")


def test_an_output_that_was_removed_is_made_again(place: Place) -> None:
    text = "kind: Pipeline\nsteps: {a: {run: 'echo 1 > $FAIRLEAD_OUTPUT_X', outputs: [x]}}\n"
    made = place.run(text, "r1").steps["a"][0].outputs["x"]
    Artefacts(place.store).path(made).unlink()
    again = place.run(text, "r2")
    assert again.why("a").endswith("(its output x is not there any more)")
    assert Artefacts(place.store).has(made)


FAILING = """
kind: Pipeline
steps:
  flaky: {run: "test -e ready || { touch ready; exit 3; }", retry: 1, cache: {off: true}}
  bad: {run: exit 4}
  behind: {needs: [bad], run: echo never}
  gated: {run: echo 0.5 > $FAIRLEAD_OUTPUT_SCORE, outputs: [score], gate: score > 0.9, cache: {off: true}}
  lazy: {run: echo nothing, outputs: [model]}
  slow: {run: sleep 600, timeout: 200ms}
"""


def test_failures_say_why_and_hold_up_only_what_needs_them(place: Place) -> None:
    ran = place.run(FAILING, "r1")
    assert ran.code == 1
    assert ran.phases() == {
        "flaky": "Succeeded",
        "bad": "Failed",
        "behind": "Skipped",
        "gated": "Failed",
        "lazy": "Failed",
        "slow": "Failed",
    }
    assert ran.why("bad").startswith("its program ended with exit code 4 after")
    assert ran.why("behind") == "bad has failed"
    assert ran.why("gated") == "gate: `score > 0.9` does not hold: score is 0.5"
    assert ran.why("lazy") == "it wrote no output model ($FAIRLEAD_OUTPUT_MODEL)"
    assert ran.why("slow") == "it ran for longer than timeout, 0.2s"
    assert ran.out.rstrip().endswith("1 step ran, 1 skipped, 4 failed")


LONG = """
kind: Pipeline
steps:
  list:
    run: python3 -c 'import json; print(json.dumps(["x" * 100_000, "y" * 132_000, [1]]))' > $FAIRLEAD_OUTPUT_SHARDS
    outputs: [shards]
  work:
    needs: [list]
    each_of: list.shards
    run: python3 -c 'import os; print(len(os.environ["FAIRLEAD_ITEM"]) * "z", end="")' > $FAIRLEAD_OUTPUT_R
    outputs: [r]
  again:
    needs: [work]
    each_of: work.r
    run: test ${#FAIRLEAD_ITEM} = 100000 -o ${#FAIRLEAD_ITEM} = 3
"""


def test_a_long_list_is_fanned_out_and_not_kept_as_a_value(place: Place) -> None:
    ran = place.run(LONG, "one")
    assert ran.phases() == {
        "list": "Succeeded", "work[0]": "Succeeded", "work[1]": "Failed", "work[2]": "Succeeded", "again": "Skipped",
    }  # fmt: skip
    assert "an item has at most 131057 bytes: write it to a file" in ran.why("work[1]")
    shorter = LONG.replace(', "y" * 132_000', "")
    again = place.run(shorter, "two")
    assert again.phases()["again[0]"] == again.phases()["again[1]"] == "Succeeded", again.out
    # The list comes from the stored output, also when its step is unchanged.
    cached = place.run(shorter.replace("-o $", "-o  $"), "three")
    assert (cached.phases()["list"], cached.phases()["again[1]"]) == ("Cached", "Succeeded")


UNSTARTABLE = r"""
kind: Pipeline
steps:
  items:
    run: |
      printf '["\\u0000", "\\ud800", "fine"]' > $FAIRLEAD_OUTPUT_LIST
    outputs: [list]
  each:
    run: echo $FAIRLEAD_ITEM
    needs: [items]
    each_of: items.list
  report:
    run: echo report
    needs: [each]
"""


def test_an_item_that_no_variable_can_hold_fails_its_task_and_holds_up_what_needs_it(place: Place) -> None:
    ran = place.run(UNSTARTABLE, "one")
    assert ran.code == 1, ran.out
    assert "Traceback" not in ran.out
    assert ran.phases() == {
        "items": "Succeeded", "each[0]": "Failed", "each[1]": "Failed", "each[2]": "Succeeded", "report": "Skipped",
    }  # fmt: skip
    assert ran.why("each[0]").startswith("it cannot be started: ")
    assert ran.why("report") == "each has failed"


def test_what_failed_is_tried_again_by_the_next_driver_and_what_succeeded_is_not(place: Place) -> None:
    text = "kind: Pipeline\nsteps: {a: 'echo ran >> a', b: {needs: [a], run: 'test -e mended', code: [none]}}\n"
    assert place.run(text, "r1").phases() == {"a": "Succeeded", "b": "Failed"}
    (place.work / "mended").touch()
    assert place.run(text, "r1").phases() == {"a": "Succeeded", "b": "Succeeded"}
    assert (place.work / "a").read_text() == "ran\n"


KILLED = """
kind: Pipeline
steps:
  a: {run: "echo a >> log; echo 1 > $FAIRLEAD_OUTPUT_X", outputs: [x]}
  b:
    needs: [a]
    run: "echo b >> log; echo $$ > pid; test -e go || sleep 600; cat $FAIRLEAD_INPUT_A_X"
  c: {needs: [b], run: echo c >> log}
"""


def test_a_killed_driver_is_followed_by_one_that_goes_on(place: Place) -> None:
    driver = place.start(KILLED, "r1")
    until((place.work / "pid").exists, "second step")
    driver.kill()
    driver.communicate(timeout=60)
    # The shim does so for a driver that was killed, by the pod's uid.
    os.killpg(int(until((place.work / "pid").read_text)), signal.SIGKILL)
    assert [task.phase for task in place.steps(KILLED, "r1")["b"]] == [TaskPhase.RUNNING]
    (place.work / "go").touch()
    again = place.run(KILLED, "r1")
    assert (again.code, set(again.phases().values())) == (0, {"Succeeded"})
    assert (place.work / "log").read_text() == "a\nb\nb\nc\n"


def test_half_a_line_of_the_journal_is_dropped(place: Place) -> None:
    text = "kind: Pipeline\nsteps: {a: 'echo ran >> a'}\n"
    place.run(text, "r1")
    path = place.path / "r1" / journal.NAME
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"task": {"step": "a", "ph')
    assert place.run(text, "r1").phases() == {"a": "Succeeded"}
    assert path.read_bytes().startswith(whole)
    for line in path.read_text().splitlines():
        json.loads(line)


def test_a_stop_notice_reaches_the_steps(place: Place) -> None:
    text = "kind: Pipeline\nsteps: {a: \"trap 'echo saved; exit 0' TERM; touch up; while :; do sleep 0.05; done\"}\n"
    driver = place.start(text, "r1")
    until((place.work / "up").exists, "step")
    driver.terminate()
    out, _ = driver.communicate(timeout=60)
    assert driver.returncode == 143
    assert "saved\n" in out
    assert [task.phase for task in place.steps(text, "r1")["a"]] == [TaskPhase.RUNNING]


def test_content_is_kept_once_and_cannot_be_written(tmp_path: Path) -> None:
    store = Artefacts(tmp_path / "store")
    digests = []
    for number in range(2):
        made = tmp_path / f"made-{number}"
        (made / "inner").mkdir(parents=True)
        (made / "inner" / "file").write_text("same")
        (made / "link").symlink_to("inner/file")
        digests.append(content_digest(made))
        assert store.keep(made) == digests[-1]
        assert not made.exists()
    assert digests[0] == digests[1]
    kept = store.path(digests[0]) / "inner" / "file"
    assert kept.read_text() == "same"
    assert kept.stat().st_mode & 0o222 == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "inner").write_text("same")
    assert content_digest(other) != digests[0]


@pytest.mark.parametrize(
    ("text", "value"), [("0.95\n", 0.95), ("[1, 2]", [1, 2]), ("north\n", "north"), ("x" * 70_000, None)]
)
def test_small_outputs_are_read_as_values(tmp_path: Path, text: str, value: object) -> None:
    (tmp_path / "value").write_text(text)
    assert read_value(tmp_path / "value") == value


def test_an_artefact_leads_back_to_the_task_that_made_it(place: Place) -> None:
    (place.work / "given").write_text("one")
    ran = place.run(CHAIN, "r1")
    results = Results(place.store / "results.db")
    model = ran.steps["train"][1].outputs["model"]
    (origin,) = results.origins(model[:12])
    results.close()
    assert (origin.pipeline, origin.task, origin.output, origin.result.run) == ("p", "train[1]", "model", "r1")
    assert origin.result.parts["prepare.data"] == ran.steps["prepare"][0].outputs["data"]


def test_what_many_tasks_have_read_is_followed_and_told_once(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.db")
    parts: dict[str, str] = {}
    for layer in range(24):
        outputs = {name: f"{name}{layer:03}".ljust(64, "0") for name in ("a", "b")}
        result = Result(parts=parts, outputs=outputs, values={}, at=float(layer), took_s=1.0, run="r")
        results.add("p", f"s{layer}", result)
        parts = {f"s{layer}.{name}": digest for name, digest in outputs.items()}
    found = lineage._follow(results, parts["s23.a"], None, None, {})
    results.close()
    # Sixteen million paths lead from the last layer to the first.
    told = len(list(_lines(found, "", set())))
    assert told == 24 * 3 - 1


def test_a_run_of_its_own_waits_for_another_of_its_name_in_its_team_only(tmp_path: Path) -> None:
    cluster = LocalCluster.open(tmp_path / "home")
    with held(cluster.home.lock):  # so that no supervisor is started
        steps = dict.fromkeys(("train", "other"), Step(training=StepTraining(run="true")))
        parent = cluster.submit(as_workload(Pipeline(name="p", team="vision", steps=steps), cluster.home))
        cluster.submit(training(name="p-train", team="text"))
        children = Children(cluster, parent.uid)
        assert children.submit(Task(step="train"), {}) is None
        cluster.submit(training(name="p-other", team="vision"))
        assert children.submit(Task(step="other"), {}) == "another unfinished run is named p-other"
    cluster.close()


EDITED = """
kind: Pipeline
steps:
  prepare:
    run: touch $AT/began; while [ ! -e $AT/go ]; do sleep 0.02; done; echo 1 > $FAIRLEAD_OUTPUT_D
    outputs: [d]
  train: {needs: [prepare], run: 'sh train.sh > $FAIRLEAD_OUTPUT_M; echo seen > beside.txt', outputs: [m]}
"""


def _submit(place: Place, run: str) -> Path:
    """Keep the code of the working directory for a run, as its submission does; return where its driver starts."""
    home, spec = Home(path=place.path), training(workdir=str(place.work))
    home.run(run).mkdir(parents=True)
    code = CodeStore(home)
    code.keep(run, spec, 0.0)
    pod = Pod(
        uid=run, workload_uid=run, attempt=0, index=0, node="n", phase=PodPhase.CREATED, grant=Grant(), created_at=0
    )
    tree = code.place(run, run, pod, spec).tree
    assert tree is not None
    return tree


def _end(place: Place) -> None:
    """Move what the steps wrote to the working directory, as at the end of the driver."""
    for _ in CodeStore(Home(path=place.path)).close((), ()):
        pass


def test_a_later_step_runs_the_code_as_submitted_and_is_found_again_as_that(place: Place) -> None:
    source = place.work / "train.sh"
    source.write_text("echo code A")
    with place.start(EDITED, "r1", _submit(place, "r1"), AT=str(place.path)) as driver:
        until(lambda: (place.path / "began").exists())
        source.write_text("echo code B")
        (place.path / "go").touch()
        driver.communicate(timeout=60)
    _end(place)
    (trained,) = place.steps(EDITED, "r1")["train"]
    assert Artefacts(place.store).path(trained.outputs["m"]).read_text() == "code A\n"
    # What it wrote beside sources lies where it always does.
    assert (place.work / "beside.txt").read_text() == "seen\n"
    assert source.read_text() == "echo code B"
    (place.work / "beside.txt").unlink()
    source.write_text("echo code A")
    assert place.run(EDITED, "r2", AT=str(place.path)).phases() == {"prepare": "Cached", "train": "Cached"}
    source.write_text("echo code B")
    again = place.run(EDITED, "r3", AT=str(place.path))
    assert again.phases()["train"] == "Succeeded"
    (trained,) = again.steps["train"]
    assert Artefacts(place.store).path(trained.outputs["m"]).read_text() == "code B\n"


def test_inputs_and_code_have_the_same_hash_in_a_tree_as_in_the_working_directory(place: Place) -> None:
    text = """
kind: Pipeline
steps:
  one: {run: 'cat conf/a.ini > $FAIRLEAD_OUTPUT_M', outputs: [m], inputs: [conf, data, table.bin, ../outside]}
"""
    for name in ("conf/a.ini", "data/deep/x", "table.bin", "../outside"):
        (place.work / name).parent.mkdir(parents=True, exist_ok=True)
        (place.work / name).write_text("1")
    assert place.run(text, "r0").phases() == {"one": "Succeeded"}
    with place.start(text, "r1", _submit(place, "r1")) as driver:
        driver.communicate(timeout=60)
    assert [task.phase for task in place.steps(text, "r1")["one"]] == [TaskPhase.CACHED]
    for name in ("data/deep/x", "table.bin", "../outside", "conf/a.ini"):
        (place.work / name).write_text("2")
        run = name.replace("/", "_")
        with place.start(text, run, _submit(place, run)) as driver:
            driver.communicate(timeout=60)
        assert [task.phase for task in place.steps(text, run)["one"]] == [TaskPhase.SUCCEEDED]


def test_a_step_that_runs_code_written_by_an_earlier_one_is_not_taken_for_later_runs(place: Place) -> None:
    text = """
kind: Pipeline
steps:
  make: {run: 'echo echo made > train.sh; echo 1 > $FAIRLEAD_OUTPUT_D', outputs: [d], code: [none]}
  train: {needs: [make], run: 'sh train.sh > $FAIRLEAD_OUTPUT_M', outputs: [m]}
"""
    (place.work / "train.sh").write_text("echo submitted")
    with place.start(text, "r1", _submit(place, "r1")) as driver:
        driver.communicate(timeout=60)
    (trained,) = place.steps(text, "r1")["train"]
    assert Artefacts(place.store).path(trained.outputs["m"]).read_text() == "made\n"
    results = Results(place.store / "results.db")
    assert results.origins(trained.outputs["m"][:12]) == ()
    results.close()
    _end(place)
    assert (place.work / "train.sh").read_text() == "echo made\n"


@pytest.mark.parametrize("is_put_back", [False, True])
def test_a_step_whose_code_was_edited_while_it_ran_is_not_taken_for_later_runs(place: Place, is_put_back: bool) -> None:
    text = """
kind: Pipeline
steps:
  train:
    run: touch $AT/began; while [ ! -e $AT/go ]; do sleep 0.02; done; sh train.sh > $FAIRLEAD_OUTPUT_M
    outputs: [m]
"""
    source = place.work / "train.sh"
    source.write_text("echo code A")
    # Without a snapshot, such as in a directory of too many files.
    with place.start(text, "r1", AT=str(place.path)) as driver:
        until(lambda: (place.path / "began").exists())
        source.write_text("echo code B")
        if is_put_back:
            source.write_text("echo code A")
        (place.path / "go").touch()
        driver.communicate(timeout=60)
        assert driver.returncode == 0
    source.write_text("echo code A")
    again = place.run(text, "r2", AT=str(place.path))
    assert again.phases() == {"train": "Succeeded"}
    assert place.run(text, "r3", AT=str(place.path)).phases() == {"train": "Cached"}


CHANGERS = {
    "appends": "echo tampered >> $FAIRLEAD_INPUT_A_D",
    "edits in place": "sed -i s/good/tampered/ $FAIRLEAD_INPUT_A_D",
    "moves": "mv -f $FAIRLEAD_INPUT_A_D taken.txt",
    "edits and fails": "sed -i s/good/tampered/ $FAIRLEAD_INPUT_A_D; exit 3",
    "keeps size and time": "chmod u+w $FAIRLEAD_INPUT_A_D && cp -p $FAIRLEAD_INPUT_A_D t && printf evil | "
    "dd of=$FAIRLEAD_INPUT_A_D conv=notrunc status=none && touch -r t $FAIRLEAD_INPUT_A_D",
}
CHANGED = """
kind: Pipeline
parallel: 1
steps:
  a: {{run: 'echo good > $FAIRLEAD_OUTPUT_D', outputs: [d]}}
  b: {{needs: [a], run: '{changer}', retry: 3}}
  c: {{needs: [a, b], run: 'grep -q good $FAIRLEAD_INPUT_A_D'}}
"""


@pytest.mark.parametrize("changer", CHANGERS.values(), ids=CHANGERS)
def test_a_step_that_changes_its_input_fails_and_the_input_is_made_again(place: Place, changer: str) -> None:
    first = place.run(CHANGED.format(changer=changer), "one")
    assert first.phases() == {"a": "Succeeded", "b": "Failed", "c": "Skipped"}
    assert "its input a.d was changed or removed where it is stored" in first.why("b")
    assert "cp -r $FAIRLEAD_INPUT_A_D $(mktemp -d)" in first.why("b")
    # Resumed, with a program that does as the message says.
    mended = CHANGED.format(changer="cp -r $FAIRLEAD_INPUT_A_D $(mktemp -d)")
    resumed = place.run(mended, "one")
    assert resumed.code == 0, resumed.out
    assert resumed.phases() == {"a": "Succeeded", "b": "Succeeded", "c": "Succeeded"}
    again = place.run(mended, "two")
    assert again.phases() == {"a": "Cached", "b": "Cached", "c": "Cached"}


def test_a_step_beside_one_that_changes_their_input_fails_too(place: Place) -> None:
    text = """
kind: Pipeline
parallel: 4
steps:
  a: {run: 'mkdir $FAIRLEAD_OUTPUT_D; echo good > $FAIRLEAD_OUTPUT_D/x; echo good > $FAIRLEAD_OUTPUT_D/y', outputs: [d]}
  b: {needs: [a], run: 'until [ -e reading ]; do sleep 0.02; done; rm -f $FAIRLEAD_INPUT_A_D/x; touch changed'}
  c: {needs: [a], run: 'touch reading; until [ -e changed ]; do sleep 0.02; done; true'}
"""
    ran = place.run(text, "one")
    assert ran.phases() == {"a": "Succeeded", "b": "Failed", "c": "Failed"}
    assert "by its program or by one beside it" in ran.why("c")


def test_output_that_was_changed_in_the_store_is_made_again(place: Place) -> None:
    text = "kind: Pipeline\nsteps:\n  a: {run: 'echo good > $FAIRLEAD_OUTPUT_D', outputs: [d]}\n"
    first = place.run(text, "one")
    (task,) = first.steps["a"]
    stored = Artefacts(place.store).path(task.outputs["d"])
    stored.chmod(0o644)
    stored.write_text("evil")
    second = place.run(text, "two")
    assert second.phases() == {"a": "Succeeded"}
    assert stored.read_text() == "good\n"


def test_stored_content_that_was_copied_or_touched_is_read_again_and_stays(tmp_path: Path) -> None:
    source, store = tmp_path / "tree", Artefacts(tmp_path / "store")
    (source / "empty").mkdir(parents=True)
    (source / "x").write_text("x")
    digest = store.keep(source)
    file = store.path(digest) / "x"
    file.chmod(0o644)
    os.utime(file, (1, 1))
    assert store.has(digest)
    assert file.stat().st_mode & 0o222 == 0
    (store.path(digest) / "empty").rmdir()
    assert not store.has(digest)
    assert not store.path(digest).exists()


def test_what_a_program_adds_to_a_stored_directory_is_removed_and_the_content_stays(tmp_path: Path) -> None:
    source, store = tmp_path / "tree", Artefacts(tmp_path / "store")
    (source / "a").mkdir(parents=True)
    (source / "a" / "x").write_text("x")
    digest = store.keep(source)
    tree = store.path(digest)
    (tree / "a" / "cache").mkdir()
    (tree / "a" / "cache" / "y").write_text("y")
    os.mkfifo(tree / "fifo")
    assert store.has(digest)
    assert sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*")) == ["a", "a/x"]
    # Changed as well: nothing is thrown away before outputs are pruned.
    (tree / "a" / "x").chmod(0o644)
    (tree / "a" / "x").write_text("changed")
    (tree / "b").write_text("b")
    assert not store.has(digest)
    (aside,) = (store.root / "removed").iterdir()
    assert (aside / "a" / "x").read_text() == "changed"


def test_a_stored_file_that_became_a_fifo_is_set_aside_without_waiting_for_a_writer(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    store = Artefacts(tmp_path / "store")
    digest = store.keep(tmp_path / "x")
    store.path(digest).unlink()
    os.mkfifo(store.path(digest))
    assert not store.has(digest)
    assert not store.path(digest).exists()
