"""The client of a federation at a site that is a cluster: a visit starts it there, takes its key, and removes it."""

from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.manifests.roles import render_binding
from fairlead.cluster.local.home import Home
from fairlead.control import site_clients
from fairlead.control.site_clients import ClientOrder, visit_client
from fairlead.policy.kinds.federation import FederationDetail
from fairlead.runtime.federation.settings import ADDRESS, CA, ENROLLED, server_files
from fairlead.specs.federation import SERVER, Federation, Site
from fairlead.specs.resources import Resources
from fairlead.state.plan import child_uid
from fairlead.state.reasons import Code, Reason
from fairlead.state.site_clients import ClientReport
from fairlead.state.snapshot import Intent, Phase, Status, Workload
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import a_desk
from tests.kubernetes.test_sweeps import a_process
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

pytestmark = pytest.mark.kubernetes


@pytest.mark.slow
def test_a_client_in_a_cluster_is_started_suspended_and_deleted_by_visits(
    access: ClusterAccess, plane: ControlPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "desk").mkdir()
    operator = a_desk(plane, namespace, tmp_path / "desk")
    people = [{"kind": "Group", "name": "people", "apiGroup": "rbac.authorization.k8s.io"}]
    applied(plane, render_binding(namespace, "user", people))
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig("nobody", namespace=namespace)))
    resources = Resources(cpu_milli=100, memory_bytes=64 << 20)
    site = Site(context="test", namespace=namespace, image="python:3.12", data="/data", resources=resources)
    spec = Federation(name="digits", app="app", sites={"north": site}, address="localhost:9000")
    status = Status(
        phase=Phase.RUNNING, reason=Reason(code=Code.REPORTED, message="it runs"), since=0.0,
        detail=FederationDetail(submitted=True),
    )  # fmt: skip
    owner = Workload(uid="f", spec=spec, intent=Intent.RUN, status=status, version=1, created_at=0.0)
    order = ClientOrder(owner=owner, name="north", site=site, intent=Intent.RUN)
    home = Home.open(tmp_path / "centre")
    files = server_files(home.run(child_uid("f", SERVER)))
    last: ClientReport | None = None

    def visit(intent: Intent) -> ClientReport:
        nonlocal last
        last = visit_client(replace(order, intent=intent), last, 1.0, home=home)
        return last

    assert visit(Intent.RUN) == ClientReport(since=1.0, message=site_clients.WAITS_FOR_SERVER)
    (files / ENROLLED).mkdir(parents=True)
    (files / ADDRESS).write_text('{"port": 1, "enrolled": [], "keys": {}}')
    (files / CA).write_text("a certificate")
    # The pods of this cluster have no output.
    unreachable = "it does not reach its server at localhost:9000: timed out"
    monkeypatch.setattr(site_clients, "_read_output", lambda *_: ("ecdsa-sha2-nistp384 AAAA", unreachable))
    with a_process(operator):
        until(lambda: visit(Intent.RUN).phase is Phase.RUNNING, lambda: last)
        assert last is not None
        assert (last.message, last.attempt) == (unreachable, 0)
        assert (files / ENROLLED / "north.pub").read_text() == "ecdsa-sha2-nistp384 AAAA"
        (pod,) = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        assert pod["spec"]["containers"][0]["image"] == "python:3.12"
        until(lambda: visit(Intent.SUSPEND).settled is Intent.SUSPEND, lambda: last)
        until(lambda: visit(Intent.RUN).phase is Phase.RUNNING, lambda: last)
        until(lambda: visit(Intent.DELETE).settled is Intent.DELETE, lambda: last)
        until(lambda: not plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"])
