"""Gangs have PodGroups on a real control plane that serves them, and its scheduler treats each gang as one.

Nodes and pods are played by kwok; API server, scheduler and controller manager are Kubernetes' own, with the feature
gate GenericWorkload.
"""

import os
import secrets
import urllib.error
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess, load_access
from fairlead.cluster.kubernetes.manifests.admission_policies import render_group_policy, render_operator_policy
from fairlead.cluster.kubernetes.manifests.placeholders import render_priority_class
from fairlead.cluster.kubernetes.manifests.pod_groups import BASE
from fairlead.cluster.kubernetes.manifests.roles import render_operator_bindings, render_roles
from fairlead.cluster.kubernetes.operator.pods.gang_groups import FitGroup
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.overlay import overlay
from fairlead.specs.training import Elastic
from fairlead.state.snapshot import Intent, Phase, Progress
from tests.kubernetes.audit import RESTRICTED
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import GPUS, HARMLESS, comes_to, gang, live_pods, operating, teach_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import POD_GROUPS, ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

TENANT = "tess"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
POLICIES = "/apis/admissionregistration.k8s.io/v1"
Object = dict[str, Any]


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane with PodGroups, our kinds and two nodes of eight GPUs."""
    with started(lambda: ControlPlane(users={TENANT: []}, flags=POD_GROUPS), request) as plane:
        teach_kinds(plane)
        for content in (render_priority_class(), *render_roles()):
            applied(plane, content)
        add_nodes(plane, 2, prefix="a-gpu", gpus=GPUS)
        until(lambda: all(is_ready(node) for node in plane.request("GET", "/api/v1/nodes")["items"]))
        plane.request("POST", CLASSES, {"metadata": {"name": "urgent"}, "value": 1000})
        yield plane


@pytest.fixture
def access(plane: ControlPlane) -> ClusterAccess:
    return load_access((plane.kubeconfig(),))


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[str]:
    """A namespace of the test's own, of which nothing remains after it."""
    name = f"t-{os.getpid()}-{secrets.token_hex(3)}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": RESTRICTED}})
    plane.await_namespace(name)
    yield name
    plane.request("DELETE", f"/api/v1/namespaces/{name}")
    until(lambda: not plane.exists(f"/api/v1/namespaces/{name}"), "the end of the namespace")


@pytest.fixture
def cluster(access: ClusterAccess, plane: ControlPlane, namespace: str) -> Iterator[WorkloadApi]:
    for binding in render_operator_bindings(namespace):
        applied(plane, binding)
    cluster = WorkloadApi(Client(access), namespace=namespace)
    yield cluster
    if cluster.workloads():
        with operating(access, namespace):
            for run in cluster.workloads():
                cluster.set_intent(run.uid, Intent.DELETE)
            until(lambda: not cluster.workloads())


def groups(cluster: WorkloadApi, namespace: str) -> dict[str, Object]:
    place = f"{BASE}/namespaces/{namespace}/podgroups"
    return {group["metadata"]["name"]: group for group in cluster.client.items(place)}


def pods(cluster: WorkloadApi, namespace: str) -> dict[str, Object]:
    return {pod["metadata"]["name"]: pod for pod in cluster.client.items(f"/api/v1/namespaces/{namespace}/pods")}


def group_of(pod: Object) -> str | None:
    name: str | None = pod["spec"].get("schedulingGroup", {}).get("podGroupName")
    return name


def a_pod(name: str, gpus: int, **spec: Any) -> Object:
    """A pod of somebody else."""
    resources = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = {
        "name": "c", "image": "i", "resources": {"requests": resources, "limits": resources},
        "securityContext": HARMLESS,
    }  # fmt: skip
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def a_group(name: str, min_count: int = 1) -> Object:
    return {"metadata": {"name": name}, "spec": {"schedulingPolicy": {"gang": {"minCount": min_count}}}}


def refused(ask: Callable[[], object]) -> str:
    """Return why the API server refuses a request."""
    with pytest.raises(urllib.error.HTTPError) as refusal:
        ask()
    return refusal.value.read().decode()


def test_a_gang_has_one_group_from_its_start_to_its_end(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    with operating(access, namespace):
        run = cluster.submit(gang(namespace, run="5s"))
        comes_to(cluster, "train", Phase.RUNNING)
        ((name, group),) = groups(cluster, namespace).items()
        assert name == f"fairlead-train-{run.uid[:6]}-0"
        assert {group_of(pod) for pod in pods(cluster, namespace).values()} == {name}
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
        assert group["spec"]["disruptionMode"] == {"all": {}}
        (owner,) = group["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Training", "train", run.uid)
        conditions = {condition["type"]: condition["status"] for condition in group["status"]["conditions"]}
        assert conditions["PodGroupInitiallyScheduled"] == "True", "kube-scheduler has placed it as one"
        comes_to(cluster, "train", Phase.SUCCEEDED)
        until(lambda: not groups(cluster, namespace), "the end of the group")


def test_the_next_attempt_has_a_group_of_its_own(access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
    with operating(access, namespace):
        run = cluster.submit(gang(namespace))
        comes_to(cluster, "train", Phase.RUNNING)
        cluster.client.delete(f"/api/v1/namespaces/{namespace}/pods/train-0-1")
        comes_to(cluster, "train", Phase.RUNNING, attempt=1)
        until(lambda: set(groups(cluster, namespace)) == {f"fairlead-train-{run.uid[:6]}-1"})
        live = [pods(cluster, namespace)[name] for name in live_pods(cluster, namespace)]
        assert {group_of(pod) for pod in live} == {f"fairlead-train-{run.uid[:6]}-1"}


def test_a_run_of_one_pod_has_none(access: ClusterAccess, cluster: WorkloadApi, namespace: str) -> None:
    with operating(access, namespace):
        cluster.submit(gang(namespace, nodes=1))
        comes_to(cluster, "train", Phase.RUNNING)
        assert not groups(cluster, namespace)
        assert [group_of(pod) for pod in pods(cluster, namespace).values()] == [None]


def test_a_stranger_of_higher_priority_takes_a_whole_gang_and_no_part_of_another(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    with operating(access, namespace):
        for name in ("one", "two"):
            cluster.submit(gang(namespace, name, gpus=GPUS // 2))
            comes_to(cluster, name, Phase.RUNNING)
    # Nobody but kube-scheduler takes pods away now.
    before = live_pods(cluster, namespace)
    assert len(before) == 4
    path = f"/api/v1/namespaces/{namespace}/pods"
    cluster.client.create(path, a_pod("stranger", GPUS // 2, priorityClassName="urgent"))
    until(lambda: pods(cluster, namespace)["stranger"]["spec"].get("nodeName"), lambda: pods(cluster, namespace))
    left = [name for name in live_pods(cluster, namespace) if name != "stranger"]
    assert left in (["one-0-0", "one-0-1"], ["two-0-0", "two-0-1"])
    with operating(access, namespace):
        cluster.client.delete(f"{path}/stranger")
        for name in ("one", "two"):
            comes_to(cluster, name, Phase.RUNNING)


def test_a_lost_pod_alone_is_replaced_within_the_group(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    spec = replace(gang(namespace, nodes=3, gpus=1, stop="0s"), elastic=Elastic.IN_PLACE)
    with operating(access, namespace) as operator:
        run = cluster.submit(spec)
        comes_to(cluster, "train", Phase.RUNNING)
        operator.cluster.reports.note(run.uid, Progress(step=5, in_place_attempt=0, updated_at=5.0), None)
        until(lambda: cluster.named("train", namespace).progress is not None)
        cluster.client.delete(f"/api/v1/namespaces/{namespace}/pods/train-0-1")
        until(lambda: "train-0-1r1" in live_pods(cluster, namespace))
        until(lambda: pods(cluster, namespace)["train-0-1r1"]["status"]["phase"] == "Running")
        ((name, group),) = groups(cluster, namespace).items()
        assert {group_of(pod) for pod in pods(cluster, namespace).values()} == {name}
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
        assert cluster.named("train", namespace).status.attempt == 0
        # As for a pod in place of a lost one after another has ended; never of a later group of the name.
        key, keeper = f"{namespace}/{name}", operator.agent._groups
        keeper._fit(FitGroup(key=key, uid="an-earlier-one", min_count=1))
        assert groups(cluster, namespace)[name]["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
        keeper._fit(FitGroup(key=key, uid=group["metadata"]["uid"], min_count=2))
        assert groups(cluster, namespace)[name]["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}


def test_a_group_that_somebody_removes_in_mid_run_is_there_again(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    with operating(access, namespace):
        cluster.submit(gang(namespace))
        comes_to(cluster, "train", Phase.RUNNING)
        ((name, group),) = groups(cluster, namespace).items()
        path = f"{BASE}/namespaces/{namespace}/podgroups/{name}"
        cluster.client.delete(path)
        assert name in groups(cluster, namespace), "Kubernetes keeps it while its pods live"
        cluster.client.merge(path, {"metadata": {"finalizers": []}})
        uid = group["metadata"]["uid"]
        until(lambda: groups(cluster, namespace).get(name, group)["metadata"]["uid"] != uid)
        again = groups(cluster, namespace)[name]
        assert (again["spec"]["schedulingPolicy"], again["spec"]["disruptionMode"]) == (
            {"gang": {"minCount": 2}}, {"all": {}},
        )  # fmt: skip
        assert cluster.named("train", namespace).status.attempt == 0


def test_a_group_of_somebody_else_with_the_name_stays_theirs_and_the_gang_starts_without(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    run = cluster.submit(gang(namespace))
    name = names.pod_group_name_of("train", run.uid, 0)
    theirs = cluster.client.create(f"{BASE}/namespaces/{namespace}/podgroups", a_group(name, 50))
    with operating(access, namespace):
        comes_to(cluster, "train", Phase.RUNNING)
        assert {group_of(pod) for pod in pods(cluster, namespace).values()} == {None}
        (left,) = groups(cluster, namespace).values()
        assert (left["metadata"]["uid"], left["spec"]) == (theirs["metadata"]["uid"], theirs["spec"])
        events = f"/api/v1/namespaces/{namespace}/events"
        until(lambda: any("Fairlead did not create it" in event["message"] for event in cluster.client.items(events)))


def test_a_group_that_names_the_run_without_its_uid_and_name_is_nobodys(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    run = cluster.submit(gang(namespace))
    owner = names.owner(run)
    labels = {names.RUN_UID: run.uid, names.MANAGED_BY: names.MANAGER, names.ATTEMPT: "0"}
    path = f"{BASE}/namespaces/{namespace}/podgroups"
    other = a_group("mine", 50)
    other["metadata"] |= {"labels": labels, "ownerReferences": [owner]}
    cluster.client.create(path, other)
    with operating(access, namespace):
        comes_to(cluster, "train", Phase.RUNNING)
        kept = groups(cluster, namespace)["mine"]
        assert kept["spec"]["schedulingPolicy"]["gang"]["minCount"] == 50
        assert {group_of(pod) for pod in pods(cluster, namespace).values()} == {
            names.pod_group_name_of("train", run.uid, 0)
        }


def test_a_killed_operator_leaves_a_group_that_the_next_one_uses(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    """The first one creates the group and gets no further."""
    run = cluster.submit(gang(namespace))
    with operating(access, namespace) as operator:
        operator.agent._post = lambda *_: None  # type: ignore[method-assign]
        until(lambda: groups(cluster, namespace))
    assert not pods(cluster, namespace)
    uid = groups(cluster, namespace)[f"fairlead-train-{run.uid[:6]}-0"]["metadata"]["uid"]
    with operating(access, namespace):
        comes_to(cluster, "train", Phase.RUNNING)
        ((name, group),) = groups(cluster, namespace).items()
        assert group["metadata"]["uid"] == uid
        assert {group_of(pod) for pod in pods(cluster, namespace).values()} == {name}


def test_a_gang_whose_pods_get_another_priority_than_their_class_goes_without(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, plane: ControlPlane
) -> None:
    """As by a webhook; kube-scheduler would place no pod of such a group."""
    urgent = 'priorityClassName: "urgent", priority: 1000'
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": namespace},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                ],
            },
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "mutations": [{
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": f"Object{{spec: Object.spec{{{urgent}}}}}"},
            }],
        },
    }  # fmt: skip
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": namespace}, "spec": {"policyName": namespace},
    }  # fmt: skip
    for kind, content in (("mutatingadmissionpolicies", policy), ("mutatingadmissionpolicybindings", binding)):
        plane.request("POST", f"{POLICIES}/{kind}", content)
    trial, path = a_pod("trial", 0), f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    until(lambda: plane.request("POST", path, trial)["spec"].get("priority") == 1000, "the policy's effect")
    try:
        with operating(access, namespace):
            cluster.submit(gang(namespace))
            comes_to(cluster, "train", Phase.RUNNING)
            assert {group_of(pod) for pod in pods(cluster, namespace).values()} == {None}
            until(lambda: not groups(cluster, namespace))
    finally:
        for kind in ("mutatingadmissionpolicybindings", "mutatingadmissionpolicies"):
            plane.request("DELETE", f"{POLICIES}/{kind}/{namespace}")


def test_a_group_has_the_priority_class_of_its_pods(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    spec = replace(gang(namespace), kubernetes=overlay({"spec": {"priorityClassName": "urgent"}}))
    with operating(access, namespace, allowed=None):
        cluster.submit(spec)
        comes_to(cluster, "train", Phase.RUNNING)
        (group,) = groups(cluster, namespace).values()
        assert (group["spec"]["priorityClassName"], group["spec"]["priority"]) == ("urgent", 1000)


def test_people_who_may_edit_a_namespace_may_not_touch_the_groups_of_gangs_where_the_policies_are(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, plane: ControlPlane
) -> None:
    """Kubernetes' own role `edit` may write any PodGroup and pod of its namespace."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "edit", "namespace": namespace},
        "subjects": [{"kind": "User", "name": TENANT, "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "ClusterRole", "name": "edit", "apiGroup": "rbac.authorization.k8s.io"},
    }  # fmt: skip
    applied(plane, binding)
    policies = [*render_group_policy(namespace), *render_operator_policy(namespace, only_teams=False)]
    for content in policies:
        applied(plane, content)
    path, own = f"{BASE}/namespaces/{namespace}/podgroups", f"/api/v1/namespaces/{namespace}/pods"
    try:
        until(lambda: _is_refused(plane, "POST", f"{path}?dryRun=All", a_group("fairlead-x")), "the policy's effect")
        with operating(access, namespace):
            cluster.submit(gang(namespace))
            comes_to(cluster, "train", Phase.RUNNING)
            ((name, group),) = groups(cluster, namespace).items()
            size = {"spec": {"schedulingPolicy": {"gang": {"minCount": 9}}}}
            joins = a_pod("joins", 0, schedulingGroup={"podGroupName": name})
            for ask in (
                lambda: plane.request("POST", path, a_group(f"{name}9"), user=TENANT),
                lambda: plane.request("POST", path, {**a_group("x"), "metadata": {"generateName": name}}, user=TENANT),
                lambda: plane.request("PATCH", f"{path}/{name}", size, user=TENANT, kind="merge-patch+json"),
                lambda: plane.request("DELETE", f"{path}/{name}", user=TENANT),
                lambda: plane.request("POST", own, joins, user=TENANT),
            ):
                assert "the operator of Fairlead keeps" in refused(ask)
            # Their own are theirs.
            plane.request("POST", path, a_group("ours"), user=TENANT)
            plane.request("POST", own, a_pod("ours", 0, schedulingGroup={"podGroupName": "ours"}), user=TENANT)
            plane.request("DELETE", f"{own}/ours", user=TENANT)
            plane.request("DELETE", f"{path}/ours", user=TENANT)
            kept = groups(cluster, namespace)[name]
            assert (kept["metadata"]["uid"], kept["spec"]) == (group["metadata"]["uid"], group["spec"])
            # The garbage collector takes the group with its run.
            cluster.set_intent(cluster.named("train", namespace).uid, Intent.DELETE)
            until(lambda: name not in groups(cluster, namespace), "the end of the group")
    finally:
        for content in policies:
            kind = f"{content['kind']}s".lower().replace("policys", "policies")
            plane.request("DELETE", f"{POLICIES}/{kind}/{content['metadata']['name']}")


def _is_refused(plane: ControlPlane, method: str, path: str, content: Object) -> bool:
    try:
        plane.request(method, path, content, user=TENANT)
    except urllib.error.HTTPError as error:
        return b"the operator of Fairlead keeps" in error.read()
    return False


def test_an_operator_whose_roles_are_older_starts_gangs_without_groups(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, plane: ControlPlane
) -> None:
    role = next(role for role in render_roles() if role["metadata"]["name"] == "fairlead-operator")
    older = {**role, "rules": [rule for rule in role["rules"] if "podgroups" not in rule["resources"]]}
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/fairlead-operator"
    plane.request("PUT", path, older)
    try:
        with operating(access, namespace):
            cluster.submit(gang(namespace))
            comes_to(cluster, "train", Phase.RUNNING)
            assert not groups(cluster, namespace)
    finally:
        plane.request("PUT", path, role)
