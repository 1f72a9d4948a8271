"""An endpoint on two real nodes: real probes, real requests through a rollout, and none is lost."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.roles import API_GROUP, render_roles
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import await_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import Desk, a_desk
from tests.kubernetes.test_real_nodes import kubectl, new_namespace, pod, until_phase
from tests.kubernetes.test_sweeps import a_process
from tests.kubernetes.testcluster import images
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes]

SERVER = """
import os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Hello(BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(0.05)
        said = os.environ["FAIRLEAD_REVISION"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass

time.sleep(1)
ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Hello).serve_forever()
"""
# It stands in for kube-proxy, which these nodes lack: it goes by the EndpointSlice as it was half a second ago.
CLIENT = """
import collections, http.client, json, ssl, threading, time, urllib.request
place = "/var/run/secrets/kubernetes.io/serviceaccount"
token = open(place + "/token").read()
tls = ssl.create_default_context(cafile=place + "/ca.crt")
url = "https://kubernetes.default.svc/apis/discovery.k8s.io/v1/namespaces/serve/endpointslices/serve-web"
api = __import__("os").environ
url = url.replace("kubernetes.default.svc", api["KUBERNETES_SERVICE_HOST"] + ":" + api["KUBERNETES_SERVICE_PORT"])
known, counts = [], collections.Counter()

def learn():
    while True:
        try:
            asked = urllib.request.Request(url, headers={"Authorization": "Bearer " + token})
            found = json.load(urllib.request.urlopen(asked, context=tls, timeout=5))
            known[:] = [(each["addresses"][0], found["ports"][0]["port"]) for each in found.get("endpoints") or ()]
        except Exception as error:
            print("api", error, flush=True)
        time.sleep(0.5)

threading.Thread(target=learn, daemon=True).start()
number, told = 0, time.time()
while True:
    there = list(known)
    if there:
        number += 1
        try:
            connection = http.client.HTTPConnection(*there[number % len(there)], timeout=10)
            connection.request("GET", "/")
            counts[connection.getresponse().read().decode()] += 1
            connection.close()
        except Exception as error:
            counts["failed"] += 1
            print("failed", there[number % len(there)], repr(error), flush=True)
    if time.time() - told > 0.5:
        told = time.time()
        print(json.dumps(counts), flush=True)
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    with started(lambda: RealCluster(2), request) as made:
        for each in (*definitions(), *render_roles()):
            applied(made, each)
        await_kinds(made)
        yield made


def write(desk: Desk, **more: Any) -> None:
    content = {
        "kind": "Serving",
        "name": "web",
        "image": images.PYTHON,
        "workdir": ".",
        "run": "python3 server.py",
        "replicas": 2,
        "grace": "5s",
        "resources": {"cpu": 0.1, "memory": "64Mi"},
        **more,
    }
    (desk.directory / "serve.yaml").write_text(yaml.safe_dump(content))


def start_client(cluster: RealCluster) -> None:
    path = "/api/v1/namespaces/serve"
    rules = [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get"]}]
    roles = f"/apis/{API_GROUP}/v1/namespaces/serve"
    cluster.request("POST", f"{path}/serviceaccounts", {"metadata": {"name": "client"}})
    cluster.request("POST", f"{roles}/roles", {"metadata": {"name": "client"}, "rules": rules})
    cluster.request("POST", f"{roles}/rolebindings", {
        "metadata": {"name": "client"}, "roleRef": {"apiGroup": API_GROUP, "kind": "Role", "name": "client"},
        "subjects": [{"kind": "ServiceAccount", "name": "client", "namespace": "serve"}],
    })  # fmt: skip
    cluster.request("POST", f"{path}/pods", pod("client", cluster.nodes[0], CLIENT, serviceAccountName="client"))
    until_phase(cluster, f"{path}/pods/client", "Running")


def counted(cluster: RealCluster) -> dict[str, int]:
    """The answers of each revision so far, and the requests that failed."""
    lines = [line for line in kubectl(cluster, "serve", "logs", "client").splitlines() if line.startswith("{")]
    found: dict[str, int] = json.loads(lines[-1]) if lines else {}
    return found


def test_no_request_is_lost_in_a_rollout_a_deletion_and_a_rollback_with_an_operator_that_is_killed(
    cluster: RealCluster, tmp_path: Path
) -> None:
    new_namespace(cluster, "serve")
    (tmp_path / "desk").mkdir()
    desk = a_desk(cluster, "serve", tmp_path / "desk")
    (desk.directory / "server.py").write_text(SERVER)
    write(desk)

    def answers(revision: str, more: int) -> None:
        before = counted(cluster).get(revision, 0)
        until(lambda: counted(cluster).get(revision, 0) >= before + more, timeout_s=120)

    def replicas() -> list[str]:
        return sorted(kubectl(cluster, "serve", "get", "replicas", "-o", "name").split())

    with a_process(desk) as process:
        assert "web serves r1" in desk("run", "serve.yaml", timeout_s=180).err
        start_client(cluster)
        answers("r1", 100)
        write(desk, env={"VERSION": "2"})
        desk("run", "-d", "serve.yaml")
        until(lambda: len(replicas()) > 2, timeout_s=60)
        process.send_signal(signal.SIGKILL)
    answers("r1", 50)
    with a_process(desk):
        answers("r2", 100)
        until(lambda: all("-r2-" in each for each in replicas()) and len(replicas()) == 2, timeout_s=120)
        gone, _ = replicas()
        kubectl(cluster, "serve", "delete", "pod", f"{gone.partition('/')[2]}-0-0", "--wait=false")
        answers("r2", 200)
        assert "web goes back to r1" in desk("rollback", "web", timeout_s=180).err
        until(lambda: all("-r1-" in each for each in replicas()) and len(replicas()) == 2, timeout_s=120)
        answers("r1", 100)
        found = counted(cluster)
        print(found)
        assert found.get("failed", 0) == 0, kubectl(cluster, "serve", "logs", "client")
        assert found["r1"] + found["r2"] >= 500
        desk("delete", "--yes", "web", timeout_s=120)
        until(lambda: replicas() == [], timeout_s=60)
