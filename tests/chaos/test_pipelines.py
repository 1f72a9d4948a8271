"""A pipeline of twelve steps under kill -9 of supervisor, shim and driver at random instants."""

import json
import os
import random
import shutil
import signal
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control.pipelines import journal
from fairlead.control.pipelines.submission import as_training
from fairlead.policy.kinds.steps import TaskPhase
from fairlead.specs.pipeline import Pipeline, Step
from fairlead.state.snapshot import Phase
from tests.chaos.world import Round, end
from tests.rounds import rounds
from tests.waiting import until

STEPS = 12
SEEN_S = 0.02

pytestmark = pytest.mark.slow


def step(number: int) -> Step:
    """A step that needs the one before, or of every third the one three before, and says when it begins and ends."""
    needs = {0: (), 1: (1,), 2: (1,)}[number % 3] if number else ()
    names = tuple(f"s{number - back}" for back in needs)
    run = f"echo begin s{number} >> log; sleep 0.05; echo {number} > $FAIRLEAD_OUTPUT_X; echo end s{number} >> log"
    return Step(run=run, needs=names, outputs=("x",), code=("none",))


@pytest.mark.parametrize("seed", rounds(few=1, many=10))
def test_no_step_that_succeeded_runs_again_and_nothing_is_left(seed: int, tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    cluster = LocalCluster.open(home)
    pipeline = Pipeline(name="p", workdir=str(work), steps={f"s{n}": step(n) for n in range(STEPS)}, parallel=2)
    run = cluster.submit(as_training(pipeline, cluster.home))
    world = Round(seed=seed, cluster=cluster, run=run, rng=random.Random(seed))
    cluster.nudge()
    try:
        until((work / "log").exists, "first step")
        for _ in range(world.rng.randint(2, 4)):
            time.sleep(world.rng.uniform(SEEN_S, 0.3))
            getattr(world, world.rng.choice(["kill_supervisor", "kill_shim", "kill_shim", "kill_rank"]))()
        ended = world.finished()
        told = f"round {seed} ({world.faults}): {world.story()}"
        assert ended.status.phase is Phase.SUCCEEDED, told
        phases = phases_of(cluster.home.run(run.uid) / "files" / journal.NAME)
        begun = Counter((work / "log").read_text().splitlines())
        for name in pipeline.steps:
            # Killed after its result was kept and before that was recorded, it is taken from there, not run again.
            settled = [phase for phase in phases[name] if phase in (TaskPhase.SUCCEEDED, TaskPhase.CACHED)]
            assert len(settled) == 1, told
            assert phases[name][-1] is settled[0], told
            assert begun[f"begin {name}"] <= phases[name].count(TaskPhase.RUNNING), told
        until(lambda: not processes_of(run.uid), "end of all processes")
    finally:
        end(world)
        for pid in processes_of(run.uid):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)


def phases_of(path: Path) -> dict[str, list[TaskPhase]]:
    """Every phase that was recorded of each step, in order."""
    found: dict[str, list[TaskPhase]] = defaultdict(list)
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if "task" in record:
            found[record["task"]["step"]].append(TaskPhase(record["task"]["phase"]))
    return found


def processes_of(run_uid: str) -> list[int]:
    """Every process of the run: shims, drivers, steps and what they have started."""
    mark, found = f"FAIRLEAD_RUN_UID={run_uid}\0".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it ended, or is another user's
            continue
    return found
