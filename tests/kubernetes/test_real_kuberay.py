"""Runs that the real KubeRay carries out with the real Ray on real nodes: its ranks, logs, reasons, and a lost rank."""

import json
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
from tests.kubernetes.test_faces import Desk
from tests.kubernetes.testcluster import binaries, kuberay
from tests.kubernetes.testcluster.errors import Unavailable
from tests.kubernetes.testcluster.real_nodes import RealCluster, require
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes]

PATIENCE_S = 300.0  # Ray takes half a minute to start on a busy machine

# One actor on each node; the first attempt loses one of them in the middle.
PROGRAM = """
import os
import fairlead
import ray

ray.init(address="auto", log_to_driver=False)

@ray.remote(num_cpus=1)
class Rank:
    def node(self):
        return ray.get_runtime_context().get_node_id()

    def add(self, count):
        return count + 1

    def end(self):
        os._exit(7)

class Counter:
    count = 0
    def state_dict(self): return {"count": self.count}
    def load_state_dict(self, saved): self.count = saved["count"]

with fairlead.run() as run:
    ranks = [Rank.options(scheduling_strategy="SPREAD").remote() for _ in range(2)]
    nodes = ray.get([rank.node.remote() for rank in ranks])
    counter = Counter()
    first = run.resume(counter=counter)
    print("begins at", first, "on", len(set(nodes)), "nodes", flush=True)
    for step in range(first, 20):
        if step == 5 and run.attempt == 0:
            ray.get(ranks[1].end.remote())
        counter.count = max(ray.get([rank.add.remote(counter.count) for rank in ranks]))
        run.progress(step + 1, total=20, loss=1 / (step + 1))
        run.checkpoint(step + 1)
    print("ends with", counter.count, flush=True)
"""
HOLDS = """
import time
import ray

ray.init(address="auto", log_to_driver=False)
print("holds", flush=True)
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    try:
        require()
        binaries.ensure_engine("kuberay")
        given = kuberay.directories()
    except Unavailable as error:
        pytest.skip(str(error))
    with started(lambda: RealCluster(2, given=given), request) as made:
        for each in (*definitions(), *render_roles()):
            applied(made, each)
        await_kinds(made)
        kuberay.install(made)
        yield made


@pytest.fixture
def desk(cluster: RealCluster, tmp_path: Path) -> Iterator[Desk]:
    """A user in a namespace of the test's own, beside an operator."""
    with desks.attended(cluster, tmp_path, patience_s=PATIENCE_S) as desk:
        yield desk


def spec_of(desk: Desk, program: str, **more: Any) -> str:
    keys = {
        "image": kuberay.RAY, "engine": "rayjob", "nodes": 2, "resources": {"cpu": 1, "memory": "2Gi"},
        "retry": {"program": 1, "backoff": "0s"}, "grace": "5s", **more,
    }  # fmt: skip
    return desks.write_run(desk, "train", program, **keys)


def reason(desk: Desk) -> str:
    return str(desks.shown(desk, "train")["reason"]["message"])


comes_to = partial(desks.comes_to, patience_s=PATIENCE_S)


def events(desk: Desk) -> list[tuple[str, str]]:
    found = [json.loads(line) for line in desk("events", "train", "--json").out.splitlines()]
    return [(each["event"], each["reason"]["message"]) for each in found]


def test_a_rank_that_is_lost_restarts_the_run_from_its_checkpoint(cluster: RealCluster, desk: Desk) -> None:
    desk("run", "--detach", spec_of(desk, PROGRAM))
    assert comes_to(desk, "train", "Succeeded").startswith("all ranks succeeded after 20 steps")
    told = [f"{type_}: {message}" for type_, message in events(desk)]
    restart, *more = (each for each in told if each.startswith("Restarting: "))
    assert not more, told
    restart = restart.removeprefix("Restarting: ")
    assert restart.startswith("rank 0 of 2 failed after step 5 with exit code 1: The actor is dead because"), restart
    assert restart.endswith("it restarts at once from its checkpoint of step 5"), restart
    at_first = told[: told.index("Running: 2 ranks on 2 nodes started")]
    assert not any("CheckpointSaved" in each for each in at_first), told
    assert any("its Ray cluster is" in each for each in at_first), told
    lines = desk("logs", "train").out.splitlines()
    assert {"[0] begins at 0 on 2 nodes", "[0] begins at 5 on 2 nodes", "[0] ends with 20"} <= set(lines), lines


def test_a_run_says_what_its_cluster_waits_for_and_a_stop_leaves_nothing(cluster: RealCluster, desk: Desk) -> None:
    pods, jobs = f"/api/v1/namespaces/{desk.namespace}/pods", f"/apis/ray.io/v1/namespaces/{desk.namespace}/rayjobs"
    desk("run", "--detach", spec_of(desk, HOLDS, resources={"cpu": 64, "memory": "2Gi"}))
    until(lambda: "kube-scheduler finds no place for pod" in reason(desk), timeout_s=PATIENCE_S)
    assert "Insufficient cpu" in reason(desk)
    desk("stop", "train")
    comes_to(desk, "train", "Stopped")
    until(lambda: cluster.request("GET", pods)["items"] == [], timeout_s=PATIENCE_S)
    desk("delete", "--yes", "train")
    desk("run", "--detach", spec_of(desk, HOLDS))
    until(lambda: "[0] holds" in desk("logs", "train").out.splitlines(), timeout_s=PATIENCE_S)
    desk("stop", "train")
    comes_to(desk, "train", "Stopped")
    until(lambda: cluster.request("GET", pods)["items"] == [], timeout_s=PATIENCE_S)
    until(lambda: cluster.request("GET", jobs)["items"] == [])  # KubeRay has a finalizer on it
