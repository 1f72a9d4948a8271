"""A population of real runs, whose supervisor is killed meanwhile: copies go on where the better ones had saved."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control.admission import admit
from fairlead.specs.formats.reading import parse
from fairlead.specs.sweep import Sweep
from fairlead.state.snapshot import Phase
from tests.home import end_everything
from tests.waiting import until

pytestmark = pytest.mark.slow
# A line is fitted by steps along the slope; the rate is what is searched for, and too high a one diverges slowly.
PROGRAM = """\
import json, random, time
import fairlead

rate = json.loads(__import__("os").environ["FAIRLEAD_PARAMS"])["rate"]
rng = random.Random(0)
data = [(x, 3 * x + 1 + rng.gauss(0, 0.1)) for x in (rng.uniform(-1, 1) for _ in range(50))]
weights = [0.0, 0.0]

def load(directory):
    weights[:] = json.loads((directory / "weights.json").read_text())

def save(directory):
    (directory / "weights.json").write_text(json.dumps(weights))

with fairlead.run() as run:
    for step in range(run.resume(load=load) + 1, 41):
        errors = [(weights[0] * x + weights[1] - y, x) for x, y in data]
        weights[0] -= rate * sum(error * x for error, x in errors) / len(data)
        weights[1] -= rate * sum(error for error, _ in errors) / len(data)
        run.progress(step, total=40, loss=sum(error * error for error, _ in errors) / len(data))
        run.checkpoint(step, save=save)
        time.sleep(0.15)
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    end_everything(tmp_path / "home")


def test_copies_go_on_from_the_checkpoints_of_better_trials(home: Path, tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text(PROGRAM)
    text = f"""
kind: Sweep
name: fits
parameters: {{rate: log 1e-4..1e0}}
objective: loss
trials: 8
parallel: 4
sampler: random
prune: {{rule: pbt, after: 8, factor: 4}}
trial: {{run: '{sys.executable} fit.py', checkpoint: {{every: 4 steps}}, resources: {{cpu: 0.1}}}}
"""
    (spec,) = parse(text)
    assert isinstance(spec, Sweep)
    cluster = LocalCluster.open(home)
    sweep = cluster.submit(admit(cluster, spec, tmp_path).spec)
    cluster.nudge()
    until(lambda: len(cluster.children(sweep.uid)) > 4, timeout_s=180)
    pid = cluster.supervisor_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    cluster.nudge()
    until(lambda: cluster.get(sweep.uid).status.phase.is_final, timeout_s=180)
    assert cluster.get(sweep.uid).status.phase is Phase.SUCCEEDED
    children = {child.spec.name: child for child in cluster.children(sweep.uid)}
    followers = [child for child in children.values() if child.spec.checkpoint.origin is not None]
    assert followers
    for child in followers:
        donor = children[child.spec.checkpoint.origin]
        assert child.status.phase in (Phase.SUCCEEDED, Phase.STOPPED), child.status
        events = [event.reason.message for event in cluster.events(child.uid)]
        began = next(found for each in events if (found := re.match(r"Began after step (\d+) of (\S+)\.", each)))
        assert int(began[1]) >= 8
        assert began[2].endswith(f"{donor.uid}/checkpoints")
        rates = [json.loads(each.spec.env["FAIRLEAD_PARAMS"])["rate"] for each in (child, donor)]
        assert rates[0] != rates[1]
    cluster.close()
