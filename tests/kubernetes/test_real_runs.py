"""What only the containers of real nodes show of a run's way: where a gang hangs, and work that goes on elsewhere."""

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.roles import render_roles
from tests.kubernetes import desks
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import await_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import Desk, objects
from tests.kubernetes.testcluster import images
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes]

PATIENCE_S = 240.0  # a busy machine takes its time over containers

STATE = """
import os, sys, time
import fairlead

class Counter:
    count, ballast = 0, b""
    def state_dict(self): return {"count": self.count, "ballast": self.ballast}
    def load_state_dict(self, saved): self.count = saved["count"]
"""
HANG = (
    STATE
    + """
def load_batch():
    time.sleep(600)

with fairlead.run() as run:
    counter = Counter()
    for step in range(run.resume(counter=counter), 10):
        if step == 3 and run.rank == 1:
            load_batch()
        run.progress(step + 1)
        run.checkpoint(step + 1)
"""
)
COUNT = (
    STATE
    + """
with fairlead.run() as run:
    counter = Counter()
    first = run.resume(counter=counter)
    print("begins at", first, "with", counter.count, flush=True)
    for step in range(first, int(os.environ["STEPS"])):
        counter.count += 10
        run.progress(step + 1)
        run.checkpoint(step + 1)
    sys.exit(int(os.environ.get("CODE", 0)))
"""
)
LARGE = (
    STATE
    + """
with fairlead.run() as run:
    counter = Counter()
    counter.ballast = os.urandom(4 << 20)
    for step in range(run.resume(counter=counter), 10_000):
        time.sleep(0.1)
        run.progress(step + 1)
        run.checkpoint(step + 1)
"""
)
# A step takes longer in more parts, and one split fails.
SPLITS = (
    STATE
    + """
with fairlead.run() as run:
    split = run.parallel
    print("attempt", run.attempt, "on", os.uname().nodename, "in parts of", split.micro_batch, flush=True)
    if split.micro_batch == 1:
        raise MemoryError("CUDA out of memory. Tried to allocate 1 GiB")
    counter = Counter()
    for step in range(run.resume(counter=counter), 12):
        time.sleep(0.05 * split.micro_batches)
        counter.count += 1
        run.progress(step + 1, total=12)
        run.checkpoint(step + 1)
    print("ends with", counter.count, flush=True)
"""
)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    with started(lambda: RealCluster(2), request) as made:
        for each in (*definitions(), *render_roles()):
            applied(made, each)
        await_kinds(made)
        yield made


@pytest.fixture
def desk(cluster: RealCluster, tmp_path: Path) -> Iterator[Desk]:
    """A user in a namespace of the test's own, beside an operator."""
    with desks.attended(cluster, tmp_path, patience_s=PATIENCE_S) as desk:
        yield desk


def spec_of(desk: Desk, name: str, program: str, **more: Any) -> str:
    """The file of a run that keeps its checkpoints on a volume which all pods share."""
    small = {"name": "small", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    keys = {
        "image": images.PYTHON,
        "resources": {"cpu": 0.2, "memory": "128Mi"},
        "retry": {"program": 0, "infrastructure": 0},
        **more,
    }
    return desks.write_run(desk, name, program, extra=[(small, "/small")], **keys)


comes_to = partial(desks.comes_to, patience_s=PATIENCE_S)


def kubectl(cluster: RealCluster, desk: Desk, *arguments: str) -> str:
    argv = [str(cluster.kubectl), "-n", desk.namespace, *arguments]
    environ = {**desk.environ, "HOME": str(desk.directory)}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    return done.stdout if done.returncode == 0 else f"refused: {done.stderr}"


def test_a_gang_that_hangs_shows_its_stacks_and_which_rank_it_is(desk: Desk) -> None:
    desk("run", "-d", spec_of(desk, "stuck", HANG, nodes=2, stall_timeout="10s", grace="15s"))
    sentence = comes_to(desk, "stuck", "Failed")
    assert sentence.startswith("rank 1 hangs in load_batch (stuck.py:11); rank 0 waits in run.checkpoint; no progress")
    assert sentence in desk("status", "stuck").out
    log = objects(desk("logs", "stuck", "--json").out)
    for rank, place in enumerate(("in <module>", "in load_batch")):
        said = [each["text"] for each in log if each["rank"] == rank]
        assert any("Python stacks of process" in line for line in said), said
        assert any(place in line for line in said), said


def test_splits_are_tried_in_pods_of_their_own_and_the_fastest_is_kept(cluster: RealCluster, desk: Desk) -> None:
    candidates = {"small": {"micro_batch": 2}, "whole": {}, "failing": {"micro_batch": 1}}
    desk("run", "-d", spec_of(desk, "splits", SPLITS, nodes=2, parallel={"batch": 16, "candidates": candidates}))
    comes_to(desk, "splits", "Succeeded")
    told = desk("status", "splits").out
    assert "whole (data 2 with whole copies, micro-batch 8) is kept and takes" in told, told
    assert "small (data 2 with whole copies, micro-batch 4 x 2) takes" in told, told
    assert "is ruled out: rank" in told, told

    def hosts(attempt: int) -> set[str]:
        lines = desk("logs", "splits", "--attempt", str(attempt)).out.splitlines()
        return {line.split(" on ")[1].split()[0] for line in lines if f"attempt {attempt} on " in line}

    def kept() -> object:
        operator = (desk.directory.parent / "operator.log").read_text().splitlines()
        return [hosts(attempt) for attempt in (1, 2, 3)], [each for each in operator if "last lines" in each]

    # The last lines of the three newest attempts are kept.
    until(lambda: [len(hosts(attempt)) for attempt in (1, 2, 3)] == [2, 2, 2], kept)
    assert len(hosts(1) | hosts(2) | hosts(3)) == 6, "each start has pods of its own"
    ends = [desk("logs", "splits", "--attempt", str(attempt)).out.count("ends with 12") for attempt in (1, 2, 3)]
    assert ends == [0, 0, 2], "it trains with the fastest from its first step"
    said = desk("events", "splits").out
    assert (said.count("SplitProbed"), said.count("SplitChosen")) == (2, 1), said
    assert (desks.shown(desk, "splits")["progress"]["step"], desks.shown(desk, "splits")["attempt"]) == (12, 3)


def test_an_edited_run_and_one_that_begins_from_another_go_on_with_its_work(cluster: RealCluster, desk: Desk) -> None:
    desk("run", "-d", spec_of(desk, "count", COUNT, nodes=2, env={"STEPS": "3", "CODE": "7"}))
    assert "exit code 7" in comes_to(desk, "count", "Failed")
    changed = json.dumps({"spec": {"nodes": 1, "env": {"STEPS": "5", "CODE": None}}})
    assert "patched" in kubectl(cluster, desk, "patch", "training", "count", "--type=merge", "-p", changed)
    assert "annotated" in kubectl(cluster, desk, "annotate", "training", "count", "fairlead.dev/intent=run:2")
    comes_to(desk, "count", "Succeeded")
    assert "begins at 3 with 30" in desk("logs", "count", "--attempt", "1").out
    assert "nodes: 2 -> 1" in desk("events", "count").out
    more = json.dumps({"spec": {"nodes": 2}})
    assert "it has succeeded" in kubectl(cluster, desk, "patch", "training", "count", "--type=merge", "-p", more)

    place = {"to": "/team/runs", "every": "1 steps"}
    warm = spec_of(desk, "warm", COUNT, checkpoint={**place, "from": "count"}, env={"STEPS": "6"})
    desk("run", "-d", warm)
    comes_to(desk, "warm", "Succeeded")
    assert "begins at 5 with 50" in desk("logs", "warm").out


def test_a_place_that_takes_no_checkpoints_is_told(cluster: RealCluster, desk: Desk) -> None:
    desk("run", "-d", spec_of(desk, "nowhere", COUNT, checkpoint={"to": "/proc/runs"}, env={"STEPS": "3"}))
    sentence = comes_to(desk, "nowhere", "Failed")
    assert "checkpoints cannot be kept in /proc/runs" in sentence
    assert "begins at" not in desk("logs", "nowhere").out
    desk("run", "-d", spec_of(desk, "full", LARGE, checkpoint={"to": "/small", "every": "2s"}))
    told = "saves failed: No space left on device in /small"
    until(lambda: told in desk("status", "full").out, lambda: desk("status", "full").out, timeout_s=PATIENCE_S)
    warning = "jsonpath={.status.warning}"
    assert told in kubectl(cluster, desk, "get", "training", "full", "-o", warning)
    desk("stop", "full", timeout_s=PATIENCE_S)
