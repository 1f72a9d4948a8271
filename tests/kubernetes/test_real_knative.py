"""An endpoint at a real Knative Serving on a real node: ready, asleep, woken, divided, and why it is not ready."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.roles import render_roles
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import await_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import Desk, a_desk
from tests.kubernetes.test_real_nodes import new_namespace
from tests.kubernetes.test_sweeps import a_process
from tests.kubernetes.testcluster import binaries, images, knative
from tests.kubernetes.testcluster.errors import Unavailable
from tests.kubernetes.testcluster.real_nodes import RealCluster, require
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes]

SERVER = """
import os, signal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Hello(BaseHTTPRequestHandler):
    def do_GET(self):
        said = os.environ["FAIRLEAD_REVISION"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Hello).serve_forever()
"""
HOST = "serve-web.calls.svc.cluster.local"


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    try:
        require()
        for part in binaries.KNATIVE:
            binaries.ensure_engine(f"knative-{part}")
    except Unavailable as error:
        pytest.skip(str(error))
    with started(lambda: RealCluster(1, services=True, flags=knative.FLAGS), request) as made:
        for each in (*definitions(), *render_roles()):
            applied(made, each)
        await_kinds(made)
        knative.install(made)
        yield made


def write(desk: Desk, **more: Any) -> None:
    content = {
        "kind": "Serving", "name": "web", "image": images.PYTHON, "engine": "knative", "replicas": "0..2",
        "scale": {"window": "6s", "idle": "1s"}, "run": f"exec python3 -c '{SERVER}'", "ready_within": "2m",
        "resources": {"cpu": 0.05, "memory": "64Mi"}, **more,
    }  # fmt: skip
    (desk.directory / "serve.yaml").write_text(yaml.safe_dump(content))


def test_knative_serves_an_endpoint_lets_it_sleep_wakes_it_divides_requests_and_says_why_a_revision_is_not_ready(
    cluster: RealCluster, tmp_path: Path
) -> None:
    new_namespace(cluster, "calls")
    (tmp_path / "desk").mkdir()
    desk = a_desk(cluster, "calls", tmp_path / "desk")

    def said() -> str:
        found = cluster.request("GET", objects_path("Serving", "calls", "web"))
        return str((found.get("status") or {}).get("message"))

    def pods() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = cluster.request("GET", "/api/v1/namespaces/calls/pods")["items"]
        # What leaves is drained by queue-proxy for half a minute.
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    with a_process(desk):
        write(desk)
        assert f"web serves r1 at http://{HOST}" in desk("run", "serve.yaml", timeout_s=180).err
        assert knative.ask(cluster, HOST) == {(200, "r1"): 1}
        until(lambda: said() == "r1 sleeps at Knative; the next request wakes it", timeout_s=120)
        until(lambda: not pods(), timeout_s=120)
        # Its activator holds it until the pod is there.
        assert knative.ask(cluster, HOST, timeout_s=120) == {(200, "r1"): 1}
        until(lambda: said() == "r1 is ready at Knative with 1 replica")
        write(desk, env={"VERSION": "2"}, canary={"steps": ["30%"]})
        desk("run", "--detach", "serve.yaml")
        until(lambda: said() == "r2 is ready and gets 30.0% of the requests, r1 the others")
        answers = knative.ask(cluster, HOST, times=20)
        assert set(answers) == {(200, "r1"), (200, "r2")}, answers
        assert 3 <= answers[200, "r2"] <= 9, answers
        write(desk, env={"VERSION": "2"})
        desk("run", "--detach", "serve.yaml")
        until(lambda: said().startswith("r2 is ready at Knative"))
        # It takes nothing.
        write(desk, run="sh -c 'exit 3'", ready_within="20s")
        told = desk("run", "serve.yaml", code=1, timeout_s=180).err
        assert "ended with exit code 3" in told, told
        assert "the rollout of r3 failed and r2 keeps serving" in told
        assert knative.ask(cluster, HOST) == {(200, "r2"): 1}
        assert json.loads(desk("status", "web", "--json").out)["endpoint"]["url"] == f"http://{HOST}"
        desk("delete", "--yes", "web")
        until(lambda: not pods())
        assert cluster.request("GET", "/apis/serving.knative.dev/v1/namespaces/calls/services")["items"] == []
