"""The shim of a pod is killed, with its ranks: the other pods train on, and the pod alone is started again."""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.runtime.podfiles import read_json
from fairlead.specs.training import Elastic, Training
from fairlead.state.snapshot import Intent, Phase, PodPhase, Workload
from tests.home import end_everything
from tests.runtime.test_elastic import TOLERANCE, elastic, losses
from tests.waiting import until

pytestmark = pytest.mark.torch

STEPS = 60
PATIENCE_S = 120.0


class Desk:
    """A run of three pods on this machine, and what happens to it."""

    def __init__(self, tmp_path: Path, steps: int = STEPS) -> None:
        from tests.runtime import elastic_program

        work, self.results = tmp_path / "work", tmp_path / "results"
        for each in (work, self.results):
            each.mkdir()
        shutil.copy(elastic_program.__file__, work)
        self.home = tmp_path / "home"
        self.cluster = LocalCluster.open(self.home)
        spec = Training(
            name="steadfast", run=f"{sys.executable} elastic_program.py {steps} {self.results} 0.05", nodes=3,
            ranks_per_node=1, elastic=Elastic.IN_PLACE, workdir=str(work), grace_s=5.0,
        )  # fmt: skip
        self.run = self.cluster.submit(spec)
        self.cluster.nudge()

    def __enter__(self) -> "Desk":
        return self

    def __exit__(self, *_: object) -> None:
        end_everything(self.home)

    def now(self) -> Workload:
        return self.cluster.store.get(self.run.uid)

    def told(self) -> list[tuple[str, str]]:
        return [(event.type, event.reason.message) for event in self.cluster.events(self.run.uid)]

    def until(self, what: Any, said: str) -> None:
        until(what, lambda: (said, self.now().status, self.told(), self.losses()), timeout_s=PATIENCE_S)

    def losses(self) -> dict[int, list[Any]]:
        return losses(self.results)

    def ranks(self) -> int:
        made = self.losses()
        return int(made[max(made)][1]) if made else 0

    def pods(self) -> dict[str, PodPhase]:
        return {pod.uid.removeprefix(f"{self.run.uid}-"): pod.phase for pod in self.cluster.pods(self.run.uid)}

    def kill_shim(self, name: str) -> None:
        path = self.cluster.home.pod(self.run.uid, f"{self.run.uid}-{name}")
        os.kill(int((read_json(path / "claimed.json") or {})["pid"]), signal.SIGKILL)


@pytest.mark.slow
def test_the_other_pods_train_on_and_the_lost_one_alone_is_started_again(tmp_path: Path) -> None:
    with Desk(tmp_path) as desk:
        desk.until(lambda: len(desk.losses()) >= 5, "the first steps")
        desk.kill_shim("0-2")
        desk.until(lambda: desk.ranks() == 2, "a step of two ranks")
        desk.until(lambda: desk.ranks() == 3, "a step of three ranks again")
        desk.until(lambda: desk.now().status.phase is Phase.SUCCEEDED, "the end")
        assert (desk.now().status.attempt, desk.now().status.failures.program) == (0, 0)
        assert desk.pods() == {
            "0-0": PodPhase.SUCCEEDED, "0-1": PodPhase.SUCCEEDED, "0-2": PodPhase.LOST, "0-2r1": PodPhase.SUCCEEDED,
        }  # fmt: skip
        kinds = [kind for kind, _ in desk.told()]
        assert [each for each in kinds if each.startswith("Pod")] == ["PodLost", "PodReplaced", "PodReturned"]
        assert (kinds.count("RankLost"), kinds.count("RankReturned")) == (1, 1), desk.told()
        found = desk.losses()
        gang, calm = elastic(tmp_path, "calm", 0.0, steps=STEPS)
        with gang:
            gang.finish()
        expected = losses(calm)
        assert sorted(found) == list(range(1, STEPS + 1))
        assert max(abs(found[step][0] / expected[step][0] - 1) for step in expected) < TOLERANCE


@pytest.mark.slow
def test_supervisors_that_are_killed_start_the_lost_pod_once_and_a_suspended_run_saves(tmp_path: Path) -> None:
    with Desk(tmp_path, steps=10_000) as desk:
        desk.until(lambda: len(desk.losses()) >= 3, "the first steps")
        desk.kill_shim("0-1")
        for sign in ("PodLost", "PodReplaced"):
            desk.until(lambda: sign in {kind for kind, _ in desk.told()}, sign)  # noqa: B023 (called at once)
            pid = desk.cluster.supervisor_pid()
            if pid is not None:
                os.kill(pid, signal.SIGKILL)  # the next is started by the shims that are left
        desk.until(lambda: "PodReturned" in {kind for kind, _ in desk.told()}, "the pod")
        desk.until(lambda: desk.ranks() == 3, "a step of three ranks again")
        kinds = [kind for kind, _ in desk.told()]
        assert [each for each in kinds if each.startswith("Pod")] == ["PodLost", "PodReplaced", "PodReturned"]
        assert sorted(desk.pods()) == ["0-0", "0-1", "0-1r1", "0-2"]
        desk.cluster.set_intent(desk.run.uid, Intent.SUSPEND)
        desk.cluster.nudge()
        desk.until(lambda: desk.now().status.phase is Phase.SUSPENDED, "the end")
        progress = desk.now().progress
        assert progress is not None
        assert progress.stopped_step == progress.checkpoint_step == max(desk.losses()), "all at one step"
