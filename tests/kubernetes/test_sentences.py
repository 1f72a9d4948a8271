"""What a user reads of a run that does not come about or does not last, on a real node with a real kubelet.

The sentences are those of the object's status, which `kubectl get trainings` and `fairlead status` show.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.roles import render_operator_bindings, render_roles
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.overlay import RANKS, overlay
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Retry, Training
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import operating
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_real_nodes import new_namespace
from tests.kubernetes.testcluster import images
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes]

TEAM = "vision"
MODEL = "NVIDIA-H100-80GB-HBM3"
PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    """One real node, which says that it has two GPUs."""
    with started(lambda: RealCluster(1), request) as made:
        new_namespace(made, TEAM)
        for each in (*definitions(), *render_roles(), *render_operator_bindings(TEAM)):
            applied(made, each)
        labels = {"nvidia.com/gpu.product": MODEL, "nvidia.com/gpu.memory": "81559"}
        made.request("PATCH", "/api/v1/nodes/node-1", {"metadata": {"labels": labels}}, kind="merge-patch+json")
        gpus = {"nvidia.com/gpu": "2"}
        status = {"status": {"capacity": gpus, "allocatable": gpus}}
        made.request("PATCH", "/api/v1/nodes/node-1/status", status, kind="merge-patch+json")
        yield made


@pytest.fixture(scope="module")
def runs(cluster: RealCluster) -> Iterator[WorkloadApi]:
    """What a user has, while an operator is at work."""
    access = load_access((cluster.kubeconfig(),))
    with operating(access, TEAM):
        yield WorkloadApi(Client(access), namespace=TEAM)


def a_run(name: str, run: str = "sleep 600", *, gpus: int = 0, model: str | None = None, mib: int = 64) -> Training:
    gpu = GpuRequest(milli=1000 * gpus, model=model) if gpus else None
    resources = Resources(cpu_milli=100, memory_bytes=mib * 1024**2, gpu=gpu)
    return Training(
        name=name, team=TEAM, image=images.PYTHON, run=run, resources=resources, ranks_per_node=1, grace_s=1
    )


def told(runs: WorkloadApi, name: str, pattern: str) -> tuple[str, str]:
    """The sentence of the run's status and its remedy, once it is the one that is waited for."""
    path = f"/apis/fairlead.dev/v1alpha1/namespaces/{TEAM}/trainings/{name}"
    deadline = time.monotonic() + PATIENCE_S
    while True:
        status = runs.client.get(path).get("status") or {}
        if re.search(pattern, str(status.get("message"))):
            print(f"\n{name} is {status['phase']}: {status['message']}\n  {status.get('remedy') or ''}", flush=True)
            return str(status["message"]), str(status.get("remedy") or "")
        assert time.monotonic() < deadline, status
        time.sleep(0.1)


def test_gpus_exist_but_are_taken(runs: WorkloadApi) -> None:
    runs.submit(a_run("first", gpus=2))
    told(runs, "first", "started")
    runs.submit(a_run("second", gpus=1))
    message, remedy = told(runs, "second", "free")
    assert message.startswith("needs 1 node with 1 GPU")
    assert "node-1 has 0 of 2 GPUs" in message
    assert "; held by first; start unknown: first has no `max_duration`" in message
    assert remedy == "It starts when first ends; `fairlead suspend first` would free it now."
    for name in ("second", "first"):
        runs.client.delete(f"/apis/fairlead.dev/v1alpha1/namespaces/{TEAM}/trainings/{name}")


def test_no_such_gpu_is_here(runs: WorkloadApi) -> None:
    runs.submit(a_run("other", gpus=1, model="H200"))
    message, remedy = told(runs, "other", "never")
    assert "1 x H200 requested on one node, the largest node has 0" in message
    assert f"There is node-1 with 2 GPUs ({MODEL})" in message
    assert "`resources.gpu`" in remedy


def test_an_image_cannot_be_pulled(runs: WorkloadApi) -> None:
    runs.submit(replace(a_run("unknown"), image="127.0.0.1:1/team/none:7"))
    sentence = "the image 127.0.0.1:1/team/none:7 cannot be pulled on node-1: "
    message, _ = told(runs, "unknown", "has not started")
    assert message.startswith(f"pod 0 of 1 has not started: {sentence}")
    assert message.endswith("kubelet retries for 60 s in all")
    message, _ = told(runs, "unknown", "^the image")
    assert message.startswith(sentence)
    assert "connection refused" in message
    assert "check its name and tag, and for a private registry name a pull secret under" in message


def test_a_volume_cannot_be_mounted(cluster: RealCluster, runs: WorkloadApi) -> None:
    spec = {"volumes": [{"name": "keys", "secret": {"secretName": "late"}}]}
    mount = [{"name": RANKS, "volumeMounts": [{"name": "keys", "mountPath": "/keys"}]}]
    runs.submit(replace(a_run("keyless"), kubernetes=overlay({"spec": {**spec, "containers": mount}})))
    message, _ = told(runs, "keyless", "mounted")
    assert message.startswith("pod 0 of 1 has not started: a volume cannot be mounted on node-1: ")
    assert 'secret "late" not found; create what it refers to, or correct the name under' in message
    secret = {"metadata": {"name": "late"}, "stringData": {"key": "k"}}
    cluster.request("POST", f"/api/v1/namespaces/{TEAM}/secrets", secret)
    told(runs, "keyless", "started$")


def test_a_quota_is_exceeded(cluster: RealCluster, runs: WorkloadApi) -> None:
    path = f"/api/v1/namespaces/{TEAM}/resourcequotas"
    quota = {"metadata": {"name": "team"}, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}}
    cluster.request("POST", path, quota)
    until(lambda: "hard" in (cluster.request("GET", f"{path}/team").get("status") or {}), "the quota's own status")
    runs.submit(a_run("greedy", gpus=2))
    message, remedy = told(runs, "greedy", "quota")
    assert message == (
        f"pod 0 of 1 was refused: the quota team of namespace {TEAM} can never hold it (requests.nvidia.com/gpu: 2 "
        "asked for, 0 of 1 used); have the quota raised, or ask for less"
    )
    assert remedy == "It starts by itself once there is room, at most 5m later."
    cluster.request("DELETE", f"{path}/team")
    told(runs, "greedy", "started$")
    runs.client.delete(f"/apis/fairlead.dev/v1alpha1/namespaces/{TEAM}/trainings/greedy")


def test_a_run_is_out_of_memory(runs: WorkloadApi) -> None:
    eats = "python3 -c \"b'x' * 10**9\""
    runs.submit(replace(a_run("eats", eats), retry=Retry(infrastructure=0)))
    message, remedy = told(runs, "eats", "memory")
    assert "rank 0 of 1 ran out of memory: the pod needed more than its limit of 64 MiB" in message
    assert remedy.startswith("`fairlead resume eats --set resources.memory=128Mi` gives it more. Otherwise make")
