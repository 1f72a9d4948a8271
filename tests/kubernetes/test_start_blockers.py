"""Pods that are bound and do not start, where only the Events of their kubelet say why."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.cluster.isolation import Isolation
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.objects import PodObject, ResourceAmounts
from fairlead.cluster.kubernetes.informers import pod_status as verdicts
from fairlead.cluster.kubernetes.informers.pod_index import Marks
from fairlead.cluster.kubernetes.informers.pod_status import MOUNT_PATIENCE_S, LastWord, is_hopeless
from fairlead.cluster.kubernetes.operator.pods import start_blockers as hindrances
from fairlead.cluster.kubernetes.operator.pods.start_blockers import StartBlockers
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Phase
from tests.kubernetes.operating import comes_to, gang, live_pods, operating
from tests.kubernetes.turns import a_turn
from tests.waiting import until

MOUNT = 'MountVolume.SetUp failed for volume "keys" : secret "nope" not found'


@pytest.mark.slow
def test_a_volume_that_cannot_be_mounted_is_told_until_it_is(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hindrances, "FIRST_S", 3.0)

    def reason() -> Reason:
        return cluster.named("train", namespace).status.reason

    cluster.submit(gang(namespace, start="30s"))
    with operating(access, namespace):
        until(lambda: len(live_pods(cluster, namespace)) == 2)
        say(cluster, namespace, "FailedMount", "Warning", MOUNT)
        say(cluster, namespace, "Scheduled", "Normal", "Successfully assigned", by="default-scheduler")
        until(lambda: reason().code is Code.START_DELAYED, reason)
        assert reason().message.startswith("pod 0 of 2 has not started: a volume cannot be mounted on a-gpu-")
        assert f": {MOUNT}; create what it refers to, or correct the name under" in reason().message
        assert cluster.named("train", namespace).status.phase is Phase.STARTING
        say(cluster, namespace, "Pulling", "Normal", "Pulling image")
        until(lambda: reason().code is Code.PLACED, reason)
        comes_to(cluster, "train", Phase.RUNNING, attempt=0)


@pytest.mark.slow
def test_a_gang_whose_volume_can_never_be_mounted_gives_its_places_back_and_is_tried_again(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hindrances, "FIRST_S", 1.0)
    for module in (hindrances, verdicts):
        monkeypatch.setattr(module, "MOUNT_PATIENCE_S", 6.0)
    cluster.submit(gang(namespace, start="120s"))
    with operating(access, namespace):
        until(lambda: len(live_pods(cluster, namespace)) == 2)
        say(cluster, namespace, "FailedMount", "Warning", MOUNT)
        until(lambda: live_pods(cluster, namespace) == ["train-1-0", "train-1-1"])
        status = cluster.named("train", namespace).status
    assert status.failures.disruptions == 1
    assert status.failures.last is not None
    assert status.failures.last.code is Code.POD_LOST
    assert f" was lost: a volume cannot be mounted on a-gpu-0: {MOUNT}; create" in status.failures.last.message


class World:
    """A run of one pod that never starts, a kubelet that says the same all the time, and a clock that we set."""

    def __init__(self, pod: PodObject) -> None:
        self.pod = pod
        self.asked: list[float] = []
        self.noted: LastWord | None = None
        self.now = 0.0
        self._marks = Marks()
        self._marks.add(runs=["r"])
        self.view: Any = SimpleNamespace(
            isolation=Isolation(),
            marks=lambda: self._marks,
            client=self,
            pods_of=lambda uid: {pod.key: pod},
            note_last_word=self._note,
        )

    def items(self, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
        self.asked.append(self.now)
        told = {"reason": "FailedMount", "message": MOUNT, "source": {"component": "kubelet"}}
        return [{"metadata": {"resourceVersion": "7"}, **told}]

    def submit(self, run: str, name: str, job: Callable[[], None]) -> None:
        job()

    def _note(self, uid: str, word: LastWord | None) -> None:
        self.noted = word


@pytest.mark.parametrize("age_s", [0.0, 3600.0])
def test_it_is_asked_once_more_when_our_patience_ends(age_s: float) -> None:
    pod = PodObject(
        key="t/a-0-0",
        version=1,
        uid="u",
        phase="Pending",
        node="n",
        requests=ResourceAmounts(),
        created_at=1000.0 - age_s,
    )
    world: Any = World(replace(pod, run_uid="r"))
    asks = StartBlockers(world.view)
    hopeless_at = None
    for second in range(1000):
        world.now = 1000.0 + second
        asks.act(a_turn(world, world.now))
        if hopeless_at is None and world.noted is not None and is_hopeless(world.noted.applied(pod), world.now):
            hopeless_at = world.now
    assert hopeless_at == (1020.0 if age_s else pod.created_at + MOUNT_PATIENCE_S)
    assert [at - 1000.0 for at in world.asked[:4]] == [20.0, 60.0, 140.0, 300.0]


def say(cluster: WorkloadApi, namespace: str, reason: str, kind: str, message: str, by: str = "kubelet") -> None:
    """What a kubelet, or another, says of the first pod."""
    pod = cluster.client.get(f"/api/v1/namespaces/{namespace}/pods/train-0-0")
    event = {
        "metadata": {"name": f"train-0-0.{reason.lower()}"},
        "involvedObject": {"kind": "Pod", "namespace": namespace, "name": "train-0-0", "uid": pod["metadata"]["uid"]},
        "reason": reason,
        "type": kind,
        "message": message,
        "source": {"component": by},
    }
    cluster.client.create(f"/api/v1/namespaces/{namespace}/events", event)
