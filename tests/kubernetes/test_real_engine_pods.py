"""Runs whose pods a real controller creates on real nodes: ranks meet, and one that is killed restarts them."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kueue_server
from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.roles import render_roles
from fairlead.specs.engines import Engine
from tests.kubernetes import desks
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import await_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import Desk
from tests.kubernetes.testcluster import own_python
from tests.kubernetes.testcluster.engines import engine
from tests.kubernetes.testcluster.errors import Unavailable
from tests.kubernetes.testcluster.real_nodes import RealCluster, require

pytestmark = [pytest.mark.long, pytest.mark.kubernetes, pytest.mark.torch]

PATIENCE_S = 300.0

PROGRAM = """
import os, signal
import fairlead
import torch
import torch.distributed as dist

class Counter:
    count = 0
    def state_dict(self): return {"count": self.count}
    def load_state_dict(self, saved): self.count = saved["count"]

dist.init_process_group("gloo")
with fairlead.run() as run:
    counter = Counter()
    first = run.resume(counter=counter)
    print("begins at", first, flush=True)
    for step in range(first, 10):
        total = torch.ones(1)
        dist.all_reduce(total)
        counter.count += int(total)
        run.progress(step + 1, total=10)
        run.checkpoint(step + 1)
        if step == 4 and run.attempt == 0 and run.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    print("ends with", counter.count, flush=True)
"""
CONTROLLERS = {
    Engine.JOBSET: ("jobset",),
    Engine.KUBEFLOW_TRAINER: ("jobset", "trainer"),
    **dict.fromkeys((Engine.PYTORCHJOB, Engine.TFJOB, Engine.XGBOOSTJOB), ("training-operator",)),
}


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    try:
        require()
        archive = own_python.write_image(tmp_path_factory.mktemp("image") / "own-python.tar")
    except Unavailable as error:
        pytest.skip(str(error))
    with started(lambda: RealCluster(2, given=own_python.DIRECTORIES), request) as made, ExitStack() as controllers:
        made.import_image(archive)
        for each in (*definitions(), *render_roles()):
            applied(made, each)
        await_kinds(made)
        for name in sorted({name for names in CONTROLLERS.values() for name in names}):
            controllers.enter_context(engine(made, name))
        patch = controllers.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("KUBECONFIG", str(made.kubeconfig()))
        kueue = kueue_server.start(made, qps=500, burst=500)
        controllers.callback(kueue.kill)
        yield made


@pytest.fixture
def desk(cluster: RealCluster, tmp_path: Path) -> Iterator[Desk]:
    """A user in a namespace of the test's own with a quota of Kueue's, beside an operator."""
    with desks.attended(cluster, tmp_path, patience_s=PATIENCE_S) as desk:
        kueue_server.set_quota(cluster, desk.namespace, {"cpu": 64, "memory": "64Gi"})
        yield desk


@pytest.mark.parametrize("by", [*CONTROLLERS, Engine.KUEUE])
def test_the_ranks_of_an_engine_meet_and_one_that_is_killed_restarts_them_from_their_checkpoint(
    cluster: RealCluster, desk: Desk, by: Engine
) -> None:
    queue: dict[str, Any] = {"queue": kueue_server.QUEUE} if by is Engine.KUEUE else {}
    file = desks.write_run(
        desk, "train", PROGRAM, image=own_python.NAME, engine=by.value, nodes=2,
        resources={"cpu": 0.5, "memory": "1Gi"}, retry={"program": 1, "backoff": "0s"}, grace="5s", **queue,
    )  # fmt: skip
    desk("run", "--detach", file)
    end = desks.comes_to(desk, "train", "Succeeded", patience_s=PATIENCE_S)
    assert end.startswith("all ranks succeeded after 10 steps")
    found = [json.loads(line) for line in desk("events", "train", "--json").out.splitlines()]
    (restart,) = (each["reason"]["message"] for each in found if each["event"] == "Restarting")
    assert "rank 1 of 2 was killed" in restart, restart
    assert "restarts at once from its checkpoint of step " in restart
    # Of the first attempt an engine may have deleted a pod, with its log, before anybody read it.
    lines = desk("logs", "train", "--attempt", "1").out.splitlines()
    begun = {line for line in lines if "begins at" in line}
    assert {line[:3] for line in begun} == {"[0]", "[1]"}, lines
    assert not {line for line in begun if line.endswith(" 0")}, lines
    assert {"[0] ends with 20", "[1] ends with 20"} <= set(lines), lines
