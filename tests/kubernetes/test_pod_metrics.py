"""`fairlead top` on a real API server; what serves the metrics there is a kind that the test defines."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.client.pod_metrics import gpus_of_pods
from fairlead.cluster.kubernetes.dcgm import samples
from fairlead.cluster.kubernetes.manifests.roles import render_binding, render_roles
from fairlead.cluster.usages import GpuUsage
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_checkup import definition
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.waiting import until

EXPOSITION = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",namespace="team",pod="train-0-0"} 87
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",namespace="team",pod="train-0-0"} 1024
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",modelName="NVIDIA L4",namespace="other",pod="train-0-0"} 5
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-c",modelName="NVIDIA L4"} 0
DCGM_FI_DEV_GPU_UTIL{gpu="3",UUID="GPU-d",GPU_I_ID="7",modelName="NVIDIA H100",namespace="team",pod="train-0-1"} 0
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="3",UUID="GPU-d",GPU_I_ID="7",modelName="NVIDIA H100",namespace="team",pod="train-0-1"} 0.5
DCGM_FI_DEV_XID_ERRORS{broken 3
process_cpu_seconds_total 12
"""  # noqa: E501 (as an exporter says it)


def test_gpus_are_those_that_the_exporter_gives_to_pods_of_the_namespace() -> None:
    assert gpus_of_pods(samples(EXPOSITION), "team") == {
        "train-0-0": (GpuUsage(name="GPU-a", model="L4", busy=0.87, memory_bytes=2**30),),
        "train-0-1": (GpuUsage(name="GPU-d/7", model="H100", busy=0.5),),
    }


@pytest.fixture
def running(plane: ControlPlane, namespace: str) -> Iterator[str]:
    """A run's two pods on a fake node, one with a GPU, in a namespace of which `nobody` is a viewer."""
    (node,) = add_nodes(plane, 1, prefix=f"used-{namespace}", gpus=1)
    for each in render_roles():
        applied(plane, each)
    person = {"kind": "User", "name": "nobody", "apiGroup": "rbac.authorization.k8s.io"}
    applied(plane, render_binding(namespace, "viewer", [person]))
    run = {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "Training",
        "metadata": {"name": "train"},
        "spec": {"run": "work", "nodes": 2},
    }
    made = plane.request("POST", f"/apis/fairlead.dev/v1alpha1/namespaces/{namespace}/trainings", run)
    until(lambda: is_ready(plane.request("GET", f"/api/v1/nodes/{node}")))
    for index in range(2):
        plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod(index, node, made))
        path = f"/api/v1/namespaces/{namespace}/pods/train-0-{index}"
        until(lambda path=path: plane.request("GET", path)["status"]["phase"] == "Running")  # type: ignore[misc]  # bound
    yield namespace
    plane.request("DELETE", f"/api/v1/nodes/{node}")


@pytest.fixture
def metrics(plane: ControlPlane, running: str) -> Iterator[None]:
    kind = definition("metrics.k8s.io", "PodMetrics")
    kind["metadata"] |= {
        "name": "pods.metrics.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    }
    kind["spec"]["scope"] = "Namespaced"
    kind["spec"]["names"] |= {"plural": "pods", "singular": "podmetrics"}
    kind["spec"]["versions"][0]["name"] = "v1beta1"
    applied(plane, kind)
    client = Client(load_access((plane.kubeconfig(),)))
    path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{running}/pods"
    body = {
        "apiVersion": "metrics.k8s.io/v1beta1",
        "kind": "PodMetrics",
        "metadata": {"name": "train-0-0", "labels": labels(0)},
        "containers": [
            {"name": "ranks", "usage": {"cpu": "1500m", "memory": "2Gi"}},
            {"name": "more", "usage": {"cpu": "250000000n", "memory": "512Mi"}},
        ],
    }
    until(lambda: plane.exists("/apis/metrics.k8s.io/v1beta1"))
    client.create(path, body)
    yield
    plane.request("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pods.metrics.k8s.io")


def labels(index: int) -> dict[str, str]:
    return {"fairlead.dev/run": "train", "fairlead.dev/run-uid": "u", "fairlead.dev/index": str(index)}


def pod(index: int, node: str, run: dict[str, Any]) -> dict[str, Any]:
    owner = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "Training", "name": "train", "uid": run["metadata"]["uid"]}
    resources = {"cpu": "4", "memory": "8Gi", **({"nvidia.com/gpu": "1"} if index else {})}
    container = {"name": "ranks", "image": "i", "resources": {"requests": resources, "limits": resources}}
    return {
        "metadata": {
            "name": f"train-0-{index}",
            "labels": labels(index),
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"nodeName": node, "containers": [container]},
    }


def top(plane: ControlPlane, namespace: str, tmp_path: Path, user: str = "admin") -> dict[str, Any]:
    argv = [sys.executable, "-m", "fairlead.cli.main", "top", "train", "--json", "-n", namespace]
    environ = {**os.environ, "KUBECONFIG": str(plane.kubeconfig(user)), "FAIRLEAD_HOME": str(tmp_path)}
    ended = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_without_metrics_and_exporters_what_was_given_is_told_and_what_is_missing(
    plane: ControlPlane, running: str, tmp_path: Path
) -> None:
    found = top(plane, running, tmp_path)
    assert [(pod["pod"], pod["cpu_milli"], pod["granted_cpu_milli"]) for pod in found["pods"]] == [
        ("train-0-0", None, 4000),
        ("train-0-1", None, 4000),
    ]
    assert found["missing"] == [
        "CPU and memory usage are not known: this cluster has no metrics server; `fairlead doctor` says how to get one",
        "GPU usage is not known: no DCGM exporter runs on the nodes of these pods",
    ]


def test_a_pod_uses_what_its_containers_use_together(
    plane: ControlPlane, running: str, metrics: None, tmp_path: Path
) -> None:
    # A viewer sees it too, but not the exporters of the whole cluster.
    found = top(plane, running, tmp_path, user="nobody")
    first, second = found["pods"]
    assert (first["cpu_milli"], first["memory_bytes"]) == (1750.0, 5 * 2**29)
    assert second["cpu_milli"] is None  # the metrics server has not seen it yet
    (missing,) = found["missing"]
    assert "GPU usage is not known" in missing
    assert 'User "nobody" cannot list resource "pods"' in missing
