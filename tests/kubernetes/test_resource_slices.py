"""GPUs that a driver for dynamic resource allocation offers, by what it writes, and on a real control plane."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import Anonymous
from fairlead.cluster.kubernetes.api.objects import NodeObject, read_node
from fairlead.cluster.kubernetes.api.resource_slices import (
    API,
    SEVERAL,
    SLICES,
    SliceObject,
    are_offered,
    list_offered,
    read_slice,
    with_slices,
)
from fairlead.cluster.kubernetes.client.checkup import check
from fairlead.cluster.kubernetes.client.cluster_inventory import Inventory, look_around
from fairlead.cluster.kubernetes.client.discovery import count_gpus
from fairlead.cluster.kubernetes.client.one_shot_snapshot import OneShotSnapshot
from fairlead.cluster.kubernetes.client.user_client import UserClient
from fairlead.cluster.kubernetes.devices import DRA, DeviceResource
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.informers.snapshot_cache import SnapshotCache
from fairlead.cluster.kubernetes.manifests.teams import TeamSettings, render_team
from fairlead.cluster.kubernetes.operator.engines.engine_controller import device_of
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.team import Quota, Team
from fairlead.specs.training import Training
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Progress
from tests.kubernetes.loopback import Answering, client_of, serving
from tests.kubernetes.operating import GIB, HARMLESS, comes_to, gang, operating
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.waiting import until

DRIVER = "gpu.nvidia.com"
NOTHING: dict[str, Progress] = {}
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"


def device(number: int, *, model: str = "NVIDIA A10", memory: str = "23028Mi", kind: str = "gpu") -> dict[str, Any]:
    """As NVIDIA's driver writes one."""
    return {
        "name": f"{kind}-{number}",
        "attributes": {"type": {"string": kind}, "productName": {"string": model}},
        "capacity": {"memory": {"value": memory}},
    }


def slice_of(
    node: str, devices: list[dict[str, Any]], *, generation: int = 1, driver: str = DRIVER, name: str = ""
) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"{node}-{driver}-{generation}", "resourceVersion": "1"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def bare(*, gpus: int = 0) -> NodeObject:
    offered = {"cpu": "8", "memory": "32Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return read_node({"metadata": {"name": "n", "resourceVersion": "1"}, "status": {"allocatable": offered}})


def read(*contents: dict[str, Any]) -> list[SliceObject]:
    return [found for content in contents if (found := read_slice(content)) is not None]


def test_whole_gpus_of_the_newest_generation_are_devices_of_their_node() -> None:
    parts = [device(number, kind="mig") for number in range(7)]
    node = with_slices(
        bare(), read(slice_of("n", [device(0)]), slice_of("n", [device(0), device(1), *parts], generation=2))
    )
    assert node.allocatable.devices == ((DRA, 2),)
    assert (node.gpu_model, node.gpu_memory_bytes) == ("NVIDIA-A10", 23028 * 2**20)
    assert count_gpus([replace(node, ready=True)]) == {"NVIDIA-A10": 2}


def test_a_device_plugin_goes_before_slices_and_others_drivers_and_closed_devices_do_not_count() -> None:
    assert with_slices(bare(gpus=4), read(slice_of("n", [device(0)]))) == bare(gpus=4)
    assert not read(slice_of("n", [device(0)], driver="gpu.example.com"))
    closed = device(1) | {"taints": [{"key": "sick", "effect": "NoExecute"}]}
    assert with_slices(bare(), read(slice_of("n", [device(0), closed]))).allocatable.devices == ((DRA, 1),)
    assert with_slices(bare(), read(slice_of("n", [closed]))) == bare()


def test_a_node_of_several_models_has_none_that_a_run_could_ask_for() -> None:
    node = with_slices(bare(), read(slice_of("n", [device(0), device(1, model="NVIDIA L4", memory="22Gi")])))
    assert (node.gpu_model, node.gpu_memory_bytes) == (SEVERAL, 22 * 2**30)


def claim_of(*devices: tuple[str, str], pod: str = "", version: int = 1, **more: Any) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": f"uid-of-{pod}", "controller": True}
    results = [{"driver": DRIVER, "request": "gpu", "pool": pool, "device": name, **more} for pool, name in devices]
    metadata = {"name": f"{pod}-gpus" if pod else "own", "namespace": "t", "resourceVersion": str(version)}
    return {
        "metadata": {**metadata, **({"ownerReferences": [owner]} if pod else {})},
        "spec": {},
        "status": {"allocation": {"devices": {"results": results}}} if devices else {},
    }


def a_pod(name: str, *, asks: dict[str, str], version: int = 1, phase: str = "Running") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "t", "uid": f"uid-of-{name}", "resourceVersion": str(version)}
    return {
        "metadata": {**metadata, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": asks}}]},
        "status": {"phase": phase},
    }


def test_a_pool_of_which_a_slice_is_missing_offers_nothing_until_it_is_there() -> None:
    half, rest = slice_of("n", [device(0)], name="first"), slice_of("n", [device(1)], name="second")
    for each in (half, rest):
        each["spec"]["pool"]["resourceSliceCount"] = 2
    assert with_slices(bare(), read(half)) == bare()
    assert with_slices(bare(), read(half, rest)).allocatable.devices == ((DRA, 2),)


@pytest.fixture
def view() -> Informers:
    """A node with two GPUs in a slice, known without a watch."""
    view = Informers(Client(ClusterAccess(context="none", server="http://127.0.0.1:9", credentials=Anonymous())))
    slices, _ = view.nodes.sliced.caches
    view.nodes.put({"metadata": {"name": "n", "resourceVersion": "1"}, "status": {"allocatable": {"cpu": "8"}}})
    slices.put(slice_of("n", [device(0), device(1), device(0, kind="mig")], name="s"))
    return view


def claimed(view: Informers) -> int:
    return sum(number for each in view.claimed_on("n") for _, number in each.devices)


def test_claims_that_others_wrote_hold_their_devices_until_they_are_deallocated(view: Informers) -> None:
    _, claims = view.nodes.sliced.caches
    marks = view.marks()
    marks.take()
    claims.put(claim_of(("n", "gpu-1"), ("elsewhere", "gpu-0")))
    assert claimed(view) == 1
    assert "n" in marks.take()[1], "the node is looked at again"
    claims.put(claim_of(("n", "gpu-1"), ("n", "gpu-0"), version=2, adminAccess=True))
    assert claimed(view) == 0, "an administrator's access keeps nobody from a device"
    claims.put(claim_of(("n", "gpu-1"), ("n", "mig-0"), version=3))
    assert claimed(view) == 1, "parts of GPUs are not counted"
    marks.take()
    claims.put(claim_of(version=4))
    assert claimed(view) == 0
    assert "n" in marks.take()[1], "the node is looked at again"


def test_what_claims_hold_is_others_in_the_snapshot(view: Informers) -> None:
    _, claims = view.nodes.sliced.caches
    shown = SnapshotCache(view, namespace=None, progress_of=NOTHING.get)
    claims.put(claim_of(("n", "gpu-0")))
    (others,) = shown.look().pods
    assert others.grant.gpu_uuids == (f"{DRA}#1",)
    claims.put(claim_of(version=2))
    assert not shown.look().pods


def test_a_claim_counts_once_beside_the_request_of_its_pod_and_until_it_is_gone(view: Informers) -> None:
    _, claims = view.nodes.sliced.caches
    claims.put(claim_of(("n", "gpu-0"), pod="p"))
    assert claimed(view) == 1, "its pod is not known yet"
    view.pods.put(a_pod("p", asks={DRA: "1"}))
    assert claimed(view) == 0, "the pod's own request counts"
    view.pods.put(a_pod("p", asks={DRA: "1"}, version=2, phase="Succeeded"))
    assert claimed(view) == 1, "the pod is over and its claim still there"
    claims.drop("t/p-gpus", 5)
    assert claimed(view) == 0
    view.pods.put(a_pod("q", asks={"nvidia.com/gpu": "1"}))
    claims.put(claim_of(("n", "gpu-0"), pod="q"))
    assert claimed(view) == 1, "requested under another name of the same devices"


def test_a_node_is_the_same_object_until_its_slices_change(view: Informers) -> None:
    slices, _ = view.nodes.sliced.caches
    first = view.nodes.get("n")
    assert first is not None
    assert first.allocatable.devices == ((DRA, 2),)
    assert view.nodes.all() == (first,)
    assert view.nodes.get("n") is first
    slices.drop("s", 9)
    after = view.nodes.get("n")
    assert after is not None
    assert after.allocatable.devices == ()


@pytest.mark.parametrize(
    ("minor", "served", "expected"),
    [("36", True, True), ("36+", True, True), ("40", True, True), ("35", True, False), ("36", False, False)],
)
def test_slices_count_where_pods_can_request_their_devices(minor: str, served: bool, expected: bool) -> None:
    class Handler(Answering):
        def answer(self) -> None:
            if self.path == "/version":
                self.reply(200, {"major": "1", "minor": minor})
            elif self.path == API and served:
                self.reply(200, {"kind": "APIResourceList"})
            else:
                self.refuse(404, "NotFound")

    with serving(Handler) as url:
        assert are_offered(client_of(url)) is expected


def test_slices_that_an_account_may_not_list_are_none() -> None:
    class Handler(Answering):
        def answer(self) -> None:
            if self.path == "/version":
                self.reply(200, {"major": "1", "minor": "36"})
            elif self.path == API:
                self.reply(200, {"kind": "APIResourceList"})
            else:
                self.refuse(403, "Forbidden")

    with serving(Handler) as url:
        client = client_of(url)
        assert list_offered(client) == []


def test_engines_request_what_nodes_with_the_model_offer() -> None:
    slices = read(slice_of("n", [device(0), device(1)]))
    spec = on_gpus("t", "train", nodes=1, gpus=2)
    assert device_of(spec, [with_slices(bare(), slices)]) == DeviceResource(name=DRA, count=2)
    by_plugin = replace(bare(gpus=4), key="other", gpu_model="NVIDIA-A10")
    both = device_of(spec, [with_slices(bare(), slices), by_plugin])
    assert both == DeviceResource(name="nvidia.com/gpu", count=2), "one name serves all pods of an engine"


@pytest.mark.parametrize("is_offered", [True, False])
def test_doctor_tells_of_gpus_in_slices_and_whether_pods_can_request_them(is_offered: bool) -> None:
    node = {"metadata": {"name": "n", "resourceVersion": "1"}, "status": {"allocatable": {"cpu": "8"}}}
    slices = read(slice_of("n", [device(0), device(1)]))
    found = look_around(
        Inventory(
            apis=frozenset(),
            nodes=[node],
            controllers=(),
            storage_classes=(),
            slices=slices,
            are_slices_offered=is_offered,
        )
    )
    gpus, plugin, *_ = found
    if is_offered:
        assert gpus.says == f"2 x NVIDIA-A10 as {DRA} on n"
        assert plugin.ok
    else:
        assert gpus.says == "no node advertises any"
        assert not plugin.ok
        assert plugin.says == "n has GPUs in ResourceSlices, which Fairlead uses from Kubernetes 1.36 on"
        assert "upgrade" in (plugin.remedy or "")


@pytest.fixture
def offering(plane: ControlPlane) -> Iterator[list[str]]:
    """Two nodes without a device plugin, on which a driver offers two GPUs each."""
    names = add_nodes(plane, 2, prefix="dra", gpus=0)
    chosen = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {
            "selectors": [
                {"cel": {"expression": f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"}}
            ]
        },
    }
    plane.request("POST", CLASSES, chosen)
    slices = [slice_of(name, [device(0), device(1)], name=f"{name}-slice") for name in names]
    for each in slices:
        del each["metadata"]["resourceVersion"]
        plane.request("POST", SLICES, each)
    until(lambda: all(is_ready(plane.request("GET", f"/api/v1/nodes/{name}")) for name in names))
    yield names
    for each in slices:
        plane.request("DELETE", f"{SLICES}/{each['metadata']['name']}")
    plane.request("DELETE", f"{CLASSES}/{DRIVER}")
    for name in names:
        plane.request("DELETE", f"/api/v1/nodes/{name}")


def allocated(plane: ControlPlane, namespace: str) -> list[tuple[str, str]]:
    """What kube-scheduler gave the claims of a namespace."""
    claims = plane.request("GET", f"{API}/namespaces/{namespace}/resourceclaims")["items"]
    results = [
        result
        for claim in claims
        for result in (claim.get("status", {}).get("allocation") or {}).get("devices", {}).get("results", ())
    ]
    return sorted((each["pool"], each["device"]) for each in results)


def on_gpus(namespace: str, name: str, *, nodes: int, gpus: int) -> Training:
    resources = Resources(cpu_milli=1000, memory_bytes=GIB, gpu=GpuRequest(milli=1000 * gpus, model="A10"))
    return replace(gang(namespace, name, nodes=nodes), resources=resources)


def waits(cluster: WorkloadApi, name: str, namespace: str) -> bool:
    return cluster.named(name, namespace).status.reason.code is Code.WAITING_FOR_RESOURCES


@pytest.mark.slow
def test_kube_scheduler_allocates_the_devices_of_runs_that_were_placed_by_slices(
    plane: ControlPlane, access: ClusterAccess, namespace: str, offering: list[str], cluster: WorkloadApi
) -> None:
    team = Team(name=namespace, quota=Quota(gpu_milli=4000))
    quota = next(each for each in render_team(team, TeamSettings()) if each["kind"] == "ResourceQuota")
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    plane.request("POST", path, quota)
    path = f"{path}/{quota['metadata']['name']}"
    until(lambda: f"requests.{DRA}" in (plane.request("GET", path).get("status") or {}).get("used", {}))
    with operating(access, namespace):
        cluster.submit(on_gpus(namespace, "first", nodes=2, gpus=2))
        comes_to(cluster, "first", Phase.RUNNING)
        devices = [(name, f"gpu-{number}") for name in sorted(offering) for number in (0, 1)]
        assert allocated(plane, namespace) == devices
        until(lambda: plane.request("GET", path)["status"]["used"][f"requests.{DRA}"] == "4")
        plane.request("DELETE", path)
        cluster.submit(on_gpus(namespace, "second", nodes=1, gpus=1))
        until(lambda: waits(cluster, "second", namespace))
        cluster.set_intent(cluster.named("first", namespace).uid, Intent.STOP)
        comes_to(cluster, "second", Phase.RUNNING)
        until(lambda: len(allocated(plane, namespace)) == 1)


def test_gpus_in_slices_are_seen_without_an_operator(
    plane: ControlPlane, access: ClusterAccess, offering: list[str]
) -> None:
    client = Client(access)
    by_name = {node.name: node for node in OneShotSnapshot(client).snapshot().nodes}
    assert [len(by_name[name].gpus) for name in offering] == [2, 2]
    seen = {node.name: node for node in UserClient(client, namespace="default").nodes()}
    assert [seen[name].gpus for name in offering] == [by_name[name].gpus for name in offering]
    (gpus,) = (each for each in check(client, "0") if each.what == "GPUs")
    assert f"2 x NVIDIA-A10 as {DRA} on {', '.join(sorted(offering))}" in gpus.says


@pytest.mark.slow
def test_devices_of_claims_that_others_wrote_are_not_given_again(
    plane: ControlPlane, access: ClusterAccess, namespace: str, offering: list[str], cluster: WorkloadApi
) -> None:
    exactly = {"deviceClassName": DRIVER, "count": 1}
    claim = {"metadata": {"name": "own"}, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    claims, pods = f"{API}/namespaces/{namespace}/resourceclaims", f"/api/v1/namespaces/{namespace}/pods"
    plane.request("POST", claims, claim)
    resources = {"claims": [{"name": "gpu"}]}
    container = {"name": "main", "image": "any", "securityContext": HARMLESS, "resources": resources}
    spec = {"containers": [container], "resourceClaims": [{"name": "gpu", "resourceClaimName": "own"}]}
    plane.request("POST", pods, {"metadata": {"name": "stranger"}, "spec": spec})
    until(lambda: len(allocated(plane, namespace)) == 1)
    ((held, _),) = allocated(plane, namespace)
    (free,) = (name for name in offering if name != held)
    with operating(access, namespace):
        cluster.submit(on_gpus(namespace, "first", nodes=1, gpus=2))
        comes_to(cluster, "first", Phase.RUNNING)
        assert plane.request("GET", f"{pods}/first-0-0")["spec"]["nodeName"] == free
        cluster.submit(on_gpus(namespace, "second", nodes=1, gpus=2))
        until(lambda: waits(cluster, "second", namespace))
        plane.request("DELETE", f"{pods}/stranger")
        plane.request("DELETE", f"{claims}/own")
        comes_to(cluster, "second", Phase.RUNNING)
        assert len(allocated(plane, namespace)) == 4
