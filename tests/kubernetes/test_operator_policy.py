"""Ask a real API server what the operator may write, in the name of its account."""

import json
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.cluster.kubernetes.manifests.admission_policies import render_operator_policy
from fairlead.cluster.kubernetes.manifests.roles import API_GROUP, OPERATOR, render_operator_bindings, render_roles
from fairlead.cluster.kubernetes.manifests.teams import TeamSettings, render_team
from fairlead.specs.team import Team
from tests.kubernetes.clusters import started
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

pytestmark = pytest.mark.kubernetes

SYSTEM, TEAM, OTHER, CLOSED = "fairlead-system", "crew", "elsewhere", "closed"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:{OPERATOR}"
OURS = {"app.kubernetes.io/managed-by": "fairlead"}
Object = dict[str, Any]


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    with started(lambda: ControlPlane(users={ACCOUNT: []}), request) as plane:
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": OTHER}})
        plane.request(
            "POST", "/api/v1/namespaces", {"metadata": {"name": CLOSED, "labels": {"fairlead.dev/runs": "disabled"}}}
        )
        for each in (*render_roles(), *render_operator_bindings(SYSTEM)):
            applied(plane, each)
        for each in render_team(Team(name=TEAM), TeamSettings()):
            applied(plane, each)
        plane.request("POST", f"/api/v1/namespaces/{OTHER}/configmaps", {"metadata": {"name": "theirs"}})
        yield plane


@pytest.fixture(scope="module")
def policed(plane: ControlPlane) -> ControlPlane:
    """The control plane once the policy has taken effect, before which the roles alone let it write anywhere."""
    assert refusal(plane, "kube-system", "configmaps", a_config_map("fairlead-log-x")) == ""
    enforce(plane, only_teams=False)
    return plane


def enforce(plane: ControlPlane, *, only_teams: bool) -> None:
    for each in render_operator_policy(SYSTEM, only_teams=only_teams):
        applied(plane, each)
    place = OTHER if only_teams else "kube-system"
    until(lambda: bool(refusal(plane, place, "configmaps", a_config_map("fairlead-log-x"))), "the policy")


def a_config_map(name: str, labels: Object = OURS) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}


def a_pod(labels: Object = OURS, **spec: Any) -> Object:
    container = {"name": "c", "image": "i", **spec.pop("container", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": labels},
            "spec": {"containers": [container], **spec}}  # fmt: skip


def a_binding(role: str, kind: str = "ClusterRole") -> Object:
    return {
        "apiVersion": f"{API_GROUP}/v1", "kind": "RoleBinding", "metadata": {"name": "fairlead-x", "labels": OURS},
        "roleRef": {"apiGroup": API_GROUP, "kind": kind, "name": role},
        "subjects": [{"apiGroup": API_GROUP, "kind": "User", "name": "eve"}],
    }  # fmt: skip


def refusal(plane: ControlPlane, namespace: str, plural: str, content: Object) -> str:
    """Return what the API server says against the account's creating an object, which is not kept."""
    root = f"/apis/{API_GROUP}/v1" if plural == "rolebindings" else "/api/v1"
    return answer(plane, "POST", f"{root}/namespaces/{namespace}/{plural}?dryRun=All", content)


def answer(plane: ControlPlane, method: str, path: str, content: Object) -> str:
    try:
        plane.request(
            method, path, content, user=ACCOUNT, kind="merge-patch+json" if method == "PATCH" else "json"
        )  # fmt: skip
    except urllib.error.HTTPError as error:
        return str(json.load(error)["message"])
    return ""


@pytest.mark.slow
def test_it_writes_where_runs_are(policed: ControlPlane) -> None:
    for place in (TEAM, OTHER):
        assert refusal(policed, place, "configmaps", a_config_map("fairlead-log-x")) == ""
    assert refusal(policed, OTHER, "pods", a_pod()) == ""
    assert refusal(policed, TEAM, "rolebindings", a_binding("fairlead-admin")) == ""


@pytest.mark.parametrize("place", ["kube-system", "kube-public", CLOSED])
def test_it_writes_nothing_into_namespaces_of_kubernetes_and_closed_ones(policed: ControlPlane, place: str) -> None:
    for plural, content in (
        ("pods", a_pod()), ("configmaps", a_config_map("fairlead-log-x")),
        ("rolebindings", a_binding("fairlead-admin")),
    ):  # fmt: skip
        assert "the operator of Fairlead" in refusal(policed, place, plural, content), plural


@pytest.mark.parametrize(
    ("place", "role", "kind"), [(OTHER, "fairlead-admin", "ClusterRole"), (TEAM, "fairlead-operator", "ClusterRole")]
)
def test_it_binds_only_roles_of_people_in_namespaces_of_teams(
    policed: ControlPlane, place: str, role: str, kind: str
) -> None:
    said = refusal(policed, place, "rolebindings", a_binding(role, kind))
    assert "it binds only the roles of people" in said or "is attempting to grant" in said
    if place == OTHER:
        assert "in namespaces of Teams" in said


@pytest.mark.parametrize(
    "spec",
    [
        {"hostNetwork": True}, {"hostPID": True}, {"hostIPC": True},
        {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
        {"container": {"securityContext": {"privileged": True}}},
        {"initContainers": [{"name": "i", "image": "i", "securityContext": {"privileged": True}}]},
    ],
)  # fmt: skip
def test_its_pods_have_nothing_of_the_host(policed: ControlPlane, spec: Object) -> None:
    assert "nothing of the host" in refusal(policed, OTHER, "pods", a_pod(**spec))


def test_it_makes_no_object_without_its_label_and_changes_no_object_of_others(policed: ControlPlane) -> None:
    assert "writes only objects labelled" in refusal(policed, OTHER, "configmaps", a_config_map("x", {"a": "b"}))
    change = {"metadata": {"labels": OURS}, "data": {"a": "b"}}
    said = answer(policed, "PATCH", f"/api/v1/namespaces/{OTHER}/configmaps/theirs", change)
    assert "changes and deletes only objects labelled" in said


def test_it_changes_no_namespace_that_is_not_a_teams(policed: ControlPlane) -> None:
    for name in (OTHER, "default"):
        taken = {"metadata": {"labels": {"fairlead.dev/team": name, **OURS}}}
        assert "only the namespaces of Teams" in answer(policed, "PATCH", f"/api/v1/namespaces/{name}", taken)
    new: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "new", "labels": dict(OURS)}}
    assert "only the namespaces of Teams" in answer(policed, "POST", "/api/v1/namespaces", new)
    new["metadata"]["labels"] = {"fairlead.dev/team": "new", **OURS}
    assert answer(policed, "POST", "/api/v1/namespaces", new) == ""


@pytest.mark.slow
def test_with_only_teams_it_writes_in_no_other_namespace_unless_that_is_labelled(policed: ControlPlane) -> None:
    """The last of this file, as it changes the policy."""
    enforce(policed, only_teams=True)
    assert "only namespaces of Teams" in refusal(policed, OTHER, "pods", a_pod())
    assert refusal(policed, TEAM, "configmaps", a_config_map("fairlead-log-x")) == ""
    label = {"metadata": {"labels": {"fairlead.dev/runs": "enabled"}}}
    policed.request("PATCH", f"/api/v1/namespaces/{OTHER}", label, kind="merge-patch+json")
    until(lambda: refusal(policed, OTHER, "pods", a_pod()) == "", "the namespace's label to be seen")
