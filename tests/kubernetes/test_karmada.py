"""Objects for a control plane of Karmada: the scripts by which it reads runs, in Lua 5.1 as there, and its policy."""

from types import SimpleNamespace
from typing import Any

import pytest
from lupa import lua51  # type: ignore[import-untyped]

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.client.karmada import is_karmada, undispatched
from fairlead.cluster.kubernetes.manifests.karmada import render_dispatch, render_karmada
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.manifests.workdir import MOST_PARTS, WORKDIR, part_names
from fairlead.cluster.kubernetes.workloads.run_record import read_training
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.state.snapshot import Phase
from tests.builders import training

INTERPRETER, POLICY = render_dispatch()


def called(operation: str, function: str, *arguments: Any) -> Any:
    """Return the result of a script; a tuple where it returns several values."""
    lua = lua51.LuaRuntime()
    lua.execute(INTERPRETER["spec"]["customizations"][operation]["luaScript"])
    returned = lua.globals()[function](*(lua.table_from(each, recursive=True) for each in arguments))
    return tuple(map(plain, returned)) if isinstance(returned, tuple) else plain(returned)


def plain(value: Any) -> Any:
    """A table as a dictionary or, where its keys are 1, 2 and so on, a list."""
    if lua51.lua_type(value) != "table":
        return value
    found = {key: plain(inner) for key, inner in value.items()}
    return list(found.values()) if found and list(found) == list(range(1, len(found) + 1)) else found


@pytest.mark.parametrize(
    ("spec", "nodes", "request_of_each"),
    [
        ({}, 1, {}),
        ({"nodes": 2, "resources": {"gpu": 8, "memory": "16Gi"}}, 2, {"nvidia.com/gpu": "8", "memory": "16Gi"}),
        ({"nodes": "2..8", "resources": {"gpu": "A100:4", "cpu": "500m"}}, 2, {"nvidia.com/gpu": "4", "cpu": "500m"}),
        ({"resources": {"gpu": "A100"}}, 1, {"nvidia.com/gpu": "1"}),
        # Of a share Karmada knows nothing, and quantities that it could not read would keep a run from every cluster.
        ({"resources": {"gpu": 0.5, "memory": "80GB", "cpu": "many"}}, 1, {}),
    ],
)  # fmt: skip
def test_karmada_counts_the_nodes_of_a_run_and_what_each_requests(
    spec: dict[str, Any], nodes: int, request_of_each: dict[str, str]
) -> None:
    found = called("replicaResource", "GetReplicas", {"spec": spec})
    assert found == (nodes, {"resourceRequest": request_of_each})


def test_karmada_reads_a_spec_as_it_is_written_by_a_command() -> None:
    resources = Resources(cpu_milli=1500, memory_bytes=64 * 1024**3, gpu=GpuRequest(milli=8000, model="A100"))
    content = write_object(training("train", nodes=4, resources=resources))
    nodes, asked = called("replicaResource", "GetReplicas", content)
    assert nodes == 4
    assert asked == {"resourceRequest": {"cpu": "1500m", "memory": "64Gi", "nvidia.com/gpu": "8"}}


def test_the_status_of_the_member_that_has_a_run_is_its_status_and_names_the_member() -> None:
    members = [{"clusterName": "east", "applied": True, "status": {"phase": "Running", "ranks": "2/2"}}]
    found = called("statusAggregation", "AggregateStatus", {"spec": {}}, members)
    assert found["status"] == {"phase": "Running", "ranks": "2/2", "cluster": "east"}


def test_what_a_member_does_not_take_is_pending_and_says_why() -> None:
    members = [{"clusterName": "east", "appliedMessage": "no matches for kind Training"}]
    content = called("statusAggregation", "AggregateStatus", a_training(), members)
    status = read_training(content).state.status
    assert (status.phase, status.reason.message) == (Phase.PENDING, "in cluster east: no matches for kind Training")


def test_a_run_that_no_member_has_is_pending() -> None:
    for members in ([], [{"clusterName": "east"}]):
        assert read_training(
            called("statusAggregation", "AggregateStatus", a_training(), members)
        ).state.status.phase is (Phase.PENDING)


def test_the_status_of_a_copy_that_is_being_deleted_is_not_that_of_the_next_run_of_its_name() -> None:
    status = {"phase": "Succeeded"}
    kept = {"metadata": {"name": "train"}, "status": status}
    assert called("statusReflection", "ReflectStatus", kept) == status
    leaving = {"metadata": {"name": "train", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": status}
    assert called("statusReflection", "ReflectStatus", leaving) == {}
    assert called("statusReflection", "ReflectStatus", {"metadata": {"name": "train"}}) == {}


@pytest.mark.parametrize(
    "annotation", ["0a1b2c-1", f"0a1b2c-{MOST_PARTS}", f"0a1b2c-{MOST_PARTS + 1}", "0a@s3://b/c", ""]
)
def test_the_files_of_a_run_go_where_it_goes(annotation: str) -> None:
    content = {"metadata": {"name": "train", "namespace": "a", "annotations": {WORKDIR: annotation}}}
    found = called("dependencyInterpretation", "GetDependencies", content) or []
    assert tuple(each["name"] for each in found) == part_names(annotation)
    assert {(each["kind"], each["apiVersion"], each["namespace"]) for each in found} <= {("ConfigMap", "v1", "a")}


def test_a_run_is_in_one_cluster_and_stays_there_while_that_is_out_of_reach() -> None:
    placement = POLICY["spec"]["placement"]
    assert placement["spreadConstraints"] == [{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}]
    assert {each["key"] for each in placement["clusterTolerations"]} == {
        "cluster.karmada.io/not-ready",
        "cluster.karmada.io/unreachable",
    }
    assert not any("tolerationSeconds" in each for each in placement["clusterTolerations"])


def test_karmadas_control_plane_is_given_no_operator_and_no_other_kind() -> None:
    kinds = [each["kind"] for each in render_karmada()]
    assert kinds.count("CustomResourceDefinition") == 1
    assert {"Deployment", "ServiceAccount", "ClusterRoleBinding"}.isdisjoint(kinds)


class Server:
    """An API server of which only the answers to some paths matter."""

    access = SimpleNamespace(option=" --context hub")

    def __init__(self, **codes: int) -> None:
        self._codes = codes

    def get(self, path: str) -> dict[str, Any]:
        code = self._codes["policy" if path.endswith("/fairlead") else "group"]
        if code != 200:
            raise ApiError("GET", code, "", "no")
        return {}


def test_karmada_is_known_by_its_kinds_and_a_missing_policy_is_told_with_its_remedy() -> None:
    assert [is_karmada(Server(group=code)) for code in (200, 403, 404)] == [True, False, False]  # type: ignore[arg-type]
    assert "`fairlead install --context hub`" in str(undispatched(Server(policy=404)))  # type: ignore[arg-type]
    assert [undispatched(Server(policy=code)) for code in (200, 403)] == [None, None]  # type: ignore[arg-type]
    with pytest.raises(ApiError):
        is_karmada(Server(group=500))  # type: ignore[arg-type]


def a_training() -> dict[str, Any]:
    content = write_object(training("train", team="a"))
    content["metadata"] |= {"uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return content
