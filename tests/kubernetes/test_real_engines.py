"""Runs that real controllers of engines carry out on fake nodes: JobSet, Kueue, training-operator, Trainer."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import kueue_server
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.engines import Engine
from fairlead.specs.training import Retry, Training
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase
from tests.kubernetes.operating import comes_to, gang, live_pods, operating
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.engines import engine
from tests.kubernetes.testcluster.fakes import add_nodes
from tests.waiting import until

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def jobset(plane: ControlPlane) -> Iterator[None]:
    with engine(plane, "jobset"):
        yield


def handed(
    namespace: str, to: Engine, name: str = "train", *, queue: str | None = None, image: str | None = None, **fakes: Any
) -> Training:
    """A run that goes to an engine."""
    return replace(gang(namespace, name, **fakes), engine=to, queue=queue, image=image, grace_s=1.0)


def objects(cluster: WorkloadApi, path: str, namespace: str) -> list[str]:
    group, _, plural = path.rpartition("/")
    found: list[dict[str, Any]] = cluster.client.get(f"/apis/{group}/namespaces/{namespace}/{plural}")["items"]
    return sorted(each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"])


@pytest.mark.usefixtures("jobset")
class TestJobSet:
    path = "jobset.x-k8s.io/v1alpha2/jobsets"

    def test_a_run_is_carried_out(self, access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
        cluster.submit(handed(namespace, Engine.JOBSET, run="2s"))
        with operating(access, namespace):
            run = comes_to(cluster, "train", Phase.SUCCEEDED)
        told = [event.type for event in cluster.events()]
        assert told[:2] == ["Submitted", "Starting"]
        assert told[-2:] == ["Running", "Succeeded"]
        assert objects(cluster, self.path, namespace) == ["train-0"]
        assert run.status.reason.message.startswith("all ranks succeeded")

    def test_a_stop_takes_everything_away_and_a_resume_starts_anew(
        self, access: ClusterAccess, cluster: WorkloadApi, namespace: str
    ) -> None:
        cluster.submit(replace(handed(namespace, Engine.JOBSET), grace_s=1.0))
        with operating(access, namespace):
            run = comes_to(cluster, "train", Phase.RUNNING)
            assert len(live_pods(cluster, namespace)) == 2
            cluster.set_intent(run.uid, Intent.STOP)
            comes_to(cluster, "train", Phase.STOPPED)
            assert (objects(cluster, self.path, namespace), live_pods(cluster, namespace)) == ([], [])
            cluster.set_intent(run.uid, Intent.RUN)
            comes_to(cluster, "train", Phase.RUNNING, attempt=1)
            assert objects(cluster, self.path, namespace) == ["train-1"]

    def test_a_rank_that_is_killed_restarts_the_gang_for_its_own_reason(
        self, access: ClusterAccess, cluster: WorkloadApi, namespace: str
    ) -> None:
        fakes = {"run": "2s", "exit_code": "1"}
        cluster.submit(replace(handed(namespace, Engine.JOBSET, **fakes), retry=Retry(program=1, backoff_s=0.0)))
        with operating(access, namespace):
            run = comes_to(cluster, "train", Phase.FAILED)
        assert run.status.attempt == 1
        assert run.status.reason.code is Code.PROGRAM_FAILED
        assert "failed with exit code 1" in run.status.reason.message
        restarts = [event for event in cluster.events() if event.type == "Restarting"]
        assert len(restarts) == 1
        assert "failed with exit code 1" in restarts[0].reason.message

    def test_a_run_without_room_says_what_kube_scheduler_says(
        self, access: ClusterAccess, cluster: WorkloadApi, namespace: str
    ) -> None:
        cluster.submit(replace(handed(namespace, Engine.JOBSET), nodes=3))
        with operating(access, namespace):
            until(lambda: "kube-scheduler finds no place" in cluster.named("train", namespace).status.reason.message)
            assert "Insufficient nvidia.com/gpu" in cluster.named("train", namespace).status.reason.message
            assert cluster.named("train", namespace).status.phase is Phase.STARTING


KUBEFLOW = {Engine.PYTORCHJOB: "pytorchjobs", Engine.TFJOB: "tfjobs", Engine.XGBOOSTJOB: "xgboostjobs"}


@pytest.fixture(scope="module")
def training_operator(plane: ControlPlane) -> Iterator[None]:
    with engine(plane, "training-operator"):
        yield


@pytest.mark.usefixtures("training_operator")
class TestTrainingOperator:
    @pytest.mark.parametrize("kind", KUBEFLOW)
    def test_a_run_is_carried_out(
        self, access: ClusterAccess, cluster: WorkloadApi, namespace: str, kind: Engine
    ) -> None:
        cluster.submit(handed(namespace, kind, run="2s"))
        with operating(access, namespace):
            comes_to(cluster, "train", Phase.SUCCEEDED)
        told = [event.type for event in cluster.events()]
        assert told[-2:] == ["Running", "Succeeded"]
        assert objects(cluster, f"kubeflow.org/v1/{KUBEFLOW[kind]}", namespace) == ["train-0"]

    @pytest.mark.parametrize("kind", KUBEFLOW)
    def test_a_stop_takes_everything_away(
        self, access: ClusterAccess, cluster: WorkloadApi, namespace: str, kind: Engine
    ) -> None:
        cluster.submit(replace(handed(namespace, kind), grace_s=1.0))
        with operating(access, namespace):
            run = comes_to(cluster, "train", Phase.RUNNING)
            assert len(live_pods(cluster, namespace)) == 2
            cluster.set_intent(run.uid, Intent.SUSPEND)
            comes_to(cluster, "train", Phase.SUSPENDED)
            path = f"kubeflow.org/v1/{KUBEFLOW[kind]}"
            assert (objects(cluster, path, namespace), live_pods(cluster, namespace)) == ([], [])

    def test_a_rank_that_fails_restarts_the_gang(
        self, access: ClusterAccess, cluster: WorkloadApi, namespace: str
    ) -> None:
        fakes = {"run": "2s", "exit_code": "3"}
        spec = handed(namespace, Engine.PYTORCHJOB, **fakes)
        cluster.submit(replace(spec, retry=Retry(program=1, backoff_s=0.0), grace_s=1.0))
        with operating(access, namespace):
            run = comes_to(cluster, "train", Phase.FAILED)
        told = [f"{event.type}: {event.reason.message}" for event in cluster.events()]
        assert (run.status.attempt, run.status.reason.code) == (1, Code.PROGRAM_FAILED), told
        assert "failed with exit code 3" in run.status.reason.message

    def test_how_a_rank_failed_while_there_was_no_operator_is_read_by_the_next_which_ends_the_others(
        self, access: ClusterAccess, plane: ControlPlane, cluster: WorkloadApi, namespace: str
    ) -> None:
        cluster.submit(replace(handed(namespace, Engine.PYTORCHJOB), retry=Retry(program=0)))
        pods, jobs = f"/api/v1/namespaces/{namespace}/pods", f"/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs"
        with operating(access, namespace):
            comes_to(cluster, "train", Phase.RUNNING)
        first, _ = live_pods(cluster, namespace)
        (container,) = plane.request("GET", f"{pods}/{first}")["status"]["containerStatuses"]
        container |= {"ready": False, "started": False, "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}
        failed = {"status": {"phase": "Failed", "containerStatuses": [container]}}
        plane.request("PATCH", f"{pods}/{first}/status", failed, kind="merge-patch+json")

        def has_failed() -> bool:
            conditions = plane.request("GET", f"{jobs}/train-0")["status"]["conditions"]
            return any(each["type"] == "Failed" and each["status"] == "True" for each in conditions)

        until(has_failed)
        with operating(access, namespace):
            run = comes_to(cluster, "train", Phase.FAILED)
            assert "failed with exit code 3" in run.status.reason.message
            until(lambda: live_pods(cluster, namespace) == [])

    def test_mpi_says_what_keeps_its_launcher_away_and_then_has_it_and_a_worker_for_each_node(
        self, access: ClusterAccess, plane: ControlPlane, cluster: WorkloadApi, namespace: str
    ) -> None:
        add_nodes(plane, 1, prefix=f"mpi-{namespace}", gpus=0, others={"ephemeral-storage": "1Ti"})
        cluster.submit(handed(namespace, Engine.MPIJOB, image="mpi"))
        with operating(access, namespace):
            until(lambda: "violates PodSecurity" in cluster.named("train", namespace).status.reason.message)
            relaxed = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}
            plane.request("PATCH", f"/api/v1/namespaces/{namespace}", relaxed, kind="merge-patch+json")
            run = comes_to(cluster, "train", Phase.RUNNING)
            found = sorted(
                pod["metadata"]["name"] for pod in cluster.client.items(f"/api/v1/namespaces/{namespace}/pods")
            )
            assert found == ["train-0-launcher", "train-0-worker-0", "train-0-worker-1"]
            cluster.set_intent(run.uid, Intent.STOP)
            comes_to(cluster, "train", Phase.STOPPED)
            assert live_pods(cluster, namespace) == []
        plane.request("DELETE", f"/api/v1/nodes/mpi-{namespace}-0")


@pytest.fixture(scope="module")
def trainer(plane: ControlPlane, jobset: None) -> Iterator[None]:
    with engine(plane, "trainer"):
        yield


@pytest.mark.usefixtures("trainer")
class TestTrainer:
    path = "trainer.kubeflow.org/v1alpha1"

    def test_a_run_is_carried_out(self, access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
        cluster.submit(handed(namespace, Engine.KUBEFLOW_TRAINER, run="2s"))
        with operating(access, namespace):
            comes_to(cluster, "train", Phase.SUCCEEDED)
        told = [event.type for event in cluster.events()]
        assert told[-2:] == ["Running", "Succeeded"]

    def test_a_stop_takes_everything_away(self, access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
        cluster.submit(replace(handed(namespace, Engine.KUBEFLOW_TRAINER), grace_s=1.0))
        with operating(access, namespace):
            run = comes_to(cluster, "train", Phase.RUNNING)
            cluster.set_intent(run.uid, Intent.STOP)
            comes_to(cluster, "train", Phase.STOPPED)
            assert live_pods(cluster, namespace) == []
            for plural in ("trainjobs", "trainingruntimes"):
                until(lambda plural=plural: not objects(cluster, f"{self.path}/{plural}", namespace))  # type: ignore[misc]


@pytest.fixture(scope="module")
def kueue(plane: ControlPlane) -> Iterator[None]:
    """Kueue without its webhooks, which needs root; it leaves the way to its cluster in the environment."""
    if os.geteuid() != 0:
        pytest.skip("Kueue reads a certificate from a fixed place; mounting that needs root")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(plane.kubeconfig()))
        server = kueue_server.start(plane, qps=500, burst=500)
        yield
        server.kill()


@pytest.mark.usefixtures("kueue")
def test_kueue_admits_what_its_quota_has_room_for_and_says_why_another_waits(
    access: ClusterAccess, plane: ControlPlane, cluster: WorkloadApi, namespace: str
) -> None:
    kueue_server.set_quota(plane, namespace, {"cpu": 64, "memory": "64Gi", "nvidia.com/gpu": 16})
    first = cluster.submit(handed(namespace, Engine.KUEUE, "first", queue=kueue_server.QUEUE))
    with operating(access, namespace):
        comes_to(cluster, "first", Phase.RUNNING)
        cluster.submit(handed(namespace, Engine.KUEUE, "second", queue=kueue_server.QUEUE, run="2s"))

        def reason() -> str:
            return cluster.named("second", namespace).status.reason.message

        until(lambda: "insufficient unused quota for nvidia.com/gpu" in reason(), reason)
        assert reason().startswith("Kueue has not admitted it from queue gangs: ")
        assert cluster.named("second", namespace).status.phase is Phase.STARTING
        assert len(live_pods(cluster, namespace)) == 2
        cluster.set_intent(first.uid, Intent.STOP)
        comes_to(cluster, "second", Phase.SUCCEEDED)
        assert cluster.named("first", namespace).status.phase is Phase.STOPPED
