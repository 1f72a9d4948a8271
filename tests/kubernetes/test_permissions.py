"""What people of a team can do, and what they cannot do to another team: asked of a real API server."""

import json
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.cluster.kubernetes.manifests.pods import render_pod
from fairlead.cluster.kubernetes.manifests.roles import OPERATOR, render_operator_bindings, render_roles
from fairlead.cluster.kubernetes.manifests.teams import TeamSettings, render_team
from fairlead.specs.overlay import overlay
from fairlead.specs.team import Quota, Team
from tests.kubernetes.builders import SETTINGS, a_creation, a_training, a_workload
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import ControlPlane

FAIRLEAD = "fairlead.dev"


@pytest.fixture
def teams(plane: ControlPlane, namespace: str) -> Iterator[tuple[str, str]]:
    """Two teams: ann and a viewer's group in the first, ben in the second."""
    other = f"{namespace}-b"
    for each in render_roles():
        applied(plane, each)
    for name, member in ((namespace, "ann"), (other, "ben")):
        for each in render_team(Team(name=name, quota=Quota(cpu_milli=8000), members=(member,)), TeamSettings()):
            applied(plane, each)
    yield namespace, other
    plane.request("DELETE", f"/api/v1/namespaces/{other}")


def may(
    plane: ControlPlane, user: str, verb: str, resource: str, namespace: str, *, group: str = "", groups: Any = ()
) -> bool:
    """Whether the API server lets a user do something; `pods/log` names a subresource."""
    name, _, subresource = resource.partition("/")
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": name, "subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": list(groups), "resourceAttributes": attributes},
    }
    answer = plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def test_a_member_runs_follows_and_stops_the_team_s_work(plane: ControlPlane, teams: tuple[str, str]) -> None:
    own, _ = teams
    for verb in ("create", "get", "list", "watch", "patch", "delete"):
        assert may(plane, "ann", verb, "trainings", own, group=FAIRLEAD), verb
    for verb, resource in (("get", "pods/log"), ("create", "pods/exec"), ("create", "configmaps")):
        assert may(plane, "ann", verb, resource, own), resource


def test_a_member_can_neither_read_nor_stop_nor_enter_another_team_s_work(
    plane: ControlPlane, teams: tuple[str, str]
) -> None:
    _, other = teams
    for verb in ("create", "get", "list", "watch", "patch", "delete"):
        assert not may(plane, "ann", verb, "trainings", other, group=FAIRLEAD), verb
        assert not may(plane, "ann", verb, "pods", other), verb
    for verb, resource in (("get", "pods/log"), ("create", "pods/exec"), ("get", "secrets"), ("get", "configmaps")):
        assert not may(plane, "ann", verb, resource, other), resource


def test_a_member_goes_round_neither_the_operator_nor_the_team_s_bounds(
    plane: ControlPlane, teams: tuple[str, str]
) -> None:
    own, _ = teams
    for resource in ("pods", "resourcequotas", "limitranges", "secrets", "serviceaccounts/token"):
        assert not may(plane, "ann", "create", resource, own), resource
    for resource in ("rolebindings", "roles"):
        assert not may(plane, "ann", "create", resource, own, group="rbac.authorization.k8s.io"), resource
    assert not may(plane, "ann", "delete", "networkpolicies", own, group="networking.k8s.io")
    assert not may(plane, "ann", "patch", "trainings/status", own, group=FAIRLEAD)
    assert not may(plane, "ann", "patch", "teams", "", group=FAIRLEAD)


def test_a_viewer_of_the_directory_s_group_looks_and_touches_nothing(
    plane: ControlPlane, teams: tuple[str, str]
) -> None:
    own, _ = teams
    groups = [f"fairlead:{own}:viewer"]
    assert may(plane, "eve", "list", "trainings", own, group=FAIRLEAD, groups=groups)
    assert may(plane, "eve", "get", "pods/log", own, groups=groups)
    assert not may(plane, "eve", "delete", "trainings", own, group=FAIRLEAD, groups=groups)
    assert not may(plane, "eve", "create", "pods/exec", own, groups=groups)
    assert not may(plane, "eve", "list", "trainings", own, group=FAIRLEAD)


def test_the_operator_has_its_rights_and_no_secret_of_anybody(plane: ControlPlane, teams: tuple[str, str]) -> None:
    own, other = teams
    for each in render_operator_bindings(own):
        applied(plane, each)
    account = f"system:serviceaccount:{own}:{OPERATOR}"
    assert may(plane, account, "create", "pods", other)
    assert may(plane, account, "patch", "trainings/status", other, group=FAIRLEAD)
    assert may(plane, account, "update", "leases", own, group="coordination.k8s.io")
    assert not may(plane, account, "update", "leases", other, group="coordination.k8s.io")
    assert not may(plane, account, "get", "secrets", other)
    assert not may(plane, account, "create", "pods/exec", other)
    plane.request("DELETE", f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{OPERATOR}")


def test_a_team_cannot_take_more_than_its_quota(plane: ControlPlane, teams: tuple[str, str]) -> None:
    own, _ = teams
    for index, is_taken in ((0, True), (1, False)):  # 4 cores and the reporter's share each, of 8
        pod = render_pod(a_workload(a_training(team=own, nodes=2)), a_creation(index=0), SETTINGS)
        pod["metadata"]["name"] = f"pod-{index}"
        del pod["metadata"]["ownerReferences"]
        if is_taken:
            plane.request("POST", f"/api/v1/namespaces/{own}/pods", pod)
        else:
            assert "exceeded quota" in _refusal(plane, own, pod)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"securityContext": {"runAsUser": 0}}, "runAsUser=0"),
        (
            {"containers": [{"name": "ranks", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]},
            "unrestricted capabilities",
        ),
        ({"volumes": [{"name": "x", "nfs": {"server": "s", "path": "/"}}]}, "restricted volume types"),
    ],
)
def test_an_overlay_that_wants_more_than_restricted_allows_is_refused_by_the_namespace(
    plane: ControlPlane, teams: tuple[str, str], fields: dict[str, Any], sentence: str
) -> None:
    own, _ = teams
    spec = a_training(team=own, kubernetes=overlay({"spec": fields}))
    pod = render_pod(a_workload(spec), a_creation(index=1), SETTINGS)
    refusal = _refusal(plane, own, pod)
    assert "violates PodSecurity" in refusal
    assert sentence in refusal


def _refusal(plane: ControlPlane, namespace: str, pod: dict[str, Any]) -> str:
    with pytest.raises(urllib.error.HTTPError) as refused:
        plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
    return str(json.load(refused.value)["message"])
