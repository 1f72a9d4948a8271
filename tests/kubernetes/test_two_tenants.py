"""Two tenants and an administrator on a real API server: what one tenant tries against the other has no effect.

Each row of the tables is an attempt of a real user, whose roles are those that a Team gives, with what comes of it: the
API server refuses it, or the object is there and changes nothing outside its own namespace. One operator watches all of
it. The other tenant's runs, endpoint and objects are compared whole before and after.
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess, load_access
from fairlead.cluster.kubernetes.client.published_costs import day_of, read_published
from fairlead.cluster.kubernetes.informers import informers
from fairlead.cluster.kubernetes.kinds import kept_kinds, objects_path, workload_kinds
from fairlead.cluster.kubernetes.manifests.install import InstallSettings, render_install
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.manifests.team_views import NAME as VIEW
from fairlead.cluster.kubernetes.manifests.team_views import read_view
from fairlead.cluster.kubernetes.manifests.teams import OBJECT_COUNTS
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.cluster.ledger_tables import CostGrouping
from fairlead.cluster.records import plain
from fairlead.control.operator import Operator
from fairlead.policy.placement.node_eligibility import PRICE_LABEL
from fairlead.runtime.reporting import FORM
from fairlead.specs.keys import API_VERSION
from fairlead.specs.team import Quota, Team
from fairlead.state.snapshot import Phase
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import GPUS, HARMLESS, await_kinds, comes_to, gang, operating
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

SYSTEM, ALPHA, BETA = "fairlead-system", "alpha", "beta"
USER, ADMIN, VIEWER, OTHER = "ann", "ada", "vic", "ben"
"""A member of the first team, its administrator with the role `edit` of Kubernetes, and its viewer; a member of the
second team."""
RBAC, MERGE = "rbac.authorization.k8s.io", "merge-patch+json"
DOLLARS = 36.0  # an hour of a node: a cent a second
MOST_START_S = 10.0
BRACKETS = "[" * 100_000
STAYS = "example.com/stay"
"""A finalizer by which an object stays although its owner is not there."""
Object = dict[str, Any]
Row = tuple[str, str, Object | None]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A request of a user.

    Attributes:
        refusal: A part of what the API server says against it; empty if the object is to be there.
    """

    who: str
    method: str
    path: str
    body: Object | list[Object] | None = None
    kind: str = "json"
    refusal: str = "403 "

    def __str__(self) -> str:
        return f"{self.who} {self.method} {self.path} {json.dumps(self.body)[:200]}"


@dataclass(frozen=True, kw_only=True)
class World:
    """A cluster with an operator, two teams, and what the second one has: a run, an endpoint and a sweep."""

    plane: ControlPlane
    access: ClusterAccess
    operator: Operator
    port: int
    uids: dict[str, str]

    def answer(self, attempt: Attempt) -> str:
        """Return what the API server says against a request; nothing if it does as it is asked."""
        try:
            self.plane.request(attempt.method, attempt.path, attempt.body, user=attempt.who, kind=attempt.kind)
        except urllib.error.HTTPError as error:
            return f"{error.code} {json.load(error)['message']}"
        return ""

    def make(self, attempts: Iterable[Attempt]) -> int:
        """Make the attempts, of which each comes out as its row says; return their number."""
        rows = list(attempts)
        wrong = []
        for attempt in rows:
            answer = self.answer(attempt)
            if (attempt.refusal not in answer) if attempt.refusal else bool(answer):
                wrong.append(f"{attempt}: {answer[:500] or 'no refusal'}")
        assert not wrong, "\n".join(wrong)
        return len(rows)

    def of_beta(self) -> Object:
        """Return all that the second team has, without what changes by itself."""
        listed: Object = {}
        for path in (
            *(f"/api/v1/namespaces/{BETA}/{each}" for each in (
                "pods", "services", "configmaps", "secrets", "resourcequotas", "limitranges", "events",
            )),
            *(objects_path(kind, BETA) for kind in kept_kinds() if kind not in ("Team", "Pool")),
            f"/apis/networking.k8s.io/v1/namespaces/{BETA}/networkpolicies",
            f"/apis/discovery.k8s.io/v1/namespaces/{BETA}/endpointslices",
            f"/apis/{RBAC}/v1/namespaces/{BETA}/rolebindings",
            f"/apis/policy/v1/namespaces/{BETA}/poddisruptionbudgets",
            f"/api/v1/namespaces/{names.GATEWAY_NAMESPACE}/configmaps",
        ):  # fmt: skip
            for item in self.plane.request("GET", path)["items"]:
                content = essence(item)
                # Of the gateways' objects only the part of the second team counts.
                if content is not None and (names.GATEWAY_NAMESPACE not in path or BETA in item["metadata"]["name"]):
                    listed[f"{path}/{item['metadata']['name']}"] = content
        listed["namespace"] = self.plane.request("GET", f"/api/v1/namespaces/{BETA}")["metadata"]["labels"]
        return listed

    def settled(self, name: str) -> float:
        """Return after how many seconds a run of the second team ran, by which time all before it has been seen."""
        theirs, began = WorkloadApi(Client(self.access), namespace=BETA), time.monotonic()
        theirs.submit(gang(BETA, name, nodes=1, gpus=0, run="300ms"))
        until(lambda: theirs.named(name, BETA).status.phase in (Phase.RUNNING, Phase.SUCCEEDED))
        took_s = time.monotonic() - began
        until(lambda: theirs.named(name, BETA).status.phase is Phase.SUCCEEDED)
        self.plane.request("DELETE", objects_path("Training", BETA, name))
        until(lambda: not self.plane.exists(objects_path("Training", BETA, name)))
        return took_s

    def is_healthy(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=10) as ready:
            is_ok = ready.status == 200
        return is_ok and not self.operator.view.isolation.failing and self.operator.election.is_leader

    def conditions(self, path: str) -> dict[str, str]:
        status = self.plane.request("GET", path).get("status") or {}
        return {each["type"]: each.get("reason", "") for each in status.get("conditions") or ()}

    def reasons(self, namespace: str) -> dict[str, set[str]]:
        """Return the reasons of the Events of a namespace by the objects that they are about."""
        reasons: dict[str, set[str]] = {}
        for event in self.plane.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]:
            reasons.setdefault(event["involvedObject"]["name"], set()).add(event["reason"])
        return reasons


def essence(item: Object) -> Object | None:
    """Return what of an object somebody else could have changed; None for one that Fairlead renews by itself."""
    metadata, status = item["metadata"], item.get("status") or {}
    if (
        metadata["name"] in (VIEW, OBJECT_COUNTS)
        or metadata["name"].startswith("fairlead-cost-")
        or "settled" in json.dumps(item)
    ):
        return None
    about = {key: metadata.get(key) for key in ("uid", "labels", "ownerReferences", "finalizers", "deletionTimestamp")}
    about["annotations"] = {
        key: value for key, value in (metadata.get("annotations") or {}).items() if key.startswith("fairlead.dev/")
    }
    rest = {key: value for key, value in item.items() if key not in ("metadata", "status", "count", "lastTimestamp")}
    whose = {key: status.get(key) for key in ("phase", "podIP", "reason", "message", "attempt", "hard")}
    conditions = [(each["type"], each["status"], each.get("reason")) for each in status.get("conditions") or ()]
    return {"metadata": about, "status": whose, "conditions": conditions, **rest}


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    users = {
        USER: [f"fairlead:{ALPHA}:user"], ADMIN: [f"fairlead:{ALPHA}:admin"], VIEWER: [f"fairlead:{ALPHA}:viewer"],
        OTHER: [f"fairlead:{BETA}:user"],
    }  # fmt: skip
    ledger, port = str(tmp_path_factory.mktemp("ledger") / "ledger.db"), free_port()
    with started(lambda: ControlPlane(users=users), request) as plane:
        for each in render_install(InstallSettings(image="none", namespace=SYSTEM, gateways=1)):
            if each["kind"] != "Deployment":  # kwok would play its pods
                applied(plane, each)
        await_kinds(plane)
        add_nodes(plane, 2, gpus=GPUS, labels={PRICE_LABEL: str(DOLLARS)})
        until(lambda: all(is_ready(node) for node in plane.request("GET", "/api/v1/nodes")["items"]))
        access = load_access((plane.kubeconfig(),))
        settings: Object = {"listen": ("127.0.0.1", port), "ledger": ledger, "costs_s": 1.0, "views_s": 0.5}
        with operating(access, SYSTEM, watch_namespace=None, **settings) as operator:
            for name in (ALPHA, BETA):
                team = Team(name=name, quota=Quota(cpu_milli=80_000, gpu_milli=2 * GPUS * 1000))
                plane.request("POST", objects_path("Team"), write_object(team))
                until(lambda name=name: plane.exists(f"/api/v1/namespaces/{name}"))  # type: ignore[misc]
                plane.await_namespace(name)
            applied(plane, a_binding("edit", "ClusterRole", "edit", ADMIN))
            world = World(plane=plane, access=access, operator=operator, port=port, uids={})
            set_up(world)
            yield world


def set_up(world: World) -> None:
    """Let the second team have a run on two nodes, an endpoint, a sweep, a Secret and keys."""
    plane, spec = world.plane, {"cpu": "100m", "memory": "64Mi"}
    until(lambda: world.answer(Attempt(who=OTHER, method="GET", path=objects_path("Training", BETA))) == "")
    until(lambda: world.answer(Attempt(who=USER, method="GET", path=objects_path("Training", ALPHA))) == "")
    theirs: tuple[Object, ...] = (
        write_object(gang(BETA, "train", nodes=2, gpus=2)),
        a_workload("Serving", "web", run="serve", replicas=1, image="python:3.12", resources=spec),
        a_workload(
            "Sweep", "rates", trials=1, parameters={"lr": "0.1 | 0.2"},
            trial={"run": "work", "image": "python:3.12", "resources": spec},
        ),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}, "data": {"a": "b"}},
    )  # fmt: skip
    for content in theirs:
        kind = str(content["kind"])
        path = objects_path(kind, BETA) if kind != "ConfigMap" else core("configmaps", BETA)
        assert world.answer(Attempt(who=OTHER, method="POST", path=path, body=content)) == ""
    for namespace in (ALPHA, BETA):
        secret = {"metadata": {"name": "db"}, "stringData": {"password": "theirs"}}
        plane.request("POST", core("secrets", namespace), secret)

    def phases() -> list[str]:
        paths = [objects_path(*each) for each in (("Training", BETA, "train"), ("Serving", BETA, "web"))]
        status = [plane.request("GET", path).get("status") or {} for path in paths]
        trials = [each.get("status") or {} for each in plane.request("GET", objects_path("Training", BETA))["items"]]
        return [str(each.get("phase")) for each in (*status, *trials)]

    until(lambda: phases() == ["Running"] * 4, phases)
    until(lambda: plane.exists(f"{core('configmaps', BETA)}/{VIEW}"))
    for kind, name in (("Training", "train"), ("Serving", "web"), ("Sweep", "rates"), ("Training", "rates-0")):
        world.uids[name] = plane.request("GET", objects_path(kind, BETA, name))["metadata"]["uid"]
    world.settled("settled-first")


def core(resource: str, namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/{resource}{f'/{name}' if name else ''}"


def a_workload(kind: str, name: str, *, metadata: Object | None = None, **spec: Any) -> Object:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, **(metadata or {})}, "spec": spec}


def a_training(name: str, *, metadata: Object | None = None, **spec: Any) -> Object:
    content = {"run": "work", "image": "python:3.12", "resources": {"cpu": "100m", "memory": "64Mi"}, **spec}
    return a_workload("Training", name, metadata=metadata, **content)


def a_binding(name: str, kind: str, role: str, user: str, namespace: str = ALPHA) -> Object:
    return {
        "apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }  # fmt: skip


def owner(kind: str, name: str, uid: str, api: str = API_VERSION) -> list[Object]:
    return [{"apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": True}]


def a_pod(name: str, *, owners: list[Object] | None = None, annotations: Object | None = None, **more: Any) -> Object:
    """A pod that stays although its owner is elsewhere, with labels of the domain of Fairlead."""
    labels = more.pop("labels", {})
    about = {"name": name, "labels": labels, "annotations": annotations or {}, "finalizers": [STAYS]}
    container = {"name": "ranks", "image": "python:3.12", "securityContext": HARMLESS}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {**about, "ownerReferences": owners or []},
        "spec": {"containers": [container], **more},
    }  # fmt: skip


@pytest.fixture
def unharmed(world: World) -> Iterator[World]:
    """The world, of which the second team's part is the same after the test, and the operator in order."""
    before = world.of_beta()
    yield world
    took_s = world.settled("settled-now")
    after = world.of_beta()
    clear(world)
    differing = [key for key in before | after if before.get(key) != after.get(key)]
    assert not differing, [(key, before.get(key), after.get(key)) for key in differing]
    assert took_s < MOST_START_S
    until(world.is_healthy, "an operator that is in order")


def clear(world: World) -> None:
    """Delete the pods and workloads of the first team, while the operator is there to let them go."""
    paths = [core("pods", ALPHA), *(objects_path(kind, ALPHA) for kind in workload_kinds())]

    def left() -> list[str]:
        listed = []
        for path in reversed(paths):
            for item in world.plane.request("GET", path)["items"]:
                one, finalizers = f"{path}/{item['metadata']['name']}", item["metadata"].get("finalizers") or ()
                listed.append(one)
                with suppress(urllib.error.HTTPError):
                    if STAYS in finalizers:
                        others = {"metadata": {"finalizers": [each for each in finalizers if each != STAYS]}}
                        world.plane.request("PATCH", one, others, kind=MERGE)
                    if "deletionTimestamp" not in item["metadata"]:
                        world.plane.request("DELETE", one)
        return listed

    until(lambda: not left(), left)


def elsewhere(world: World) -> Iterator[Attempt]:
    """Requests to the other team's namespace, and to what is nobody's, by each of the people of the first team."""
    pods = [each["metadata"]["name"] for each in world.plane.request("GET", core("pods", BETA))["items"]]
    train, gateway = objects_path("Training", BETA, "train"), names.GATEWAY_NAMESPACE
    stop = {"metadata": {"annotations": {"fairlead.dev/intent": "stop"}}}
    for who in (USER, ADMIN, VIEWER):
        for path in (
            *(objects_path(kind, BETA) for kind in ("Training", "Serving", "Replica", "Sweep", "Pipeline")),
            *(objects_path(kind) for kind in kept_kinds()),
            *(core(each, BETA) for each in ("pods", "events", "secrets", "configmaps", "persistentvolumeclaims")),
            *(f"{core('pods', BETA, pods[0])}/{each}" for each in ("log", "status", "exec?command=id&stdout=true")),
            core("configmaps", BETA, VIEW), core("configmaps", BETA, "theirs"), core("secrets", BETA, "db"),
            core("configmaps", BETA, names.ACCESS_KEYS), core("configmaps", gateway), core("configmaps", SYSTEM),
            core("configmaps", SYSTEM, names.NODE_HISTORY), core("secrets", SYSTEM), "/api/v1/nodes", "/api/v1/pods",
            f"/apis/metrics.k8s.io/v1beta1/namespaces/{BETA}/pods", "/metrics",
            f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases", core("pods", SYSTEM),
        ):  # fmt: skip
            yield Attempt(who=who, method="GET", path=path)
        rows: tuple[Row, ...] = (
            ("POST", objects_path("Training", BETA), a_training("mine")),
            ("POST", core("pods", BETA), a_pod("mine")),
            ("POST", core("configmaps", BETA), {"metadata": {"name": "mine"}}),
            ("POST", f"{core('pods', BETA, pods[0])}/eviction", {"metadata": {"name": pods[0]}}),
            ("POST", f"{core('serviceaccounts', BETA, 'default')}/token", {"spec": {}}),
            ("POST", f"{core('serviceaccounts', SYSTEM, 'fairlead-operator')}/token", {"spec": {}}),
            ("POST", f"/apis/{RBAC}/v1/namespaces/{BETA}/rolebindings",
             a_binding("mine", "ClusterRole", "edit", who, BETA)),
            ("POST", core("configmaps", gateway), {"metadata": {"name": names.ROUTES}}),
            ("DELETE", train, None), ("DELETE", objects_path("Training", BETA), None),
            ("DELETE", core("pods", BETA, pods[0]), None), ("DELETE", core("pods", BETA), None),
            ("DELETE", f"/api/v1/namespaces/{BETA}", None), ("DELETE", objects_path("Team") + f"/{BETA}", None),
            ("DELETE", f"/apis/networking.k8s.io/v1/namespaces/{BETA}/networkpolicies/fairlead-nothing", None),
        )  # fmt: skip
        for method, path, body in rows:
            yield Attempt(who=who, method=method, path=path, body=body)
        for path, body in (
            (train, stop), (f"{train}/status", {"status": {"phase": "Failed"}}), (train, {"spec": {"run": "mine"}}),
            (train, {"metadata": {"finalizers": []}}), (core("configmaps", BETA, "theirs"), {"data": {"a": "mine"}}),
            (objects_path("Serving", BETA, "web"), {"spec": {"replicas": 0}}),
            (core("pods", BETA, pods[0]), {"metadata": {"labels": {"mine": "yes"}}}),
            (objects_path("Team") + f"/{ALPHA}", {"spec": {"max_priority": 1000, "quota": None}}),
            (objects_path("Team") + f"/{BETA}", {"spec": {"quota": {"cpu": 0}}}),
            (f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{names.LEASE}", {"spec": {}}),
            (f"/apis/{RBAC}/v1/clusterroles/fairlead-user", {"rules": []}),
            ("/api/v1/nodes/fake-0", {"metadata": {"labels": {"mine": "yes"}}}),
            (f"/api/v1/namespaces/{BETA}", {"metadata": {"labels": {"fairlead.dev/runs": "disabled"}}}),
        ):  # fmt: skip
            yield Attempt(who=who, method="PATCH", path=path, body=body, kind=MERGE)


def test_nobody_reads_or_changes_anything_of_another_team_or_of_the_installation(unharmed: World) -> None:
    assert unharmed.make(elsewhere(unharmed)) > 150


def withheld(world: World) -> Iterator[Attempt]:
    """Requests to the own namespace that the roles withhold, with which bounds and records would be gone round."""
    run = objects_path("Training", ALPHA, "own")
    assert (
        world.answer(Attempt(who=USER, method="POST", path=objects_path("Training", ALPHA), body=a_training("own")))
        == ""
    )
    (pod,) = until(lambda: world.plane.request("GET", core("pods", ALPHA))["items"])
    name, labels = pod["metadata"]["name"], "pod-security.kubernetes.io/enforce"
    more = {"name": "more", "image": "x", "securityContext": {"privileged": True}, "targetContainerName": "ranks"}
    for who in (USER, ADMIN, VIEWER):
        for path, change in (
            (f"{run}/status", {"status": {"phase": "Succeeded", "cost": {"microusd": 0}}}),
            (f"/api/v1/namespaces/{ALPHA}", {"metadata": {"labels": {labels: "privileged"}}}),
            (core("resourcequotas", ALPHA, "fairlead"), {"spec": {"hard": {"requests.cpu": "1000"}}}),
            (core("limitranges", ALPHA, "fairlead"), {"spec": {"limits": []}}),
            (f"/apis/{RBAC}/v1/namespaces/{ALPHA}/rolebindings/fairlead-admin", {"subjects": []}),
            (f"{core('pods', ALPHA, name)}/status", {"status": {"phase": "Succeeded"}}),
            (objects_path("Replica", ALPHA, "none") + "/status", {"status": {"phase": "Running"}}),
        ):  # fmt: skip
            yield Attempt(who=who, method="PATCH", path=path, body=change, kind=MERGE)
        rows: tuple[Row, ...] = (
            ("DELETE", core("resourcequotas", ALPHA, "fairlead"), None),
            ("DELETE", f"/api/v1/namespaces/{ALPHA}", None),
            ("POST", objects_path("Replica", ALPHA), a_workload("Replica", "web-1-0", run="x")),
            ("POST", f"/apis/{RBAC}/v1/namespaces/{ALPHA}/rolebindings",
             a_binding("mine", "ClusterRole", "fairlead-operator", who)),
            ("POST", f"/apis/{RBAC}/v1/namespaces/{ALPHA}/roles", {"metadata": {"name": "mine"}, "rules": []}),
            ("POST", f"{core('pods', ALPHA, name)}/binding",
             {"metadata": {"name": name}, "target": {"kind": "Node", "name": "fake-1"}}),
            ("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "mine"}, "value": 10**9}),
            ("DELETE", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/fairlead-overlays", None),
        )  # fmt: skip
        for method, path, body in rows:
            yield Attempt(who=who, method=method, path=path, body=body)
    # The role `edit` of Kubernetes has these, which the roles of a Team have not.
    for who in (USER, ADMIN, VIEWER):
        yield Attempt(
            who=who, method="PATCH", path=f"{core('pods', ALPHA, name)}/ephemeralcontainers", kind=MERGE,
            body={"spec": {"ephemeralContainers": [more]}},
        )  # fmt: skip
    for who in (USER, VIEWER):
        yield Attempt(who=who, method="POST", path=core("pods", ALPHA), body=a_pod("mine"))
        yield Attempt(who=who, method="GET", path=core("secrets", ALPHA, "db"))
        yield Attempt(who=who, method="POST", path=f"{core('serviceaccounts', ALPHA, 'default')}/token", body={})
        label = {"metadata": {"labels": {"a": "b"}}}
        yield Attempt(who=who, method="PATCH", path=core("pods", ALPHA, name), body=label, kind=MERGE)
    taken: tuple[tuple[Object, str], ...] = (
        ({"hostNetwork": True}, "violates PodSecurity"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "violates PodSecurity"),
        ({"priorityClassName": "system-node-critical"}, "exceeded quota"),
    )
    for fields, said in taken:
        pod_body = a_pod("mine", **fields)
        yield Attempt(who=ADMIN, method="POST", path=core("pods", ALPHA), body=pod_body, refusal=said)


def test_nobody_goes_round_the_bounds_of_the_own_team(unharmed: World) -> None:
    unharmed.make(withheld(unharmed))
    run = unharmed.plane.request("GET", objects_path("Training", ALPHA, "own"))
    assert run["status"]["phase"] in ("Starting", "Running")


OVERLAYS: dict[str, tuple[Object, str]] = {
    "a priority class": ({"priorityClassName": "system-node-critical"}, "priority class is not allowed"),
    "the operator's class": ({"priorityClassName": "fairlead-operator"}, "priority class is not allowed"),
    "root": ({"securityContext": {"runAsUser": 0}}, "root"),
    "root of a container": ({"containers": [{"name": "ranks", "securityContext": {"runAsUser": 0}}]}, "root"),
    "a capability": (
        {"containers": [{"name": "ranks", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]}, "capability"
    ),
    "an account": ({"serviceAccountName": "default"}, "use ServiceAccount"),
    "a token": ({"automountServiceAccountToken": True}, "use ServiceAccount"),
    "a Secret as a volume": ({"volumes": [{"name": "v", "secret": {"secretName": "db"}}]}, "use Secret"),
    "a Secret in the environment": (
        {"containers": [{"name": "ranks", "envFrom": [{"secretRef": {"name": "db"}}]}]}, "use Secret"
    ),
    "a Secret of a sidecar": (
        {"initContainers": [{"name": "beside", "image": "x", "envFrom": [{"secretRef": {"name": "db"}}]}]}, "use Secret"
    ),
    "more than the spec says": (
        {"containers": [{"name": "ranks", "resources": {"requests": {"cpu": "60"}}}]}, "of the ranks come from the key"
    ),
    "GPUs beside the ranks": (
        {"initContainers": [{"name": "b", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
        "GPUs go to the ranks alone",
    ),
    "files of the host": ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "hostPath"),
    "the host's network": ({"hostNetwork": True}, "hostNetwork"),
    "a node by name": ({"nodeName": "fake-0"}, "nodeName"),
    "privileges": ({"containers": [{"name": "ranks", "securityContext": {"privileged": True}}]}, "privileged"),
}  # fmt: skip
"""Overlays, and what the API server says of each."""
OF_ADMINISTRATORS = ("use ServiceAccount", "use Secret")  # which may have them anyway
OF_THE_OPERATOR = ("of the ranks come from the key", "GPUs go to the ranks alone")
"""Refusals by the operator of overlays in the steps of a pipeline, which the rules of an API server do not reach."""


def overlaid(name: str, fields: Object) -> Iterator[tuple[str, Object]]:
    """Yield each kind of workload with an overlay, in each place in which one may stand."""
    overlay = {"spec": fields}
    yield "Training", a_training(name, kubernetes=overlay)
    yield "Serving", a_workload("Serving", name, run="x", image="i", kubernetes=overlay)
    trial = {"run": "x", "kubernetes": overlay}
    sweep: Object = {"parameters": {"a": "1..2"}, "trial": trial}
    yield "Sweep", a_workload("Sweep", name, **sweep)
    yield "Pipeline", a_workload("Pipeline", name, kubernetes=overlay, steps={"a": {"run": "x"}})
    for step in ({"training": trial}, {"sweep": sweep}):
        yield "Pipeline", a_workload("Pipeline", name, steps={"a": step})


def test_no_overlay_passes_in_any_place_by_any_way_of_writing_it(unharmed: World) -> None:
    """A name of its own for each attempt: what got through would be there afterwards."""
    plane, attempts, steps = unharmed.plane, list[Attempt](), list[str]()
    strict = "fieldManager=mine&force=true&fieldValidation=Strict"
    fine = objects_path("Training", ALPHA)
    for who, name in ((USER, "plain-ann"), (ADMIN, "plain-ada")):
        assert (
            unharmed.answer(
                Attempt(who=who, method="POST", path=fine, body=a_training(name, nodes=2, resources={"gpu": 64}))
            )
            == ""
        )
    for number, (fields, said) in enumerate(OVERLAYS.values()):
        for who in (USER, ADMIN):
            if who == ADMIN and said in OF_ADMINISTRATORS:
                continue
            for place, (kind, content) in enumerate(overlaid(f"o{number}", fields)):
                content["metadata"]["name"] += f"-{who}-{place}"
                path = objects_path(kind, ALPHA)
                one = f"{path}/{content['metadata']['name']}"
                if said in OF_THE_OPERATOR and "steps" in content["spec"] and "kubernetes" not in content["spec"]:
                    attempts.append(Attempt(who=who, method="POST", path=path, body=content, refusal=""))
                    steps.append(content["metadata"]["name"])
                    continue
                attempts += [
                    Attempt(who=who, method="POST", path=f"{path}?fieldValidation=Strict", body=content, refusal=said),
                    Attempt(who=who, method="PATCH", path=f"{one}?{strict}", body=content, kind="apply-patch+yaml",
                            refusal=said),
                ]  # fmt: skip
            change = {"kubernetes": {"spec": fields}}
            run = objects_path("Training", ALPHA, f"plain-{who}") + "?fieldValidation=Strict"
            attempts += [
                Attempt(who=who, method="PATCH", path=run, body={"spec": change}, kind=MERGE, refusal=said),
                Attempt(who=who, method="PATCH", path=run, kind="json-patch+json", refusal=said,
                        body=[{"op": "add", "path": "/spec/kubernetes", "value": change["kubernetes"]}]),
            ]  # fmt: skip
    assert unharmed.make(attempts) > 300
    for kind, expected in (
        ("Training", ["plain-ada", "plain-ann"]), ("Serving", []), ("Sweep", []), ("Pipeline", sorted(steps)),
    ):  # fmt: skip
        listed = [each["metadata"]["name"] for each in plane.request("GET", objects_path(kind, ALPHA))["items"]]
        assert listed == expected

    def refused() -> list[str]:
        pipelines = plane.request("GET", objects_path("Pipeline", ALPHA))["items"]
        return [each["metadata"]["name"] for each in pipelines if (each.get("status") or {}).get("phase") == "Failed"]

    until(lambda: refused() == sorted(steps), refused)
    assert {reason for name in steps for reason in unharmed.reasons(ALPHA)[name]} == {"InvalidSpec"}


def forged_pods(uids: dict[str, str]) -> Iterator[Object]:
    """Pods of the first team that name what the second one has."""
    message = json.dumps({"form": FORM, "ranks": [], "progress": {"step": 10**6, "loss": 0.0}})
    ends = {"fake/run": "100ms", "fake/message": message}
    gang_labels: Object = {
        names.MANAGED_BY: names.MANAGER,
        names.RUN: "train",
        names.RUN_UID: uids["train"],
        names.ATTEMPT: "0",
    }
    train = owner("Training", "train", uids["train"])
    both: tuple[Object, Object] = ({}, ends)
    for number, annotations in enumerate(both):
        labels = {**gang_labels, names.INDEX: str(number)}
        yield a_pod(f"train-0-{number}", owners=train, labels=labels, annotations=annotations)
        yield a_pod(f"mine-{number}", owners=train, labels=labels, annotations=annotations)
    engine = {**gang_labels, names.ENGINE: "pytorchjob", names.INDEX: "0"}
    yield a_pod("of-engine", labels=engine)
    job = owner("PyTorchJob", "train-0", uids["train"], "kubeflow.org/v1")
    yield a_pod("train-0-worker-0", owners=job, labels=engine, annotations=ends)
    room = {names.ROOM_FOR: uids["train"], names.INDEX: "0"}
    gives_way: Object = {"priorityClassName": names.PLACEHOLDER_CLASS, "terminationGracePeriodSeconds": 0}
    yield a_pod("train-room-0", owners=train, labels=room, **gives_way)
    yield a_pod("pool-ahead-room-0", owners=owner("Pool", "ahead", "x"), labels=room, **gives_way)
    yield a_pod("gateway", labels={"app.kubernetes.io/name": names.GATEWAY, "app.kubernetes.io/part-of": names.MANAGER})
    yield a_pod("dcgm", labels={"app.kubernetes.io/name": "dcgm-exporter", "app": "nvidia-dcgm-exporter"})
    serve = {"app.kubernetes.io/name": names.ENDPOINT_NAME, names.SERVICE: "web", names.RUN_UID: uids["web"]}
    yield a_pod("web-1-0-0-0", owners=owner("Replica", "web-1-0", uids["web"]), labels={**serve, names.ATTEMPT: "0"})
    driver = {names.FAMILY: "[" * 10_000}
    yield a_pod("rates-0-0", owners=owner("Training", "rates-0", uids["rates-0"]), annotations={**driver, **ends},
                labels={names.ATTEMPT: "0", names.INDEX: "0", names.RUN_UID: uids["rates-0"]})  # fmt: skip


def forged_objects(uids: dict[str, str]) -> Iterator[tuple[str, str, Object, str]]:
    """Yield who creates an object in the first team's namespace, where, and what is said against it."""
    for pod in forged_pods(uids):
        yield ADMIN, core("pods", ALPHA), pod, ""
    sweep, serving = owner("Sweep", "rates", uids["rates"]), owner("Serving", "web", uids["web"])
    for name, owners in (("rates-0", sweep), ("rates-1", sweep), ("train", owner("Training", "train", uids["train"]))):
        content = a_training(name, metadata={"ownerReferences": owners, "finalizers": [STAYS]})
        yield USER, objects_path("Training", ALPHA), content, ""
    labels = {names.MANAGED_BY: names.MANAGER, names.TEAM: BETA, names.RUN_UID: uids["train"]}
    about: Object = {"labels": labels, "ownerReferences": serving}
    yield (
        ADMIN,
        core("services", ALPHA),
        {"metadata": {"name": "serve-web", **about}, "spec": {"ports": [{"port": 80}]}},
        "",
    )
    endpoints = {
        "metadata": {"name": "serve-web-x", "labels": {**labels, "kubernetes.io/service-name": "serve-web"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["10.6.6.6"]}], "ports": [{"port": 80}],
    }  # fmt: skip
    yield ADMIN, f"/apis/discovery.k8s.io/v1/namespaces/{ALPHA}/endpointslices", endpoints, "403 "
    routes = json.dumps({f"{BETA}/web": {"hosts": [f"serve-web.{BETA}"], "shares": [{"urls": ["http://10.6.6.6"]}]}})
    data = {"routes": routes, "state": BRACKETS, "part": BRACKETS, "form": "1", names.DEMAND: routes}
    for name, what in (
        (VIEW, "view"), (names.ROUTES, names.TEAM_ROUTES), (f"{names.ROUTES}-{BETA}", names.TEAM_ROUTES),
        ("demand", names.DEMAND), (names.NODE_HISTORY, "history"), (names.AUTOSCALER_STATUS, "status"),
        (names.MODELS, "models"), ("fairlead-runtime-mine", "runtime"), ("fairlead-log-train", "log"),
    ):  # fmt: skip
        body = {"metadata": {"name": name, "labels": {**labels, names.CONTENT: what}}, "data": data}
        is_there = name == VIEW  # the operator has written it, and any member may change it
        yield USER, core("configmaps", ALPHA), body, "409 " if is_there else ""
    costs = {"metadata": {"name": "mine", "labels": {**labels, names.COSTS: "whole"}}, "data": {"at": "1e400"}}
    yield USER, core("configmaps", ALPHA), costs, ""
    key = {"metadata": {"name": f"ft-train-{uids['train'][:6]}", **about}, "stringData": {"key": "0" * 64}}
    yield ADMIN, core("secrets", ALPHA), key, ""
    target = {"apiVersion": API_VERSION, "kind": "Serving", "name": "web"}
    scaler = {"metadata": {"name": "serve-web", **about}, "spec": {"scaleTargetRef": target, "maxReplicas": 99}}
    yield ADMIN, f"/apis/autoscaling/v2/namespaces/{ALPHA}/horizontalpodautoscalers", scaler, ""
    budget = {"metadata": {"name": "serve-web", **about}, "spec": {"minAvailable": 99, "selector": {"matchLabels": {}}}}
    yield ADMIN, f"/apis/policy/v1/namespaces/{ALPHA}/poddisruptionbudgets", budget, ""
    template = {"metadata": {"labels": labels}, "spec": a_pod("x")["spec"]}
    selector = {"matchLabels": labels}
    daemon = {"metadata": {"name": "greedy", **about}, "spec": {"selector": selector, "template": {
        **template, "spec": {**template["spec"], "nodeSelector": {"no": "where"}}}}}  # fmt: skip
    yield ADMIN, f"/apis/apps/v1/namespaces/{ALPHA}/daemonsets", daemon, ""
    suspended = {"suspend": True, "template": {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}}
    yield (
        ADMIN,
        f"/apis/batch/v1/namespaces/{ALPHA}/jobs",
        {"metadata": {"name": "train-0", **about}, "spec": suspended},
        "",
    )
    victim = {"apiVersion": API_VERSION, "kind": "Training", "name": "train", "uid": uids["train"]}
    event = {"metadata": {"name": "mine"}, "reason": "Failed", "involvedObject": {**victim, "namespace": BETA}}
    for who, refusal in ((USER, "403 "), (ADMIN, "does not match event.namespace")):
        yield who, core("events", ALPHA), event, refusal
    lease = {"metadata": {"name": names.LEASE}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 10**6}}
    yield ADMIN, f"/apis/coordination.k8s.io/v1/namespaces/{ALPHA}/leases", lease, ""


def test_objects_that_name_what_another_team_has_are_nobodys(unharmed: World) -> None:
    rows = list(forged_objects(unharmed.uids))
    unharmed.make(
        Attempt(who=who, method="POST", path=path, body=body, refusal=refusal) for who, path, body, refusal in rows
    )
    view = {"data": {"part": BRACKETS}, "binaryData": {"state": "eA=="}}
    path = core("configmaps", ALPHA, VIEW)
    changed = Attempt(who=USER, method="PATCH", path=path, body=view, kind=MERGE, refusal="")
    unharmed.make([changed])
    until(lambda: "NotOfItsOwner" in unharmed.reasons(ALPHA).get("train-0-0", ()), lambda: unharmed.reasons(ALPHA))


def test_pods_without_number_are_not_held(unharmed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informers, "MOST_OF_NAMESPACE", 10)
    gates = [{"name": "example.com/never"}]
    unharmed.make(
        Attempt(
            who=ADMIN, method="POST", path=core("pods", ALPHA), refusal="",
            body=a_pod(f"ghost-0-{number}", owners=owner("Training", "ghost", "no-uid"), schedulingGates=gates,
                       labels={names.ATTEMPT: "0", names.INDEX: str(number)}),
        )
        for number in range(40)
    )  # fmt: skip

    def held() -> list[str]:
        return [pod.key for pod in unharmed.operator.view.pods.all() if pod.key.startswith(f"{ALPHA}/ghost-")]

    until(lambda: len(held()) == 10, held)
    unharmed.settled("settled-between")
    assert len(held()) == 10


def broken_objects() -> Iterator[tuple[Object, str]]:
    """Yield objects of a member whose content is to break whoever reads it, and the reason that they are given."""
    much = {"resources": {"cpu": "100m", "memory": "64Mi", "gpu": 64}}  # so that none of them starts
    nested: Any = "x"
    for _ in range(300):
        nested = {"a": nested}
    yield a_training("pattern", metrics={"pattern": "(?P<step>a{4294967295})"}, **much), "InvalidSpec"
    yield a_training("nested", kubernetes={"spec": {"affinity": nested}}, **much), ""
    for name, key, value in (
        ("brackets", "code", BRACKETS), ("huge", "code", "x" * 250_000), ("intent", "intent", BRACKETS),
        ("moment", "submitted", "9" * 400), ("infinite", "submitted", "1e400"), ("family", "family", BRACKETS),
        ("workdir", "workdir", "../../../etc"),
    ):  # fmt: skip
        metadata = {"annotations": {f"fairlead.dev/{key}": value}}
        yield a_training(name, metadata=metadata, **much), ""
    record = json.dumps({"sha256": [], "created_at": 1e308})
    keys = {"metadata": {"name": names.ACCESS_KEYS}, "data": {"k": BRACKETS, "l": record, "m": "9" * 5000}}
    yield {"apiVersion": "v1", "kind": "ConfigMap", **keys}, ""
    for number, message in enumerate(
        ('{"form":1,"ranks":[1]}', "[" * 4_000, '{"form":1,"usage":[1e999,1],"ranks":[]}')
    ):
        annotations = {"fake/run": "100ms", "fake/message": message}
        yield a_training(f"message-{number}", kubernetes={"metadata": {"annotations": annotations}}), ""


REFUSED_NAMES = ("../train", "a/b", "a%2Fstatus", "..", "A", "x" * 300, "a b", "a\nb", "$(reboot)")


def test_broken_objects_harm_themselves_alone(unharmed: World) -> None:
    rows, attempts = list(broken_objects()), list[Attempt]()
    for content, _ in rows:
        is_map = content["kind"] == "ConfigMap"
        path = core("configmaps", ALPHA) if is_map else objects_path(content["kind"], ALPHA)
        attempts.append(Attempt(who=USER, method="POST", path=path, body=content, refusal=""))
    trainings = objects_path("Training", ALPHA)
    attempts += [
        Attempt(who=USER, method="POST", path=trainings, body=a_training(name), refusal="422 ")
        for name in REFUSED_NAMES
    ]
    unharmed.make(attempts)
    until(lambda: "InvalidSpec" in unharmed.reasons(ALPHA).get("pattern", ()), lambda: unharmed.reasons(ALPHA))
    with_pods = [f"message-{number}" for number in range(3)]

    def phases() -> dict[str, str]:
        listed = unharmed.plane.request("GET", trainings)["items"]
        return {each["metadata"]["name"]: str((each.get("status") or {}).get("phase")) for each in listed}

    until(lambda: "None" not in phases().values(), phases)
    until(lambda: all(phases()[name] in ("Succeeded", "Failed") for name in with_pods), phases)
    assert unharmed.operator.health.numbers()["fairlead_internal_errors_total"] == 0
    delete_all(unharmed, USER)


def delete_all(world: World, who: str) -> None:
    """Delete the first team's runs as one of its people, for whom each of them has to be gone soon."""
    path = objects_path("Training", ALPHA)
    for item in world.plane.request("GET", path)["items"]:
        assert world.answer(Attempt(who=who, method="DELETE", path=f"{path}/{item['metadata']['name']}")) == ""
    until(lambda: not world.plane.request("GET", path)["items"])


def test_a_run_says_nothing_false_about_its_own_place_cost_or_end(unharmed: World) -> None:
    """The first team's people write about their own runs what would get them more than their part."""
    plane, path = unharmed.plane, objects_path("Training", ALPHA)
    costless = {"phase": "Succeeded", "cost": {"microusd": 0}, "state": {"status": {"phase": "Running"}}}
    content = {**a_training("claims", metadata={"annotations": {"fairlead.dev/submitted": "1.0"}}), "status": costless}
    greedy = a_training("greedy", nodes=2, resources={"cpu": 1, "memory": "1Gi", "gpu": 4})
    unharmed.make(Attempt(who=USER, method="POST", path=path, body=body, refusal="") for body in (content, greedy))

    def status(name: str) -> Object:
        found: Object = plane.request("GET", f"{path}/{name}").get("status") or {}
        return found

    until(lambda: status("claims").get("phase") == "Running", lambda: status("claims"))
    until(lambda: status("greedy").get("phase") == "Running", lambda: status("greedy"))
    until(lambda: status("greedy")["cost"]["microusd"] > 0, lambda: status("greedy"))
    # It is a run of the namespace that it is in, whatever else it says.
    elsewhere = a_training("elsewhere", team=BETA, namespace=BETA)
    strict = "unknown field"
    unharmed.make([
        Attempt(who=USER, method="POST", path=f"{path}?fieldValidation=Strict", body=elsewhere, refusal=strict),
        Attempt(who=USER, method="POST", path=path, body=elsewhere, refusal=""),
    ])  # fmt: skip
    until(lambda: status("elsewhere").get("phase") == "Running", lambda: status("elsewhere"))
    # What the second team has stays where it is, and starts beside, whatever the first one asks for.
    more = a_training("more", nodes=2, priority=1000, resources={"cpu": 1, "memory": "1Gi", "gpu": 8})
    unharmed.make([Attempt(who=USER, method="POST", path=path, body=more, refusal="")])
    until(lambda: status("more").get("phase") == "Pending", lambda: status("more"))
    assert unharmed.settled("settled-beside") < MOST_START_S
    assert status("more")["phase"] == "Pending"
    # Nobody reads in his own namespace the names of what another team has.
    for team in (ALPHA, BETA):
        until(lambda team=team: Phase.PENDING in texts_of_view(unharmed, team), "view of the waiting run")  # type: ignore[misc]
    assert not {"more", "greedy", "claims", "elsewhere", ALPHA} & texts_of_view(unharmed, BETA)
    assert not {"train", "web", "rates", "rates-0", BETA} & texts_of_view(unharmed, ALPHA)
    assert BETA not in json.dumps(status("more"))
    delete_all(unharmed, USER)


def texts_of_view(world: World, team: str) -> set[str]:
    """Return all texts in what a team is shown of the cluster."""
    texts, values = (
        set[str](),
        list[Any](map(plain, read_view(world.plane.request("GET", core("configmaps", team, VIEW))))),
    )
    while values:
        value = values.pop()
        if isinstance(value, str):
            texts.add(value)
        elif isinstance(value, dict):
            values += [*value, *value.values()]
        elif isinstance(value, (list, tuple)):
            values += value
    return texts


def test_no_pod_outlives_its_run(unharmed: World) -> None:
    """It would hold GPUs that no queue counts and nobody pays."""
    path, run, why = objects_path("Training", ALPHA), objects_path("Training", ALPHA, "orphans"), "do not outlive it"
    unharmed.make([Attempt(who=USER, method="POST", path=path, body=a_training("orphans", nodes=2), refusal="")])
    pods = core("pods", ALPHA)

    def running() -> list[str]:
        listed = unharmed.plane.request("GET", pods)["items"]
        return [each["metadata"]["name"] for each in listed if each["status"].get("phase") == "Running"]

    until(lambda: len(running()) == 2, running)
    options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
    orphaned: Object = {"metadata": {"finalizers": ["orphan"]}}
    for who in (USER, ADMIN):
        unharmed.make([
            Attempt(who=who, method="DELETE", path=run, body=options | {"propagationPolicy": "Orphan"}, refusal=why),
            Attempt(who=who, method="DELETE", path=run, body=options | {"orphanDependents": True}, refusal=why),
            Attempt(who=who, method="PATCH", path=run, body=orphaned, kind=MERGE, refusal=why),
            Attempt(who=who, method="POST", path=path, body=a_training("born", **orphaned), refusal=why),
        ])  # fmt: skip
    assert len(running()) == 2
    # Without its finalizer it is gone before the operator has stopped the pods, which the garbage collector removes.
    unharmed.make([
        Attempt(who=USER, method="PATCH", path=run, body={"metadata": {"finalizers": None}}, kind=MERGE, refusal=""),
        Attempt(who=USER, method="DELETE", path=run, body=options, refusal=""),
    ])  # fmt: skip
    until(lambda: not unharmed.plane.exists(run), lambda: unharmed.plane.request("GET", run))
    until(lambda: not running(), running)


def test_at_last_the_other_tenant_starts_at_once_and_pays_for_what_he_had(unharmed: World) -> None:
    theirs = WorkloadApi(Client(unharmed.access), namespace=BETA)
    began = time.monotonic()
    theirs.submit(gang(BETA, "settled-ordinary", nodes=1, gpus=2, run="2s"))
    comes_to(theirs, "settled-ordinary", Phase.RUNNING)
    assert time.monotonic() - began < MOST_START_S
    comes_to(theirs, "settled-ordinary", Phase.SUCCEEDED)
    run = objects_path("Training", BETA, "settled-ordinary")

    def cost() -> Object:
        found: Object = (unharmed.plane.request("GET", run).get("status") or {}).get("cost") or {}
        return found

    until(lambda: cost().get("microusd", 0) > 0 and cost().get("microusdPerHour") == 0, cost)
    # Two of the eight GPUs of a node, for two seconds and what starting takes.
    assert 2.0 <= cost()["microusd"] / (DOLLARS / 3600 / 4 * 1e6) <= 2.0 + MOST_START_S
    ben = Client(load_access((unharmed.plane.kubeconfig(OTHER, namespace=BETA),)))
    today = day_of(time.time())

    def lines() -> dict[str, int]:
        published = read_published(
            ben, namespace=BETA, system=SYSTEM, first_day=today - 1, last_day=today, only_team=False
        )
        assert published.team == BETA, "a member reads the costs of his own team alone"
        return {str(line.key): line.microusd for line in published.statement(CostGrouping.RUN).lines}

    def published_cost() -> list[int]:
        uid = unharmed.plane.request("GET", run)["metadata"]["uid"]
        return [microusd for name, microusd in lines().items() if uid in name]

    until(lambda: published_cost() == [cost()["microusd"]], lines)
    unharmed.plane.request("DELETE", run)
    until(lambda: not unharmed.plane.exists(run))
