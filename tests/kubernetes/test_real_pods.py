"""The pods that we render, as real containers on two real nodes: they start, meet, report, and leave a record."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.network_policies import render_run_policy
from fairlead.cluster.kubernetes.manifests.pods import REPORTER, PodSettings, render_pod
from fairlead.cluster.kubernetes.manifests.roles import render_roles
from fairlead.cluster.kubernetes.manifests.run_keys import render_key
from fairlead.cluster.kubernetes.manifests.runtime_bundle import bundle_name, render_bundle
from fairlead.cluster.kubernetes.manifests.services import render_service, render_slice
from fairlead.cluster.kubernetes.workloads.pod_reports import read_ending, read_report
from fairlead.runtime.run_key import new_key
from fairlead.state.snapshot import Grant, Workload
from tests.kubernetes.builders import a_creation, a_training, a_workload
from tests.kubernetes.clusters import started
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import a_desk, operating, runs
from tests.kubernetes.test_real_nodes import kubectl, new_namespace, until_phase
from tests.kubernetes.testcluster import images, volumes
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes]

MEET = """
import json, os, socket, time, pathlib
rank, place = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
report = {"step": 3, "updated_at": time.time(), "metrics": {}}
pathlib.Path(os.environ["FAIRLEAD_POD_DIR"], f"rank-{rank}.json").write_text(json.dumps(report))
if rank == 0:
    connection, _ = socket.create_server(("", place[1])).accept()
    print("met rank", connection.recv(9).decode(), flush=True)
    time.sleep(8)
else:
    deadline = time.monotonic() + 60
    while True:
        try:
            connection = socket.create_connection(place, 2)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    connection.sendall(b"%d" % rank)
"""
STOP = """
import signal, sys, time
def stop(*_):
    print("saving", flush=True)
    time.sleep(1)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    with started(lambda: RealCluster(2), request) as made:
        yield made


def start(cluster: RealCluster, namespace: str, program: str, nodes: int) -> Workload:
    """A run's objects in a namespace that enforces "restricted"; node n takes pod n."""
    path = new_namespace(cluster, namespace)
    spec = a_training(
        name="gang", team=namespace, nodes=nodes, image=images.PYTHON, run=f"python3 -c '{program}'", grace_s=10
    )  # fmt: skip
    workload = a_workload(spec)
    cluster.request("POST", f"{path}/configmaps", render_bundle(namespace))
    for place, item in (
        (f"{path}/services", render_service(workload)),
        (f"{path}/secrets", render_key(workload, 0, new_key())),
        (f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies", render_run_policy(workload)),
    ):
        cluster.request("POST", place, _unowned(item))
    grant = Grant(cpu_milli=100, memory_bytes=256 * 1024**2)

    def address(name: str) -> str:
        return str(until(lambda: cluster.request("GET", f"{path}/pods/{name}")["status"].get("podIP"), f"{name}'s IP"))

    for index, node in enumerate(cluster.nodes[:nodes]):
        creation = a_creation(index=index, node=node, grant=grant)
        cluster.request(
            "POST", f"{path}/pods", _unowned(render_pod(workload, creation, PodSettings(runtime=bundle_name())))
        )
    names = render_slice(workload, 0, {f"gang-0-{index}": address(f"gang-0-{index}") for index in range(nodes)})
    cluster.request("POST", f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices", _unowned(names))
    return workload


def _unowned(item: dict[str, Any]) -> dict[str, Any]:
    """Without the owner, which is made up; what has none is collected."""
    del item["metadata"]["ownerReferences"]
    return item


def test_two_ranks_on_two_nodes_meet_report_and_leave_their_record(cluster: RealCluster) -> None:
    start(cluster, "meet", MEET, nodes=2)
    path = "/api/v1/namespaces/meet/pods"

    def reported() -> bool:
        line = kubectl(cluster, "meet", "logs", "gang-0-0", "-c", REPORTER, "--tail=1")
        report = read_report(line)
        return report is not None and report.progress is not None and report.progress.step == 3

    until_phase(cluster, f"{path}/gang-0-1", "Succeeded")
    until(reported, "report of step 3")
    until_phase(cluster, f"{path}/gang-0-0", "Succeeded")
    assert kubectl(cluster, "meet", "logs", "gang-0-0") == "0| met rank 1\n"
    for index in range(2):
        ending = read_ending(cluster.request("GET", f"{path}/gang-0-{index}"), ranks=range(index, index + 1))
        assert ending is not None
        assert [(each.rank, each.exit_code) for each in ending.exits] == [(index, 0)]


def test_a_deleted_pod_gives_its_ranks_their_grace(cluster: RealCluster) -> None:
    start(cluster, "stop", STOP, nodes=1)
    path = "/api/v1/namespaces/stop/pods/gang-0-0"

    def ready() -> bool:
        conditions = cluster.request("GET", path)["status"].get("conditions", ())
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    until(ready, "started ranks")
    kubectl(cluster, "stop", "delete", "pod", "gang-0-0", "--wait=false")
    until(lambda: "saving" in kubectl(cluster, "stop", "logs", "gang-0-0"), "stop notice")


def test_a_directory_too_large_for_the_api_reaches_two_nodes_over_a_volume(
    cluster: RealCluster, tmp_path: Path
) -> None:
    for each in (*definitions(), *render_roles()):
        applied(cluster, each)
    new_namespace(cluster, "large")
    volumes.share(cluster, "large", "team")
    (tmp_path / "desk").mkdir()
    desk = a_desk(cluster, "large", tmp_path / "desk")
    data = os.urandom(12 * 1024**2)
    (desk.directory / "data.bin").write_bytes(data)
    program = "import hashlib; print(hashlib.sha256(open('data.bin', 'rb').read()).hexdigest())"
    claim = {"name": "team", "persistentVolumeClaim": {"claimName": "team"}}
    mounts = [{"name": "ranks", "volumeMounts": [{"name": "team", "mountPath": "/team"}]}]
    spec = {
        "name": "train",
        "image": images.PYTHON,
        "workdir": ".",
        "run": f'python3 -c "{program}"',
        "nodes": 2,
        "resources": {"cpu": 0.5, "memory": "256Mi"},
        "checkpoint": {"to": "/team/runs"},
        "kubernetes": {"spec": {"volumes": [claim], "containers": mounts}},
    }
    (desk.directory / "train.yaml").write_text(json.dumps(spec))
    with operating(desk):
        for name in ("train", "train-2"):
            ended = desk("run", "train.yaml", timeout_s=120)
            assert "12 MiB, by way of the volume `team` at /team/runs." in ended.err
            assert f"{name} is Succeeded" in ended.err
            digest = hashlib.sha256(data).hexdigest()
            assert sorted(ended.out.splitlines()) == [f"[{rank}] {digest}" for rank in (0, 1)]
        assert sorted(run["name"] for run in runs(desk)) == ["train", "train-2"]
        desk("delete", "--yes", "train", "train-2")
    kept = (cluster.home / "volumes" / "large" / "team").rglob("*.tar.gz")
    assert len(list(kept)) == 1
