"""A pipeline whose steps are runs and a sweep under kill -9 of supervisor and driver at random instants.

The runs themselves are let be: each of their programs begins just once, however often the driver begins anew.
"""

import contextlib
import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control.admission import admit
from fairlead.control.pipelines.submission import as_workload
from fairlead.specs.pipeline import DRIVER, Pipeline, Step, StepSweep, StepTraining
from fairlead.specs.sweep import Objective, Sampler, Trial
from fairlead.specs.training import Metrics
from fairlead.state.plan import child_uid
from fairlead.state.snapshot import Phase
from tests.chaos.test_pipelines import processes_of
from tests.chaos.world import LIMIT_S, Round, end
from tests.rounds import rounds
from tests.waiting import until

TRIALS = 3

pytestmark = pytest.mark.slow


def program(name: str, output: str = "") -> str:
    return f"echo begin {name} >> log; sleep 0.2{output}; echo end {name} >> log"


def run_step(name: str, *needs: str) -> Step:
    run = program(name, f"; echo {name} > $FAIRLEAD_OUTPUT_X")
    return Step(training=StepTraining(run=run), needs=needs, outputs=("x",), code=("none",))


def steps() -> dict[str, Step]:
    """Twelve: commands, runs two of which have the same needs, and a search."""
    trial = Trial(run=program("trial-{{x}}", "; echo loss={{x}}"), metrics=Metrics(pattern="name=value"))
    values = " | ".join(str(each) for each in range(1, TRIALS + 1))
    sweep = StepSweep(parameters={"x": values}, sampler=Sampler.GRID, objective=Objective(metric="loss"), trial=trial)
    made = {"first": Step(run="echo 1 > $FAIRLEAD_OUTPUT_X", outputs=("x",), code=("none",))}
    made["tune"] = Step(sweep=sweep, needs=("first",), outputs=("parameters", "value"), code=("none",))
    for number in range(9):
        made[f"r{number}"] = run_step(f"r{number}", "tune" if number < 2 else f"r{number - 2}")
    made["last"] = Step(run="cat $FAIRLEAD_INPUT_R8_X", needs=("r8", "r7"), code=("none",))
    return made


@pytest.mark.parametrize("seed", rounds(few=1, many=10))
def test_every_run_of_a_pipeline_begins_once_whatever_happens_to_its_driver(seed: int, tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    cluster = LocalCluster.open(home)
    pipeline = Pipeline(name="p", workdir=str(work), steps=steps())
    parent = cluster.submit(admit(cluster, as_workload(pipeline, cluster.home), work).spec)
    cluster.nudge()
    uid = child_uid(parent.uid, DRIVER)
    until(lambda: cluster.store.has(uid), "driver")
    world = Round(seed=seed, cluster=cluster, run=cluster.get(uid), rng=random.Random(seed))
    try:
        until((work / "log").exists, "first trial")
        for _ in range(world.rng.randint(4, 8)):
            time.sleep(world.rng.uniform(0.02, 0.8))
            getattr(world, world.rng.choice(["kill_supervisor", "kill_shim", "kill_rank"]))()
        world.finished()
        until(lambda: cluster.get(parent.uid).status.phase.is_final, "end of the pipeline", timeout_s=LIMIT_S)
        told = f"round {seed} ({world.faults}): {world.story()}"
        assert cluster.get(parent.uid).status.phase is Phase.SUCCEEDED, told
        lines = Counter((work / "log").read_text().splitlines())
        names = [f"r{number}" for number in range(9)] + [f"trial-{number}" for number in range(1, TRIALS + 1)]
        assert lines == {f"{what} {name}": 1 for name in names for what in ("begin", "end")}, told
        children = {child.spec.name: child.status.phase for child in cluster.children(parent.uid)}
        expected = {f"p-{name}" for name in (DRIVER, "tune", *(f"r{number}" for number in range(9)))}
        assert children == dict.fromkeys(expected, Phase.SUCCEEDED), told
        uids = below(cluster, parent.uid)
        until(lambda: not any(map(processes_of, uids)), lambda: f"{commands_of(uids)} left behind; {told}")
    finally:
        uids = below(cluster, parent.uid)
        end(world)
        for pid in (pid for uid in uids for pid in processes_of(uid)):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)


def commands_of(uids: list[str]) -> list[str]:
    """The processes of runs, for people: id, parent, state and command of each."""
    found = []
    for pid in (pid for uid in uids for pid in processes_of(uid)):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            status = Path(f"/proc/{pid}/status").read_text()
            about = [line for line in status.splitlines() if line.startswith(("PPid", "State"))]
            found.append(f"{pid} {about}: {words}")
    return found


def below(cluster: LocalCluster, parent: str) -> list[str]:
    """The uids of all below a parent."""
    found, left = list[str](), [parent]
    while left:
        children = [child.uid for child in cluster.children(left.pop())]
        found += children
        left += children
    return found
