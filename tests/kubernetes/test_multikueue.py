"""Runs that a real Kueue sends from one real cluster to another, with MultiKueue, each with an operator of its own."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import kueue_server
from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess, load_access
from fairlead.cluster.kubernetes.manifests.placeholders import render_priority_class
from fairlead.cluster.kubernetes.manifests.roles import render_operator_bindings, render_roles
from fairlead.cluster.kubernetes.manifests.runtime_bundle import bundle_name
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.engines import Engine
from fairlead.specs.training import Retry, Training
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import GPUS, comes_to, gang, live_pods, operating, teach_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.waiting import until

pytestmark = pytest.mark.long
QUEUE = "elsewhere"
QUOTA: dict[str, int | str] = {"cpu": 64, "memory": "64Gi", "nvidia.com/gpu": 2 * GPUS}


@pytest.fixture(scope="module")
def worker(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A second cluster with nodes and Fairlead, to which Kueue beside ``plane`` sends what it admits."""
    if os.geteuid() != 0:
        pytest.skip("Kueue reads a certificate from a fixed place; mounting that needs root")
    with pytest.MonkeyPatch.context() as patch, started(ControlPlane, request) as other:
        servers = []
        try:
            for each in (plane, other):
                patch.setenv("KUBECONFIG", str(each.kubeconfig()))
                servers.append(kueue_server.start(each, qps=500, burst=500))
            teach_kinds(other)
            for content in (render_priority_class(), *render_roles()):
                applied(other, content)
            add_nodes(other, 2, prefix="b-gpu", gpus=GPUS)
            until(lambda: all(is_ready(node) for node in other.request("GET", "/api/v1/nodes")["items"]))
            kueue_server.join(plane, {"worker-1": other}, QUEUE)
            yield other
        finally:
            for server in servers:
                server.kill()


@pytest.fixture
def there(worker: ControlPlane, plane: ControlPlane, cluster: WorkloadApi, namespace: str) -> Iterator[WorkloadApi]:
    """The namespace in the second cluster, with the same queue; the first cluster's sends everything there."""
    worker.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    worker.await_namespace(namespace)
    for binding in render_operator_bindings(namespace):
        applied(worker, binding)
    kueue_server.set_quota(worker, namespace, QUOTA, queue=QUEUE)
    kueue_server.set_quota(plane, namespace, QUOTA, queue=QUEUE, check=QUEUE)
    path = kueue_server.default_jobs(plane, namespace)
    yield WorkloadApi(Client(load_access((worker.kubeconfig(),))), namespace=namespace)
    plane.request("DELETE", path)


def handed(namespace: str, name: str = "train", **fakes: Any) -> Training:
    """A run that Kueue admits, with pods that behave as its annotations say."""
    return replace(gang(namespace, name, **fakes), engine=Engine.KUEUE, queue=QUEUE, grace_s=1.0)


def is_there(cluster: WorkloadApi, path: str) -> bool:
    try:
        cluster.client.get(path)
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True


def test_a_run_is_carried_out_by_the_cluster_that_multikueue_chooses(
    access: ClusterAccess, cluster: WorkloadApi, there: WorkloadApi, namespace: str
) -> None:
    run = cluster.submit(handed(namespace))
    with operating(access, namespace), operating(there.client.access, namespace):
        running = comes_to(cluster, "train", Phase.RUNNING)
        assert running.status.reason.message == "16 ranks on 2 nodes of cluster worker-1 started"
        assert live_pods(cluster, namespace) == []
        assert len(live_pods(there, namespace)) == 2
        pods = there.client.items(f"/api/v1/namespaces/{namespace}/pods")
        assert {each["metadata"]["labels"]["fairlead.dev/run-uid"] for each in pods} == {run.uid}
        # What they need beside themselves, as the Job's own, but for the runtime, which all runs share.
        service = f"ft-train-{run.uid[:6]}"
        runtime = f"/api/v1/namespaces/{namespace}/configmaps/{bundle_name()}"
        own = (
            f"/api/v1/namespaces/{namespace}/services/{service}",
            f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/{service}",
            f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{service}-0",
        )
        until(lambda: all(is_there(there, path) for path in (runtime, *own)))
        for path in own:
            assert [each["kind"] for each in there.client.get(path)["metadata"]["ownerReferences"]] == ["Job"]

        def names() -> set[str]:
            return {point["hostname"] for point in there.client.get(own[-1]).get("endpoints") or ()}

        until(lambda: names() == {"train-0-0", "train-0-1"}, names)
        cluster.set_intent(run.uid, Intent.STOP)
        comes_to(cluster, "train", Phase.STOPPED)
        until(lambda: not live_pods(there, namespace), lambda: live_pods(there, namespace))
        until(lambda: not any(is_there(there, path) for path in own))


def test_how_a_rank_ended_elsewhere_is_the_reason_and_the_next_start_goes_there_too(
    access: ClusterAccess, cluster: WorkloadApi, there: WorkloadApi, namespace: str
) -> None:
    spec = handed(namespace, run="2s", exit_code="3")
    cluster.submit(replace(spec, retry=Retry(program=1, backoff_s=0.0)))
    with operating(access, namespace), operating(there.client.access, namespace):
        run = comes_to(cluster, "train", Phase.FAILED)
        assert (run.status.attempt, run.status.reason.code) == (1, Code.PROGRAM_FAILED)
        assert "failed with exit code 3" in run.status.reason.message
        cluster.submit(handed(namespace, "again", run="1s"))
        comes_to(cluster, "again", Phase.SUCCEEDED)


def test_a_run_that_has_no_room_anywhere_says_so_and_an_operator_that_is_killed_goes_on(
    access: ClusterAccess, cluster: WorkloadApi, there: WorkloadApi, namespace: str
) -> None:
    first = cluster.submit(handed(namespace, "first"))
    with operating(access, namespace), operating(there.client.access, namespace):
        comes_to(cluster, "first", Phase.RUNNING)
        cluster.submit(handed(namespace, "second", run="1s"))

        def reason() -> str:
            return cluster.named("second", namespace).status.reason.message

        until(lambda: "insufficient unused quota for nvidia.com/gpu" in reason(), reason)
        assert reason().startswith("Kueue has not admitted it from queue elsewhere: ")
    with operating(access, namespace), operating(there.client.access, namespace):
        assert cluster.named("first", namespace).status.phase is Phase.RUNNING
        cluster.set_intent(first.uid, Intent.STOP)
        comes_to(cluster, "second", Phase.SUCCEEDED)
        assert cluster.named("first", namespace).status.attempt == 0
