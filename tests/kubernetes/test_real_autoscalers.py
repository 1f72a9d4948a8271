"""A cluster's own autoscalers: the real controller of HorizontalPodAutoscalers by a metric of ours, and KEDA's kind."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.kinds import objects_path
from tests.kubernetes.test_faces import Desk, a_desk
from tests.kubernetes.test_sweeps import a_process
from tests.kubernetes.testcluster import binaries
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.engines import define
from tests.kubernetes.testcluster.keda import GROUP, external_metrics
from tests.waiting import until

pytestmark = pytest.mark.long

SERVE = "kind: Serving\nname: {name}\nrun: serve\nimage: python:3.12\nreplicas: {replicas}\nscale: {scale}\n"
SERVE += "resources: {{cpu: 100m, memory: 64Mi}}\n"


@pytest.fixture
def desk(access: ClusterAccess, plane: ControlPlane, namespace: str, tmp_path: Path) -> Desk:
    (tmp_path / "desk").mkdir()
    return a_desk(plane, namespace, tmp_path / "desk")


@contextmanager
def an_adapter(plane: ControlPlane, values: dict[str, float]) -> Iterator[None]:
    """An adapter of external metrics, registered as an API of the control plane's."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.partition("?")[0].rpartition("/")[2]
            if name == "v1beta1":
                found: dict[str, Any] = {"kind": "APIResourceList", "apiVersion": "v1", "resources": []}
                found["groupVersion"] = f"{GROUP}/v1beta1"
            else:
                value = values.get(name)
                item = {"metricName": name, "timestamp": "2026-01-01T00:00:00Z", "value": str(value)}
                found = {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/v1beta1", "metadata": {}}
                found["items"] = [] if value is None else [item]
            text = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with external_metrics(plane, server.server_address[1]):
            yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


def endpoint(plane: ControlPlane, namespace: str, name: str = "web") -> dict[str, Any]:
    found: dict[str, Any] = plane.request("GET", objects_path("Serving", namespace, name))
    return found


def num_ready(plane: ControlPlane, namespace: str, name: str = "web") -> str:
    return str((endpoint(plane, namespace, name).get("status") or {}).get("progress"))


def write(desk: Desk, scale: str, replicas: str, name: str = "web") -> None:
    (desk.directory / "serve.yaml").write_text(SERVE.format(scale=scale, replicas=replicas, name=name))


def test_a_horizontal_pod_autoscaler_scales_an_endpoint_by_an_external_metric(
    desk: Desk, plane: ControlPlane, namespace: str
) -> None:
    values = {"chat_waiting": 38.0}
    scalers = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
    with an_adapter(plane, values), a_process(desk):
        write(desk, "{by: hpa, external_metric: {name: chat_waiting, target: 10}, window: 5s}", "1..5")
        desk("run", "--detach", "serve.yaml")
        until(lambda: num_ready(plane, namespace) == "4/4 ready", timeout_s=150)
        assert "to 4 replicas, by its HorizontalPodAutoscaler" in desk("events", "web").out
        # The number is of the moment, and the same file does not take it back.
        assert "Nothing has changed" in desk("run", "--detach", "serve.yaml").err
        assert endpoint(plane, namespace)["spec"]["scale"]["replicas"] == 4
        values["chat_waiting"] = 12.0
        until(lambda: num_ready(plane, namespace) == "2/2 ready", timeout_s=150)
        values.clear()
        until(lambda: "its HorizontalPodAutoscaler says" in desk("status", "web").out, timeout_s=150, every_s=2)
        assert num_ready(plane, namespace) == "2/2 ready"
        desk("stop", "web")
        until(lambda: not plane.request("GET", scalers)["items"])
        desk("delete", "--yes", "web")


def test_keda_is_given_an_endpoint_whose_number_it_sets_down_to_none(
    desk: Desk, plane: ControlPlane, namespace: str
) -> None:
    """Its operator is not built here, so what it does is done by hand: it sets the number by the subresource."""
    source = binaries.source_of_module("autoscaling", "github.com/kedacore/keda/v2")
    define(plane, source / "config/crd/bases", "keda.sh_*.yaml")
    path = f"/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects"
    scale = f"{objects_path('Serving', namespace, 'web')}/scale"
    query = "prometheus: {url: 'http://prometheus:9090', query: sum(waiting), target: 5}"
    with a_process(desk):
        write(desk, f"{{by: keda, {query}}}", "0..4")
        assert "web serves r1" in desk("run", "serve.yaml").err
        (given,) = plane.request("GET", path)["items"]
        assert given["spec"]["scaleTargetRef"] == {
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "Serving", "name": "web",
        }  # fmt: skip
        seen = plane.request("GET", scale)
        assert (seen["spec"], seen["status"]["selector"]) == ({"replicas": 1}, "fairlead.dev/service=web")
        pods = f"/api/v1/namespaces/{namespace}/pods?labelSelector={seen['status']['selector']}"
        for number in (3, 0, 2):
            plane.request("PATCH", scale, {"spec": {"replicas": number}}, kind="merge-patch+json")
            until(lambda number=number: num_ready(plane, namespace) == f"{number}/{number} ready")  # type: ignore[misc]
        until(lambda: len(plane.request("GET", pods)["items"]) == 2)
        # Without `by` nobody may.
        write(desk, f"{{{query}}}", "1..4")
        desk("run", "--detach", "serve.yaml")
        until(lambda: not plane.request("GET", path)["items"])
        assert "replicas" not in endpoint(plane, namespace)["spec"]["scale"]
        desk("delete", "--yes", "web")
