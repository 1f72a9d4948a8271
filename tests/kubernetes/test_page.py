"""The page of a Kubernetes cluster shows what the rights of whoever serves it let them see."""

import contextlib
import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fairlead.cli.live_top import Chosen, view
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import FixedToken
from fairlead.cluster.kubernetes.client.user_client import UserClient
from fairlead.cluster.kubernetes.manifests.roles import render_binding
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.errors import NotAllowed
from fairlead.state.snapshot import Intent, Phase
from fairlead.web.addresses import MENU
from fairlead.web.readers import Readers
from tests.kubernetes.audit import token_of
from tests.kubernetes.operating import comes_to, gang, operating
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until


@contextmanager
def page_of(access: ClusterAccess, namespace: str) -> Iterator[Readers]:
    opened: list[UserClient] = []

    def open_cluster() -> UserClient:
        cluster = UserClient(Client(access), namespace=namespace, is_told=True)
        cluster.wait(0.0)
        opened.append(cluster)
        return cluster

    readers = Readers(open_cluster)
    try:
        yield readers
    finally:
        readers.close()
        for each in opened:  # those of the test's own thread too
            each.close()


@pytest.mark.slow
def test_every_view_shows_the_cluster_to_an_administrator(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, tmp_path: Path
) -> None:
    cluster.submit(gang(namespace, "first", nodes=1, gpus=4))
    cluster.submit(gang(namespace, "waiting-run", nodes=2))
    with (
        operating(access, namespace, ledger=str(tmp_path / "ledger.db"), costs_s=0.5),
        page_of(access, namespace) as page,
    ):
        run = comes_to(cluster, "first", Phase.RUNNING)
        until(lambda: "GPUs" in cluster.named("waiting-run", namespace).status.reason.message)
        for address, _, _ in MENU:
            status, text = page.page(address)
            assert (status, address) == (200, address), text
        # No report of a simulation is in a cluster, and nothing suggests so.
        for address, expected in (("/simulations", 200), ("/simulations/1700000000000-abcdef", 404)):
            status, text = page.page(address)
            assert status == expected
            assert "kept on the machine that made them" in text
        _, text = page.page("/")
        assert "first" in text
        assert "waiting-run" in text
        assert "of 8 GPUs" in text
        assert "a-gpu-0" in page.page("/cluster")[1]
        status, text = page.page(f"/runs/{run.uid}")
        assert status == 200, text
        assert "first" in text
        assert page.page("/runs/nobody")[0] == 404
        # A page of a run, from its place on.
        status, text = page.page("/?part=unfinished&after=0.0_x")
        assert status == 200
        assert "waiting-run" not in text


def test_a_member_of_a_team_sees_its_runs_and_is_told_what_is_not_theirs(
    access: ClusterAccess, plane: ControlPlane, cluster: WorkloadApi, namespace: str
) -> None:
    person = f"viewer-{int(time.time())}"
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    cluster.client.create(account, {"metadata": {"name": person}})
    subject = {"kind": "ServiceAccount", "name": person, "namespace": namespace}
    applied(plane, render_binding(namespace, "viewer", [subject]))
    cluster.submit(gang(namespace, "first", nodes=1, gpus=4))
    run = cluster.named("first", namespace)
    theirs = replace(access, credentials=FixedToken(token_of(Client(access), namespace, person)))
    with page_of(theirs, namespace) as page:
        until(lambda: "first" in page.page("/")[1])
        assert page.page(f"/runs/{run.uid}")[0] == 200
        status, text = page.page("/cluster")
        assert (status, "may not read the whole cluster" in text) == (403, True)
        status, text = page.page("/cost")
        assert status == 200
        assert "No costs are kept on this cluster" in text


@pytest.mark.slow
def test_a_member_sees_the_cluster_on_the_page_and_in_top_as_the_operator_publishes_it(
    access: ClusterAccess, plane: ControlPlane, cluster: WorkloadApi, namespace: str
) -> None:
    person, elsewhere = f"member-{int(time.time())}", f"e-{namespace}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": elsewhere}})
    plane.await_namespace(elsewhere)
    cluster.client.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": person}})
    subject = {"kind": "ServiceAccount", "name": person, "namespace": namespace}
    applied(plane, render_binding(namespace, "user", [subject]))
    theirs = replace(access, credentials=FixedToken(token_of(Client(access), namespace, person)))
    others = WorkloadApi(Client(access), namespace=elsewhere)
    with operating(access, namespace, watch_namespace=None, views_s=0.2), page_of(theirs, namespace) as page:
        others.submit(gang(elsewhere, "secret", nodes=1, gpus=8))
        comes_to(others, "secret", Phase.RUNNING)
        cluster.submit(gang(namespace, "mine", nodes=1, gpus=4))
        comes_to(cluster, "mine", Phase.RUNNING)
        member = UserClient(Client(theirs), namespace=namespace, is_told=True)

        def held() -> set[str]:
            with contextlib.suppress(NotAllowed):
                return {each.spec.name for each in member.snapshot().workloads}
            return set()

        until(lambda: "mine" in held() and len(held()) == 2, held)
        screen = Console(width=150, height=40, record=True, file=io.StringIO())
        screen.print(view(member.snapshot(), Chosen(), time.time(), height=40))
        top = screen.export_text()
        member.close()
        for address in ("/", "/cluster", "/queue", "/teams"):
            status, text = page.page(address)
            assert status == 200, (address, text)
            assert "secret" not in text, address
        assert "a-gpu-0" in page.page("/cluster")[1]
        assert "a-gpu-0" in top
        assert "mine" in top
        assert "secret" not in top
        for run in others.workloads():
            others.set_intent(run.uid, Intent.DELETE)
        until(lambda: not others.workloads())
    plane.request("DELETE", f"/api/v1/namespaces/{elsewhere}")
