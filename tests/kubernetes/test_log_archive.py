"""What is kept of pods that are gone: bounded, of the newest starts, and the run's own."""

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.runs.informers import trainings_path
from fairlead.cluster.kubernetes.operator.runs.log_archive import (
    MOST_BYTES,
    MOST_POD_BYTES,
    MOST_STARTS,
    kept_lines,
    share,
    write,
)
from fairlead.cluster.kubernetes.operator.runs.run_record import TrainingObject, read_training
from tests.kubernetes.builders import a_training
from tests.kubernetes.testcluster.control_plane import ControlPlane

CONFIG_MAP_BYTES = 1024 * 1024


@pytest.fixture
def client(plane: ControlPlane) -> Client:
    return Client(load_access((plane.kubeconfig(),)))


def submitted(client: Client, namespace: str) -> TrainingObject:
    KubernetesCluster(client, namespace=namespace).submit(a_training(name="train", team=namespace))
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
