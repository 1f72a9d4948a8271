"""Nodes that autoscalers bring: for placeholders, which make way for the gang, for ProvisioningRequests and buffers.

Karpenter is the real one; the Cluster Autoscaler is played by the objects that it documents.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess, load_access
from fairlead.cluster.kubernetes.api.objects import seconds
from fairlead.cluster.kubernetes.client.one_shot_snapshot import OneShotSnapshot
from fairlead.cluster.kubernetes.manifests.placeholders import render_priority_class
from fairlead.cluster.kubernetes.manifests.roles import render_operator_bindings, render_roles
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.names import ROOM_FOR
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.pool import Hardware, Peak, Pool, PoolGpu
from fairlead.specs.resources import GpuRequest
from fairlead.specs.training import Elastic, Training
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Progress
from tests.kubernetes.audit import RESTRICTED
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import GPUS, comes_to, gang, live_pods, operating, teach_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_team_controller import POOLS, condition
from tests.kubernetes.testcluster.cluster_autoscaler import ClusterAutoscaler
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes
from tests.kubernetes.testcluster.karpenter import GPU_LABEL, Karpenter
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes]

QUICK = {"grow_patience_s": 12.0, "grow_pause_s": 60.0}


@pytest.fixture(scope="module")
def growing_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane of its own, with one node that has no GPU."""
    with started(ControlPlane, request) as plane:
        teach_kinds(plane)
        for content in (render_priority_class(), *render_roles()):
            applied(plane, content)
        add_nodes(plane, 1, prefix="small", gpus=0)
        yield plane


@pytest.fixture(scope="module")
def karpenter(growing_plane: ControlPlane) -> Iterator[Karpenter]:
    with Karpenter(growing_plane, gpus=GPUS) as karpenter:
        yield karpenter


@pytest.fixture
def access(growing_plane: ControlPlane) -> ClusterAccess:
    return load_access((growing_plane.kubeconfig(),))


@pytest.fixture
def team(growing_plane: ControlPlane, request: pytest.FixtureRequest) -> str:
    """A namespace whose operator has the rights of an installed one."""
    name = f"t-{abs(hash(request.node.name)) % 10**8}"
    growing_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": RESTRICTED}})
    growing_plane.await_namespace(name)
    for binding in render_operator_bindings(name):
        applied(growing_plane, binding)
    return name


@pytest.fixture
def cluster(access: ClusterAccess, karpenter: Karpenter, team: str) -> Iterator[WorkloadApi]:
    cluster = WorkloadApi(Client(access), namespace=team)
    yield cluster
    with operating(access, team, **QUICK):
        for run in cluster.workloads():
            cluster.set_intent(run.uid, Intent.DELETE)
        until(lambda: not cluster.workloads())
    until(lambda: not pods(cluster, team))
    for pool in cluster.client.items("/apis/karpenter.sh/v1/nodepools"):
        cluster.client.delete(f"/apis/karpenter.sh/v1/nodepools/{pool['metadata']['name']}")
    until(lambda: len(list(cluster.client.items("/api/v1/nodes"))) == 1)


def pods(cluster: WorkloadApi, team: str, *, placeholders: bool | None = None) -> list[dict[str, Any]]:
    found = cluster.client.items(f"/api/v1/namespaces/{team}/pods")
    return [pod for pod in found if placeholders in (None, ROOM_FOR in pod["metadata"]["labels"])]


def of_model(spec: Training, model: str) -> Training:
    return replace(spec, resources=replace(spec.resources, gpu=GpuRequest(milli=1000 * GPUS, model=model)))


def test_nodes_come_for_a_gang_of_four_which_then_starts_whole(
    access: ClusterAccess, cluster: WorkloadApi, karpenter: Karpenter, team: str
) -> None:
    karpenter.pool("gpu", model="NVIDIA-A100")
    cluster.submit(of_model(gang(team, nodes=4), "A100"))
    begun = time.monotonic()
    with operating(access, team, **QUICK):
        until(lambda: cluster.named("train", team).status.reason.code is Code.WAITING_FOR_NODES)
        asked_s = time.monotonic() - begun
        run = comes_to(cluster, "train", Phase.RUNNING)
        took_s = time.monotonic() - begun
        assert run.status.attempt == 0
        assert live_pods(cluster, team) == [f"train-0-{index}" for index in range(4)]
        until(lambda: not pods(cluster, team, placeholders=True))
        assert len({pod["spec"]["nodeName"] for pod in pods(cluster, team)}) == 4
        assert len(list(cluster.client.items("/api/v1/nodes"))) == 5
    told = [event.reason.code for event in cluster.events(run.uid)]
    assert told == [Code.SUBMITTED, Code.WAITING_FOR_NODES, Code.PLACED, Code.RANKS_STARTED]
    print(f"asked after {asked_s:.1f} s, all four ran after {took_s:.1f} s")


def test_a_node_comes_for_the_lost_pod_of_a_gang_that_continues_in_place(
    access: ClusterAccess, cluster: WorkloadApi, karpenter: Karpenter, team: str
) -> None:
    karpenter.pool("gpu")
    cluster.submit(replace(gang(team, nodes=3, stop="0s"), elastic=Elastic.IN_PLACE))
    with operating(access, team, **QUICK) as operator:
        run = comes_to(cluster, "train", Phase.RUNNING)
        until(lambda: not pods(cluster, team, placeholders=True))
        operator.cluster.reports.note(run.uid, Progress(step=5, in_place_attempt=0, updated_at=5.0), None)
        until(lambda: cluster.named("train", team).progress is not None)
        kept = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods(cluster, team)}
        lost = next(pod for pod in pods(cluster, team) if pod["metadata"]["name"] == "train-0-1")
        for claim in cluster.client.items("/apis/karpenter.sh/v1/nodeclaims"):
            if (claim.get("status") or {}).get("nodeName") == lost["spec"]["nodeName"]:
                cluster.client.delete(f"/apis/karpenter.sh/v1/nodeclaims/{claim['metadata']['name']}")
        begun = time.monotonic()
        until(lambda: [each for each in cluster.events(run.uid) if each.type == "PodReturned"])
        took_s = time.monotonic() - begun
        assert live_pods(cluster, team) == ["train-0-0", "train-0-1r1", "train-0-2"]
        now = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods(cluster, team, placeholders=False)}
        assert all(now[name] == kept[name] for name in ("train-0-0", "train-0-2"))
        assert cluster.named("train", team).status.attempt == 0
        until(lambda: not pods(cluster, team, placeholders=True))
    print(f"the pod ran on a new node {took_s:.1f} s after the old one was deleted")


def test_gangs_that_wait_one_behind_the_other_get_their_nodes_together(
    access: ClusterAccess, cluster: WorkloadApi, karpenter: Karpenter, team: str
) -> None:
    karpenter.pool("gpu")
    for number in range(3):
        cluster.submit(gang(team, f"run-{number}", nodes=2))
    growth = OneShotSnapshot(cluster.client).snapshot().growth
    assert growth is not None
    assert growth.by == "Karpenter"
    with operating(access, team, **QUICK):
        until(lambda: len(pods(cluster, team, placeholders=True)) == 6)
        for number in range(3):
            assert comes_to(cluster, f"run-{number}", Phase.RUNNING).status.attempt == 0
        until(lambda: not pods(cluster, team, placeholders=True))
    assert len({pod["spec"]["nodeName"] for pod in pods(cluster, team)}) == 6


def test_a_gang_that_fills_its_quota_starts_in_the_room_its_placeholders_leave(
    access: ClusterAccess, cluster: WorkloadApi, karpenter: Karpenter, team: str
) -> None:
    karpenter.pool("gpu")
    a_quota(cluster, team, gpus=2 * GPUS)
    cluster.submit(gang(team))
    with operating(access, team, **QUICK):
        assert comes_to(cluster, "train", Phase.RUNNING).status.attempt == 0
    told = [event.reason.code for event in cluster.events()]
    assert told == [Code.SUBMITTED, Code.WAITING_FOR_NODES, Code.PLACED, Code.RANKS_STARTED]


def test_a_gang_beyond_its_quota_brings_no_node(
    access: ClusterAccess, cluster: WorkloadApi, karpenter: Karpenter, team: str
) -> None:
    karpenter.pool("gpu")
    a_quota(cluster, team, gpus=GPUS // 2)
    cluster.submit(gang(team))
    with operating(access, team, **QUICK):
        until(lambda: cluster.named("train", team).status.reason.code is Code.NODES_NOT_COMING)
    message = cluster.named("train", team).status.reason.message
    assert (
        "was not asked for nodes, for its placeholders are refused as its pods would be: the quota bound of" in message
    )
    assert pods(cluster, team) == []
    assert len(list(cluster.client.items("/api/v1/nodes"))) == 1


def a_quota(cluster: WorkloadApi, team: str, *, gpus: int) -> None:
    path = f"/api/v1/namespaces/{team}/resourcequotas"
    spec = {"hard": {"requests.nvidia.com/gpu": str(gpus)}}
    cluster.client.create(path, {"metadata": {"name": "bound"}, "spec": spec})
    until(lambda: "hard" in (cluster.client.get(f"{path}/bound").get("status") or {}))


def test_a_gang_that_the_limits_of_the_pool_never_hold_fails_at_once_and_says_so(
    access: ClusterAccess, cluster: WorkloadApi, karpenter: Karpenter, team: str
) -> None:
    karpenter.pool("gpu", limits={"nvidia.com/gpu": 3 * GPUS})
    cluster.submit(gang(team, nodes=4))
    with operating(access, team, **QUICK):
        run = comes_to(cluster, "train", Phase.FAILED)
    assert "the limits of NodePool gpu allow 24 GPUs in all" in run.status.reason.message
    assert "the gang needs 32 GPUs" in run.status.reason.message
    assert pods(cluster, team) == []


def test_what_karpenter_cannot_bring_is_given_up_in_its_own_words_and_leaves_nothing(
    access: ClusterAccess, cluster: WorkloadApi, karpenter: Karpenter, team: str
) -> None:
    karpenter.pool("gpu")
    cluster.submit(gang(team, nodes=1, gpus=2 * GPUS))  # more than any machine has
    with operating(access, team, **QUICK):
        until(lambda: bool(pods(cluster, team, placeholders=True)))
        until(lambda: cluster.named("train", team).status.reason.code is Code.NODES_NOT_COMING)
        until(lambda: not pods(cluster, team))
        reason = cluster.named("train", team).status.reason
    assert reason.message.startswith("Karpenter was asked for nodes and brings none; it says: ")
    assert "no instance type has enough resources" in reason.message
    assert cluster.named("train", team).status.phase is Phase.PENDING


def test_runs_that_are_deleted_while_they_ask_leave_no_placeholder(
    access: ClusterAccess, cluster: WorkloadApi, karpenter: Karpenter, team: str
) -> None:
    karpenter.pool("gpu")
    cluster.submit(gang(team, nodes=1, gpus=2 * GPUS))  # nodes never come for it, and it holds up the one behind
    cluster.submit(gang(team, "behind", nodes=2))
    with operating(access, team, grow_patience_s=300.0, grow_pause_s=300.0):
        until(lambda: len([pod for pod in pods(cluster, team) if pod["spec"].get("nodeName")]) == 2)
        for run in cluster.workloads():
            cluster.set_intent(run.uid, Intent.DELETE)
        until(lambda: not pods(cluster, team) and not cluster.workloads())


def requests(cluster: WorkloadApi) -> list[dict[str, Any]]:
    return list(cluster.client.items("/apis/autoscaling.x-k8s.io/v1/provisioningrequests"))


def templates(cluster: WorkloadApi, team: str) -> list[dict[str, Any]]:
    return list(cluster.client.items(f"/api/v1/namespaces/{team}/podtemplates"))


def test_one_request_brings_all_nodes_of_a_gang_without_a_placeholder(
    growing_plane: ControlPlane, access: ClusterAccess, cluster: WorkloadApi, team: str
) -> None:
    nodes: list[str] = []

    def bring(request: dict[str, Any]) -> list[tuple[str, str, str]]:
        (asked,) = request["spec"]["podSets"]
        nodes.extend(add_nodes(growing_plane, asked["count"], prefix="brought", gpus=GPUS))
        return [("Accepted", "True", "accepted"), ("Provisioned", "True", "provisioned")]

    seen: set[int] = set()

    def is_asked(autoscaler: ClusterAutoscaler) -> bool:
        seen.add(len(pods(cluster, team, placeholders=True)))
        return bool(autoscaler.asked)

    with ClusterAutoscaler(growing_plane, bring) as autoscaler:
        run = cluster.submit(gang(team, nodes=3))
        growth = OneShotSnapshot(cluster.client).snapshot().growth
        assert growth is not None
        assert growth.by_request
        with operating(access, team, **QUICK):
            until(lambda: cluster.named("train", team).status.reason.code is Code.WAITING_FOR_NODES)
            told = cluster.named("train", team).status.reason.message
            until(lambda: is_asked(autoscaler))
            assert comes_to(cluster, "train", Phase.RUNNING).status.attempt == 0
            until(lambda: not requests(cluster) and not templates(cluster, team))
        (asked,) = autoscaler.asked
    assert told.endswith("the Cluster Autoscaler is asked for nodes with a ProvisioningRequest")
    assert seen == {0}
    assert asked["spec"]["provisioningClassName"] == "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    assert asked["spec"]["parameters"] == {"ValidUntilSeconds": "12"}
    assert [each["count"] for each in asked["spec"]["podSets"]] == [3]
    assert asked["metadata"]["ownerReferences"][0]["uid"] == run.uid
    assert {pod["spec"]["nodeName"] for pod in pods(cluster, team)} == set(nodes)
    for name in nodes:
        cluster.client.delete(f"/api/v1/nodes/{name}")


def test_a_request_that_finds_no_nodes_is_given_up_in_the_autoscalers_words_and_leaves_nothing(
    growing_plane: ControlPlane, access: ClusterAccess, cluster: WorkloadApi, team: str
) -> None:
    lack = [("Accepted", "True", "accepted"), ("Provisioned", "False", "Capacity is not found, CA will try later.")]
    with ClusterAutoscaler(growing_plane, lambda _: lack):
        cluster.submit(gang(team))
        with operating(access, team, **QUICK):
            until(lambda: cluster.named("train", team).status.reason.code is Code.NODES_NOT_COMING)
            until(lambda: not requests(cluster) and not templates(cluster, team))
            reason = cluster.named("train", team).status.reason
    words = (
        "the Cluster Autoscaler was asked for nodes and brings none; it says: Capacity is not found, CA will try later"
    )
    assert reason.message == words


def test_no_nodes_are_requested_for_a_gang_that_its_quota_refuses(
    growing_plane: ControlPlane, access: ClusterAccess, cluster: WorkloadApi, team: str
) -> None:
    a_quota(cluster, team, gpus=GPUS // 2)
    with ClusterAutoscaler(growing_plane, lambda _: []) as autoscaler:
        cluster.submit(gang(team))
        with operating(access, team, **QUICK):
            until(lambda: cluster.named("train", team).status.reason.code is Code.NODES_NOT_COMING)
        assert not requests(cluster)
        assert not autoscaler.asked
    assert "the quota bound of" in cluster.named("train", team).status.reason.message


def test_a_request_outlives_its_operator_and_one_that_nobody_answers_is_replaced_by_placeholders(
    growing_plane: ControlPlane, access: ClusterAccess, cluster: WorkloadApi, team: str
) -> None:
    with ClusterAutoscaler(growing_plane, lambda _: []):
        cluster.submit(gang(team))
        patience = {"grow_patience_s": 30.0, "grow_pause_s": 60.0}
        with operating(access, team, **patience):
            until(lambda: len(requests(cluster)) == 1)
        (left,) = requests(cluster)
        with operating(access, team, **patience):
            until(lambda: len(pods(cluster, team, placeholders=True)) == 2)
            assert not requests(cluster)
            until(lambda: not templates(cluster, team))
            until(lambda: "2 placeholder pods" in cluster.named("train", team).status.reason.message)
        kept_s = time.time() - seconds(left["metadata"]["creationTimestamp"])
    assert kept_s >= 15.0


def test_a_pool_keeps_nodes_ready_by_a_buffer_that_karpenter_fills(
    access: ClusterAccess, cluster: WorkloadApi, karpenter: Karpenter, team: str
) -> None:
    karpenter.pool("gpu", model="NVIDIA-A100")
    pool = Pool(
        name=f"{team}-pool", nodes=4, labels={GPU_LABEL: "NVIDIA-A100"},
        hardware=Hardware(cpu_milli=64_000, memory_bytes=2**39, gpu=PoolGpu(model="A100", count=GPUS)),
        peaks={"now": Peak(at="* * * * *", nodes=2, for_s=3600.0)},
    )  # fmt: skip
    buffers = f"/apis/autoscaling.x-k8s.io/v1beta1/namespaces/{team}/capacitybuffers"

    def replicas() -> list[int]:
        return [each["spec"]["replicas"] for each in cluster.client.items(buffers)]

    def num_nodes() -> int:
        return len(list(cluster.client.items("/api/v1/nodes", {"labelSelector": f"{GPU_LABEL}=NVIDIA-A100"})))

    with operating(access, team, watch_namespace=None, **QUICK):
        cluster.client.create(POOLS, write_object(pool))
        until(lambda: replicas() == [2] and num_nodes() == 2, lambda: list(cluster.client.items(buffers)))
        until(lambda: "CapacityBuffer pool-" in condition(cluster, f"{POOLS}/{pool.name}", "Ahead")["message"])
        cluster.submit(of_model(gang(team, nodes=1), "A100"))
        assert comes_to(cluster, "train", Phase.RUNNING).status.attempt == 0
        # Karpenter may have begun a third node before the buffer was lowered, which it then takes away.
        until(lambda: replicas() == [1] and num_nodes() == 2, lambda: list(cluster.client.items(buffers)))
        assert not pods(cluster, team, placeholders=True)
        cluster.client.merge(f"{POOLS}/{pool.name}", {"spec": {"peaks": None}})
        # When the node itself goes is Karpenter's: it counts what buffers hold when it next looks for room for a pod.
        until(lambda: not replicas() and not templates(cluster, team), lambda: (replicas(), templates(cluster, team)))
        cluster.client.delete(f"{POOLS}/{pool.name}")
