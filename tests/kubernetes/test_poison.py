"""What a member of one team plants does not delay another team, and is named: on a real API server."""

import json
import time
import urllib.error
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.informers import informers
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.names import ACCESS_KEYS
from fairlead.cluster.kubernetes.operator.runs.unreadable_objects import READABLE
from fairlead.cluster.kubernetes.workloads.run_record import FINALIZER, AnyObject, read_workload
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.specs.keys import API_VERSION
from fairlead.specs.training import Retry
from fairlead.state.snapshot import Phase
from tests.kubernetes.operating import comes_to, gang, operating
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import PATIENCE_S, until

TENANT = "nobody"  # of the session's users, who gets the role of a user in one namespace
MESSAGES = (
    '{"form":1,"ranks":[1]}', '{"form":1,"tail":3,"ranks":[[0,0,null,1,0]]}', '{"form":1,"hang":5,"ranks":[]}',
    '{"form":1,"ranks":[[0,0,null,1e999,0]]}', '{"form":1,"usage":[1e999,1],"ranks":[]}', "[" * 4_000,
    '{"form":1,"progress":{"loss":' + "9" * 400 + "}}",
)  # fmt: skip
BRACKETS = "[" * 100_000
TOO_MUCH = {"cpu": "100m", "memory": "64Mi", "gpu": 64}  # so that a hostile run itself takes no room
NO_RETRY = Retry(program=0, infrastructure=0)


@pytest.fixture
def other(plane: ControlPlane, namespace: str) -> Iterator[str]:
    """The namespace of another team; the tenant may use the first one, and nothing here."""
    name = f"{namespace}-b"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    plane.await_namespace(name)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "tenant"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "fairlead-user"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": TENANT}],
    }
    plane.request("POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings", binding)
    yield name
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


def a_training(name: str, *, annotations: Any = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "Training",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"run": "work", "resources": {"cpu": "100m", "memory": "64Mi"}, **spec},
    }


def plant(plane: ControlPlane, namespace: str, content: dict[str, Any]) -> bool:
    """Create an object as the tenant; False if the API server itself refuses it."""
    is_map = content["kind"] == "ConfigMap"
    path = f"/api/v1/namespaces/{namespace}/configmaps" if is_map else objects_path(content["kind"], namespace)
    try:
        plane.request("POST", path, content, user=TENANT)
    except urllib.error.HTTPError as error:
        if error.code in (400, 413, 422):
            return False
        raise
    return True


def starts(access: ClusterAccess, namespace: str, name: str) -> float:
    """Submit a run of the other team; the seconds until it runs."""
    theirs, begun = WorkloadApi(Client(access), namespace=namespace), time.monotonic()
    theirs.submit(gang(namespace, name, nodes=1, gpus=0))
    until(lambda: theirs.named(name, namespace).status.phase is Phase.RUNNING)
    return time.monotonic() - begun


@pytest.mark.slow
def test_no_poison_of_a_tenant_delays_another_team_and_each_is_named(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str, other: str
) -> None:
    messages = [
        replace(gang(namespace, f"message-{number}", nodes=1, gpus=0, run="1s", message=text), retry=NO_RETRY)
        for number, text in enumerate(MESSAGES)
    ]
    with operating(access, namespace, watch_namespace=None) as operator:
        for run in messages:
            cluster.submit(run)
        assert plant(plane, namespace, a_training("pattern", metrics={"pattern": "(?P<step>a{4294967295})"}))
        assert plant(plane, namespace, a_training("brackets", annotations={"fairlead.dev/code": BRACKETS}))
        nested: Any = "x"
        for _ in range(300):
            nested = {"a": nested}
        plant(plane, namespace, a_training("nested", kubernetes={"spec": {"affinity": nested}}))
        keys = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": ACCESS_KEYS}, "data": {"k": BRACKETS}}
        assert plant(plane, namespace, keys)
        assert starts(access, other, "first") < PATIENCE_S
        for number in range(len(MESSAGES)):
            comes_to(cluster, f"message-{number}", Phase.SUCCEEDED)
        until(lambda: _phase(plane, namespace, "pattern") == "Failed")
        events = plane.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        told = [each for each in events if each["involvedObject"]["name"] == "pattern"]
        assert [each["reason"] for each in told] == ["InvalidSpec"]
        assert "repetition number is too large" in told[0]["message"]
        assert not operator.view.isolation.failing
        # Its author gets rid of it.
        path = f"{objects_path('Training', namespace)}/pattern"
        plane.request("DELETE", path, user=TENANT)
        until(lambda: not plane.exists(path))
    # The next operator reads the same objects first.
    with operating(access, namespace, watch_namespace=None):
        assert starts(access, other, "second") < PATIENCE_S


def _phase(plane: ControlPlane, namespace: str, name: str) -> str:
    content = plane.request("GET", f"{objects_path('Training', namespace)}/{name}")
    return str((content.get("status") or {}).get("phase") or "")


def test_an_object_that_nobody_foresaw_is_set_apart_told_and_let_go(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str, other: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def read(content: dict[str, Any], **more: Any) -> AnyObject:
        if "poison" in content["metadata"].get("labels", {}):
            raise RecursionError("nobody foresaw this")
        return read_workload(content, **more)

    monkeypatch.setattr(informers, "read_workload", read)
    path = f"{objects_path('Training', namespace)}/strange"
    content = a_training("strange")
    content["metadata"] |= {"labels": {"poison": "yes"}, "finalizers": [FINALIZER]}
    with operating(access, namespace, watch_namespace=None) as operator:
        assert plant(plane, namespace, content)
        until(lambda: bool(_readable(plane, path)))
        (condition,) = _readable(plane, path)
        assert (condition["status"], condition["reason"]) == ("False", "Unreadable")
        assert "nobody foresaw this" in condition["message"]
        events = plane.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        told = [each for each in events if each["involvedObject"]["name"] == "strange"]
        assert [(each["reason"], each["type"]) for each in told] == [("Unreadable", "Warning")]
        assert operator.health.numbers()["fairlead_unreadable_objects"] == 1
        assert operator.health.trouble() == ""
        assert starts(access, other, "first") < PATIENCE_S
        # Mended, it is read and runs; poisoned again and deleted, it is let go.
        plane.request("PATCH", path, {"metadata": {"labels": {"poison": None}}}, user=TENANT, kind="merge-patch+json")
        until(lambda: _phase(plane, namespace, "strange") in ("Starting", "Running"))
        until(lambda: not _readable(plane, path))
        assert operator.health.numbers()["fairlead_unreadable_objects"] == 0
        plane.request("PATCH", path, {"metadata": {"labels": {"poison": "2"}}}, user=TENANT, kind="merge-patch+json")
        until(lambda: operator.health.numbers()["fairlead_unreadable_objects"] == 1)
        plane.request("DELETE", path, user=TENANT)
        until(lambda: not plane.exists(path))


def _readable(plane: ControlPlane, path: str) -> list[dict[str, Any]]:
    conditions = (plane.request("GET", path).get("status") or {}).get("conditions") or ()
    return [each for each in conditions if each["type"] == READABLE]


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_storm_of_hostile_objects_ends_nothing_and_delays_nobody(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str, other: str, count: int
) -> None:
    random = Random(count)
    with operating(access, namespace, watch_namespace=None) as operator:
        # The best of three: a crowded machine delays any of them.
        quiet_s = min(starts(access, other, f"quiet-{number}") for number in range(3))
        for number in range(count):
            plant(plane, namespace, _hostile(random, number))
        storm_s = min(starts(access, other, f"storm-{number}") for number in range(3))
        assert storm_s < quiet_s + 1.0, (storm_s, quiet_s)
        assert operator.election.is_leader
        assert not operator.view.isolation.failing
        assert operator.health.trouble() == ""


def _hostile(random: Random, number: int) -> dict[str, Any]:
    name, kind = f"h{number}", random.randrange(4)
    if kind == 0:
        pattern = random.choice(["(?P<step>a{4294967295})", "(?P<a>(a{1,9999}){9999})", "(" * 200, "[[" + "x" * 300])
        return a_training(name, metrics={"pattern": pattern}, resources=TOO_MUCH)
    if kind == 1:
        text = random.choice([BRACKETS, "{}", '{"sent":[[1]]}', '{"sent":5,"code":[]}', "9" * 5_000, "\x00"])
        hostile = {"fairlead.dev/code": text, "fairlead.dev/intent": text[:100]}
        return a_training(name, annotations=hostile, resources=TOO_MUCH)
    if kind == 2:
        record = {"sha256": random.choice([[], {}, "x" * 64, 1]), "created_at": random.choice(["x", 1e400, []])}
        data = {"k": random.choice([BRACKETS, json.dumps(record)])}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{ACCESS_KEYS}-{number}"}, "data": data}
    moment = random.choice(["nan", "1e400", "-1", "9" * 400])
    return a_training(name, annotations={"fairlead.dev/submitted": moment}, resources=TOO_MUCH)
