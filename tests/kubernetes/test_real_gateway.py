"""Endpoints behind two gateways on two real nodes: to zero and back, canaries of codes, kills, and no request fails."""

import json
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.gateway import render_gateway
from fairlead.cluster.kubernetes.manifests.roles import API_GROUP, render_roles
from fairlead.cluster.kubernetes.names import GATEWAY, GATEWAY_NAMESPACE
from fairlead.gateway.proxying.programs import HAPROXY, PYTHON
from tests.debian import haproxy_directory
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import await_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import Desk, a_desk
from tests.kubernetes.test_real_nodes import kubectl, new_namespace, pod, until_phase
from tests.kubernetes.test_sweeps import a_process
from tests.kubernetes.testcluster import images
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes, pytest.mark.timeout(1200)]

SOURCE = Path(__file__).parents[2] / "src"
SERVER = """
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CODE, STATUS = "a", 200

class Hello(BaseHTTPRequestHandler):
    def do_GET(self):
        said = (os.environ["FAIRLEAD_REVISION"] + CODE).encode()
        self.send_response(200 if self.path == "/" else STATUS)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass

class Server(ThreadingHTTPServer):
    request_queue_size = 256  # those that waited for it come at once

Server((os.environ["HOST"], int(os.environ["PORT"])), Hello).serve_forever()
"""
# In the place of kube-proxy, which these nodes lack, it goes by the EndpointSlice as it was a third of a second ago.
CLIENT = """
import collections, http.client, json, os, ssl, sys, threading, time, urllib.request
seconds, rate = float(sys.argv[1]), float(sys.argv[2])
place = "/var/run/secrets/kubernetes.io/serviceaccount"
tls = ssl.create_default_context(cafile=place + "/ca.crt")
url = "https://%s:%s/apis/discovery.k8s.io/v1/namespaces/serve/endpointslices/serve-web" % (
    os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"])
known, counts, lock, answered, asked = [], collections.Counter(), threading.Lock(), [], {}

def learn():
    while True:
        try:
            asked = urllib.request.Request(url, headers={"Authorization": "Bearer " + open(place + "/token").read()})
            found = json.load(urllib.request.urlopen(asked, context=tls, timeout=5))
            known[:] = [(each["addresses"][0], found["ports"][0]["port"]) for each in found.get("endpoints") or ()]
        except Exception as error:
            print("api", error, file=sys.stderr)
        time.sleep(0.3)

def ask(number):
    asked[number] = "no gateway"
    for tries in (1, 2):
        while not (there := list(known)):
            time.sleep(0.05)
        asked[number] = where = there[(number + tries) % len(there)]
        try:
            connection = http.client.HTTPConnection(*where, timeout=5)
            connection.connect()
            connection.sock.settimeout(195)  # longer than the gateway takes to answer that nothing came
            connection.request("GET", "/asked", headers={"Host": "serve-web.serve.svc"})
            answer = connection.getresponse()
            said = answer.read().decode()
            with lock:
                counts["%d %s" % (answer.status, said if len(said) < 4 else "gateway: " + said)] += 1
                counts["again"] += tries - 1
                answered.append(time.monotonic())
                if answered[0] < answered[-1] - 5 and "told" not in globals():
                    globals()["told"] = print("under way", flush=True)
            del asked[number]
            return
        except (OSError, http.client.HTTPException) as error:
            if tries == 2:
                with lock:
                    counts["failed %r at %s" % (error, where)] += 1
                asked.pop(number, None)

threading.Thread(target=learn, daemon=True).start()
while not known:
    time.sleep(0.05)
threads, began = [], time.monotonic()
for number in range(int(seconds * rate)):
    time.sleep(max(0.0, began + number / rate - time.monotonic()))
    threads.append(threading.Thread(target=ask, args=(number,), daemon=True))
    threads[-1].start()
until = time.monotonic() + 200
for each in threads:
    each.join(max(0.0, until - time.monotonic()))
for number, where in list(asked.items()):
    counts["no end of %d at %s" % (number, where)] += 1
print(json.dumps(counts), flush=True)
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    with started(
        lambda: RealCluster(2, given={"/opt/fairlead": SOURCE, "/opt/haproxy": haproxy_directory()}), request
    ) as made:
        for each in (*definitions(), *render_roles()):
            applied(made, each)
        await_kinds(made)
        yield made


def add_gateways(cluster: RealCluster, operator_namespace: str, proxy: str = PYTHON) -> None:
    """Those of an installation, with the package from this machine in the place of an image that has it."""
    for each in render_gateway(images.PYTHON, operator_namespace, 65532, proxy=proxy):
        if each["kind"] == "Deployment":
            (container,) = each["spec"]["template"]["spec"]["containers"]
            container["imagePullPolicy"] = "Never"
            container["env"] += [
                {"name": "PYTHONPATH", "value": "/opt/fairlead"}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
                {"name": "PATH", "value": "/usr/bin:/bin:/opt/haproxy"},
            ]  # fmt: skip
        applied(cluster, each)
        if each["kind"] == "Namespace":
            cluster.await_namespace(GATEWAY_NAMESPACE)


def add_client(cluster: RealCluster) -> None:
    path, roles = "/api/v1/namespaces/serve", f"/apis/{API_GROUP}/v1/namespaces/serve"
    rules = [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get"]}]
    cluster.request("POST", f"{path}/serviceaccounts", {"metadata": {"name": "client"}})
    cluster.request("POST", f"{roles}/roles", {"metadata": {"name": "client"}, "rules": rules})
    cluster.request("POST", f"{roles}/rolebindings", {
        "metadata": {"name": "client"}, "roleRef": {"apiGroup": API_GROUP, "kind": "Role", "name": "client"},
        "subjects": [{"kind": "ServiceAccount", "name": "client", "namespace": "serve"}],
    })  # fmt: skip
    idle = "import time; time.sleep(3600)"
    cluster.request("POST", f"{path}/pods", pod("client", cluster.nodes[0], idle, serviceAccountName="client"))
    until_phase(cluster, f"{path}/pods/client", "Running")


class Asking:
    """Requests at a steady rate, from a pod; ``answers`` once they are over, by status and revision."""

    def __init__(self, cluster: RealCluster) -> None:
        self._cluster = cluster
        self._under_way = threading.Event()
        self.answers: dict[str, int] = {}
        self.total: dict[str, int] = {}

    @contextmanager
    def for_seconds(self, seconds: float, rate: float = 20.0) -> Iterator[None]:
        config = self._cluster.kubeconfig(namespace="serve")
        argv = [str(self._cluster.kubectl), f"--kubeconfig={config}", "exec", "client", "--"]
        argv += ["python3", "-c", CLIENT, str(seconds), str(rate)]
        self._under_way.clear()
        with tempfile.TemporaryFile("w+") as errors:
            asking = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True)
            lines: list[str] = []
            reader = threading.Thread(target=self._read, args=(asking, lines))
            reader.start()
            try:
                yield
                asking.wait(timeout=seconds + 230)
            finally:
                asking.kill()
                reader.join()
                assert asking.stdout is not None
                asking.stdout.close()
                asking.wait()
            errors.seek(0)
            assert asking.returncode == 0, errors.read()
        self.answers = json.loads(lines[-1])
        print(self.answers)
        for key, count in self.answers.items():
            self.total[key] = self.total.get(key, 0) + count

    def _read(self, asking: subprocess.Popen[str], lines: list[str]) -> None:
        assert asking.stdout is not None
        for line in asking.stdout:
            lines.append(line)
            self._under_way.set()

    def await_answers(self) -> None:
        """Wait until requests have been answered for five seconds, so that the operator knows of them."""
        assert self._under_way.wait(120), "no request was answered within two minutes"

    def ask(self, seconds: float, rate: float = 20.0) -> dict[str, int]:
        with self.for_seconds(seconds, rate):
            pass
        return self.answers


def write(desk: Desk, **more: Any) -> None:
    content = {
        "kind": "Serving", "name": "web", "image": images.PYTHON, "workdir": ".", "run": "python3 server.py",
        "replicas": "0..2", "scale": {"idle": "10s", "window": "5s"}, "max_queue": 500, "grace": "5s",
        "canary": {"steps": ["25%", "50%"], "errors": "20%"}, "resources": {"cpu": 0.1, "memory": "64Mi"},
        "timeout": "180s", **more,
    }  # fmt: skip
    (desk.directory / "serve.yaml").write_text(yaml.safe_dump(content))


def status(cluster: RealCluster) -> Mapping[str, Any]:
    found: Mapping[str, Any] = cluster.request("GET", objects_path("Serving", "serve", "web")).get("status") or {}
    return found


def says(cluster: RealCluster, words: str) -> bool:
    return words in str(status(cluster).get("message"))


def serves(desk: Desk) -> str:
    return str(json.loads(desk("status", "web", "--json", timeout_s=180).out)["endpoint"]["revision"])


def gateways(cluster: RealCluster) -> list[str]:
    found = kubectl(cluster, GATEWAY_NAMESPACE, "get", "pods", "-l", f"app.kubernetes.io/name={GATEWAY}", "-o", "name")
    return found.split()


def by_haproxy(cluster: RealCluster, gateway: str) -> tuple[Mapping[str, Any], int]:
    """What a gateway tells of its haproxy, and how many requests that took to replicas, by its own statistics."""
    program = """
import glob, json, socket
told, found = json.load(open("/tmp/gateway/proxy.json")), 0
for path in glob.glob("/tmp/gateway/haproxy-*.sock"):
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(path)
        asked.sendall(b"show stat -1 4 -1\\n")
        lines = asked.makefile().read().splitlines()
    rows = [dict(zip(lines[0].lstrip("# ").split(","), line.split(","))) for line in lines[1:] if line]
    found += sum(int(each["stot"]) for each in rows if each["svname"] != "gateway")
print(json.dumps([told, found]))
"""
    told, taken = json.loads(kubectl(cluster, GATEWAY_NAMESPACE, "exec", gateway, "--", "python3", "-c", program))
    return told, taken


def taken_by_haproxy(cluster: RealCluster) -> int:
    """Count the requests that the haproxy of all gateways took to the replicas that are ready now."""
    found = [by_haproxy(cluster, each) for each in gateways(cluster)]
    assert [told["problem"] for told, _ in found] == [None, None], found
    return sum(taken for _, taken in found)


def test_no_request_fails_through_zero_and_back_canaries_and_kills(cluster: RealCluster, tmp_path: Path) -> None:
    new_namespace(cluster, "serve")
    (tmp_path / "desk").mkdir()
    desk = a_desk(cluster, "serve", tmp_path / "desk")
    (desk.directory / "server.py").write_text(SERVER)
    write(desk)
    asking = Asking(cluster)
    with a_process(desk) as process:
        refused = desk("run", "serve.yaml", code=6, timeout_s=180).err
        assert "there is none on this cluster; `fairlead install --gateways 2` adds some" in refused
        add_gateways(cluster, "serve")
        add_client(cluster)
        assert "web serves r1" in desk("run", "serve.yaml", timeout_s=180).err
        assert set(asking.ask(5)) <= {"200 r1a", "again"}

        until(lambda: says(cluster, "asleep after 10s"), timeout_s=120)
        until(lambda: not kubectl(cluster, "serve", "get", "replicas", "-o", "name"), timeout_s=180)
        assert set(asking.ask(5)) <= {"200 r1a", "again"}

        before = gateways(cluster)
        with asking.for_seconds(30):
            add_gateways(cluster, "serve", HAPROXY)
            until(lambda: not set(before) & set(gateways(cluster)), timeout_s=120)
        assert set(asking.answers) <= {"200 r1a", "again"}
        with asking.for_seconds(30):  # or it sleeps by the time that haproxy is asked, which then has no server
            asking.await_answers()
            until(lambda: taken_by_haproxy(cluster) >= 90, timeout_s=60)
        assert set(asking.answers) <= {"200 r1a", "again"}

        with asking.for_seconds(20):
            asking.await_answers()  # or it may sleep by now, and nobody wakes it
            process.send_signal(signal.SIGKILL)
        assert set(asking.answers) <= {"200 r1a", "again"}
    with a_process(desk):
        (desk.directory / "server.py").write_text(SERVER.replace('"a", 200', '"b", 200'))
        with asking.for_seconds(30):
            desk("run", "-d", "serve.yaml", timeout_s=180)
        for _ in range(6):
            assert set(asking.answers) <= {"200 r1a", "200 r2b", "again"}
            if serves(desk) == "r2":
                break
            asking.ask(15)
        assert serves(desk) == "r2"

        (desk.directory / "server.py").write_text(SERVER.replace('"a", 200', '"c", 500'))
        with asking.for_seconds(30):
            desk("run", "-d", "serve.yaml", timeout_s=180)
        for _ in range(6):
            assert set(asking.answers) <= {"200 r2b", "500 r3c", "again"}
            if says(cluster, "r3 was given up"):
                break
            asking.ask(15)
        assert "only its own failed in" in status(cluster)["message"]
        until(lambda: set(asking.ask(2)) <= {"200 r2b", "again"}, timeout_s=30)

        one, other = gateways(cluster)
        with asking.for_seconds(20):
            kill = "import os, signal; [os.kill(int(p), signal.SIGKILL) for p in os.listdir('/proc') if p.isdigit()"
            # In two parts, or it would find and kill itself.
            kill += " and b'--listen' + b'-fd' in open(f'/proc/{p}/cmdline', 'rb').read()]"
            kubectl(cluster, GATEWAY_NAMESPACE, "exec", one, "--", "python3", "-c", kill)
            kubectl(cluster, GATEWAY_NAMESPACE, "delete", other, "--wait=false")
        assert set(asking.answers) <= {"200 r2b", "again"}
        until(lambda: says(cluster, "asleep after 10s"), timeout_s=120)
        assert set(asking.ask(5)) <= {"200 r2b", "again"}
        with asking.for_seconds(30):
            desk("rollback", "web", "--to", "r1", timeout_s=180)
            until(lambda: serves(desk) == "r1", timeout_s=120)
        assert set(asking.answers) <= {"200 r1a", "200 r2b", "again"}
        until(lambda: set(asking.ask(2)) <= {"200 r1a", "again"}, timeout_s=60)
        print(asking.total)
        assert asking.total["200 r1a"] + asking.total["200 r2b"] > 800
        desk("delete", "--yes", "web", timeout_s=120)
