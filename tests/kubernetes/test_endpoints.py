"""The objects of an endpoint and of its replicas: address, probe, time to leave, and who may ask."""

from dataclasses import replace

import pytest

from fairlead.cluster.kubernetes.api.objects import read_pod
from fairlead.cluster.kubernetes.informers.pod_status import observe_pod
from fairlead.cluster.kubernetes.manifests.endpoints import endpoint_url, render_backends, render_endpoint
from fairlead.cluster.kubernetes.manifests.network_policies import render_run_policy
from fairlead.cluster.kubernetes.manifests.pods import PodSettings, render_pod
from fairlead.cluster.kubernetes.manifests.spec_objects import read_object, write_object
from fairlead.cluster.preflight import gateway_problem, pod_model_problem
from fairlead.specs.serving import Access, Canary, CanaryMetric, Replica, Routing, Serving
from fairlead.state.snapshot import Grant, PodPhase, Workload
from tests.kubernetes.builders import a_creation, a_workload

SERVING = Serving(name="web", team="research", run="serve", probe="/health?deep=1", grace_s=20)
REPLICA = replace(SERVING.replica("r3"), name="web-r3-7")


def a_pod(*, ready: str, kind: str = "Replica", **metadata: str) -> dict[str, object]:
    owner = {"apiVersion": "fairlead.dev/v1alpha1", "kind": kind, "name": "web-r3-7", "uid": "u", "controller": True}
    return {
        "metadata": {
            "name": "web-r3-7-0-0", "namespace": "research", "uid": "p", "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": [owner],
            "labels": {"fairlead.dev/attempt": "0", "fairlead.dev/index": "0"}, **metadata,
        },
        "spec": {"nodeName": "a", "containers": [{"name": "ranks"}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [{"name": "ranks", "state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}}}],
        },
    }  # fmt: skip


def test_a_replica_reads_back_as_it_was_written() -> None:
    assert read_object(write_object(REPLICA)) == REPLICA


def test_an_endpoint_reads_back_as_it_was_written() -> None:
    canary = Canary(steps=(0.05, 0.25), errors=0.2, latency_s=0.25, metric=CanaryMetric(header="X-Score", below=0.5))
    access = Access(teams=("search",), requests_per_minute=600)
    spec = replace(SERVING, replicas=0, most_replicas=8, canary=canary, access=access, max_concurrency=4)
    assert read_object(write_object(spec)) == spec


def test_the_pod_of_a_replica_has_the_probe_of_its_endpoint_and_time_to_leave_the_lists() -> None:
    pod = render_pod(a_workload(REPLICA), a_creation(grant=Grant(cpu_milli=100)), PodSettings(runtime="r"))
    (ranks,) = pod["spec"]["containers"]
    assert ranks["readinessProbe"]["httpGet"] == {"path": "/health?deep=1", "port": 29500}
    assert ranks["ports"] == [{"name": "http", "containerPort": 29500}]
    assert "time.sleep(3)" in ranks["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 20 + 3 + 10


@pytest.mark.parametrize(
    ("ready", "kind", "metadata", "expected"),
    [
        ("True", "Replica", {}, True),
        ("False", "Replica", {}, False),
        ("True", "Training", {}, False),
        ("True", "Replica", {"deletionTimestamp": "2026-01-01T00:01:00Z"}, False),
    ],
)
def test_a_replica_is_ready_while_kubelet_says_so_and_nobody_has_told_it_to_go(
    ready: str, kind: str, metadata: dict[str, str], expected: bool
) -> None:
    pod = read_pod(a_pod(ready=ready, kind=kind, **metadata))
    seen = observe_pod(pod, a_creation(), ranks=range(1), told_at=None, node=None, gone=False)
    # Its node is not there, so that it is lost whatever it says.
    assert (seen.phase, seen.ready) == (PodPhase.LOST, False)
    bound = replace(pod, node="")
    assert observe_pod(bound, a_creation(), ranks=range(1), told_at=None, node=None, gone=False).ready is expected
    assert not observe_pod(bound, a_creation(), ranks=range(1), told_at=1.0, node=None, gone=False).ready


def test_an_endpoint_has_one_address_and_behind_it_those_that_serve() -> None:
    there = a_workload(REPLICA)
    endpoint = Workload(
        uid="e", spec=SERVING, intent=there.intent, status=there.status, version=1, created_at=there.created_at
    )
    service = render_endpoint(endpoint)
    assert endpoint_url(SERVING) == "http://serve-web.research.svc/"
    assert service["metadata"]["name"] == "serve-web"
    assert "selector" not in service["spec"]
    (port,) = service["spec"]["ports"]
    backends = render_backends(endpoint, {"web-r3-7-0-0": "10.0.0.1"}, "IPv4")
    assert backends["metadata"]["labels"]["kubernetes.io/service-name"] == "serve-web"
    assert [each["addresses"] for each in backends["endpoints"]] == [["10.0.0.1"]]
    assert backends["ports"] == [{"name": port["name"], "port": 29500, "protocol": "TCP"}]
    assert render_backends(endpoint, {}, "IPv4")["endpoints"] == []


def test_pods_of_all_namespaces_may_ask_a_replica_and_reach_nothing_else_of_it() -> None:
    _, asked = render_run_policy(a_workload(REPLICA))["spec"]["ingress"]
    assert asked == {"from": [{"namespaceSelector": {}}], "ports": [{"port": 29500, "protocol": "TCP"}]}


def test_only_gateways_may_ask_a_replica_of_an_endpoint_with_keys() -> None:
    replica = replace(SERVING, access=Access()).replica("r3")
    _, asked = render_run_policy(a_workload(replace(replica, name="web-r3-7")))["spec"]["ingress"]
    assert asked["from"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "fairlead-gateway"}}}
    ]


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        (replace(SERVING, replicas=0, most_replicas=8), "replicas"),
        (replace(SERVING, canary=Canary()), "canary"),
        (replace(SERVING, access=Access()), "access"),
        (replace(SERVING, timeout_s=5), "timeout"),
        (replace(SERVING, max_concurrency=2), "max_concurrency"),
        (replace(SERVING, max_queue=2), "max_queue"),
        (replace(SERVING, idempotent=True), "idempotent"),
        (replace(SERVING, routing=Routing.PREFIX), "routing"),
    ],
)
def test_what_only_a_gateway_does_is_a_problem_where_there_is_none(spec: Serving, key: str) -> None:
    problem = gateway_problem(spec) or ""
    assert problem.startswith(f"{key}: ")
    assert "there is none on this cluster; `fairlead install --gateways 2` adds some" in problem
    assert gateway_problem(SERVING) is None


def test_a_predictor_has_a_queue_of_its_own_without_a_gateway() -> None:
    assert gateway_problem(Serving(name="web", predictor="predict:Echo", max_queue=2)) is None


@pytest.mark.parametrize(
    ("model", "is_fine"),
    [
        ("", True),
        ("/models/a", True),
        ("models/a", True),
        ("s3://bucket/model", True),
        ("run://train@best", False),
        ("churn@production", False),
    ],
)
def test_a_model_is_one_that_pods_can_have(model: str, is_fine: bool) -> None:
    problem = pod_model_problem(Replica(run="serve", model_path=model))
    assert (problem is None) is is_fine
