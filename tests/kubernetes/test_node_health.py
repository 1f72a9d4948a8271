"""Histories of nodes and faults that detectors report: what is read, what is kept, and runs that leave."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import FixedToken
from fairlead.cluster.kubernetes.api.objects import read_node
from fairlead.cluster.kubernetes.client.node_cordons import cordon, uncordon
from fairlead.cluster.kubernetes.informers.node_capacity import node_of
from fairlead.cluster.kubernetes.informers.node_history import read_history
from fairlead.cluster.kubernetes.manifests.roles import render_binding
from fairlead.cluster.kubernetes.names import GIVEN_BACK, NODE_HISTORY
from fairlead.cluster.kubernetes.node_detectors import DETECTORS
from fairlead.cluster.kubernetes.operator.nodes.node_health_controller import NodeHealthController
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.cluster.node_records import NOTHING
from fairlead.errors import NotAllowed, NotFound
from fairlead.policy.health import node_withdrawal
from fairlead.state.node_health import FailureCause
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Phase, Snapshot
from tests.builders import node
from tests.kubernetes.audit import token_of
from tests.kubernetes.operating import comes_to, gang, operating
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

NODES = ("a-gpu-0", "a-gpu-1")
MOMENT = "2026-11-30T10:00:00Z"


def with_conditions(*conditions: dict[str, str], **spec: Any) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True"}
    return {
        "metadata": {"name": "a", "resourceVersion": "7"},
        "spec": spec,
        "status": {"conditions": [ready, *({"lastTransitionTime": MOMENT, **one} for one in conditions)]},
    }


@pytest.mark.parametrize(
    ("condition", "cause", "is_certain"),
    [
        ({"type": "KernelDeadlock", "status": "True"}, FailureCause.SYSTEM, True),
        ({"type": "GpuMemWatch", "status": "True", "message": "ECC"}, FailureCause.ECC, True),
        ({"type": "SysLogsXIDError", "status": "True", "message": "ErrorCode:79 PCI:0002"}, FailureCause.XID, True),
        (
            {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NvidiaXID79Error"},
            FailureCause.XID, True,
        ),
        (
            {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NvidiaNVLinkError"},
            FailureCause.NETWORK, True,
        ),
        ({"type": "XIDErrors", "status": "True", "message": "XID errors in kernel log"}, FailureCause.XID, False),
        (
            {"type": "XIDErrors", "status": "True", "message": "NVRM: Xid (PCI:0000:0f:00): 48, pid=7"},
            FailureCause.XID, True,
        ),
        ({"type": "SmiEccProblem", "status": "True"}, FailureCause.ECC, True),
        ({"type": "VMEventScheduled", "status": "True"}, None, False),
    ],
    ids=lambda value: value.get("type") if isinstance(value, dict) else None,
)  # fmt: skip
def test_a_condition_of_a_detector_is_a_fault_with_its_cause(
    condition: dict[str, str], cause: FailureCause | None, is_certain: bool
) -> None:
    (fault,) = read_node(with_conditions(condition)).faults
    assert (fault.name, fault.cause, fault.is_certain) == (condition["type"], cause, is_certain)
    assert fault.since == 1796032800.0


@pytest.mark.parametrize("condition", [
    {"type": "KernelDeadlock", "status": "False"},
    {"type": "KernelDeadlock", "status": "Unknown"},
    {"type": "AcceleratedHardwareReady", "status": "True", "reason": "AcceleratedHardwareIsReady"},
    {"type": "AcceleratedHardwareReady", "status": "False", "reason": "DCGMError"},
    {"type": "XIDErrors", "status": "True", "message": "NVRM: Xid (PCI:0000:0f:00): 13, pid=7, and Xid 31"},
    {"type": "FrequentKubeletRestart", "status": "True"},
    {"type": "Mine", "status": "True"},
])  # fmt: skip
def test_what_a_program_brings_about_and_what_leaves_it_running_is_no_fault(condition: dict[str, str]) -> None:
    assert read_node(with_conditions(condition)).faults == ()


def test_a_taint_of_a_detector_is_a_fault_and_foreign_text_is_cut() -> None:
    taint = {"key": "AggregatedNodeHealth", "value": "False", "effect": "NoSchedule"}
    long = {"type": "GpuMemWatch", "status": "True", "message": "x\n" * 10_000, "lastTransitionTime": "soon"}
    first, second = read_node(with_conditions(long, taints=[taint])).faults
    assert (first.name, first.since, len(first.message)) == ("GpuMemWatch", None, 200)
    assert (second.name, second.cause) == ("taint AggregatedNodeHealth", FailureCause.SYSTEM)
    marks = {GIVEN_BACK: "soon", "fairlead.dev/cordoned": "y" * 1000}
    node = read_node({**with_conditions(), "metadata": {"name": "a", "resourceVersion": "7", "annotations": marks}})
    assert (node.given_back_at, len(node.cordon_reason)) == (0.0, 200)


def test_each_detector_has_a_source_and_no_name_is_in_two_tables() -> None:
    assert all(detector.source.startswith("https://") for detector in DETECTORS)
    names = [name for detector in DETECTORS for name in (*detector.conditions, *detector.by_reason)]
    assert len(names) == len(set(names))


def test_an_operator_that_does_not_lead_counts_no_faulty_nodes() -> None:
    nodes: list[Any] = []
    view: Any = SimpleNamespace(leaves={}, nodes=SimpleNamespace(listen=nodes.append))
    controller = NodeHealthController(view, view, view, "fairlead-system")
    nodes[0](None, read_node(with_conditions({"type": "KernelDeadlock", "status": "True"})))
    assert set(controller.numbers().values()) == {0.0}
    faulty = Snapshot(nodes=(node(name="a"), node(name="b")), workloads=(), pods=())
    controller._record = NOTHING  # as after it has read the record
    assert [one.leaving is not None for one in controller.extend(faulty, 0.0).nodes] == [True, False]
    assert list(controller.numbers().values()) == [0.0, 1.0, 0.0]
    controller.rest()
    assert set(controller.numbers().values()) == {0.0}


def report(plane: ControlPlane, node: str, *conditions: dict[str, str]) -> None:
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    body = {"status": {"conditions": [{"lastTransitionTime": moment, **one} for one in conditions]}}
    plane.request("PATCH", f"/api/v1/nodes/{node}/status", body, kind="strategic-merge-patch+json")


@contextmanager
def reported(plane: ControlPlane, node: str, type_: str, bad: str = "True", **more: str) -> Iterator[None]:
    """A node with a condition of a detector, which is well again afterwards."""
    report(plane, node, {"type": type_, "status": bad, **more})
    try:
        yield
    finally:
        report(plane, node, {"type": type_, "status": {"True": "False", "False": "True"}[bad], "reason": "Well"})


def node_of_run(cluster: WorkloadApi, namespace: str) -> str:
    pods = cluster.client.items(f"/api/v1/namespaces/{namespace}/pods")
    (node,) = (pod["spec"]["nodeName"] for pod in pods if pod["status"].get("phase") == "Running")
    return str(node)


REPORTS = (
    {"type_": "KernelDeadlock"},
    {"type_": "GpuMemWatch", "message": "GPU 3: ECC"},
    {"type_": "AcceleratedHardwareReady", "bad": "False", "reason": "NvidiaXID79Error"},
    {"type_": "GPUMissing"},
    {"type_": "SmiEccProblem"},
)


@pytest.mark.slow
@pytest.mark.kubernetes
def test_a_run_leaves_a_node_of_which_any_detector_reports_a_fault_within_five_seconds(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, plane: ControlPlane
) -> None:
    cluster.submit(gang(namespace, nodes=1))
    with operating(access, namespace):
        comes_to(cluster, "train", Phase.RUNNING)
        for attempt, reports in enumerate(REPORTS, 1):
            node = node_of_run(cluster, namespace)
            at = time.time()
            with reported(plane, node, **reports):
                run = comes_to(cluster, "train", Phase.RUNNING, attempt=attempt)
                assert node_of_run(cluster, namespace) != node
                left = [event for event in cluster.events(run.uid) if event.type == "Stopping"][-1]
                assert left.at - at < 5.0, reports
                assert left.reason.code is Code.NODE_RECLAIMED
                assert reports["type_"] in left.reason.message
                assert "it saves within" in left.reason.message
        until(lambda: len(read_history(cluster.client, namespace)[0].histories) == 2)
        record = read_history(cluster.client, namespace)[0]
        events = cluster.client.items("/api/v1/namespaces/default/events")
    assert {one.cause for history in record.histories.values() for one in history.recent} == {
        FailureCause.SYSTEM, FailureCause.ECC, FailureCause.XID
    }  # fmt: skip
    assert all(history.failures <= 1.0 for history in record.histories.values()), "all at the same time are one failure"
    assert {event["reason"] for event in events if event["involvedObject"]["name"] in NODES} >= {"NodeFaulty"}


@pytest.mark.slow
@pytest.mark.kubernetes
def test_no_more_than_the_share_of_a_pool_is_left_at_once(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, plane: ControlPlane
) -> None:
    for name in ("one", "two"):
        cluster.submit(gang(namespace, name, nodes=1))
    with operating(access, namespace) as operator:
        for name in ("one", "two"):
            comes_to(cluster, name, Phase.RUNNING)
        with reported(plane, NODES[0], "KernelDeadlock"), reported(plane, NODES[1], "KernelDeadlock"):
            until(lambda: any(run.status.phase is Phase.PENDING for run in cluster.workloads()))
            time.sleep(2.0)  # for a second one, which must not come
            assert sorted(run.status.phase for run in cluster.workloads()) == [Phase.PENDING, Phase.RUNNING]
            numbers = operator.health.numbers()
            assert (numbers["fairlead_nodes_faulty"], numbers["fairlead_nodes_faulty_in_use"]) == (2.0, 1.0)
            (waiting,) = (run for run in cluster.workloads() if run.status.phase is Phase.PENDING)
        comes_to(cluster, waiting.spec.name, Phase.RUNNING, attempt=1)


@pytest.mark.slow
@pytest.mark.kubernetes
def test_a_failure_is_entered_once_whatever_befalls_the_operator(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.submit(gang(namespace, nodes=1))
    with operating(access, namespace):
        comes_to(cluster, "train", Phase.RUNNING)
    never = threading.Event()
    with monkeypatch.context() as patched:  # it is killed after the change of the run, and before its record is written
        patched.setattr(NodeHealthController, "_write", lambda _: never.wait(0))
        with operating(access, namespace):
            node = node_of_run(cluster, namespace)
            cluster.client.delete(f"/api/v1/namespaces/{namespace}/pods/train-0-0", {"gracePeriodSeconds": 0})
            comes_to(cluster, "train", Phase.RUNNING, attempt=1)
        with pytest.raises(ApiError, match="not found"):
            cluster.client.get(f"/api/v1/namespaces/{namespace}/configmaps/{NODE_HISTORY}")
    for _ in range(2):
        with operating(access, namespace):
            until(lambda: read_history(cluster.client, namespace)[0].histories)
        history = read_history(cluster.client, namespace)[0].histories[node]
        assert [(one.run, one.cause) for one in history.recent] == [("train", FailureCause.EVICTED)]
        assert history.failures == pytest.approx(1.0, abs=0.01)


@pytest.mark.slow
@pytest.mark.kubernetes
def test_a_node_is_taken_out_with_its_price_and_given_back_by_an_administrator(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_withdrawal, "MOST_SHARE", 0.5)  # of two nodes
    monkeypatch.setattr(node_withdrawal, "LEAST_FAILURES", 0.9)
    monkeypatch.setattr(node_withdrawal, "REPAIR_DAYS", 1e-9)
    cluster.submit(gang(namespace, nodes=1))
    with operating(access, namespace) as operator:
        comes_to(cluster, "train", Phase.RUNNING)
        node = node_of_run(cluster, namespace)
        with reported(plane, node, "KernelDeadlock"):
            comes_to(cluster, "train", Phase.RUNNING, attempt=1)
        until(lambda: operator.health.numbers()["fairlead_nodes_taken_out"] == 1.0)
        until(lambda: read_history(cluster.client, namespace)[0].histories[node].out is not None)
    outage = read_history(cluster.client, namespace)[0].histories[node].out
    assert outage is not None
    assert "it would cost" in outage.why
    monkeypatch.undo()
    with operating(access, namespace) as operator:
        until(lambda: operator.cluster.shown is not None)
        assert operator.cluster.shown is not None
        (shown,) = (one for one in operator.cluster.shown.nodes if one.name == node)
        assert (shown.closed or "").startswith("taken out: ")
        marks = {"annotations": {GIVEN_BACK: f"{time.time():.3f}"}}
        cluster.client.merge(f"/api/v1/nodes/{node}", {"metadata": marks})
        until(lambda: operator.health.numbers()["fairlead_nodes_taken_out"] == 0.0)
        until(lambda: read_history(cluster.client, namespace)[0].histories[node].was_out)


@pytest.mark.slow
@pytest.mark.kubernetes
def test_no_tenant_can_write_the_history_of_a_node_or_what_it_follows_from(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, plane: ControlPlane
) -> None:
    team = f"{namespace}-team"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": team}})
    plane.await_namespace(team)
    try:
        subject = {"kind": "ServiceAccount", "name": "member", "namespace": team}
        token = token_of(cluster.client, team, "member")
        applied(plane, render_binding(team, "admin", [subject]))
        member = Client(replace(access, credentials=FixedToken(token)))
        path = f"/apis/fairlead.dev/v1alpha1/namespaces/{team}/trainings"
        until(lambda: not list(member.items(path)))
        mine = WorkloadApi(member, namespace=team)
        mine.submit(gang(team, nodes=1))
        attempts: list[tuple[str, dict[str, Any]]] = [
            (f"/api/v1/namespaces/{namespace}/configmaps/{NODE_HISTORY}", {"data": {"history": "{}"}}),
            (f"/api/v1/nodes/{NODES[0]}", {"metadata": {"annotations": {GIVEN_BACK: "1"}}}),
            (f"/api/v1/nodes/{NODES[0]}/status", {"status": {"conditions": []}}),
            (f"/apis/fairlead.dev/v1alpha1/namespaces/{team}/trainings/train/status", {"status": {"state": {}}}),
        ]
        for path, body in attempts:
            with pytest.raises(ApiError) as refused:
                member.merge(path, body)
            assert refused.value.status == 403, path
    finally:
        plane.request("DELETE", f"/api/v1/namespaces/{team}")


@pytest.mark.slow
@pytest.mark.kubernetes
def test_an_administrator_cordons_a_node_with_a_reason_and_a_tenant_cannot(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    client, path = cluster.client, f"/api/v1/nodes/{NODES[1]}"
    cordon(client, NODES[1], "new cable")
    try:
        closed = node_of(read_node(client.get(path)), 0).closed
        assert closed == f"cordoned (`fairlead node uncordon {NODES[1]}` opens it): new cable"
    finally:
        uncordon(client, NODES[1])
    node = read_node(client.get(path))
    assert (node.cordoned, node.cordon_reason) == (False, "")
    assert node.given_back_at == pytest.approx(time.time(), abs=60)
    with pytest.raises(NotFound, match="fairlead nodes"):
        cordon(client, "no-such-node", "")
    with pytest.raises(NotFound):
        cordon(client, "../secrets", "")
    tenant = Client(replace(access, credentials=FixedToken(token_of(client, namespace, "somebody"))))
    with pytest.raises(NotAllowed, match="right to patch nodes"):
        uncordon(tenant, NODES[1])
