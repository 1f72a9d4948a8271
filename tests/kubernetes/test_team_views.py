"""A member of one namespace predicts starts and sees the queue without rights to the cluster, and no others' names."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.manifests.roles import CLUSTER_VIEWER, render_binding
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from tests.kubernetes.operating import gang, operating
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import Desk, a_desk
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def elsewhere(plane: ControlPlane, namespace: str) -> Iterator[str]:
    """A namespace of another team."""
    name = f"{namespace}-secret"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    plane.await_namespace(name)
    yield name
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.mark.slow
def test_a_member_without_rights_to_the_cluster_sees_starts_and_the_queue_without_names(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str, elsewhere: str, tmp_path: Path
) -> None:
    (tmp_path / "desk").mkdir()
    desk = a_desk(plane, namespace, tmp_path / "desk")
    people = [{"kind": "Group", "name": "people", "apiGroup": "rbac.authorization.k8s.io"}]
    applied(plane, render_binding(namespace, "user", people))
    kubeconfig = str(plane.kubeconfig("nobody", namespace=namespace))
    user: Desk = replace(desk, in_process=True, environ={**desk.environ, "KUBECONFIG": kubeconfig})
    place = f"/apis/fairlead.dev/v1alpha1/namespaces/{elsewhere}/trainings"
    view = f"/api/v1/namespaces/{namespace}/configmaps/fairlead-view"
    spec = "name: {name}\nrun: work\nimage: python:3.12\nmax_duration: 1h\nresources: {{gpu: {gpus}, cpu: 1}}\n"
    (user.directory / "mine.yaml").write_text(spec.format(name="mine", gpus=8))
    (user.directory / "huge.yaml").write_text(spec.format(name="huge", gpus=64))
    unknown = user("plan", "mine.yaml")
    assert "its start cannot be predicted" in unknown.out
    with operating(access, namespace, watch_namespace=None, views_s=0.2):
        for name in ("secret-holder", "secret-next"):
            held = replace(gang(elsewhere, name, nodes=2), image="python:3.12", max_duration_s=3600.0)
            plane.request("POST", place, write_object(held))

        def phases() -> list[str]:
            return sorted(str((each.get("status") or {}).get("phase")) for each in plane.request("GET", place)["items"])

        until(lambda: phases() == ["Pending", "Running"])
        user("run", "--detach", "mine.yaml")
        until(lambda: plane.exists(view))
        (user.directory / "more.yaml").write_text(spec.format(name="more", gpus=4))

        def is_predicted() -> bool:
            planned = user("plan", "more.yaml")
            assert "secret" not in planned.out
            return "more: it would wait" in planned.out and "more: it would start 20" in planned.out

        until(is_predicted, lambda: user("plan", "more.yaml").out)
        queued = user("queue")
        assert "secret" not in queued.out + queued.err
        assert "another team" in queued.out

        def rows() -> list[dict[str, Any]]:
            listed: list[dict[str, Any]] = json.loads(user("queue", "--json").out)
            return listed

        until(lambda: {row["name"] for row in rows()} == {None, "mine"})
        # The other team's run is wider than its share, and has no start before it has its turn.
        until(lambda: [row["starts_at"] is not None for row in rows() if row["name"] == "mine"] == [True], rows)
        user("plan", "huge.yaml", code=1)
        binding_name = f"{namespace}-sees"
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": binding_name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": CLUSTER_VIEWER},
            "subjects": people,
        }
        applied(plane, binding)
        try:
            until(lambda: "secret-next" in user("queue").out)
        finally:
            plane.request("DELETE", f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{binding_name}")
        for name in ("secret-holder", "secret-next"):
            plane.request("DELETE", f"{place}/{name}")
        until(lambda: not phases())
        user("delete", "--yes", "mine")
