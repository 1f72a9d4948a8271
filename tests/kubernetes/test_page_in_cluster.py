"""The page that `install --page` puts into a cluster shows each reader what their own token may see."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import FixedToken
from fairlead.cluster.kubernetes.client.permissions import who_am_i
from fairlead.cluster.kubernetes.manifests.install import USER
from fairlead.cluster.kubernetes.manifests.page import PAGE, PLACE, render_page
from fairlead.cluster.kubernetes.manifests.roles import render_binding
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.control.opening import TokenAccess
from fairlead.web.server import Page
from fairlead.web.visitors import Authenticator
from tests.kubernetes.audit import token_of
from tests.kubernetes.operating import gang
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import ControlPlane


def test_two_readers_see_what_each_may_and_a_stranger_sees_nothing(
    access: ClusterAccess, plane: ControlPlane, cluster: WorkloadApi, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig()))
    stamp = int(time.time())
    viewer, nobody = f"viewer-{stamp}", f"nobody-{stamp}"
    for person in (viewer, nobody):
        cluster.client.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": person}})
    subject = {"kind": "ServiceAccount", "name": viewer, "namespace": namespace}
    applied(plane, render_binding(namespace, "viewer", [subject]))
    cluster.submit(gang(namespace, "secret-run", nodes=1, gpus=4))
    run = cluster.named("secret-run", namespace)
    tokens = {person: token_of(Client(access), namespace, person) for person in (viewer, nobody)}
    them = TokenAccess()
    assert them.name(tokens[viewer]) == f"system:serviceaccount:{namespace}:{viewer}"

    def never() -> Any:
        raise AssertionError("the page has no rights of its own")

    admission = Authenticator(
        name=lambda identity: them.name(identity.token),
        open_as=lambda identity: them.open(identity.token, identity.namespace),
    )

    async def look(client: "TestClient[Any, Any]", path: str, token: str | None) -> tuple[int, str]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with client.get(path, headers=headers) as answer:
            return answer.status, await answer.text()

    async def ask(client: "TestClient[Any, Any]") -> None:
        for token in (None, "made.up.token"):
            status, text = await look(client, "/", token)
            assert (status, "secret-run" in text, 'action="/sign-in"' in text) == (401, False, True)
        for _ in range(100):
            status, text = await look(client, "/", tokens[viewer])
            if "secret-run" in text:
                break
            await asyncio.sleep(0.1)
        assert status == 200
        assert "secret-run" in text, text
        assert (await look(client, f"/runs/{run.uid}", tokens[viewer]))[0] == 200
        assert (await look(client, "/cluster", tokens[viewer]))[0] == 403
        for path in ("/", "/queue", "/teams", f"/runs/{run.uid}", "/cluster"):
            status, text = await look(client, path, tokens[nobody])
            assert "secret-run" not in text, (path, status)
            assert status != 401
        status, text = await look(client, "/", tokens[nobody])
        assert f"{nobody}" in text
        form = {"token": tokens[viewer], "namespace": ""}
        async with client.post("/sign-in", data=form, allow_redirects=False) as answer:
            assert answer.status == 303
            assert "HttpOnly" in answer.headers["Set-Cookie"]

    async def serve() -> None:
        async with TestClient(TestServer(Page(never, admission).application())) as client:
            await asyncio.wait_for(ask(client), 60)

    asyncio.run(serve())


def test_the_administrators_certificate_is_not_used_for_a_reader(
    access: ClusterAccess, plane: ControlPlane, cluster: WorkloadApi, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig()))
    cluster.client.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "plain"}})
    token = token_of(Client(access), namespace, "plain")
    opened = TokenAccess().open(token, "")
    try:
        assert opened.namespace == namespace
        assert opened.client.access.certificate is None
        theirs = replace(access, credentials=FixedToken(token), certificate=None)
        assert who_am_i(opened.client) == who_am_i(Client(theirs)) == f"system:serviceaccount:{namespace}:plain"
    finally:
        opened.close()


def test_the_api_server_takes_the_objects_and_the_pod_has_no_token(plane: ControlPlane, namespace: str) -> None:
    objects = render_page("fairlead:test", namespace, USER)
    for content in objects:
        applied(plane, content)
    deployment = plane.request("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/{PAGE}")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    sources = next(each for each in pod["volumes"] if each["name"] == "cluster")["projected"]["sources"]
    assert [next(iter(each)) for each in sources] == ["configMap", "downwardAPI"]
    mounts = {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert mounts == {"/tmp", PLACE}
    assert not [each for each in objects if "Role" in each["kind"]]
