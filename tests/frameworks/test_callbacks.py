"""The callbacks in the real libraries, by way of the templates: a killed rank, a stop notice, and what goes on after.

`pytest -m frameworks` runs these; the first time makes an environment for each library.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.commands.init import TEMPLATES
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.runtime.podfiles import read_json
from fairlead.specs.training import Checkpoint, Training
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Workload
from tests.docs.examples import ROOT, examples_of
from tests.frameworks.environments import interpreter_with
from tests.home import end_everything
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.frameworks, pytest.mark.torch]
# A start takes ten seconds of processor time for each rank: the libraries import much.
TIMEOUT_S = 400.0
EVERY_STEPS = 4


class Desk:
    """A user with a program for one framework."""

    def __init__(self, path: Path, framework: str) -> None:
        self.python = interpreter_with(framework)
        self.cluster = LocalCluster.open(path / "home")
        self.workdir = path
        (path / "train.py").write_text((TEMPLATES / f"{framework}.py").read_text())
        self.env = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}

    def submit(self, *, ranks: int, steps: int) -> Workload:
        run = self.cluster.submit(
            Training(
                name="train",
                run=f"{self.python} train.py",
                workdir=str(self.workdir),
                ranks_per_node=ranks,
                checkpoint=Checkpoint(every_steps=EVERY_STEPS),
                env={**self.env, "STEPS": str(steps)},
                grace_s=60.0,
            )
        )
        self.cluster.nudge()
        return run

    def want(self, run: Workload, intent: Intent) -> None:
        self.cluster.set_intent(run.uid, intent)
        self.cluster.nudge()

    def events(self, run: Workload, type_: str) -> list[str]:
        return [event.reason.message for event in self.cluster.events(run.uid) if event.type == type_]

    def until(self, is_so: Any, run: Workload) -> Any:
        def answer() -> Any:
            status = self.cluster.store.get(run.uid).status
            assert status.phase is not Phase.FAILED, (status, self.output(run)[-40:])
            return is_so()

        return until(answer, lambda: "\n".join(self.output(run)[-40:]), timeout_s=TIMEOUT_S, every_s=0.1)

    def phase(self, run: Workload, phase: Phase) -> Workload:
        self.until(lambda: self.cluster.store.get(run.uid).status.phase is phase, run)
        return self.cluster.store.get(run.uid)

    def output(self, run: Workload) -> list[str]:
        return [line.text for line in self.cluster.logs(run.uid)]

    def kill_rank(self, run: Workload, rank: int) -> None:
        path = self.cluster.home.pod(run.uid, self.cluster.pods(run.uid)[-1].uid)
        os.kill((read_json(path / "started.json") or {})["pids"][str(rank)], signal.SIGKILL)


@pytest.fixture(params=["lightning", "huggingface"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, request.param)
    yield desk
    desk.cluster.close()
    end_everything(tmp_path / "home")


def step_of(sentence: str) -> int:
    found = re.search(r"step (\d+)", sentence)
    assert found is not None, sentence
    return int(found[1])


def test_two_ranks_go_on_from_their_checkpoint_after_a_kill_and_stop_with_one_of_that_very_step(desk: Desk) -> None:
    run = desk.submit(ranks=2, steps=100_000)
    desk.until(lambda: len(desk.events(run, "CheckpointSaved")) >= 2, run)
    desk.kill_rank(run, 1)
    (resumed,) = desk.until(lambda: desk.events(run, "Resumed"), run)
    assert step_of(resumed) >= EVERY_STEPS
    failure = desk.cluster.store.get(run.uid).status.failures.last
    assert failure is not None
    assert failure.code is Code.KILLED

    saved = len(desk.events(run, "CheckpointSaved"))
    desk.until(lambda: len(desk.events(run, "CheckpointSaved")) > saved, run)
    desk.want(run, Intent.STOP)
    stopped = desk.phase(run, Phase.STOPPED)
    at = step_of(stopped.status.reason.message)
    assert stopped.status.reason.message == f"stopped on request; its checkpoint is of step {at}"
    assert stopped.progress is not None
    assert (stopped.progress.step, stopped.progress.total_steps) == (at, 100_000)
    assert stopped.progress.loss is not None
    assert stopped.progress.epoch is not None
    assert stopped.progress.metrics

    desk.want(run, Intent.RUN)
    desk.until(lambda: len(desk.events(run, "Resumed")) == 2, run)
    assert desk.events(run, "Resumed")[-1] == f"Resumed after step {at}."


def test_a_lone_rank_ends_well_and_what_it_saved_last_is_the_end(desk: Desk) -> None:
    run = desk.submit(ranks=1, steps=9)
    ended = desk.phase(run, Phase.SUCCEEDED)
    assert "trained 9 steps on 1 ranks" in desk.output(run)
    assert ended.progress is not None
    assert (ended.progress.step, ended.progress.checkpoint_step) == (9, 9)
    left = [path.name for path in (desk.cluster.home.run(run.uid) / "files").iterdir()]
    assert not left, "what a resume needed for a while stays behind"


def test_the_program_runs_by_itself_too(desk: Desk) -> None:
    argv = [str(desk.python), "train.py"]
    env = {**os.environ, **desk.env, "STEPS": "3"}
    ended = subprocess.run(
        argv, cwd=desk.workdir, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "trained 3 steps on 1 ranks" in ended.stdout


@pytest.mark.parametrize(
    ("framework", "file"), [("lightning", "with_lightning.py"), ("huggingface", "with_trainer.py")]
)
def test_the_program_of_the_guide_runs(framework: str, file: str, tmp_path: Path) -> None:
    (body,) = (each.body for each in examples_of(ROOT / "docs" / "frameworks.md") if each.file == file)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [str(interpreter_with(framework)), "-c", body],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"step (8/8|4/4) ", ended.stderr), ended.stderr


def test_importing_fairlead_imports_no_framework() -> None:
    code = "import sys, fairlead; fairlead.run; sys.exit(any(m in sys.modules for m in ('lightning', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
