"""A sweep of forty trials and a pipeline of twelve steps at once, while anything at all is killed with -9.

Each round kills supervisor, launchers, shims, drivers and the programs of trials and steps at random instants. Then
there are as many trials as were asked for, no attempt began twice, no step that succeeded ran again, and nothing lives.
`FAIRLEAD_CHAOS_ROUNDS=100` runs a hundred rounds.
"""

import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control.pipelines import journal
from fairlead.control.pipelines.submission import as_training
from fairlead.policy.kinds.steps import TaskPhase
from fairlead.specs.formats.reading import parse
from fairlead.specs.pipeline import Pipeline
from fairlead.specs.sweep import Sweep, map_runs
from fairlead.specs.training import Retry
from fairlead.state.snapshot import Phase
from tests.chaos.test_pipelines import STEPS, phases_of, processes_of, step
from tests.chaos.world import trial_program
from tests.home import end_everything
from tests.rounds import rounds
from tests.waiting import until

TRIALS, MOST_KILLS, LIMIT_S = 40, 30, 400.0
ENDLESS = Retry(infrastructure=1000, program=1000, backoff_s=0.0)
# Short, so that a start is under way at most instants.
PROGRAM = trial_program(steps=3, step_s=0.02)
FILE = """
kind: Sweep
name: rates
parameters: {{lr: 0.0..1.0}}
objective: loss
trials: {trials}
parallel: 3
max_failed: 0
trial: {{run: '{python} -u train.py {ledger} {{{{lr}}}}', metrics: name=value, resources: {{cpu: 0.1}}}}
"""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", rounds(few=0, many=2))
def test_every_trial_and_step_is_there_once_and_nothing_is_left_whatever_is_killed(seed: int, tmp_path: Path) -> None:
    home, work, ledger = tmp_path / "home", tmp_path / "work", tmp_path / "ledger"
    work.mkdir()
    (work / "train.py").write_text(PROGRAM)
    cluster, rng = LocalCluster.open(home), random.Random(f"life-{seed}")
    (spec,) = parse(FILE.format(trials=TRIALS, python=sys.executable, ledger=ledger))
    assert isinstance(spec, Sweep)
    trial = replace(cluster.prepare(spec.trial, work).spec, retry=ENDLESS)
    steps = {f"s{number}": replace(step(number), retry=1000) for number in range(STEPS)}
    pipeline = Pipeline(name="p", workdir=str(work), steps=steps, parallel=2)
    killed = Counter[str]()
    try:
        sweep = cluster.launch(map_runs(spec, lambda _: trial))
        chain = cluster.submit(replace(as_training(pipeline, cluster.home), retry=ENDLESS))
        cluster.nudge()
        deadline = time.monotonic() + LIMIT_S
        while not all(cluster.get(each.uid).status.phase.is_final for each in (sweep, chain)):
            told = f"round {seed}, killed {dict(killed)}"
            assert time.monotonic() < deadline, (told, cluster.get(sweep.uid).status, cluster.get(chain.uid).status)
            time.sleep(rng.uniform(0.02, 0.4))
            if killed.total() < MOST_KILLS:
                what, pids = rng.choice(list(processes(cluster, sweep.uid, chain.uid).items()))
                if pids:
                    with suppress(ProcessLookupError):
                        os.kill(rng.choice(pids), signal.SIGKILL)
                        killed[what] += 1
            cluster.nudge()
        told = f"round {seed}, killed {dict(killed)}"
        for each in (sweep, chain):
            assert cluster.get(each.uid).status.phase is Phase.SUCCEEDED, (told, cluster.get(each.uid).status)
        trials = cluster.children(sweep.uid)
        assert sorted(int(each.spec.name.removeprefix("rates-")) for each in trials) == list(range(TRIALS)), told
        assert {each.status.phase for each in trials} == {Phase.SUCCEEDED}, told
        starts = Counter(ledger.read_text().splitlines())
        assert max(starts.values()) == 1, f"{told}: an attempt began twice: {starts.most_common(1)}"
        assert {line.split()[0] for line in starts} == {each.spec.name for each in trials}, told
        phases = phases_of(cluster.home.run(chain.uid) / "files" / journal.NAME)
        begun = Counter((work / "log").read_text().splitlines())
        for name in steps:
            settled = [phase for phase in phases[name] if phase in (TaskPhase.SUCCEEDED, TaskPhase.CACHED)]
            assert len(settled) == 1, (told, name, phases[name])
            assert phases[name][-1] is settled[0], (told, name, phases[name])
            assert begun[f"begin {name}"] <= phases[name].count(TaskPhase.RUNNING), (told, name, phases[name])
        assert not cluster.store.live_pods(), told
        uids = [chain.uid, *(each.uid for each in trials)]
        until(lambda: not any(processes_of(uid) for uid in uids), f"end of all processes ({told})")
        print(told)
    finally:
        cluster.close()
        end_everything(home)
        shutil.rmtree(home, ignore_errors=True)


def processes(cluster: LocalCluster, sweep: str, chain: str) -> dict[str, list[int]]:
    """Whatever lives of both, by what it is: shims, drivers and programs are processes of their run."""
    supervisor = cluster.supervisor_pid()
    trials = [child.uid for child in cluster.children(sweep) if not child.status.phase.is_final]
    return {
        "supervisor": [] if supervisor is None else [supervisor],
        "launcher": [] if supervisor is None else children_of(supervisor),
        "trial": [pid for uid in trials for pid in processes_of(uid)],
        "pipeline": processes_of(chain),
    }


def children_of(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has ended
        return []
