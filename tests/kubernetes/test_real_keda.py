"""Endpoints that a real KEDA scales by what a real Prometheus answers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from tests.debian import program
from tests.kubernetes.test_faces import Desk, a_desk
from tests.kubernetes.test_real_autoscalers import endpoint, num_ready, write
from tests.kubernetes.test_sweeps import a_process
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.keda import keda
from tests.metrics.conftest import serving
from tests.waiting import until

pytestmark = pytest.mark.rare


@pytest.fixture
def desk(access: ClusterAccess, plane: ControlPlane, namespace: str, tmp_path: Path) -> Desk:
    (tmp_path / "desk").mkdir()
    return a_desk(plane, namespace, tmp_path / "desk")


@contextmanager
def a_measured_server(values: dict[str, float], prometheus: Path, place: Path) -> Iterator[str]:
    """A Prometheus that has read these values a second ago; its address."""

    class Exporter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = "".join(f"{name} {value}\n" for name, value in values.items()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    job = {"job_name": "chat", "static_configs": [{"targets": [f"127.0.0.1:{server.server_address[1]}"]}]}
    (place / "prometheus.yml").write_text(
        yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]})
    )
    try:
        with serving(prometheus, place) as url:
            yield url
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


@pytest.fixture(scope="module")
def real_keda(plane: ControlPlane) -> Iterator[None]:
    with keda(plane):
        yield


@pytest.mark.usefixtures("real_keda")
def test_keda_scales_endpoints_by_queue_and_gpu_utilisation_down_to_none_and_back_and_says_why_it_cannot(
    desk: Desk, plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "prometheus").mkdir()
    values = {"waiting": 18.0, 'DCGM_FI_DEV_GPU_UTIL{gpu="0"}': 95.0, 'DCGM_FI_DEV_GPU_UTIL{gpu="1"}': 85.0}
    objects = f"/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects"
    scalers = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
    with (
        a_measured_server(values, program("prometheus", "prometheus"), tmp_path / "prometheus") as url,
        a_process(desk, "--prometheus-host", "127.0.0.1"),
    ):
        queue = f"prometheus: {{url: '{url}', query: sum(waiting), target: 5}}, window: 1s, idle: 1s"
        busy = f"prometheus: {{url: '{url}', query: avg(DCGM_FI_DEV_GPU_UTIL), target: 70, aggregation: mean}}"
        lost = "prometheus: {url: 'http://127.0.0.1:9', query: sum(waiting), target: 5}"
        for name, scale, replicas in (("web", queue, "0..4"), ("busy", busy, "1..2"), ("lost", lost, "1..4")):
            write(desk, f"{{by: keda, {scale}}}", replicas, name)
            desk("run", "--detach", "serve.yaml")
        until(lambda: num_ready(plane, namespace) == "4/4 ready")
        assert "to 4 replicas, by its ScaledObject" in desk("events", "web").out
        until(lambda: num_ready(plane, namespace, "busy") == "2/2 ready")
        assert len(plane.request("GET", scalers)["items"]) == 3
        values["waiting"] = 0.0
        until(lambda: num_ready(plane, namespace) == "0/0 ready")
        values["waiting"] = 3.0
        until(lambda: num_ready(plane, namespace) == "1/1 ready")
        until(lambda: "its ScaledObject says" in desk("status", "lost").out, every_s=2)
        assert num_ready(plane, namespace, "lost") == "1/1 ready"
        # Without `by` nobody may.
        write(desk, f"{{{queue}}}", "1..4")
        desk("run", "--detach", "serve.yaml")
        until(lambda: len(plane.request("GET", objects)["items"]) == 2)
        assert "replicas" not in endpoint(plane, namespace)["spec"]["scale"]
        desk("delete", "--yes", "web", "busy", "lost")
        until(lambda: not plane.request("GET", objects)["items"] and not plane.request("GET", scalers)["items"])
