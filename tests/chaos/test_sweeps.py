"""A sweep while its supervisor and the shims of its trials are killed: every trial once, and nothing left behind."""

import os
import random
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
    home, ledger = tmp_path / "home", tmp_path / "ledger"
    (tmp_path / "train.py").write_text(PROGRAM)
    (spec,) = parse(FILE.format(trials=num_trials, python=sys.executable, ledger=ledger))
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
        assert not cluster.store.live_pods()
        starts = Counter(ledger.read_text().splitlines())
        assert max(starts.values()) == 1, "a program was started twice by one attempt"
        assert {line.split()[0] for line in starts} == {each.spec.name for each in trials}
        # The last acts of shims and launchers come just after the ends of their runs.
        until(lambda: not any(processes_of(each.uid) for each in trials), "no process of a trial is left")
    finally:
        cluster.close()
        end_everything(home)
