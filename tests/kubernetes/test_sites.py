"""An endpoint whose site is a cluster: the supervisor of a machine brings its releases there, by a kubeconfig."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.manifests.roles import render_binding
from tests.home import end_everything
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import Desk, a_desk
from tests.kubernetes.test_serving import backends
from tests.kubernetes.test_sweeps import a_process
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

pytestmark = pytest.mark.kubernetes

SPEC = """
kind: Serving
name: web
run: serve {release}
image: python:3.12
replicas: 1
grace: 2s
resources: {{cpu: 100m, memory: 64Mi}}
sites:
  north: {{context: test, namespace: {namespace}}}
"""


@pytest.fixture
def centre(access: ClusterAccess, plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[tuple[Desk, Desk]]:
    """The machine of a member of the team, without a cluster of its own, and that of the cluster's operator."""
    (tmp_path / "desk").mkdir()
    desk = a_desk(plane, namespace, tmp_path / "desk")
    people = [{"kind": "Group", "name": "people", "apiGroup": "rbac.authorization.k8s.io"}]
    applied(plane, render_binding(namespace, "user", people))
    kubeconfig = str(plane.kubeconfig("nobody", namespace=namespace))
    home = tmp_path / "centre"
    environ = {**desk.environ, "KUBECONFIG": kubeconfig, "FAIRLEAD_HOME": str(home), "FAIRLEAD_CLUSTER": "local"}
    yield replace(desk, environ=environ), desk
    end_everything(home)


@pytest.mark.slow
def test_a_cluster_that_is_a_site_gets_each_release_and_is_stopped_with_its_endpoint(
    centre: tuple[Desk, Desk], plane: ControlPlane, namespace: str
) -> None:
    desk, operator = centre

    def status() -> str:
        return desk("status", "web", code=None).out

    (desk.directory / "serve.yaml").write_text(SPEC.format(release="one", namespace=namespace))
    with a_process(operator):
        desk("run", "serve.yaml", "--detach")
        until(lambda: "r1 serves at 1 of 1 site" in status(), status)
        assert backends(plane, namespace) == ["web-r1-1-0-0"]
        (desk.directory / "serve.yaml").write_text(SPEC.format(release="two", namespace=namespace))
        desk("run", "serve.yaml", "--detach")
        until(lambda: "r2 serves at 1 of 1 site" in status(), status)
        assert [name[:7] for name in backends(plane, namespace)] == ["web-r2-"]
        assert "north" in desk("plan", "serve.yaml", code=None).out
        desk("delete", "web", "--yes")
        until(lambda: not backends(plane, namespace), status)
    assert "web" not in desk("status", "--all").out
