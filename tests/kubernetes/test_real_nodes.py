"""Real nodes run real containers: what fake ones cannot show. Slow to start, so all tests share one cluster."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.clusters import started
from tests.kubernetes.testcluster import images, leftovers
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes]
PATIENCE_S = 300.0  # a drain waits for programs to end, on a busy machine

SERVER = """
import socket
listener = socket.create_server(("", 4000))
print("listening", flush=True)
while True:
    connection, peer = listener.accept()
    print("greeted by", peer[0], flush=True)
    connection.sendall(b"hello from " + socket.gethostname().encode())
    connection.close()
"""
CLIENT = """
import socket, time
for _ in range(600):
    try:
        with socket.create_connection(("gang-0.gang.talk.svc.cluster.local", 4000), 2) as connection:
            print(connection.recv(100).decode(), flush=True)
            break
    except OSError as error:
        print(error, flush=True)
        time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    with started(lambda: RealCluster(2), request) as made:
        yield made


def new_namespace(cluster: RealCluster, name: str) -> str:
    """Enforces Pod Security "restricted", as Fairlead's namespaces do."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    cluster.await_namespace(name)
    return f"/api/v1/namespaces/{name}"


def pod(
    name: str, node: str, code: str, *, container: Mapping[str, object] | None = None, **spec: object
) -> dict[str, Any]:
    main = {
        "name": "main",
        "image": images.PYTHON,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", code],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **(container or {}),
    }
    return {
        "metadata": {"name": name, "labels": {"gang": "gang"}},
        "spec": {"nodeName": node, "restartPolicy": "Never", "containers": [main], **spec},
    }


def until_phase(cluster: RealCluster, path: str, phase: str) -> dict[str, Any]:
    def reached() -> dict[str, Any] | None:
        status: dict[str, Any] = cluster.request("GET", path)["status"]
        assert status["phase"] == phase or status["phase"] in {"Pending", "Running"}, status
        return status if status["phase"] == phase else None

    found: dict[str, Any] = until(reached, f"{path} {phase}")
    return found


def kubectl(cluster: RealCluster, namespace: str, *arguments: str) -> str:
    argv = [str(cluster.kubectl), f"--kubeconfig={cluster.kubeconfig(namespace=namespace)}", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout


def test_two_restricted_pods_on_two_nodes_find_each_other_by_name_and_talk(cluster: RealCluster) -> None:
    path = new_namespace(cluster, "talk")
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"gang": "gang"}}
    cluster.request("POST", f"{path}/services", {"metadata": {"name": "gang"}, "spec": service})
    for index, (node, code) in enumerate(zip(cluster.nodes, (SERVER, CLIENT), strict=True)):
        body = pod(f"gang-{index}", node, code, hostname=f"gang-{index}", subdomain="gang")
        cluster.request("POST", f"{path}/pods", body)
    until_phase(cluster, f"{path}/pods/gang-1", "Succeeded")
    assert kubectl(cluster, "talk", "logs", "gang-1").splitlines()[-1] == "hello from gang-0"
    client = cluster.request("GET", f"{path}/pods/gang-1")["status"]["podIP"]
    assert f"greeted by {client}" in kubectl(cluster, "talk", "logs", "gang-0")
    assert kubectl(cluster, "talk", "exec", "gang-0", "--", "python3", "-c", "print(6 * 7)") == "42\n"


def test_a_pod_that_is_not_restricted_is_refused_there(cluster: RealCluster) -> None:
    path = new_namespace(cluster, "strict")
    body = pod("root", "node-1", "", container={"securityContext": {"runAsUser": 0}})
    with pytest.raises(OSError, match="403"):
        cluster.request("POST", f"{path}/pods", body)


def test_a_pod_reaches_the_api_server_as_it_would_anywhere(cluster: RealCluster) -> None:
    path = new_namespace(cluster, "inside")
    code = """
import os, ssl, urllib.request
place = "/var/run/secrets/kubernetes.io/serviceaccount"
url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}/version"
request = urllib.request.Request(url, headers={"Authorization": "Bearer " + open(f"{place}/token").read()})
context = ssl.create_default_context(cafile=f"{place}/ca.crt")
print(urllib.request.urlopen(request, context=context, timeout=10).read().decode())
"""
    cluster.request("POST", f"{path}/pods", pod("asks", "node-2", code))
    until_phase(cluster, f"{path}/pods/asks", "Succeeded")
    told = json.loads(kubectl(cluster, "inside", "logs", "asks"))
    assert told["gitVersion"] == f"v{cluster.version}"


def test_a_pod_that_takes_too_much_memory_is_killed_for_it(cluster: RealCluster) -> None:
    path = new_namespace(cluster, "greedy")
    limits = {"resources": {"limits": {"memory": "64Mi", "cpu": "1"}}}
    cluster.request("POST", f"{path}/pods", pod("eats", "node-1", "b'x' * 10**9", container=limits))
    status = until_phase(cluster, f"{path}/pods/eats", "Failed")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


def test_an_image_that_a_test_builds_runs(cluster: RealCluster, tmp_path: Path) -> None:
    (tmp_path / "word").write_text("from the image")
    layer = images.layer_of(tmp_path / "layer.tar", {"/opt/word": tmp_path / "word"})
    images.extend(tmp_path / "image.tar", "test.example/word:1", [layer])
    cluster.import_image(tmp_path / "image.tar")
    path = new_namespace(cluster, "own-image")
    body = pod("reads", "node-2", "print(open('/opt/word').read())", container={"image": "test.example/word:1"})
    cluster.request("POST", f"{path}/pods", body)
    until_phase(cluster, f"{path}/pods/reads", "Succeeded")
    assert kubectl(cluster, "own-image", "logs", "reads") == "from the image\n"


def test_a_node_that_loses_its_power_is_noticed_and_comes_back(cluster: RealCluster) -> None:
    path = new_namespace(cluster, "lost")
    cluster.request("POST", f"{path}/pods", pod("was", "node-2", "import time; time.sleep(600)"))
    until_phase(cluster, f"{path}/pods/was", "Running")
    cluster.kill_node("node-2")

    def ready() -> str:
        conditions = cluster.request("GET", "/api/v1/nodes/node-2")["status"]["conditions"]
        return next(str(condition["status"]) for condition in conditions if condition["type"] == "Ready")

    until(lambda: ready() == "Unknown", "word of a node's death")
    cluster.start_node("node-2")
    status = until_phase(cluster, f"{path}/pods/was", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] != 0


def test_what_a_killed_process_made_is_taken_away_by_the_next_sweep(cluster: RealCluster) -> None:
    code = """
import os, signal
from tests.kubernetes.testcluster.real_nodes import RealCluster
cluster = RealCluster(1)
cluster.start()
path = "/api/v1/namespaces/default/pods"
container = {"name": "main", "image": "testcluster.fairlead.dev/python:1", "imagePullPolicy": "Never"}
cluster.request("POST", path, {"metadata": {"name": "p"}, "spec": {"nodeName": "node-1", "containers": [container]}})
while cluster.request("GET", f"{path}/p")["status"]["phase"] != "Running":
    pass
print(cluster.home.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    died = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=180)
    name = died.stdout.strip()
    assert name.startswith(leftovers.PREFIX), died.stderr
    assert leftovers.cgroups(name)
    assert list(leftovers.NAMESPACES.glob(f"{name}-*"))
    leftovers.sweep()
    assert not leftovers.cgroups(name)
    assert not list(leftovers.NAMESPACES.glob(f"{name}-*"))
    assert name not in Path("/proc/self/mountinfo").read_text()
    assert not (cluster.home.parent / name).exists()
    assert (
        name not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True, timeout=60).stdout
    )
