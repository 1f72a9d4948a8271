"""A sweep whose supervisor and shims are killed: each trial is there once, paused ones go on, and nothing is left."""

import os
import random
import re
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.runtime.podfiles import read_json
from fairlead.specs.formats.reading import parse
from fairlead.specs.sweep import Sweep, map_runs
from fairlead.state.snapshot import Phase
from tests.chaos.world import processes_of, trial_program
from tests.home import end_everything
from tests.waiting import until

LIMIT_S = 480.0
PROGRAM = trial_program(steps=8, step_s=0.04)
# It saves at its stop notice and after every second step, and notes when another process of its trial is alive.
SAVING = """
import fcntl, json, os, sys, time
import fairlead

name, state = os.environ["FAIRLEAD_RUN"], [0]
held = open(f"{sys.argv[1]}.{name}", "w")
try:
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print(name, "overlaps", file=open(sys.argv[1], "a"))

def load(directory):
    state[0] = json.loads((directory / "state.json").read_text())

def save(directory):
    (directory / "state.json").write_text(json.dumps(state[0]))

with fairlead.run() as run:
    begun = run.resume(load=load)
    with open(sys.argv[1], "a") as ledger:
        print(name, os.environ["FAIRLEAD_ATTEMPT"], begun, file=ledger)
    for state[0] in range(begun + 1, 13):
        run.progress(state[0], total=12, loss=(float(sys.argv[2]) - 0.3) ** 2 + 1 / state[0])
        run.checkpoint(state[0], save=save)
        time.sleep(0.1)
"""
FILE = """
kind: Sweep
name: rates
parameters: {{lr: 0.0..1.0}}
objective: loss
trials: {trials}
parallel: 3
prune: {{rule: asha, after: 2}}
trial:
  run: {python} -u train.py {ledger} {{{{lr}}}}
  metrics: name=value
  resources: {{cpu: 0.1}}
  retry: {{infrastructure: 50, backoff: 0s}}
"""

pytestmark = pytest.mark.slow


PAUSING = """
kind: Sweep
name: rates
parameters: {{lr: 0.0..1.0}}
objective: loss
sampler: random
trials: {trials}
parallel: 3
prune: {{rule: asha, after: 3, factor: 3}}
trial:
  run: {python} -u train.py {ledger} {{{{lr}}}}
  checkpoint: {{every: 2 steps}}
  resources: {{cpu: 0.1}}
  retry: {{infrastructure: 50, backoff: 0s}}
"""


def kill(pid: int | None) -> None:
    with suppress(ProcessLookupError):
        if pid:
            os.kill(pid, signal.SIGKILL)


def shims(cluster: LocalCluster, sweep: str) -> list[int]:
    """Processes that watch over a pod of a trial now."""
    children = [child for child in cluster.children(sweep) if not child.status.phase.is_final]
    live = [pod for child in children for pod in cluster.pods(child.uid) if not pod.phase.is_final]
    claims = [read_json(cluster.home.pod(pod.workload_uid, pod.uid) / "claimed.json") for pod in live]
    return [int(claim["pid"]) for claim in claims if claim is not None]


@pytest.mark.parametrize(("num_trials", "num_kills"), [(6, 4), pytest.param(40, 100, marks=pytest.mark.long)])
def test_each_trial_is_there_once_and_none_is_left_whatever_is_killed(
    tmp_path: Path, num_trials: int, num_kills: int
) -> None:
    starts, _ = run_while_killing(tmp_path, FILE, PROGRAM, num_trials, num_kills)
    assert max(Counter(starts).values()) == 1, "a program was started twice by one attempt"
    assert {line.split()[0] for line in starts} == {f"rates-{number}" for number in range(num_trials)}


@pytest.mark.parametrize(("num_trials", "num_kills"), [(9, 4), pytest.param(30, 60, marks=pytest.mark.long)])
def test_paused_trials_go_on_from_their_checkpoints_whatever_is_killed(
    tmp_path: Path, num_trials: int, num_kills: int
) -> None:
    starts, events = run_while_killing(tmp_path, PAUSING, SAVING, num_trials, num_kills)
    assert not [line for line in starts if "overlaps" in line], "two programs of one trial were alive at once"
    assert max(Counter(line.rpartition(" ")[0] for line in starts).values()) == 1, "an attempt was started twice"
    assert {line.split()[0] for line in starts} == {f"rates-{number}" for number in range(num_trials)}
    promoted = {name for text in events for name in re.findall(r"(rates-\d+) continues: ", text)}
    assert promoted, events
    for name in promoted:
        assert any(line.startswith(f"{name} ") and not line.endswith(" 0") for line in starts), (name, starts)


def run_while_killing(
    tmp_path: Path, file: str, program: str, num_trials: int, num_kills: int
) -> tuple[list[str], list[str]]:
    """Run a sweep to its end while its processes are killed; the lines of its programs, and its events."""
    home, ledger = tmp_path / "home", tmp_path / "ledger"
    (tmp_path / "train.py").write_text(program)
    (spec,) = parse(file.format(trials=num_trials, python=sys.executable, ledger=ledger))
    assert isinstance(spec, Sweep)
    cluster, rng = LocalCluster.open(home), random.Random(7)
    try:
        own = cluster.prepare(spec.trial, tmp_path).spec
        sweep = cluster.launch(map_runs(spec, lambda _: own))
        deadline, kills = time.monotonic() + LIMIT_S, 0
        while not cluster.get(sweep.uid).status.phase.is_final:
            assert time.monotonic() < deadline, cluster.get(sweep.uid).status
            time.sleep(rng.uniform(0.05, 0.3))
            if kills < num_kills:
                alive = shims(cluster, sweep.uid)
                victim = rng.choice([cluster.supervisor_pid(), *alive, *alive])
                kill(victim)
                kills += victim is not None
            cluster.nudge()
        assert cluster.get(sweep.uid).status.phase is Phase.SUCCEEDED, cluster.get(sweep.uid).status.reason
        trials = cluster.children(sweep.uid)
        assert sorted(int(each.spec.name.removeprefix("rates-")) for each in trials) == list(range(num_trials))
        assert all(each.status.phase.is_final for each in trials)
        assert not [each.status for each in trials if "later" in each.status.reason.message]
        assert not cluster.store.live_pods()
        # The last acts of shims and launchers come just after the ends of their runs.
        until(lambda: not any(processes_of(each.uid) for each in trials), "no process of a trial is left")
        return ledger.read_text().splitlines(), [each.reason.message for each in cluster.events(sweep.uid)]
    finally:
        cluster.close()
        end_everything(home)
