"""Runs on fake nodes with network adapters, on a real control plane: kube-scheduler and the quota have to agree."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.informers.node_history import read_history
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.network import FabricChoice, Network
from fairlead.specs.overlay import overlay
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training
from fairlead.state.snapshot import Phase
from tests.kubernetes.operating import GIB, comes_to, gang, operating
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.waiting import until

MODEL = "NVIDIA-L4"  # only the nodes of this file have it
EFA = "vpc.amazonaws.com/efa"


@pytest.fixture
def nodes(plane: ControlPlane, namespace: str) -> Iterator[list[str]]:
    """Two nodes with four GPUs and eight adapters each."""
    names = add_nodes(plane, 2, prefix=f"efa-{namespace}", model=MODEL, gpus=4, others={EFA: "8"})
    until(lambda: all(is_ready(plane.request("GET", f"/api/v1/nodes/{name}")) for name in names))
    yield names
    for name in names:
        plane.request("DELETE", f"/api/v1/nodes/{name}")


def run(namespace: str, name: str, network: Network, *, gpus: int = 2) -> Training:
    asked = GpuRequest(milli=1000 * gpus, model="L4")
    spec = gang(namespace, name, nodes=2)
    return replace(spec, resources=Resources(cpu_milli=1000, memory_bytes=GIB, gpu=asked), network=network)


def adapters(cluster: WorkloadApi, namespace: str) -> dict[str, Any]:
    pods = cluster.client.items(f"/api/v1/namespaces/{namespace}/pods")
    return {
        pod["metadata"]["name"]: pod["spec"]["containers"][0]["resources"]["limits"].get(EFA)
        for pod in pods
        if pod["metadata"]["annotations"].get("fairlead.dev/fabric") == "EFA"
    }


@pytest.mark.slow
def test_gangs_that_share_nodes_get_their_parts_of_the_adapters_and_all_run(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, nodes: list[str]
) -> None:
    with operating(access, namespace):
        cluster.submit(run(namespace, "first", Network()))
        cluster.submit(run(namespace, "second", Network(profile=FabricChoice.EFA)))
        comes_to(cluster, "first", Phase.RUNNING)
        comes_to(cluster, "second", Phase.RUNNING)
    assert set(adapters(cluster, namespace).values()) == {"4"}
    assert len(adapters(cluster, namespace)) == 4


@pytest.mark.slow
def test_a_run_for_a_fabric_that_no_node_has_says_so_and_asks_for_no_pod(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, nodes: list[str]
) -> None:
    with operating(access, namespace):
        cluster.submit(run(namespace, "train", Network(rdma="rdma/hca")))
        reason = comes_to(cluster, "train", Phase.FAILED).status.reason
    assert f"{nodes[0]} is without rdma/hca, which `network: rdma` needs" in reason.message
    assert list(cluster.client.items(f"/api/v1/namespaces/{namespace}/pods")) == []


NICS, CHANNELS = "dra.net", "compute-domain.nvidia.com"
"""The drivers of DRANET and of NVIDIA's ComputeDomains."""
RESOURCES = "/apis/resource.k8s.io/v1"


@pytest.fixture
def devices(plane: ControlPlane, namespace: str, nodes: list[str]) -> Iterator[None]:
    """A network adapter and an IMEX channel of each node, and templates of claims, as their drivers make them."""
    slices = []
    for driver in (NICS, CHANNELS):
        of_class = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
        name = f"{driver}-{namespace}"
        plane.request("POST", f"{RESOURCES}/deviceclasses", {"metadata": {"name": name}, "spec": of_class})
        slices.append(f"deviceclasses/{name}")
        template = {
            "metadata": {"name": driver.partition(".")[0]},
            "spec": {
                "spec": {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": name}}]}},
            },
        }
        plane.request("POST", f"{RESOURCES}/namespaces/{namespace}/resourceclaimtemplates", template)
        for node in nodes:
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "device-0"}]}
            own = {"metadata": {"name": f"{node}-{driver}"}, "spec": spec}
            plane.request("POST", f"{RESOURCES}/resourceslices", own)
            slices.append(f"resourceslices/{node}-{driver}")
    yield
    for path in slices:
        plane.request("DELETE", f"{RESOURCES}/{path}")


CLAIMS = overlay(
    {
        "spec": {
            "resourceClaims": [
                {"name": "nic", "resourceClaimTemplateName": "dra"},
                {"name": "channel", "resourceClaimTemplateName": "compute-domain"},
            ],
            "containers": [{"name": "ranks", "resources": {"claims": [{"name": "nic"}, {"name": "channel"}]}}],
        }
    }
)


def claiming(namespace: str, name: str, nodes: int) -> Training:
    return replace(run(namespace, name, Network(profile=FabricChoice.NONE)), nodes=nodes, kubernetes=CLAIMS)


@pytest.mark.slow
def test_pods_get_adapters_and_channels_by_claims_and_go_elsewhere_where_none_is_left(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, nodes: list[str], devices: None
) -> None:
    with operating(access, namespace):
        cluster.submit(claiming(namespace, "first", 1))
        comes_to(cluster, "first", Phase.RUNNING)
        cluster.submit(claiming(namespace, "second", 1))
        second = comes_to(cluster, "second", Phase.RUNNING)
        claims = list(cluster.client.items(f"{RESOURCES}/namespaces/{namespace}/resourceclaims"))
        allocated = {
            (each["pool"], each["driver"])
            for claim in claims
            for each in claim["status"]["allocation"]["devices"]["results"]
        }
        assert allocated == {(node, driver) for node in nodes for driver in (NICS, CHANNELS)}
        # Placement packs two pods on one node, which has GPUs for both.
        refusals = [event.reason.message for event in cluster.events(second.uid) if event.type == "Restarting"]
        assert len(refusals) == 1
        assert "cannot allocate all claims" in refusals[0]
        assert not read_history(cluster.client, namespace)[0].histories, "a refusal says nothing against a node"


def test_the_api_server_refuses_attachments_to_networks_of_other_namespaces(
    cluster: WorkloadApi, namespace: str
) -> None:
    path = f"/apis/fairlead.dev/v1alpha1/namespaces/{namespace}/trainings"
    body = write_object(gang(namespace, note="x"))
    annotations = body["spec"]["kubernetes"]["metadata"]["annotations"]
    for value in ("kube-system/host", '[{"name": "host", "namespace": "kube-system"}]'):
        annotations["k8s.v1.cni.cncf.io/networks"] = value
        with pytest.raises(ApiError, match="their own namespace alone"):
            cluster.client.create(path, body)
    annotations["k8s.v1.cni.cncf.io/networks"] = "rail-0, rail-1"
    cluster.client.create(path, body)
