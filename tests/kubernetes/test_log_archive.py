"""What is kept of pods that are gone: bounded, of the newest starts, and the run's own."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.api.objects import PodObject, ResourceAmounts
from fairlead.cluster.kubernetes.informers.informers import trainings_path
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.runs import log_archive
from fairlead.cluster.kubernetes.operator.runs.log_archive import (
    MOST_BYTES,
    MOST_POD_BYTES,
    MOST_STARTS,
    LogArchive,
    share,
    write,
)
from fairlead.cluster.kubernetes.workloads.kept_logs import kept_lines
from fairlead.cluster.kubernetes.workloads.run_record import TrainingObject, read_training
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from tests.kubernetes.builders import a_training
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.turns import a_turn
from tests.waiting import until

CONFIG_MAP_BYTES = 1024 * 1024


@pytest.fixture
def client(plane: ControlPlane) -> Client:
    return Client(load_access((plane.kubeconfig(),)))


def submitted(client: Client, namespace: str) -> TrainingObject:
    WorkloadApi(client, namespace=namespace).submit(a_training(name="train", team=namespace))
    return read_training(client.get(trainings_path(namespace, "train")))


def test_the_newest_starts_are_kept_and_older_ones_go(client: Client, namespace: str) -> None:
    found = submitted(client, namespace)
    assert kept_lines(client, namespace, found.uid) == {}
    for attempt in range(5):
        write(client, found, {(attempt, 0): f"start {attempt}"})
    write(client, found, {(4, 0): "start 4, to its end"})
    assert kept_lines(client, namespace, found.uid) == {
        (2, 0): "start 2",
        (3, 0): "start 3",
        (4, 0): "start 4, to its end",
    }
    maps = list(client.items(f"/api/v1/namespaces/{namespace}/configmaps", {"labelSelector": "fairlead.dev/content"}))
    assert [each["metadata"]["ownerReferences"][0]["uid"] for each in maps] == [found.uid]
    client.merge(trainings_path(namespace, "train"), {"metadata": {"finalizers": None}})
    client.delete(trainings_path(namespace, "train"))


@pytest.mark.parametrize("num_pods", [1, 4, 5, 256, 1000])
def test_all_that_is_kept_of_a_run_fits_into_one_object(num_pods: int) -> None:
    each = share(num_pods)
    assert 1024 <= each <= MOST_POD_BYTES
    assert MOST_STARTS * min(num_pods, 256) * each <= MOST_STARTS * MOST_BYTES < CONFIG_MAP_BYTES


@dataclass
class SeenCluster:
    """Stands in for a cluster with one run: it is its own view, and that view's pods."""

    run: TrainingObject
    client: None = None
    listeners: list[Callable[[PodObject | None, PodObject | None], None]] = field(default_factory=list)

    view = property(lambda self: self)
    pods = property(lambda self: self)

    def listen(self, changed: Callable[[PodObject | None, PodObject | None], None]) -> None:
        self.listeners.append(changed)

    def find(self, uid: str) -> TrainingObject | None:
        return self.run if uid == self.run.uid else None

    def run_of(self, pod: PodObject) -> str:
        return pod.run_uid if pod.run_uid == self.run.uid else ""

    def wake(self) -> None:
        """Nobody waits."""


def test_a_leading_operator_reads_a_log_as_soon_as_its_pod_is_told_to_stop(
    client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def note(_client: Client, key: str, _most_bytes: int, **_more: Any) -> str:
        read.append(key)
        return ""

    monkeypatch.setattr(log_archive, "last_lines", note)
    cluster = SeenCluster(submitted(client, namespace))
    is_leader = False
    archive = LogArchive(cast("KubernetesCluster", cluster), may_act=lambda: is_leader)
    (changed,) = cluster.listeners
    pods = [
        PodObject(
            key=f"{namespace}/train-{attempt}-0", version=1, uid=f"pod-{attempt}", phase="Running", node="n",
            requests=ResourceAmounts(), created_at=0.0, run_uid=cluster.run.uid, attempt=attempt, index=0,
            started_at=1.0,
        )
        for attempt in range(2)
    ]  # fmt: skip
    try:
        changed(pods[0], replace(pods[0], told_at=2.0))
        is_leader = True
        changed(pods[1], pods[1])
        changed(pods[1], replace(pods[1], told_at=3.0))
        until(lambda: read == [pods[1].key], lambda: read)
        archive.act(a_turn(None, 4.0))
        until(lambda: read == [pods[1].key, pods[0].key], lambda: read)
    finally:
        archive.stop()
