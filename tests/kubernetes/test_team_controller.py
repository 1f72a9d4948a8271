"""Teams on a real control plane, kept by an operator with the rights of an installed one."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.informers.informers import TRAININGS
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.manifests.teams import CRITICAL, TeamSettings, render_team
from fairlead.cluster.kubernetes.names import TEAM
from fairlead.cluster.kubernetes.operator.teams import team_controller
from fairlead.cluster.kubernetes.operator.teams.drift import is_as_rendered, surplus
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.pool import Hardware, Pool
from fairlead.specs.team import Quota, Team
from tests.kubernetes.operating import operating
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

TEAMS, POOLS = "/apis/fairlead.dev/v1alpha1/teams", "/apis/fairlead.dev/v1alpha1/pools"
QUOTA = Quota(gpu_milli=16_000, cpu_milli=64_000)


@pytest.fixture
def name(cluster: WorkloadApi, namespace: str) -> Iterator[str]:
    """Of a team of the test's own; it and its namespace are deleted after it."""
    found = f"{namespace}-team"
    yield found
    for path in (f"{TEAMS}/{found}", f"/api/v1/namespaces/{found}"):
        cluster.client.request("DELETE", path)


def apply(cluster: WorkloadApi, team: Team) -> None:
    cluster.client.request(
        "PATCH", f"{TEAMS}/{team.name}", write_object(team), query={"fieldManager": "people", "force": "true"},
        content_type="application/apply-patch+yaml",
    )  # fmt: skip


def condition(cluster: WorkloadApi, path: str, type_: str) -> dict[str, Any]:
    status = cluster.client.get(path).get("status") or {}
    return next((c for c in status.get("conditions") or () if c["type"] == type_), {})


def is_ready(cluster: WorkloadApi, name: str) -> bool:
    content = cluster.client.get(f"{TEAMS}/{name}")
    ready = condition(cluster, f"{TEAMS}/{name}", "Ready")
    return ready.get("status") == "True" and ready["observedGeneration"] == content["metadata"]["generation"]


def told(cluster: WorkloadApi, uid: str) -> str:
    """All Events of a team."""
    query = {"fieldSelector": f"involvedObject.uid={uid}"}
    return "\n".join(each["message"] for each in cluster.client.items("/api/v1/namespaces/default/events", query))


def enforced(cluster: WorkloadApi, name: str) -> str:
    """The level of Pod Security that a namespace enforces."""
    labels = cluster.client.get(f"/api/v1/namespaces/{name}")["metadata"]["labels"]
    return str(labels["pod-security.kubernetes.io/enforce"])


def policies(cluster: WorkloadApi, name: str) -> dict[str, dict[str, Any]]:
    found = cluster.client.items(f"/apis/networking.k8s.io/v1/namespaces/{name}/networkpolicies")
    return {each["metadata"]["name"]: each for each in found}


def test_a_team_gets_its_namespace_its_bounds_and_its_closed_doors(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, name: str
) -> None:
    team = Team(name=name, quota=QUOTA, members=("ann@example.com",))
    with operating(access, namespace, watch_namespace=None):
        apply(cluster, team)
        until(lambda: is_ready(cluster, name))
    assert enforced(cluster, name) == "restricted"
    quota = cluster.client.get(f"/api/v1/namespaces/{name}/resourcequotas/fairlead")
    assert quota["spec"]["hard"]["requests.nvidia.com/gpu"] == "16"
    assert set(policies(cluster, name)) == {"fairlead-nothing", "fairlead-runs"}
    bindings = cluster.client.items(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}/rolebindings")
    assert {each["metadata"]["name"] for each in bindings} >= {"fairlead-viewer", "fairlead-user", "fairlead-admin"}
    message = condition(cluster, f"{TEAMS}/{name}", "Ready")["message"]
    assert "deleting the team leaves the namespace and all that is in it" in message


def test_the_objects_of_a_team_are_counted_once_the_kinds_are_old_enough(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_controller, "COUNTED_AFTER_S", 2.0)
    path = f"/api/v1/namespaces/{name}/resourcequotas/fairlead-objects"
    with operating(access, namespace, watch_namespace=None):
        apply(cluster, Team(name=name, max_objects=7))
        until(lambda: any(quota["metadata"]["name"] == "fairlead-objects" for quota in cluster.client.items(
            f"/api/v1/namespaces/{name}/resourcequotas"
        )))  # fmt: skip
        until(lambda: is_ready(cluster, name))
    assert cluster.client.get(path)["spec"]["hard"]["count/sweeps.fairlead.dev"] == "7"
    conditions = cluster.client.get(f"{TEAMS}/{name}")["status"]["conditions"]
    assert "DriftMended" not in [entry["type"] for entry in conditions]


def test_whatever_somebody_changes_is_put_right_and_told(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, name: str
) -> None:
    client = cluster.client
    place = f"/apis/networking.k8s.io/v1/namespaces/{name}/networkpolicies"
    with operating(access, namespace, watch_namespace=None):
        apply(cluster, Team(name=name, quota=QUOTA))
        until(lambda: is_ready(cluster, name))
        client.request("DELETE", f"{place}/fairlead-runs")
        until(lambda: "fairlead-runs" in policies(cluster, name))
        # An open door beside what was rendered, and bounds raised.
        client.merge(f"{place}/fairlead-nothing", {"spec": {"ingress": [{}]}})
        until(lambda: "ingress" not in policies(cluster, name)["fairlead-nothing"]["spec"])
        path = f"/api/v1/namespaces/{name}/resourcequotas/fairlead"
        client.merge(path, {"spec": {"hard": {"requests.nvidia.com/gpu": "1000"}}})
        until(lambda: client.get(path)["spec"]["hard"]["requests.nvidia.com/gpu"] == "16")
        labels = {"pod-security.kubernetes.io/enforce": "privileged"}
        client.merge(f"/api/v1/namespaces/{name}", {"metadata": {"labels": labels}})
        until(lambda: enforced(cluster, name) == "restricted")
        until(lambda: f"Namespace {name}" in condition(cluster, f"{TEAMS}/{name}", "DriftMended").get("message", ""))
        uid = client.get(f"{TEAMS}/{name}")["metadata"]["uid"]
        until(lambda: "changed or removed NetworkPolicy fairlead-nothing, which was restored" in told(cluster, uid))


def leaving(cluster: WorkloadApi) -> list[str]:
    """Namespaces that are going away, in which runs are left."""
    found = cluster.client.items("/api/v1/namespaces")
    gone = {each["metadata"]["name"] for each in found if "deletionTimestamp" in each["metadata"]}
    return sorted(gone & {run["metadata"]["namespace"] for run in cluster.client.items(TRAININGS)})


@pytest.mark.slow
def test_at_rest_a_team_costs_no_request(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, name: str
) -> None:
    with operating(access, namespace, watch_namespace=None) as operator:
        apply(cluster, Team(name=name, quota=QUOTA))
        until(lambda: is_ready(cluster, name))
        # It looks after the whole cluster, also after what tests before have left in namespaces that are going away.
        until(lambda: not leaving(cluster), lambda: leaving(cluster))
        time.sleep(1.0)
        version = cluster.client.get(f"{TEAMS}/{name}")["metadata"]["resourceVersion"]
        before = operator.num_requests
        time.sleep(6.0)
        # The Lease is renewed meanwhile.
        assert operator.num_requests - before <= 6.0 / 2.0 + 2
        assert cluster.client.get(f"{TEAMS}/{name}")["metadata"]["resourceVersion"] == version


@pytest.mark.slow
def test_a_namespace_of_somebody_else_is_not_touched_until_it_is_handed_over(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, name: str, plane: ControlPlane
) -> None:
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": {"theirs": "yes"}}})
    with operating(access, namespace, watch_namespace=None):
        apply(cluster, Team(name=name))
        until(lambda: condition(cluster, f"{TEAMS}/{name}", "Ready").get("reason") == "NamespaceTaken")
        assert f"{TEAM}={name}" in condition(cluster, f"{TEAMS}/{name}", "Ready")["message"]
        assert policies(cluster, name) == {}
        cluster.client.merge(f"/api/v1/namespaces/{name}", {"metadata": {"labels": {TEAM: name}}})
        until(lambda: is_ready(cluster, name))
    assert set(policies(cluster, name)) == {"fairlead-nothing", "fairlead-runs"}


def test_a_team_that_has_no_quota_any_more_has_none(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, name: str
) -> None:
    quotas = f"/api/v1/namespaces/{name}/resourcequotas"
    with operating(access, namespace, watch_namespace=None):
        apply(cluster, Team(name=name, quota=QUOTA))
        until(lambda: is_ready(cluster, name))
        assert names_of(cluster, quotas) == {"fairlead", CRITICAL}
        apply(cluster, Team(name=name, members=("ben",)))
        until(lambda: names_of(cluster, quotas) == {CRITICAL} and is_ready(cluster, name))


def names_of(cluster: WorkloadApi, path: str) -> set[str]:
    return {each["metadata"]["name"] for each in cluster.client.items(path)}


def test_a_deleted_team_leaves_its_namespace_and_says_how_to_remove_it(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, name: str
) -> None:
    with operating(access, namespace, watch_namespace=None):
        apply(cluster, Team(name=name, quota=QUOTA))
        until(lambda: is_ready(cluster, name))
        uid = cluster.client.get(f"{TEAMS}/{name}")["metadata"]["uid"]
        cluster.client.request("DELETE", f"{TEAMS}/{name}")
        until(lambda: f"`kubectl delete namespace {name}` removes them" in told(cluster, uid))
    assert cluster.client.get(f"/api/v1/namespaces/{name}/resourcequotas/fairlead")
    apply(cluster, Team(name=name))  # for the fixture, which deletes it


def test_a_pool_says_that_nothing_here_comes_of_it(access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
    pool = Pool(name=f"{namespace}-pool", hardware=Hardware(cpu_milli=1000, memory_bytes=1024**3))
    with operating(access, namespace, watch_namespace=None):
        cluster.client.create(POOLS, write_object(pool))
        until(lambda: bool(condition(cluster, f"{POOLS}/{pool.name}", "Used")))
    used = condition(cluster, f"{POOLS}/{pool.name}", "Used")
    assert (used["status"], used["reason"]) == ("False", "NotUsedHere")
    assert "of a Pool this cluster takes the price" in used["message"]
    assert condition(cluster, f"{POOLS}/{pool.name}", "Ready")["status"] == "True"
    cluster.client.request("DELETE", f"{POOLS}/{pool.name}")


def test_what_the_server_adds_is_no_drift_and_what_lets_more_through_is() -> None:
    rendered = render_team(Team(name="a", quota=QUOTA), TeamSettings())
    by_kind = {each["kind"]: each for each in reversed(rendered)}
    quota = by_kind["ResourceQuota"]
    assert is_as_rendered({**quota, "status": {"used": {}}}, quota)
    live = {**quota, "spec": {"hard": {**quota["spec"]["hard"], "requests.cpu": "64000m"}}}
    assert is_as_rendered(live, quota)
    assert surplus(live["spec"], quota["spec"]) == {}
    live["spec"]["hard"]["pods"] = "5"
    assert surplus(live["spec"], quota["spec"]) == {"hard": {"pods": None}}
    policy = next(each for each in rendered if each["metadata"]["name"] == "fairlead-runs")
    wider = [{**rule, "ports": [*rule["ports"], {"port": 22, "protocol": "TCP"}]} for rule in policy["spec"]["egress"]]
    assert not is_as_rendered({**policy, "spec": {**policy["spec"], "egress": wider}}, policy)
    longer = [{**rule, "ports": [{**p, "endPort": 65535} for p in rule["ports"]]} for rule in policy["spec"]["egress"]]
    assert not is_as_rendered({**policy, "spec": {**policy["spec"], "egress": longer}}, policy)
