"""Placeholders of pools: what they are, which of them stay, and how the past of a pool is kept."""

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.objects import PodObject, amounts
from fairlead.cluster.kubernetes.devices import DeviceResource
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.manifests.standby import render_standby
from fairlead.cluster.kubernetes.operator.ledger.usage_ledger import UsageLedger
from fairlead.cluster.kubernetes.operator.placeholders.standby_controller import kept_of, read_history, write_history
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.ledger.usage import Use
from fairlead.policy.capacity.demand_history import DemandHistory
from fairlead.policy.placement.node_eligibility import PRICE_LABEL
from fairlead.specs.pool import Hardware, Peak, Pool, PoolGpu, Taint
from tests.kubernetes.builders import SETTINGS
from tests.kubernetes.operating import HARMLESS, operating
from tests.kubernetes.test_team_controller import POOLS, condition
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes
from tests.waiting import until

POOL = Pool(
    name="gpus",
    nodes=4,
    hardware=Hardware(cpu_milli=96_000, memory_bytes=2**40, gpu=PoolGpu(model="A100", count=8)),
    labels={"pool": "a100"},
    taints=(Taint(key="dedicated", value="ml"),),
    peaks={"morning": Peak(at="0 8 * * 1-5", nodes=2)},
)


def test_one_placeholder_takes_a_node_of_the_pool_and_no_other() -> None:
    device = DeviceResource(name="nvidia.com/gpu", count=8)
    pod = render_standby(POOL, "u-1", 3, "fairlead-system", SETTINGS, device)
    spec, metadata = pod["spec"], pod["metadata"]
    assert spec["nodeSelector"]["pool"] == "a100"
    assert {"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"} in spec["tolerations"]
    (room,) = spec["containers"]
    assert room["resources"]["requests"]["nvidia.com/gpu"] == "8"
    assert room["resources"]["requests"]["cpu"] == "52.8"
    assert spec["priorityClassName"] == "fairlead-placeholder"
    assert [(owner["kind"], owner["uid"]) for owner in metadata["ownerReferences"]] == [("Pool", "u-1")]
    assert (metadata["name"], metadata["namespace"]) == ("pool-gpus-room-3", "fairlead-system")


def a_placeholder(index: int, node: str = "") -> PodObject:
    return PodObject(
        key=f"n/p-{index}", version=1, uid=f"u-{index}", phase="Pending", node=node, requests=amounts({}),
        created_at=1.0, room_for="pool", pool="p", index=index,
    )  # fmt: skip


def test_those_that_hold_a_free_node_stay_and_those_beside_a_run_go_first() -> None:
    own = [a_placeholder(0, "a"), a_placeholder(1), a_placeholder(2, "b"), a_placeholder(3, "c")]
    assert [pod.index for pod in kept_of(own, 2, {"a"})] == [2, 3]
    assert [pod.index for pod in kept_of(own, 3, {"a"})] == [2, 3, 1]
    assert kept_of(own, 0, set()) == []


def test_a_past_that_was_written_is_read_as_it_was() -> None:
    rng = random.Random(1)
    history = DemandHistory()
    for minute in range(500):
        history = history.noted(rng.choice((0, 0, 0, 3)), minute * 60.0 + rng.random() * 50)
    history = history.came(123.0)
    assert read_history(write_history(history)) == history
    assert read_history({}) == DemandHistory()


@pytest.mark.slow
def test_nodes_of_a_peak_are_asked_for_once_whoever_operates_and_given_back_after_it(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    """No such node ever comes, so that placeholders wait; each operator has the rights of an installed one."""
    always = {"now": Peak(at="* * * * *", nodes=2, for_s=3600.0)}
    pool = replace(POOL, name=f"{namespace}-pool", labels={"pool": namespace}, peaks=always)
    path, pods = f"{POOLS}/{pool.name}", f"/api/v1/namespaces/{namespace}/pods"

    def placeholders() -> set[str]:
        return {pod["metadata"]["name"] for pod in cluster.client.items(pods)}

    wanted = {f"pool-{pool.name}"[:50] + f"-room-{index}" for index in range(2)}
    with operating(access, namespace, watch_namespace=None):
        cluster.client.create(POOLS, write_object(pool))
        until(lambda: placeholders() == wanted)
        until(lambda: condition(cluster, path, "Ahead").get("message") == "the peak now asks for 2 nodes")
    assert condition(cluster, path, "Used")["reason"] == "HeldAhead"
    assert cluster.client.get(path)["status"]["state"]["minute"] is not None
    uids = {pod["metadata"]["uid"] for pod in cluster.client.items(pods)}
    with operating(access, namespace, watch_namespace=None) as operator:
        passes = operator.cluster
        until(lambda: passes.shown is not None and len(passes.shown.standby) == 1)
        assert {pod["metadata"]["uid"] for pod in cluster.client.items(pods)} == uids
        cluster.client.merge(path, {"spec": {"peaks": None}})
        until(lambda: placeholders() == set())
        until(lambda: condition(cluster, path, "Used").get("reason") == "NotUsedHere")
    cluster.client.request("DELETE", path)


def test_a_node_that_is_kept_ready_and_what_others_hold_are_on_the_bill(
    access: ClusterAccess, plane: ControlPlane, cluster: WorkloadApi, namespace: str, tmp_path: Path
) -> None:
    labels = {"pool": namespace, PRICE_LABEL: "36"}
    nodes = add_nodes(plane, 2, prefix=namespace, gpus=8, labels=labels)
    always = {"now": Peak(at="* * * * *", nodes=2, for_s=3600.0)}
    pool = replace(POOL, name=f"{namespace}-pool", labels={"pool": namespace}, taints=(), peaks=always)
    path, pods, place = f"{POOLS}/{pool.name}", f"/api/v1/namespaces/{namespace}/pods", str(tmp_path / "ledger.db")
    container = {"name": "c", "image": "agent", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    spec = {"nodeName": nodes[0], "containers": [{**container, "securityContext": HARMLESS}]}
    agent = {"metadata": {"name": "agent"}, "spec": spec}

    def uses(*, held: bool) -> set[Use]:
        """The uses on these nodes, of pods that hold something, or of such as have ended."""
        ledger, today = UsageLedger(place), int(time.time()) // 86_400
        try:
            parts = [part for day in (today - 1, today) for part in ledger.of_day(day)]
            there = [(each.pod.node, each.use) for each in ledger.open_pods().values()] if held else [
                (each.node, each.use) for each in parts
            ]  # fmt: skip
        finally:
            ledger.close()
        return {use for node, use in there if node in nodes and use is not None}

    with operating(access, namespace, watch_namespace=None, ledger=place):
        plane.request("POST", pods, agent)
        cluster.client.create(POOLS, write_object(pool))
        until(
            lambda: uses(held=True) == {Use.SYSTEM, Use.KEPT_FREE},
            lambda: (uses(held=True), cluster.client.get(path)["status"]),
            timeout_s=60,
        )
        cluster.client.merge(path, {"spec": {"peaks": None}})
        plane.request("DELETE", f"{pods}/agent")
        until(lambda: uses(held=True) == set(), lambda: uses(held=True))
    assert uses(held=False) == {Use.SYSTEM, Use.KEPT_FREE}
    cluster.client.request("DELETE", path)
    for name in nodes:
        plane.request("DELETE", f"/api/v1/nodes/{name}")
