"""Ask a real API server what `kubernetes:` of a spec may do, as people with different rights.

A person who may create runs and nothing else gets by the pods of the run nothing that the roles withhold.
"""

import json
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.cluster.kubernetes.kinds import plural
from fairlead.cluster.kubernetes.manifests.admission_policies import render_overlay_policy
from fairlead.cluster.kubernetes.manifests.roles import render_roles
from fairlead.cluster.kubernetes.manifests.teams import TeamSettings, render_team
from fairlead.specs.overlay_allowance import NOTHING, OverlayAllowance
from fairlead.specs.pipeline import STEPS_MOST
from fairlead.specs.pod_field_access import ACCESS, FieldAccess, field_paths
from fairlead.specs.pod_fields import POD, FieldTree, Items
from fairlead.specs.team import Team
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import teach_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

pytestmark = pytest.mark.kubernetes

SPACE, SYSTEM = "sharing", "fairlead-system"
USER, ADMIN, VIEWER, PODS, READER, LEAST = "uma", "ada", "vic", "pat", "rea", "lea"
Object = dict[str, Any]
# A value that asks for something, where the name of the field alone does not say so.
VALUES: dict[str, Any] = {
    "runAsUser": 0, "runAsNonRoot": False, "automountServiceAccountToken": True, "priorityClassName": "high",
    "fsGroup": 0, "runAsGroup": 0, "tolerationSeconds": 5, "defaultMode": 420, "mode": 420, "weight": 1,
    "readOnly": True, "optional": True, "readOnlyRootFilesystem": True, "sizeLimit": "1Gi",
}  # fmt: skip
LISTED = {"add": "SYS_MODULE", "drop": "ALL", "supplementalGroups": 0}
NAMED = {"requests": ("cpu", "1"), "limits": ("memory", "1Gi"), "labels": ("a", "b")}
# Names and required fields that stand beside the one that is tried.
BESIDE: dict[str, Object] = {
    "spec.containers.*": {"name": "ranks"},
    "spec.initContainers.*": {"name": "beside", "image": "x"},
    "spec.volumes.*": {"name": "v"},
}


@pytest.fixture(scope="module")
def policed(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane with the policies, a team with a member of each role, and people with rights of Kubernetes."""
    users: dict[str, list[str]] = {name: [] for name in (USER, ADMIN, VIEWER, PODS, READER, LEAST)}
    with started(lambda: ControlPlane(users=users), request) as plane:
        prepare(plane)
        yield plane


def prepare(plane: ControlPlane, allowed: OverlayAllowance = NOTHING) -> None:
    teach_kinds(plane)
    for each in (*render_roles(), *render_team(Team(name=SPACE, members=(USER,)), TeamSettings())):
        applied(plane, each)
    plane.await_namespace(SPACE)
    bind(plane, ADMIN, "ClusterRole", "fairlead-admin")
    bind(plane, VIEWER, "ClusterRole", "fairlead-viewer")
    for name, user, rules in (
        ("least", LEAST, [(["fairlead.dev"], ["trainings"], ["create"], [])]),
        ("pods", PODS, [([""], ["pods"], ["create"], [])]),
        ("reader", READER, [
            ([""], ["secrets"], ["get"], ["db"]), ([""], ["serviceaccounts"], ["impersonate"], ["trainer"]),
        ]),
    ):  # fmt: skip
        role = {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": name, "namespace": SPACE},
            "rules": [
                {"apiGroups": groups, "resources": resources, "verbs": verbs, **({"resourceNames": of} if of else {})}
                for groups, resources, verbs, of in rules
            ],
        }  # fmt: skip
        applied(plane, role)
        bind(plane, user, "Role", name)
        if user != LEAST:
            bind(plane, user, "ClusterRole", "fairlead-user", f"{user}-user")
    for each in render_overlay_policy(SYSTEM, allowed):
        applied(plane, each)
    until(lambda: refusal(plane, USER, {"spec": {"serviceAccountName": "x"}}) != "", "the policy to take effect")


def bind(plane: ControlPlane, user: str, kind: str, role: str, name: str = "") -> None:
    applied(plane, {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": name or f"{user}-{role}", "namespace": SPACE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    })  # fmt: skip


def an_object(kind: str, spec: Object, name: str = "it") -> Object:
    return {"apiVersion": "fairlead.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def answer(plane: ControlPlane, user: str, content: Object, *, method: str = "POST", dry: bool = True) -> str:
    """Return what the API server says against an object; nothing when it takes it."""
    path = f"/apis/fairlead.dev/v1alpha1/namespaces/{SPACE}/{plural(content['kind'])}"
    name = f"/{content['metadata']['name']}" if method != "POST" else ""
    kind = "merge-patch+json" if method == "PATCH" else "json"
    try:
        plane.request(
            method, f"{path}{name}?fieldValidation=Strict{'&dryRun=All' if dry else ''}", content, user=user, kind=kind
        )
    except urllib.error.HTTPError as error:
        return f"{error.code} {json.load(error)['message']}"
    return ""


def refusal(plane: ControlPlane, user: str, overlay: Object) -> str:
    return answer(plane, user, an_object("Training", {"run": "x", "image": "i", "kubernetes": overlay}))


def with_field(path: str) -> Object:
    """Return an overlay with nothing but one field of the table, whose value asks for as much as it may."""
    parts = path.split(".")
    value: Any = "ranks" if path == "spec.containers.*.name" else VALUES.get(parts[-1], "text")
    if parts[-1] == "*":
        value = LISTED.get(parts[-2], "text")
    overlay: Object = _around(parts, 0, value)
    return overlay


def _around(parts: list[str], at: int, value: Any) -> Any:
    if at == len(parts):
        return value
    here = ".".join(parts[:at])
    inner = _around(parts, at + 1, value)
    if parts[at] != "*":
        return {parts[at]: inner}
    if _is_map(parts[:at]):
        name, own = NAMED.get(parts[at - 1], ("a", "text"))
        return {name: own}
    beside = BESIDE.get(f"{here}.*", {})
    return [{**beside, **inner}] if isinstance(inner, dict) else [inner]


def _is_map(parts: list[str]) -> bool:
    return parts[-1] in (
        "labels", "annotations", "nodeSelector", "matchLabels", "requests", "limits", "volumeAttributes",
    )  # fmt: skip


def completed(overlay: Object) -> Object:
    """Return the overlay with the fields that its schema requires beside those that it has."""

    def fill(value: Any, branch: Any) -> Any:
        if isinstance(branch, Items):
            return [fill(each, branch.item) for each in value]
        if isinstance(branch, FieldTree) and isinstance(value, dict):
            whole = {name: fill(inner, branch.fields[name]) for name, inner in value.items()}
            for name in branch.required:
                whole.setdefault(name, _some(branch.fields[name]))
            return whole
        return value

    def _some(branch: Any) -> Any:
        if isinstance(branch, Items):
            return []
        if isinstance(branch, FieldTree):
            return {name: _some(branch.fields[name]) for name in branch.required}
        return 1 if str(branch) == "a whole number" else "text"

    return dict(fill(overlay, POD))


def test_every_field_of_an_overlay_has_a_class() -> None:
    assert set(field_paths()) == set(ACCESS)


@pytest.mark.slow
def test_every_field_is_for_those_whom_its_class_names(policed: ControlPlane) -> None:
    """Each field in turn, by somebody who may create runs only, and by people who may create pods or have the verb."""
    wrong = []
    for path, access in ACCESS.items():
        overlay = completed(with_field(path))
        said = {user: refusal(policed, user, overlay) for user in (LEAST, PODS, ADMIN)}
        by_policy = {user: "ValidatingAdmissionPolicy 'fairlead-overlays'" in said[user] for user in said}
        expected = {
            FieldAccess.ANYONE: {LEAST: False, PODS: False, ADMIN: False},
            FieldAccess.REQUESTER: {LEAST: True, PODS: False, ADMIN: False},
            FieldAccess.INSTALLATION: {LEAST: True, PODS: True, ADMIN: True},
            FieldAccess.SPEC: {LEAST: False, PODS: False, ADMIN: False},
        }[access]
        # Cores of a container beside the ranks are counted, so that anybody may give them.
        by_rule = access is FieldAccess.SPEC and path.startswith("spec.containers")
        if by_policy != expected or any(bool(said[user]) is not (by_policy[user] or by_rule) for user in said):
            wrong.append((path, overlay, said))
    assert not wrong


def test_gpus_go_to_no_container_beside_the_ranks(policed: ControlPlane) -> None:
    for part in ("requests", "limits"):
        for name in ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "deviceclass.resource.kubernetes.io/gpu.nvidia.com"):
            beside = {"name": "beside", "image": "x", "resources": {part: {name: "1"}}}
            assert "GPUs go to the ranks alone" in refusal(policed, ADMIN, {"spec": {"initContainers": [beside]}})
            ranks = {"name": "ranks", "resources": {part: {name: "1"}}}
            assert "of the ranks come from the key" in refusal(policed, ADMIN, {"spec": {"containers": [ranks]}})


@pytest.mark.parametrize("part", ["requests", "limits"])
@pytest.mark.parametrize(
    ("name", "most", "more"),
    [("cpu", [100_000, "100k", "500m"], [100_001, "1e50", "1E"]), ("memory", ["1Pi", 2**40], ["2Pi", "1e40", 2**51])],
)
def test_a_container_beside_the_ranks_has_no_more_than_they_may_have(
    policed: ControlPlane, part: str, name: str, most: list[object], more: list[object]
) -> None:
    def answer_to(amount: object) -> str:
        beside = {"name": "beside", "image": "x", "resources": {part: {name: amount}}}
        return refusal(policed, ADMIN, {"spec": {"initContainers": [beside]}})

    assert not any(answer_to(amount) for amount in most)
    assert all(f"resources.{name} of a container is more than a pod may have" in answer_to(amount) for amount in more)


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Training", {"run": "x", "image": "i", "kubernetes": "HERE"}),
        ("Serving", {"run": "x", "image": "i", "kubernetes": "HERE"}),
        (
            "Sweep",
            {"parameters": {"a": "1..2"}, "trial": {"run": "x", "kubernetes": "HERE"}},
        ),
        ("Pipeline", {"kubernetes": "HERE", "steps": {"a": {"run": "x"}}}),
        ("Pipeline", {"steps": {"a": {"run": "x"}, "b": {"training": {"run": "x", "kubernetes": "HERE"}}}}),
        (
            "Pipeline",
            {"steps": {"a": {"sweep": {"parameters": {"a": "1..2"}, "trial": {"run": "x", "kubernetes": "HERE"}}}}},
        ),
    ],
)
def test_the_policy_reads_the_overlay_of_every_kind_also_when_it_is_changed(
    policed: ControlPlane, kind: str, spec: Object
) -> None:
    account = {"spec": {"serviceAccountName": "trainer"}}
    bad, fine = (json.loads(json.dumps(spec).replace('"HERE"', json.dumps(each))) for each in (account, {}))
    for user, is_refused in ((USER, True), (PODS, False), (ADMIN, False), (READER, False)):
        said = answer(policed, user, an_object(kind, bad))
        assert ('use ServiceAccount "trainer"' in said) is is_refused, (user, said)
        assert is_refused or not said, (user, said)
    name = f"changed-{kind.lower()}-{len(json.dumps(spec))}"
    assert answer(policed, USER, an_object(kind, fine, name), dry=False) == ""
    if kind not in ("Sweep", "Pipeline"):  # whose spec nobody changes
        assert 'use ServiceAccount "trainer"' in answer(policed, USER, an_object(kind, bad, name), method="PATCH")


def in_env(*names: str) -> Object:
    env = [{"name": f"A{number}", "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}}
           for number, name in enumerate(names)]  # fmt: skip
    return {"spec": {"containers": [{"name": "ranks", "env": env}]}}


def test_who_may_read_one_secret_may_give_his_runs_that_one(policed: ControlPlane) -> None:
    assert refusal(policed, READER, in_env("db", "db", "db")) == ""
    assert 'use Secret "other"' in refusal(policed, READER, in_env("db", "other"))
    assert "`get` on secrets in namespace sharing" in refusal(policed, USER, in_env("db"))
    assert refusal(policed, ADMIN, in_env(*(f"s{number}" for number in range(40)))) == ""
    assert refusal(policed, PODS, in_env(*(f"s{number}" for number in range(40)))) == ""


def test_more_secrets_than_can_be_asked_about_are_for_those_who_may_read_all(policed: ControlPlane) -> None:
    names = ["db", *(f"s{number}" for number in range(8))]
    assert "more than 8 different Secrets" in refusal(policed, READER, in_env(*names)) or 'use Secret "s0"' in refusal(
        policed, READER, in_env(*names)
    )


def test_a_run_of_an_administrator_is_stopped_but_not_changed_by_a_member(policed: ControlPlane) -> None:
    run = an_object("Training", {"run": "x", "image": "i", "kubernetes": in_env("db")}, "theirs")
    assert answer(policed, ADMIN, run, dry=False) == ""
    named = {"kind": "Training", "metadata": {"name": "theirs"}}
    stop = {**named, "metadata": {"name": "theirs", "annotations": {"fairlead.dev/intent": "stop"}}}
    assert answer(policed, USER, stop, method="PATCH") == ""
    assert 'use Secret "db"' in answer(policed, USER, {**named, "spec": {"run": "cat /secret"}}, method="PATCH")


def test_a_viewer_creates_nothing(policed: ControlPlane) -> None:
    assert refusal(policed, VIEWER, {}).startswith("403")


@pytest.mark.slow
def test_the_largest_pipeline_is_still_judged(policed: ControlPlane) -> None:
    """An API server bounds the cost of a policy; what it cannot judge it would refuse."""
    step = {"training": {"run": "x", "kubernetes": {"spec": {"nodeSelector": {"a": "b"}}}}}
    steps = {f"s{number}": step for number in range(STEPS_MOST)}
    assert answer(policed, USER, an_object("Pipeline", {"steps": steps})) == ""
    steps["s0"] = {"training": {"run": "x", "kubernetes": {"spec": {"priorityClassName": "system-node-critical"}}}}
    assert "priority class is not allowed" in answer(policed, ADMIN, an_object("Pipeline", {"steps": steps}))


@pytest.mark.slow
def test_what_an_installation_allows_is_allowed_and_nothing_beside(policed: ControlPlane) -> None:
    """The last of this file, as it changes the policy."""
    allowed = OverlayAllowance(root=True, capabilities=("IPC_LOCK",), priority_classes=("high",))
    for each in render_overlay_policy(SYSTEM, allowed):
        applied(policed, each)
    security = {"runAsUser": 0, "capabilities": {"add": ["IPC_LOCK", "NET_BIND_SERVICE"]}}
    whole = {"spec": {"priorityClassName": "high", "containers": [{"name": "ranks", "securityContext": security}]}}
    until(lambda: refusal(policed, USER, whole) == "", "the policy to take effect")
    security["capabilities"]["add"].append("SYS_MODULE")  # type: ignore[index]
    assert "capability is not allowed" in refusal(policed, ADMIN, whole)
    assert "priority class" in refusal(policed, ADMIN, {"spec": {"priorityClassName": "system-node-critical"}})
