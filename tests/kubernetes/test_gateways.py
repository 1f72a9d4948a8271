"""Gateways on a real control plane: what they ask of the API server, and what the operator makes of it."""

import json
import os
import secrets
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess, load_access
from fairlead.cluster.kubernetes.api.credentials import FixedToken
from fairlead.cluster.kubernetes.manifests.endpoints import render_routes, render_team_routes
from fairlead.cluster.kubernetes.manifests.gateway import render_gateway
from fairlead.cluster.kubernetes.manifests.install import InstallSettings, render_install
from fairlead.cluster.kubernetes.manifests.pod_environment import MASTER_PORT
from fairlead.cluster.kubernetes.manifests.roles import GATEWAY_RULES, render_metrics_reader, render_roles
from fairlead.cluster.kubernetes.names import GATEWAY, GATEWAY_NAMESPACE
from fairlead.gateway.packing import DEMAND_KEY, unpacked
from tests.debian import haproxy_directory
from tests.gateway.parts import Replica, service
from tests.kubernetes.audit import Right, requests, rights, token_of
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import await_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import a_desk
from tests.kubernetes.test_sweeps import a_process, objects
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.ports import free_port
from tests.processes import Child
from tests.waiting import until

pytestmark = pytest.mark.kubernetes

CONFIGMAPS = f"/api/v1/namespaces/{GATEWAY_NAMESPACE}/configmaps"
SERVE = """kind: Serving
name: web
run: serve
image: python:3.12
replicas: 0..2
scale: {idle: 2s, window: 1s}
timeout: 4s
access: {}
resources: {cpu: 100m, memory: 64Mi}
kubernetes: {metadata: {annotations: {fake/address: ADDRESS}}}
"""


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane of this module's own: there is one namespace of gateways on a cluster."""
    with started(lambda: ControlPlane(audit=True), request) as plane:
        for each in render_install(InstallSettings(image="none", gateways=1)):
            if each["kind"] != "Deployment":
                applied(plane, each)
        await_kinds(plane)
        for name in ("serve", GATEWAY_NAMESPACE):
            if name == "serve":
                plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            plane.await_namespace(name)
        add_nodes(plane, 1)
        until(lambda: all(is_ready(node) for node in plane.request("GET", "/api/v1/nodes")["items"]))
        yield plane


@dataclass
class Gateway:
    """A gateway as a process of this machine, with the account of those in pods and in the name of one."""

    plane: ControlPlane
    port: int
    directory: Path

    def ask(self, headers: dict[str, str]) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.port}/asked"
        request = urllib.request.Request(url, headers={"Host": "serve-web.serve.svc", **headers})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def demand(self, name: str) -> dict[str, Any]:
        """The report on an endpoint that it has put on the API server."""
        path = f"{CONFIGMAPS}/gateway-1"
        if not self.plane.exists(path):
            return {}
        document = unpacked(self.plane.request("GET", path)["binaryData"][DEMAND_KEY])
        found: dict[str, Any] = document["services"].get(name) or {}
        return found


class Answers(BaseHTTPRequestHandler):
    """The answer of a replica's server."""

    def do_GET(self) -> None:
        body = f"a replica was asked for {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    """An address of loopback of the test's own, at which what a replica's container would listen to answers."""
    found = f"127.{secrets.randbelow(254) + 1}.{secrets.randbelow(256)}.{secrets.randbelow(254) + 1}"
    with ThreadingHTTPServer((found, MASTER_PORT), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield found
        server.shutdown()
        thread.join()


@pytest.fixture
def gateway(plane: ControlPlane, tmp_path: Path) -> Iterator[Gateway]:
    with a_gateway(plane, tmp_path) as found:
        yield found


@contextmanager
def a_gateway(plane: ControlPlane, tmp_path: Path, *more: str, path: str = "") -> Iterator[Gateway]:
    """One with further arguments, and with a directory of programs before the others."""
    client = Client(load_access((plane.kubeconfig(),)))
    (deployment,) = (each for each in render_gateway("none", "serve", 65532) if each["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    body = {"metadata": {**template["metadata"], "name": "gateway-1"}, "spec": template["spec"]}
    pod = client.create(f"/api/v1/namespaces/{GATEWAY_NAMESPACE}/pods", body)
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text(token_of(client, GATEWAY_NAMESPACE, GATEWAY))
    (account / "ca.crt").write_bytes((plane.home / "ca.pem").read_bytes())
    host, _, port = plane.url.removeprefix("https://").rpartition(":")
    environ = {
        **os.environ, "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "POD_NAME": "gateway-1",
        "POD_UID": pod["metadata"]["uid"], "POD_NAMESPACE": GATEWAY_NAMESPACE, "POD_IP": "127.0.0.1",
        "PATH": f"{path}:{os.environ['PATH']}",
    }  # fmt: skip
    listening = free_port()
    command = [sys.executable, "-m", "fairlead.gateway.in_cluster", "--directory", str(tmp_path / "gateway")]
    command += ["--port", str(listening), "--metrics-port", str(free_port()), "--account", str(account)]
    command += ["--grace", "1", *more]
    with (tmp_path / "gateway.log").open("wb") as log, Child(command, env=environ, stdout=log, stderr=log) as process:
        yield Gateway(plane, listening, tmp_path / "gateway")
        process.terminate()
        assert process.wait(timeout=30) == 0
    client.delete(f"/api/v1/namespaces/{GATEWAY_NAMESPACE}/pods/gateway-1", {"gracePeriodSeconds": 0})


@pytest.mark.slow
def test_haproxy_takes_requests_to_replicas_where_it_is_asked_for(plane: ControlPlane, tmp_path: Path) -> None:
    programs, replica = haproxy_directory(), Replica("told")
    told = service(replica, path="/serve/web", hosts=["serve-web.serve.svc"])
    made = (render_team_routes("serve", {"services": {"serve/web": told}, "keys": {}}), render_routes(["serve"]))
    for each in made:
        plane.request("POST", CONFIGMAPS, each)
    try:
        with a_gateway(plane, tmp_path, "--proxy", "haproxy", path=str(programs)) as gateway:
            report = gateway.directory / "proxy.json"
            until(lambda: report.exists() and json.loads(report.read_text())["problem"] is None, timeout_s=60)
            assert json.loads(gateway.ask({})[1])["replica"] == "told"
            assert json.loads(report.read_text())["held"] == {}
            until(lambda: gateway.demand("serve/web").get("revisions", {}).get("r1", {}).get("requests") == 1)
    finally:
        replica.end()
        for each in made:
            plane.request("DELETE", f"{CONFIGMAPS}/{each['metadata']['name']}")


def test_its_metrics_are_for_whom_the_api_server_lets_get_them(plane: ControlPlane, gateway: Gateway) -> None:
    client = Client(load_access((plane.kubeconfig(),)))
    for content in (*render_gateway("none", "serve", 65532), *render_roles()):
        if content["kind"] in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
            applied(plane, content)
    applied(plane, render_metrics_reader("prometheus", GATEWAY_NAMESPACE))
    reader, other = (token_of(client, GATEWAY_NAMESPACE, name) for name in ("prometheus", "somebody"))
    applied(plane, render_routes([]))
    demand = gateway.directory / "demand.json"
    until(demand.exists)
    url = f"http://127.0.0.1:{json.loads(demand.read_text())['admin_port']}"

    def status_of(path: str, authorization: str | None = None) -> tuple[int, str]:
        headers = {} if authorization is None else {"Authorization": authorization}
        try:
            with urllib.request.urlopen(urllib.request.Request(url + path, headers=headers), timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    code, text = status_of("/metrics", f"Bearer {reader}")
    assert code == 200
    assert "fairlead_gateway_connections" in text
    found = [status_of("/metrics", each) for each in (f"Bearer {other}", "Bearer x", "Basic eDp5", None)]
    assert [code for code, _ in found] == [403, 401, 401, 401]
    assert "fairlead-metrics-reader" in found[0][1]
    assert "Authorization: Bearer TOKEN" in found[3][1]
    assert status_of("/-/metrics")[0] == 401
    assert status_of("/healthz")[0] == 200


def test_a_gateway_whose_image_has_no_haproxy_says_what_to_do(tmp_path: Path) -> None:
    asked = "import sys, fairlead.gateway.in_cluster as it; it.find_haproxy = lambda: None; it.main()"
    argv = [sys.executable, "-c", asked, "--directory", str(tmp_path / "gateway"), "--proxy", "haproxy"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "this image has no haproxy in its PATH; build one on a base that has it" in ended.stderr
    assert not (tmp_path / "gateway").exists()


def is_listening(gateway: Gateway) -> bool:
    try:
        return gateway.ask({"Host": "nobody"})[0] == 404
    except OSError:
        return False


@pytest.mark.slow
def test_a_request_for_an_endpoint_at_zero_wakes_it_through_the_api_server(
    plane: ControlPlane, gateway: Gateway, address: str, tmp_path: Path
) -> None:
    (tmp_path / "desk").mkdir()
    desk = a_desk(plane, "serve", tmp_path / "desk")
    for each in render_gateway("none", "serve", 65532):
        if each["kind"] != "Deployment":
            applied(plane, each)  # the operator of the desk is another account than that of the installation
    (desk.directory / "serve.yaml").write_text(SERVE.replace("ADDRESS", address))
    slice_path = "/apis/discovery.k8s.io/v1/namespaces/serve/endpointslices/serve-web"

    def said() -> str:
        (found,) = objects(plane, "Serving", "serve")
        return str((found.get("status") or {}).get("message"))

    with a_process(desk):
        assert "there is none on this cluster" in desk("run", "serve.yaml", code=6, timeout_s=60).err
        (deployment,) = (each for each in render_gateway("none", "serve", 65532, 1) if each["kind"] == "Deployment")
        deployment["spec"]["template"]["spec"]["nodeSelector"] = {"nobody": "has"}  # the pod of the test is the one
        applied(plane, deployment)
        assert "web serves r1 at http://serve-web.serve.svc/" in desk("run", "serve.yaml", timeout_s=120).err
        until(lambda: is_listening(gateway))
        until(lambda: said().startswith("asleep after 2s"))
        until(lambda: objects(plane, "Replica", "serve") == [])
        listed = plane.request("GET", slice_path)
        assert [each["targetRef"]["name"] for each in listed["endpoints"]] == ["gateway-1"]
        assert listed["ports"][0]["port"] == 8700

        assert gateway.ask({})[0] == 401
        assert gateway.ask({"X-API-Key": "guessed"})[0] == 403
        assert objects(plane, "Replica", "serve") == [], "whoever may not ask wakes nothing"
        key = desk("keys", "create", "ci", timeout_s=60).out.strip()
        assert json.loads(desk("keys", "list", "--json", timeout_s=60).out)[0]["name"] == "ci"
        assert "Team serve has a key ci" in desk("keys", "create", "ci", code=6, timeout_s=60).err
        kept = plane.request("GET", "/api/v1/namespaces/serve/configmaps/fairlead-access-keys")["data"]
        assert key not in str(kept)

        def ask() -> tuple[int, str]:
            return gateway.ask({"Authorization": f"Bearer {key}"})

        # Where a replica takes longer to come than `timeout`, the request that woke it is answered with 503.
        until(lambda: ask() == (200, "a replica was asked for /asked"))
        assert "RevisionReady" in (events := desk("events", "web", timeout_s=60).out)
        assert "from 0 to 1 replica" in events
        assert gateway.demand("serve/web")["last_request"] is not None
        desk("keys", "revoke", "ci", timeout_s=60)
        until(lambda: ask()[0] == 403)
        assert "it has: none" in desk("keys", "revoke", "ci", code=5, timeout_s=60).err
    asked = list(requests(plane.audit_log, f"{GATEWAY_NAMESPACE}:{GATEWAY}"))
    # Who may scrape it is asked by the rights of `system:auth-delegator`.
    delegated = {
        Right(group="authentication.k8s.io", resource="tokenreviews", verb="create"),
        Right(group="authorization.k8s.io", resource="subjectaccessreviews", verb="create"),
    }
    assert {each.right for each in asked} <= rights(GATEWAY_RULES) | delegated
    assert all(each.allowed for each in asked)
    assert {each.right.verb for each in asked} >= {"list", "watch", "patch"}


@pytest.mark.slow
def test_a_gateway_may_neither_read_nor_write_anything_else(plane: ControlPlane) -> None:
    client = Client(load_access((plane.kubeconfig(),)))
    token = token_of(client, GATEWAY_NAMESPACE, GATEWAY)
    ca = (plane.home / "ca.pem").read_bytes()
    access = ClusterAccess(context="gateway", server=plane.url, credentials=FixedToken(token), ca=ca)
    secrets = f"/api/v1/namespaces/{GATEWAY_NAMESPACE}/secrets"
    team, system = (f"/api/v1/namespaces/{name}/configmaps" for name in ("serve", "fairlead-system"))
    for path in (team, system, secrets, f"{CONFIGMAPS}/gateway-2", "/api/v1/pods"):
        with pytest.raises(ApiError) as refused:
            Client(access).get(path)
        assert refused.value.status == 403
