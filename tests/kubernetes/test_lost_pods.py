"""A pod of a gang with `elastic: in_place` is lost on a real control plane: it alone is replaced.

Nodes and pods are played by kwok, so the ranks' report that they have met is given by the test.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.control.operator import Operator
from fairlead.specs.training import Elastic, Training
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Phase, Progress, Workload
from tests.kubernetes.operating import GPUS, comes_to, gang, live_pods, operating
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.waiting import until


def in_place(namespace: str, *, nodes: int = 2, gpus: int = 1) -> Training:
    return replace(gang(namespace, nodes=nodes, gpus=gpus, stop="0s"), elastic=Elastic.IN_PLACE)


def meet(operator: Operator, run: Workload, step: int = 5) -> None:
    """The ranks of the first pod report that all have met."""
    operator.cluster.reports.note(run.uid, Progress(step=step, in_place_attempt=0, updated_at=float(step)), None)


def told(cluster: WorkloadApi, run: Workload, kind: str) -> list[str]:
    return [event.reason.message for event in cluster.events(run.uid) if event.type == kind]


@contextmanager
def running(access: ClusterAccess, cluster: WorkloadApi, namespace: str, spec: Training) -> Iterator[Workload]:
    cluster.submit(spec)
    with operating(access, namespace) as operator:
        run = comes_to(cluster, "train", Phase.RUNNING)
        meet(operator, run)
        until(lambda: cluster.named("train", namespace).progress is not None)
        yield run


@pytest.mark.slow
def test_a_deleted_pod_alone_is_replaced_and_the_others_stay(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    place = f"/api/v1/namespaces/{namespace}/pods"
    with running(access, cluster, namespace, in_place(namespace, nodes=3)) as run:
        before = {each["metadata"]["name"]: each["metadata"]["uid"] for each in cluster.client.items(place)}
        cluster.client.delete(f"{place}/train-0-1")
        until(lambda: told(cluster, run, "PodReturned"), lambda: cluster.events(run.uid))
        assert live_pods(cluster, namespace) == ["train-0-0", "train-0-1r1", "train-0-2"]
        after = {each["metadata"]["name"]: each for each in cluster.client.items(place)}
        assert {name: after[name]["metadata"]["uid"] for name in ("train-0-0", "train-0-2")} == {
            name: uid for name, uid in before.items() if name != "train-0-1"
        }
        new = after["train-0-1r1"]
        assert new["metadata"]["labels"][names.REPLACEMENT] == "1"
        assert new["spec"]["hostname"] == "train-0-1", "by which others may know it"
        (lost,) = told(cluster, run, "PodLost")
        assert lost.startswith("pod 1 of 3 on ")
        assert "it was deleted, as by `kubectl delete pod`; 2 ranks in 2 of 3 pods continue in place" in lost
        now = cluster.named("train", namespace)
        assert (now.status.phase, now.status.attempt, now.status.failures.disruptions) == (Phase.RUNNING, 0, 0)


@pytest.mark.slow
def test_an_operator_that_comes_after_one_that_was_killed_replaces_the_pod_once(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    place = f"/api/v1/namespaces/{namespace}/pods"
    with running(access, cluster, namespace, in_place(namespace)) as run:
        pass
    cluster.client.delete(f"{place}/train-0-1")
    until(lambda: live_pods(cluster, namespace) == ["train-0-0"])
    for number in range(3):
        with operating(access, namespace):
            until(lambda: told(cluster, run, "PodReplaced"), lambda: cluster.events(run.uid))
            if number:
                until(lambda: live_pods(cluster, namespace) == ["train-0-0", "train-0-1r1"])
    with operating(access, namespace):
        until(lambda: told(cluster, run, "PodReturned"), lambda: cluster.events(run.uid))
    assert len(told(cluster, run, "PodReplaced")) == len(told(cluster, run, "PodLost")) == 1
    assert live_pods(cluster, namespace) == ["train-0-0", "train-0-1r1"]
    assert cluster.named("train", namespace).status.attempt == 0


@pytest.mark.slow
def test_a_node_vanishes_and_the_run_goes_on_smaller_until_another_has_room(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, plane: ControlPlane
) -> None:
    client = cluster.client
    add_nodes(plane, 2, prefix="a-brief", gpus=GPUS)
    nodes = ("a-brief-0", "a-brief-1")
    until(lambda: all(is_ready(client.get(f"/api/v1/nodes/{name}")) for name in nodes))
    others = [each["metadata"]["name"] for each in client.items("/api/v1/nodes")]
    others = [name for name in others if name not in nodes]
    for name in others:
        client.merge(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
    try:
        with running(access, cluster, namespace, in_place(namespace, gpus=GPUS)) as run:
            pod = client.get(f"/api/v1/namespaces/{namespace}/pods/train-0-1")
            client.delete(f"/api/v1/nodes/{pod['spec']['nodeName']}")

            def waits() -> bool:
                return cluster.named("train", namespace).status.reason.code is Code.WAITING_FOR_RESOURCES

            until(waits, lambda: cluster.events(run.uid))
            status = cluster.named("train", namespace).status
            assert (status.phase, status.attempt) == (Phase.RUNNING, 0)
            assert status.reason.message.startswith(f"1 of 2 pods run; pod 1 waits: it needs 1 node with {GPUS} GPU, ")
            assert live_pods(cluster, namespace) == ["train-0-0"]
            for name in others:
                client.merge(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": None}})
            until(lambda: told(cluster, run, "PodReturned"), lambda: cluster.events(run.uid))
            assert live_pods(cluster, namespace) == ["train-0-0", "train-0-1r1"]
            assert cluster.named("train", namespace).status.attempt == 0
    finally:
        for name in others:
            client.merge(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": None}})
        for name in nodes:  # else later tests with this control plane would have another node
            if plane.exists(path := f"/api/v1/nodes/{name}"):
                plane.request("DELETE", path)
