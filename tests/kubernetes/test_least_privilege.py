"""The operator asks for exactly what its roles grant: no right is unused, and no request is refused.

The API server's own audit log says so, of an operator that has the installed account's token and nothing else. Its run
is led through everything that makes a request; whoever adds a right to the roles adds here what makes use of it.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import Client, Limits
from fairlead.cluster.kubernetes.api.config import ClusterAccess, load_access
from fairlead.cluster.kubernetes.api.credentials import FixedToken
from fairlead.cluster.kubernetes.manifests.endpoints import render_team_routes, routes_name
from fairlead.cluster.kubernetes.manifests.gateway import render_gateway
from fairlead.cluster.kubernetes.manifests.install import InstallSettings, render_install
from fairlead.cluster.kubernetes.manifests.pods import PodSettings
from fairlead.cluster.kubernetes.manifests.roles import (
    API_GROUP,
    LEADER_RULES,
    OPERATOR,
    OPERATOR_AT_GATEWAY_RULES,
    OPERATOR_RULES,
    TEAM_RULES,
    render_metrics_reader,
)
from fairlead.cluster.kubernetes.manifests.runtime_bundle import bundle_name
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.names import AUTOSCALER_STATUS, GATEWAY_NAMESPACE, ROUTES
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.control.controllers import OperatorSettings
from fairlead.control.operator import Operator
from fairlead.errors import ClusterError
from fairlead.gateway.scrape_authorization import ScrapeAuthorizer
from fairlead.policy.kinds.retention import Retention
from fairlead.specs.formats.reading import parse
from fairlead.specs.pool import Hardware, Peak, Pool, PoolGpu
from fairlead.specs.team import Quota, Team
from fairlead.state.snapshot import Intent
from tests.kubernetes.audit import RESTRICTED, Asked, Right, requests, rights, token_of
from tests.kubernetes.clusters import started
from tests.kubernetes.loopback import Fault, FaultyProxy, Refuse, Say, serving
from tests.kubernetes.operating import await_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.binaries import source_of_module
from tests.kubernetes.testcluster.cluster_autoscaler import REQUESTS as PROVISIONING_REQUESTS
from tests.kubernetes.testcluster.cluster_autoscaler import ClusterAutoscaler, apply_kinds
from tests.kubernetes.testcluster.control_plane import POD_GROUPS, ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.waiting import until

pytestmark = pytest.mark.kubernetes

SYSTEM, TEAM = "fairlead-system", "careful"
RUNS = f"/apis/fairlead.dev/v1alpha1/namespaces/{TEAM}/trainings"
WORKSPACES = f"/apis/fairlead.dev/v1alpha1/namespaces/{TEAM}/workspaces"
SWEEPS = f"/apis/fairlead.dev/v1alpha1/namespaces/{TEAM}/sweeps"
PIPELINES = f"/apis/fairlead.dev/v1alpha1/namespaces/{TEAM}/pipelines"
SERVINGS = f"/apis/fairlead.dev/v1alpha1/namespaces/{TEAM}/servings"
REPLICAS = f"/apis/fairlead.dev/v1alpha1/namespaces/{TEAM}/replicas"
PODS = f"/api/v1/namespaces/{TEAM}/pods"
SET_UP = "set-up"
POOL = "/apis/fairlead.dev/v1alpha1/pools/a-pool"
TIMEOUT_S = 60.0
# Rights that the log shows no request for: an apply of what is not there asks for `create` beside its `patch`, and who
# gives a role to people is asked whether it may `bind` it.
APPLIED = (
    ("", "namespaces"),
    ("", "resourcequotas"),
    ("", "limitranges"),
    (API_GROUP, "rolebindings"),
    ("discovery.k8s.io", "endpointslices"),
    ("", "podtemplates"),
    ("autoscaling.x-k8s.io", "provisioningrequests"),
    ("autoscaling.x-k8s.io", "capacitybuffers"),
)
IMPLIED = {
    *(Right(group=group, resource=resource, verb="create") for group, resource in APPLIED),
    Right(group=API_GROUP, resource="clusterroles", verb="bind"),
    # Where a PodGroup of the name is there already, and where a gang goes on with fewer pods: test_pod_groups.py.
    Right(group="scheduling.k8s.io", resource="podgroups", verb="get"),
    Right(group="scheduling.k8s.io", resource="podgroups", verb="patch"),
}


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane of this module's own: its log holds the requests of one story."""
    with started(lambda: ControlPlane(audit=True, flags=POD_GROUPS), request) as plane:
        yield plane


@pytest.fixture(scope="module")
def asked(plane: ControlPlane) -> list[Asked]:
    """All that an operator asked for while everything happened to a run that makes it ask."""
    for each in render_install(InstallSettings(image="none", namespace=SYSTEM, gateways=1)):
        if each["kind"] != "Deployment":  # kwok would play its pods
            applied(plane, each)
    await_kinds(plane)
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": TEAM, "labels": RESTRICTED}})
    plane.await_namespace(TEAM)
    add_nodes(plane, 2)
    client = Client(load_access((plane.kubeconfig(),)))
    until(lambda: all(is_ready(node) for node in client.items("/api/v1/nodes")))
    a_run_from_its_first_pod_to_its_last(plane, client)
    a_workspace_with_a_home(plane, client)
    a_run_that_asks_for_nodes(plane, client)
    nodes_that_are_asked_for_without_pods(plane, client)
    a_team_from_its_namespace_to_its_last_bound(plane, client)
    a_run_that_is_not_kept(plane, client)
    a_sweep_that_is_not_kept(plane, client)
    an_endpoint_until_it_is_not_kept(plane, client)
    a_pipeline_that_runs_by_itself(plane, client)
    a_gateway_that_is_told_where_requests_go(plane, client)
    readers_of_its_metrics(plane, client)
    return list(requests(plane.audit_log, f"{SYSTEM}:{OPERATOR}"))


def a_run_from_its_first_pod_to_its_last(plane: ControlPlane, client: Client) -> None:
    """A run as `kubectl apply` makes it, so that the operator has to add what the command line would have."""
    spec: dict[str, Any] = {"run": "work", "nodes": 2, "image": "python:3.12", "retry": {"backoff": "0.1s"}}
    spec["resources"] = {"memory": "auto"}
    refused: list[str] = []

    def choose(method: str, path: str) -> Fault:
        """One conflict, after which the operator looks how the run is now; and logs, which no fake node has."""
        if "follow=true" in path:
            return Say("2026-11-21T14:00:00Z it ends\n")
        if method != "PATCH" or "/status" not in path or refused:
            return None
        refused.append(path)
        return Refuse(409, "Conflict")

    def phase() -> str:
        return str((client.get(f"{RUNS}/train").get("status") or {}).get("phase"))

    token = token_of(client, SYSTEM, OPERATOR)

    def attempt() -> int:
        return int(client.get(f"{RUNS}/train")["status"]["attempt"])

    with operating(plane, token, choose):
        client.create(RUNS, {
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "Training", "metadata": {"name": "train"}, "spec": spec,
        })  # fmt: skip
        until(lambda: phase() == "Running")
        until(lambda: "/log" in " ".join(path for path in paths_of(plane)))
        # A fake pod that is deleted is gone before a busy operator has asked for its last lines; this one is not.
        client.merge(f"{PODS}/train-0-1", {"metadata": {"annotations": {"fake/stop": "600s"}}})
        client.delete(f"{PODS}/train-0-1")
        until(lambda: any("fairlead-log-" in path for path in paths_of(plane)), "request to keep the last lines")
        client.delete(f"{PODS}/train-0-1", {"gracePeriodSeconds": 0})
        until(lambda: attempt() == 1 and phase() == "Running")
    # What nobody saw go is looked for by the next one.
    client.delete(f"{PODS}/train-1-0", {"gracePeriodSeconds": 0})
    with operating(plane, token, choose):
        until(lambda: attempt() == 2 and phase() == "Running")
        client.delete(f"{RUNS}/train")
        until(lambda: not list(client.items(RUNS)) and not list(client.items(PODS)))
    assert refused


def a_workspace_with_a_home(plane: ControlPlane, client: Client) -> None:
    """Workspaces, whose home the operator makes and does not remove; of two that are stopped one is kept."""
    refused: list[str] = []

    def choose(method: str, path: str) -> Fault:
        if method != "PATCH" or "/workspaces/" not in path or "/status" not in path or refused:
            return None
        refused.append(path)
        return Refuse(409, "Conflict")

    token, retention = token_of(client, SYSTEM, OPERATOR), Retention(last=1)
    with operating(plane, token, choose, keeps=retention, keep_s=0.5):
        for name in ("dev-1", "dev-2"):
            client.create(WORKSPACES, {
                "apiVersion": "fairlead.dev/v1alpha1", "kind": "Workspace", "metadata": {"name": name},
                "spec": {"image": "jupyter"},
            })  # fmt: skip
            until(lambda: list(client.items(PODS)))
            client.merge(f"{WORKSPACES}/{name}", {"metadata": {"annotations": {"fairlead.dev/intent": "stop"}}})
            until(lambda: not list(client.items(PODS)))
        until(lambda: [each["metadata"]["name"] for each in client.items(WORKSPACES)] == ["dev-2"])
        assert len(list(client.items(f"/api/v1/namespaces/{TEAM}/persistentvolumeclaims"))) == 2
        client.delete(f"{WORKSPACES}/dev-2")
        until(lambda: not list(client.items(WORKSPACES)))


def a_run_that_asks_for_nodes(plane: ControlPlane, client: Client) -> None:
    """A cluster whose autoscaler is there and brings nothing."""
    client.create("/api/v1/namespaces/kube-system/configmaps", {"metadata": {"name": AUTOSCALER_STATUS}})
    with operating(plane, token_of(client, SYSTEM, OPERATOR)):
        client.create(RUNS, {
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "Training", "metadata": {"name": "wide"},
            "spec": {"run": "work", "nodes": 3, "image": "python:3.12", "resources": {"gpu": 8}},
        })  # fmt: skip
        until(lambda: len(list(client.items(PODS))) == 3)
        until(lambda: any("events?" in path and "fieldSelector" in path for path in paths_of(plane)))
        client.delete(f"{RUNS}/wide")
        until(lambda: not list(client.items(RUNS)) and not list(client.items(PODS)))


def nodes_that_are_asked_for_without_pods(plane: ControlPlane, client: Client) -> None:
    """A run and a pool whose nodes an autoscaler is asked for by its own objects."""
    apply_kinds(plane, source_of_module("karpenter", "sigs.k8s.io/karpenter"), "pkg/apis/crds/*capacitybuffers.yaml")
    buffers = f"/apis/autoscaling.x-k8s.io/v1beta1/namespaces/{SYSTEM}/capacitybuffers"
    until(lambda: plane.serves(buffers))
    hardware = Hardware(cpu_milli=96_000, memory_bytes=2**39, gpu=PoolGpu(model="A100", count=8))
    always = {"now": Peak(at="* * * * *", nodes=1, for_s=3600.0)}
    pool = Pool(name="ahead", nodes=2, hardware=hardware, labels={"pool": "ahead"}, peaks=always)
    with (
        ClusterAutoscaler(plane, lambda _: [("Provisioned", "False", "no room")]) as autoscaler,
        operating(plane, token_of(client, SYSTEM, OPERATOR)),
    ):
        client.create(RUNS, {
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "Training", "metadata": {"name": "wide"},
            "spec": {"run": "work", "nodes": 3, "image": "python:3.12", "resources": {"gpu": 8}},
        })  # fmt: skip
        client.create("/apis/fairlead.dev/v1alpha1/pools", write_object(pool))
        until(lambda: bool(autoscaler.asked) and bool(list(client.items(buffers))))
        client.merge("/apis/fairlead.dev/v1alpha1/pools/ahead", {"spec": {"peaks": None}})
        people = WorkloadApi(client, namespace=TEAM)
        people.set_intent(people.named("wide", TEAM).uid, Intent.SUSPEND)
        until(lambda: not list(client.items(buffers)) and not list(client.items(PROVISIONING_REQUESTS)))
        client.delete("/apis/fairlead.dev/v1alpha1/pools/ahead")
        client.delete(f"{RUNS}/wide")
        until(lambda: not list(client.items(RUNS)) and not list(client.items(PODS)))


def a_run_that_is_not_kept(plane: ControlPlane, client: Client) -> None:
    """Of two runs of a name that end one is kept, which is enough."""
    kept = Retention(last=1)
    with operating(plane, token_of(client, SYSTEM, OPERATOR), keeps=kept, keep_s=0.5):
        for name in ("run-1", "run-2"):
            client.create(RUNS, {
                "apiVersion": "fairlead.dev/v1alpha1", "kind": "Training", "metadata": {"name": name},
                "spec": {"run": "work", "image": "python:3.12", "kubernetes": {
                    "metadata": {"annotations": {"fake/run": "300ms"}}
                }},
            })  # fmt: skip
            until(partial(_has_succeeded, client, name))
        until(lambda: [each["metadata"]["name"] for each in client.items(RUNS)] == ["run-2"])
    client.delete(f"{RUNS}/run-2")


def a_sweep_that_is_not_kept(plane: ControlPlane, client: Client) -> None:
    """Two sweeps as `kubectl apply` makes them, each with a trial, of which one is kept, then goes."""
    trial = {"run": "work", "image": "python:3.12", "kubernetes": {"metadata": {"annotations": {"fake/run": "300ms"}}}}
    kept = Retention(last=1)
    with operating(plane, token_of(client, SYSTEM, OPERATOR), keeps=kept, keep_s=0.5):
        for name in ("sweep-1", "sweep-2"):
            client.create(SWEEPS, {
                "apiVersion": "fairlead.dev/v1alpha1", "kind": "Sweep", "metadata": {"name": name},
                "spec": {"parameters": {"lr": "0.1 | 0.2"}, "trials": 1, "trial": trial},
            })  # fmt: skip
            until(partial(_has_succeeded, client, name, SWEEPS))
        until(lambda: [each["metadata"]["name"] for each in client.items(SWEEPS)] == ["sweep-2"])
        client.delete(f"{SWEEPS}/sweep-2")
        until(lambda: not list(client.items(SWEEPS)) and not list(client.items(RUNS)))


def an_endpoint_until_it_is_not_kept(plane: ControlPlane, client: Client) -> None:
    """Two endpoints as `kubectl apply` makes them, one of which finds its Service there; one is kept once stopped."""
    refused: list[str] = []

    def choose(method: str, path: str) -> Fault:
        """A conflict, after which the operator looks how the replica is now."""
        if method != "PATCH" or "/replicas/" not in path or "/status" not in path or refused:
            return None
        refused.append(path)
        return Refuse(409, "Conflict")

    labels = {"app.kubernetes.io/managed-by": "fairlead"}
    client.create(f"/api/v1/namespaces/{TEAM}/services", {
        "metadata": {"name": "serve-web-1", "labels": labels}, "spec": {"ports": [{"port": 80}]},
    })  # fmt: skip

    def phase(name: str) -> str:
        return str((client.get(f"{SERVINGS}/{name}").get("status") or {}).get("phase"))

    kept = Retention(last=1)
    with operating(plane, token_of(client, SYSTEM, OPERATOR), choose, keeps=kept, keep_s=0.5):
        for name in ("web-1", "web-2"):
            client.create(SERVINGS, {
                "apiVersion": "fairlead.dev/v1alpha1", "kind": "Serving", "metadata": {"name": name},
                "spec": {
                    "run": "serve", "image": "python:3.12", "replicas": 2,
                    "resources": {"cpu": "100m", "memory": "64Mi"},
                },
            })  # fmt: skip
            budget = f"/apis/policy/v1/namespaces/{TEAM}/poddisruptionbudgets/serve-{name}"
            until(partial(lambda name: phase(name) == "Running", name))
            until(partial(plane.exists, budget))
            client.merge(f"{SERVINGS}/{name}", {"spec": {"replicas": 3}})
            until(partial(lambda path: client.get(path)["spec"]["minAvailable"] == 2, budget))
            until(partial(lambda name: plane.exists(f"/api/v1/namespaces/{TEAM}/services/serve-{name}"), name))
            client.merge(f"{SERVINGS}/{name}", {"metadata": {"annotations": {"fairlead.dev/intent": "stop"}}})
            until(partial(lambda name: phase(name) == "Stopped", name))
            until(partial(lambda path: not plane.exists(path), budget))
        until(lambda: [each["metadata"]["name"] for each in client.items(SERVINGS)] == ["web-2"])
        client.delete(f"{SERVINGS}/web-2")
        until(lambda: not list(client.items(SERVINGS)) and not list(client.items(REPLICAS)))
    assert refused


def a_pipeline_that_runs_by_itself(plane: ControlPlane, client: Client) -> None:
    """One whose data changes, and whose only step is a sweep; its pods say what theirs would."""
    claims, modes, size = f"/api/v1/namespaces/{TEAM}/persistentvolumeclaims", ["ReadWriteMany"], {"storage": "1Gi"}
    client.create("/api/v1/persistentvolumes", {"metadata": {"name": "team"}, "spec": {
        "nfs": {"server": "files.example", "path": "/"}, "accessModes": modes, "capacity": size,
        "storageClassName": "", "claimRef": {"namespace": TEAM, "name": "team"},
    }})  # fmt: skip
    client.create(claims, {"metadata": {"name": "team"}, "spec": {
        "accessModes": modes, "resources": {"requests": size}, "storageClassName": "", "volumeName": "team",
    }})  # fmt: skip
    (spec,) = parse(
        f"kind: Pipeline\nname: churn\nteam: {TEAM}\nimage: python:3.12\ncheckpoint: /team/runs\n"
        "on: {data: [/team/raw], every: 1s}\n"
        "kubernetes: {spec: {volumes: [{name: team, persistentVolumeClaim: {claimName: team}}], "
        "containers: [{name: ranks, volumeMounts: [{name: team, mountPath: /team}]}]}}\n"
        "steps: {tune: {sweep: {parameters: {lr: 0.1 | 0.2}, trials: 1, trial: {run: work}}}}\n"
    )
    looks: list[str] = []

    def choose(method: str, path: str) -> Fault:
        """Two looks at data, the second of which finds others; then a driver that asks for its step."""
        if "/log" not in path or "fairlead-reporter" not in path:
            return None
        said: dict[str, Any] = {"updated_at": time.time()}
        if "-watch-" in path:
            looks.append(path)
            said["seen"] = "old" if len(looks) == 1 else "new"
        elif "-driver-" in path:
            said["asks"] = [["tune", None, None]]
        return Say(json.dumps({"form": 1, "progress": said}))

    with operating(plane, token_of(client, SYSTEM, OPERATOR), choose):
        client.create(PIPELINES, write_object(spec))
        until(lambda: any(each["metadata"]["name"] == "churn-1-tune" for each in client.items(SWEEPS)), timeout_s=120)
        client.delete(f"{PIPELINES}/churn")
        until(lambda: not list(client.items(PIPELINES)) and not list(client.items(RUNS)), timeout_s=120)


def a_gateway_that_is_told_where_requests_go(plane: ControlPlane, client: Client) -> None:
    """A gateway as its Deployment makes it."""
    (deployment,) = (each for each in render_gateway("none", SYSTEM, 65532) if each["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    body = {"metadata": {**template["metadata"], "name": "gateway-1"}, "spec": template["spec"]}
    client.create(f"/api/v1/namespaces/{GATEWAY_NAMESPACE}/pods", body)
    place = f"/api/v1/namespaces/{GATEWAY_NAMESPACE}/configmaps"
    client.create(place, render_team_routes("gone", {}))  # what an operator before has left
    with operating(plane, token_of(client, SYSTEM, OPERATOR)):
        until(lambda: plane.exists(f"{place}/{ROUTES}") and not plane.exists(f"{place}/{routes_name('gone')}"))


def readers_of_its_metrics(plane: ControlPlane, client: Client) -> None:
    """An account that may read them, one that may not, and somebody without an account."""
    of_operator = ClusterAccess(
        context="itself", server=plane.url, credentials=FixedToken(token_of(client, SYSTEM, OPERATOR)),
        ca=(plane.home / "ca.pem").read_bytes(),
    )  # fmt: skip
    judge = ScrapeAuthorizer(Client(of_operator).create, (ClusterError,))
    applied(plane, render_metrics_reader("prometheus", SYSTEM))
    reader, other = (token_of(client, SYSTEM, name) for name in ("prometheus", "somebody"))
    assert [judge(f"Bearer {token}") for token in (reader, other, "x")] == [200, 403, 401]
    assert judge(None) == judge("Basic eDp5") == 401


def _has_succeeded(client: Client, name: str, place: str = RUNS) -> bool:
    return (client.get(f"{place}/{name}").get("status") or {}).get("phase") == "Succeeded"


def a_team_from_its_namespace_to_its_last_bound(plane: ControlPlane, client: Client) -> None:
    """A team that is made, changed by somebody who should not, and then unbounded; and a pool, which means nothing."""
    team = Team(name=SET_UP, quota=Quota(cpu_milli=64_000))
    pool = Pool(name="a-pool", hardware=Hardware(cpu_milli=1000, memory_bytes=2**30))
    with operating(plane, token_of(client, SYSTEM, OPERATOR)):
        for plural, spec in (("teams", team), ("pools", pool)):
            client.create(f"/apis/fairlead.dev/v1alpha1/{plural}", write_object(spec))

        def says(plural: str, name: str, condition: str) -> bool:
            status = client.get(f"/apis/fairlead.dev/v1alpha1/{plural}/{name}").get("status") or {}
            return any(each["type"] == condition for each in status.get("conditions") or ())

        until(lambda: says("teams", SET_UP, "Ready") and bool(client.get(POOL).get("status")))
        quotas = f"/api/v1/namespaces/{SET_UP}/resourcequotas"
        until(lambda: len(list(client.items(quotas))) == 2)
        client.merge(f"/apis/fairlead.dev/v1alpha1/teams/{SET_UP}", {"spec": {"quota": None}})
        until(lambda: len(list(client.items(quotas))) == 1)


def paths_of(plane: ControlPlane) -> list[str]:
    return [each.uri for each in requests(plane.audit_log, f"{SYSTEM}:{OPERATOR}")]


@contextmanager
def operating(
    plane: ControlPlane,
    token: str,
    choose: Callable[[str, str], Fault] = lambda _method, _path: None,
    **given: Any,
) -> Iterator[None]:
    """An operator with the token of the installed account, behind a proxy; ``given`` are settings of it."""
    proxy = FaultyProxy(plane.url, choose, ca=(plane.home / "ca.pem").read_bytes())
    with serving(proxy.handler()) as url:
        access = ClusterAccess(context="proxy", server=url, credentials=FixedToken(token))
        settings = OperatorSettings(namespace=SYSTEM, grow_patience_s=6.0, **given)
        operator = Operator(Client(access, Limits(patience_s=8.0)), PodSettings(runtime=bundle_name()), settings)
        thread = threading.Thread(target=operator.run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            operator.stop()
            operator.view.wake()
            thread.join(timeout=20)
            assert not thread.is_alive()


@pytest.mark.slow
def test_no_request_of_the_operator_is_refused(asked: list[Asked]) -> None:
    assert [each for each in asked if not each.allowed] == []


def test_the_operator_uses_every_right_that_its_roles_grant_and_asks_for_no_other(asked: list[Asked]) -> None:
    granted = rights((*OPERATOR_RULES, *TEAM_RULES, *LEADER_RULES, *OPERATOR_AT_GATEWAY_RULES))
    assert {each.right for each in asked} == granted - IMPLIED


@pytest.mark.slow
def test_the_operator_writes_into_no_namespace_but_those_of_runs_and_its_own(asked: list[Asked]) -> None:
    writes = {each.uri.split("?")[0] for each in asked if each.right.verb not in ("get", "list", "watch")}
    assert writes
    own = (
        f"/namespaces/{SYSTEM}/leases",
        f"/namespaces/{SYSTEM}/podtemplates",
        f"/namespaces/{SYSTEM}/configmaps",  # the history of nodes
        f"/namespaces/{SYSTEM}/capacitybuffers",
        f"/namespaces/{GATEWAY_NAMESPACE}/configmaps/{ROUTES}",
        f"/api/v1/namespaces/{SET_UP}",
        "/api/v1/namespaces/default/events",
        "/apis/authentication.k8s.io/v1/tokenreviews",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
    )
    kinds = "/apis/fairlead.dev/v1alpha1/teams/", "/apis/fairlead.dev/v1alpha1/pools/"
    for uri in writes:
        assert (
            f"/namespaces/{TEAM}/" in uri
            or f"/namespaces/{SET_UP}/" in uri
            or uri.startswith(kinds)
            or any(place in uri for place in own)
        ), uri
