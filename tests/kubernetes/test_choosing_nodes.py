"""Which nodes the operator chooses, on a real control plane, where kube-scheduler has to agree with each choice."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.system_namespaces import SystemNamespaces
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.overlay import overlay
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Capacity, Training
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Phase
from tests.kubernetes.operating import GIB, comes_to, gang, operating
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.rounds import first_of
from tests.waiting import until

MODEL = "NVIDIA-A10"
Pod = dict[str, Any]


@pytest.fixture
def nodes(plane: ControlPlane) -> Iterator[list[str]]:
    """Names of the nodes that a test adds; they are gone after it."""
    names: list[str] = []
    yield names
    for name in names:
        plane.request("DELETE", f"/api/v1/nodes/{name}")


def ready(plane: ControlPlane, names: list[str]) -> None:
    until(lambda: all(is_ready(plane.request("GET", f"/api/v1/nodes/{name}")) for name in names))


def run(
    namespace: str, pod: Pod | None = None, *, gpu: GpuRequest | None = None, spot: bool = False, nodes: int = 1
) -> Training:
    """A run for devices that only the nodes of this test have."""
    asked = gpu or GpuRequest(milli=1000, model="A10")
    spec = replace(gang(namespace, nodes=nodes), resources=Resources(cpu_milli=1000, memory_bytes=GIB, gpu=asked))
    return replace(spec, capacity=Capacity(spot=spot), kubernetes=overlay({"spec": pod or {}}))


def places(cluster: WorkloadApi, namespace: str) -> list[str]:
    """The nodes to which kube-scheduler has bound the pods, as it was told."""
    found = cluster.client.items(f"/api/v1/namespaces/{namespace}/pods")
    return sorted(pod["spec"]["nodeName"] for pod in found)


SPOT_TAINTS = [
    {"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"},
    {"key": "kubernetes.azure.com/scalesetpriority", "value": "spot", "effect": "NoSchedule"},
    {"key": "eks.amazonaws.com/capacityType", "value": "SPOT", "effect": "NoSchedule"},
    {"key": "karpenter.sh/capacity-type", "value": "spot", "effect": "NoSchedule"},
]


@pytest.mark.slow
@pytest.mark.parametrize("taint", first_of(SPOT_TAINTS), ids=lambda taint: str(taint["key"]))
def test_spot_nodes_of_every_provider_take_runs_that_allow_spot_and_no_others(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str, nodes: list[str],
    taint: dict[str, str],
) -> None:  # fmt: skip
    gpu = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    nodes += add_nodes(plane, 2, prefix=f"spot-{namespace}", model=MODEL, gpus=1, taints=[taint, gpu])
    ready(plane, nodes)
    with operating(access, namespace):
        cluster.submit(replace(run(namespace), name="refused"))
        reason = comes_to(cluster, "refused", Phase.FAILED).status.reason
        assert f"{nodes[0]} is a spot node, tainted with {taint['key']}={taint['value']}:NoSchedule" in reason.message
        assert "`capacity: {spot: true}` lets it use spot nodes." in str(reason.remedy)
        cluster.submit(run(namespace, spot=True, nodes=2))
        comes_to(cluster, "train", Phase.RUNNING)
    assert places(cluster, namespace) == nodes


@pytest.mark.parametrize(
    ("key", "value"),
    first_of([("eks.amazonaws.com/capacityType", "SPOT"), ("cloud.google.com/gke-provisioning", "spot")]),
)
def test_a_spot_node_without_a_taint_takes_only_runs_that_allow_spot(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str, nodes: list[str], key: str,
    value: str,
) -> None:  # fmt: skip
    nodes += add_nodes(plane, 1, prefix=f"spot-{namespace}", model=MODEL, gpus=1, labels={key: value})
    ready(plane, nodes)
    with operating(access, namespace):
        cluster.submit(replace(run(namespace), name="refused"))
        reason = comes_to(cluster, "refused", Phase.FAILED).status.reason
        assert f"{nodes[0]} is a spot node, labelled {key}={value}" in reason.message
        assert "`capacity: {spot: true}` lets it use spot nodes." in str(reason.remedy)
        cluster.submit(run(namespace, spot=True))
        comes_to(cluster, "train", Phase.RUNNING)
    assert places(cluster, namespace) == nodes


@pytest.mark.slow
def test_a_node_selector_tolerations_and_affinity_laid_over_a_pod_choose_its_node(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str, nodes: list[str]
) -> None:
    taint = {"key": "team", "value": "vision", "effect": "NoSchedule"}
    for name, labels in (("a", {"disk": "slow"}), ("b", {"disk": "fast", "rack": "7"}), ("c", {"disk": "fast"})):
        prefix = f"{name}-{namespace}"
        nodes += add_nodes(plane, 1, prefix=prefix, model=MODEL, gpus=1, labels=labels, taints=[taint])
    ready(plane, nodes)
    rack = {"matchExpressions": [{"key": "rack", "operator": "DoesNotExist"}]}
    required = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [rack]}}}
    wish = {"nodeSelector": {"disk": "fast"}, "affinity": required}
    with operating(access, namespace):
        cluster.submit(replace(run(namespace, wish), name="kept-away"))
        until(lambda: "tainted with team=vision" in cluster.named("kept-away", namespace).status.reason.message)
        cluster.submit(replace(run(namespace, {"nodeSelector": {"disk": "none"}}), name="nowhere", priority=5))
        reason = comes_to(cluster, "nowhere", Phase.FAILED).status.reason
        assert f"{nodes[0]} is not labelled disk=none" in reason.message
        tolerant = [{"key": "team", "operator": "Exists"}]
        cluster.submit(replace(run(namespace, {"tolerations": tolerant, **wish}), priority=5))
        comes_to(cluster, "train", Phase.RUNNING)
    assert places(cluster, namespace) == [nodes[2]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("resource", "labels", "asked", "parts"),
    [
        ("nvidia.com/mig-1g.10gb", {}, GpuRequest(milli=140, model="A10"), "MIG instances"),
        ("nvidia.com/gpu.shared", {"nvidia.com/gpu.replicas": "2"}, GpuRequest(milli=500, model="A10"), "time slices"),
    ],
    ids=["mig", "time-slices"],
)
def test_a_share_of_a_gpu_is_placed_as_the_part_that_the_node_hands_out(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str, nodes: list[str],
    resource: str, labels: dict[str, str], asked: GpuRequest, parts: str,
) -> None:  # fmt: skip
    nodes += add_nodes(
        plane, 1, prefix=f"shares-{namespace}", model=MODEL, gpus=0, labels=labels, others={resource: "2"}
    )
    nodes += add_nodes(plane, 1, prefix=f"whole-{namespace}", model=MODEL, gpus=2)
    ready(plane, nodes)
    with operating(access, namespace):
        cluster.submit(replace(run(namespace, gpu=asked, nodes=2), priority=5))
        comes_to(cluster, "train", Phase.RUNNING)
        assert places(cluster, namespace) == [nodes[0]] * 2
        cluster.submit(replace(run(namespace, gpu=asked), name="third", priority=5))
        until(lambda: f"0 of 2 {parts}" in cluster.named("third", namespace).status.reason.message)
        cluster.submit(replace(run(namespace), name="whole", priority=9))
        comes_to(cluster, "whole", Phase.RUNNING)
    for pod in cluster.client.items(f"/api/v1/namespaces/{namespace}/pods"):
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        devices = {name: count for name, count in limits.items() if "nvidia.com" in name}
        assert devices == ({"nvidia.com/gpu": "1"} if pod["metadata"]["name"].startswith("whole") else {resource: "1"})


def test_what_a_daemonset_will_take_of_a_node_is_not_given_away(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str, nodes: list[str]
) -> None:
    nodes += add_nodes(plane, 1, prefix=f"new-{namespace}", model=MODEL, gpus=1, cpu="8")
    ready(plane, nodes)
    with operating(access, namespace, system=SystemNamespaces(names=(namespace,))) as operator:
        # Its pod is there, but nothing binds it.
        path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
        plane.request("POST", path, daemonset({"kubernetes.io/hostname": nodes[0]}, schedulingGates=[{"name": "a/b"}]))
        until(lambda: bool(operator.view.daemons.all()))
        cluster.submit(
            replace(run(namespace), resources=Resources(cpu_milli=2000, gpu=GpuRequest(milli=1000, model="A10")))
        )
        until(lambda: f"{nodes[0]} has 1 of 1 GPUs, 1 of 7.95 CPU" in message(cluster, namespace))
        plane.request("DELETE", f"{path}/agent")
        comes_to(cluster, "train", Phase.RUNNING)


def test_a_daemonset_of_a_tenant_takes_nothing_of_a_node_before_its_pods_do(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str, nodes: list[str]
) -> None:
    nodes += add_nodes(plane, 1, prefix=f"new-{namespace}", model=MODEL, gpus=1, cpu="8")
    ready(plane, nodes)
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
    plane.request("POST", path, daemonset({"kubernetes.io/hostname": nodes[0]}, schedulingGates=[{"name": "a/b"}]))
    with operating(access, namespace) as operator:
        assert operator.view.daemons.get(f"{namespace}/agent") is None
        cluster.submit(
            replace(run(namespace), resources=Resources(cpu_milli=2000, gpu=GpuRequest(milli=1000, model="A10")))
        )
        comes_to(cluster, "train", Phase.RUNNING)


def message(cluster: WorkloadApi, namespace: str) -> str:
    return cluster.named("train", namespace).status.reason.message


def daemonset(selector: dict[str, str], **pod: Any) -> dict[str, Any]:
    """One whose pods take seven cores."""
    containers = [{"name": "agent", "image": "agent", "resources": {"requests": {"cpu": "7"}}}]
    template = {
        "metadata": {"labels": {"app": "agent"}},
        "spec": {"containers": containers, "nodeSelector": selector} | pod,
    }
    spec = {"selector": {"matchLabels": {"app": "agent"}}, "template": template}
    return {"metadata": {"name": "agent"}, "spec": spec}


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    [
        "karpenter.sh/disrupted",
        "cloud.google.com/impending-node-termination",
        "ToBeDeletedByClusterAutoscaler",
        "aws-node-termination-handler/spot-itn",
    ],
)
def test_a_gang_on_a_node_that_is_about_to_go_is_told_and_starts_elsewhere(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str, nodes: list[str], key: str
) -> None:
    nodes += add_nodes(plane, 3, prefix=f"going-{namespace}", model=MODEL, gpus=1)
    ready(plane, nodes)
    with operating(access, namespace):
        cluster.submit(run(namespace, nodes=2))
        comes_to(cluster, "train", Phase.RUNNING)
        going = places(cluster, namespace)[0]
        plane.request(
            "PATCH", f"/api/v1/nodes/{going}",
            {"spec": {"taints": [{"key": key, "value": "x", "effect": "NoSchedule"}]}}, kind="merge-patch+json",
        )  # fmt: skip
        moved = comes_to(cluster, "train", Phase.RUNNING, attempt=1)
        events = [event.type for event in cluster.events(moved.uid)]
    told = moved.status.failures.last
    assert told is not None
    assert told.code is Code.NODE_RECLAIMED
    assert told.message.startswith(f"node {going} is being reclaimed (tainted with {key}); it saves within ")
    assert events == ["Submitted", "Starting", "Running", "Stopping", "Pending", "Starting", "Running"]
    live = [
        pod
        for pod in cluster.client.items(f"/api/v1/namespaces/{namespace}/pods")
        if pod["metadata"]["name"][-3] == "1"
    ]
    assert going not in {pod["spec"]["nodeName"] for pod in live}
    assert moved.status.failures.disruptions == 0
