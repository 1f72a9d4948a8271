"""Operator, gateways and page are upgraded from an older version, on real nodes and from images, while all is at work.

The older version is a commit of this repository: it builds its image, installs itself, and stores the objects that the
newer one finds.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.objects import seconds
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.names import GATEWAY_NAMESPACE, SYSTEM_NAMESPACE
from fairlead.cluster.kubernetes.operator.ledger.usage_ledger import UsageLedger
from fairlead.ledger.usage import WHOLE, milliseconds
from fairlead.policy.placement.node_eligibility import PRICE_LABEL
from fairlead.specs.quantities import parse_cpu
from tests.image.registries import registry
from tests.kubernetes.clusters import started
from tests.kubernetes.test_faces import Answer, Desk, a_desk
from tests.kubernetes.test_fairlead_image import put_python
from tests.kubernetes.test_real_gateway import SERVER, Asking, add_client
from tests.kubernetes.test_real_nodes import kubectl, new_namespace
from tests.kubernetes.testcluster import images, networks
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.ledger.databases import PostgresServer, postgres_programs, postgres_server
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes, pytest.mark.timeout(1200)]

OLDER = "e615de9db27d74c017d1ace942e1f85930a0e068"
"""The commit before budgets of projects, queries of Prometheus and a base of replicas came into the kinds."""
REPOSITORY = Path(__file__).parents[2]
SPACE = "serve"
MICROUSD_PER_S = 10_000  # $36 an hour
TRAIN = """
import os, time
while not os.path.exists("/tmp/done"):
    time.sleep(0.1)
"""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version of Fairlead: its source, and the image that it builds of itself."""

    source: Path
    image: str

    def __call__(self, desk: Desk, *arguments: str, timeout_s: float = 240) -> Answer:
        """Call this version's command at a desk."""
        environ = {**desk.environ, "PYTHONPATH": str(self.source), "PYTHONDONTWRITEBYTECODE": "1"}
        return replace(desk, environ=environ)(*arguments, timeout_s=timeout_s)


@pytest.fixture(scope="module")
def older_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("older")
    packed = subprocess.run(
        ["git", "archive", OLDER, "src"], cwd=REPOSITORY, capture_output=True, check=False, timeout=60
    )
    if packed.returncode:
        pytest.skip(f"an upgrade needs the repository's history: commit {OLDER[:8]} is not in this clone")
    subprocess.run(["tar", "-x", "-C", str(place)], input=packed.stdout, check=True, timeout=60)
    return place / "src"


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    with started(lambda: RealCluster(2), request) as made:
        for node in made.nodes:
            labels = {"metadata": {"labels": {PRICE_LABEL: str(MICROUSD_PER_S * 3600 / 1e6)}}}
            made.request("PATCH", f"/api/v1/nodes/{node}", labels, kind="merge-patch+json")
        yield made


@pytest.fixture
def database(cluster: RealCluster) -> Iterator[PostgresServer]:
    if postgres_programs() is None:
        pytest.skip("a ledger of several operators needs PostgreSQL: apt-get install postgresql")
    with postgres_server(address=networks.CONTROL_PLANE, network=cluster.control_network) as server:
        yield server


def build(cluster: RealCluster, versions: tuple[Version, ...], scratch: Path) -> None:
    """Have each version build its image, and bring them to the nodes."""
    with registry(scratch / "registry") as server:
        (scratch / "base").mkdir()
        base = str(put_python(server.host, scratch / "base"))
        for number, each in enumerate(versions):
            archive = scratch / f"{number}.tar"
            argv = [sys.executable, "-m", "fairlead.cli.main", "image", "build", str(archive)]
            environ = {**os.environ, "PYTHONPATH": str(each.source), "PYTHONDONTWRITEBYTECODE": "1"}
            done = subprocess.run(
                [*argv, "--name", each.image, "--base-image", base],
                env=environ, capture_output=True, text=True, check=False, timeout=400,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            cluster.import_image(archive)
            archive.unlink()


def write(desk: Desk, **more: Any) -> None:
    """An endpoint that takes gateways, since how many replicas it has depends on its requests."""
    content = {
        "kind": "Serving", "name": "web", "image": images.PYTHON, "workdir": ".", "run": "python3 server.py",
        "replicas": "2..4", "max_queue": 500, "grace": "5s", "resources": {"cpu": 0.1, "memory": "64Mi"}, **more,
    }  # fmt: skip
    (desk.directory / "serve.yaml").write_text(json.dumps(content))


def deployments(cluster: RealCluster) -> list[dict[str, Any]]:
    return [
        each
        for space in (SYSTEM_NAMESPACE, GATEWAY_NAMESPACE)
        for each in cluster.request("GET", f"/apis/apps/v1/namespaces/{space}/deployments")["items"]
    ]


def runs_everywhere(cluster: RealCluster, image: str) -> bool:
    """Return whether all that is installed runs from an image, and nothing of another one is left."""
    there = deployments(cluster)
    pods = [
        pod
        for space in (SYSTEM_NAMESPACE, GATEWAY_NAMESPACE)
        for pod in cluster.request("GET", f"/api/v1/namespaces/{space}/pods")["items"]
    ]
    return (
        len(there) == 3
        and all(each["status"].get("availableReplicas") == each["spec"]["replicas"] == 2 for each in there)
        and {container["image"] for pod in pods for container in pod["spec"]["containers"]} == {image}
    )


def pods(cluster: RealCluster) -> dict[str, tuple[str, str]]:
    """Uids and starts of the pods of runs, by name."""
    return {
        pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["status"].get("startTime", ""))
        for pod in cluster.request("GET", f"/api/v1/namespaces/{SPACE}/pods")["items"]
        if "fairlead.dev/run-uid" in pod["metadata"]["labels"]
    }


def the_object(cluster: RealCluster, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.request("GET", objects_path(kind, SPACE, name))
    return found


def almost_a_node(cluster: RealCluster) -> str:
    """Cores of a node but for a few: what is installed holds more of each."""
    allocatable = cluster.request("GET", f"/api/v1/nodes/{cluster.nodes[0]}")["status"]["allocatable"]["cpu"]
    return f"{parse_cpu(str(allocatable)) - 100}m"


def is_waiting(cluster: RealCluster) -> bool:
    status = the_object(cluster, "Training", "waits").get("status") or {}
    return (status.get("phase"), status.get("reason")) == ("Pending", "WaitingForResources")


def held(database: PostgresServer, uid: str) -> dict[str, list[tuple[int, int, int]]]:
    """Parts of nodes that the pods of a run held, by node, in order; nothing of it is open any more."""
    ledger = UsageLedger(database.own_url)
    try:
        assert uid not in {each.pod.workload_uid for each in ledger.open_pods().values()}
        found: dict[str, list[tuple[int, int, int]]] = {}
        for each in sorted(ledger.of_run(uid), key=lambda each: each.start_ms):
            found.setdefault(each.node, []).append((each.start_ms, each.end_ms, each.share))
    finally:
        ledger.close()
    return found


def is_charged(database: PostgresServer, uid: str) -> bool:
    ledger = UsageLedger(database.own_url)
    try:
        return len(ledger.closed_pods().get(uid, ())) == 2
    finally:
        ledger.close()


def lives(cluster: RealCluster, run: str) -> dict[str, list[tuple[int, int]]]:
    """Return when the pods of a run that is over began and ended, by node, as the API server has it."""
    found: dict[str, list[tuple[int, int]]] = {}
    for pod in cluster.request("GET", f"/api/v1/namespaces/{SPACE}/pods")["items"]:
        if pod["metadata"]["name"].startswith(f"{run}-"):
            (container,) = pod["status"]["containerStatuses"]
            began, ended = pod["metadata"]["creationTimestamp"], container["state"]["terminated"]["finishedAt"]
            found.setdefault(pod["spec"]["nodeName"], []).append(
                (milliseconds(seconds(began)), milliseconds(seconds(ended)))
            )
    return found


def is_served(asking: Asking, new: str, old: str) -> bool:
    """Ask for a while, of which nothing fails, and return whether only the new revision answered."""
    answers = asking.ask(2)
    assert set(answers) <= {new, old, "again"}, answers
    return old not in answers


def test_an_upgrade_restarts_nothing_loses_no_second_and_fails_no_request(
    cluster: RealCluster, database: PostgresServer, older_source: Path, tmp_path: Path
) -> None:
    older = Version(source=older_source, image="test.example/fairlead:older")
    newer = Version(source=REPOSITORY / "src", image="test.example/fairlead:newer")
    (tmp_path / "images").mkdir()
    build(cluster, (older, newer), tmp_path / "images")
    new_namespace(cluster, SPACE)
    (tmp_path / "desk").mkdir()
    desk = replace(a_desk(cluster, SPACE, tmp_path / "desk"), in_process=False)
    # What the operator of a desk would need: it is installed here, in a namespace of its own.
    kubectl(cluster, SPACE, "delete", "clusterrolebinding", "fairlead-operator", "--ignore-not-found")
    options = ["--gateways", "2", "--page", "--ledger", database.url, "--wait", "--timeout", "180"]
    older(desk, "install", "--image", older.image, *options)
    until(lambda: runs_everywhere(cluster, older.image), lambda: kubectl(cluster, "kube-system", "get", "pods", "-A"),
          timeout_s=180)  # fmt: skip

    (desk.directory / "server.py").write_text(SERVER)
    write(desk)
    assert "web serves r1" in older(desk, "run", "serve.yaml").err
    work = {"image": images.PYTHON, "nodes": 2, "resources": {"cpu": "100m", "memory": "64Mi"}}
    trainings = {
        "before": {**work, "nodes": 1, "run": "echo done"},
        "train": {**work, "run": f"python3 -c '{TRAIN}'", "max_cost": 1000},
        "waits": {
            **work,
            "nodes": 1,
            "run": "echo never",
            "resources": {"cpu": almost_a_node(cluster), "memory": "64Mi"},
        },
    }
    for name, spec in trainings.items():
        (desk.directory / f"{name}.yaml").write_text(json.dumps({"name": name, **spec}))
        older(desk, "run", *([] if name == "before" else ["--detach"]), f"{name}.yaml")
    until(lambda: the_object(cluster, "Training", "train")["status"]["phase"] == "Running",
          lambda: the_object(cluster, "Training", "train")["status"], timeout_s=120)  # fmt: skip
    until(lambda: is_waiting(cluster), lambda: the_object(cluster, "Training", "waits").get("status"), timeout_s=60)
    add_client(cluster)
    asking = Asking(cluster)
    assert set(asking.ask(3)) <= {"200 r1a", "again"}
    was = pods(cluster)
    assert len([name for name in was if name.startswith("train-")]) == 2

    with asking.for_seconds(30):
        newer(desk, "install", "--image", newer.image, *options)
    rounds = [asking.answers]
    while not runs_everywhere(cluster, newer.image):
        assert len(rounds) < 12, kubectl(cluster, "kube-system", "get", "pods", "-A")
        rounds.append(asking.ask(15))
    rounds.append(asking.ask(10))
    assert all(set(each) <= {"200 r1a", "again"} for each in rounds), rounds

    # How many replicas serve follows the requests; none of those that did, and no rank, is another one.
    assert pods(cluster).items() >= was.items(), "a run was started again"
    assert is_waiting(cluster), the_object(cluster, "Training", "waits")["status"]
    listed: Mapping[str, Any] = {
        each["name"]: each for each in json.loads(newer(desk, "status", "--all", "--json").out)
    }
    assert {name: listed[name]["phase"] for name in trainings} == {
        "before": "Succeeded", "train": "Running", "waits": "Pending",
    }  # fmt: skip
    for rank in (0, 1):
        kubectl(cluster, SPACE, "exec", f"train-0-{rank}", "--", "touch", "/tmp/done")
    until(lambda: the_object(cluster, "Training", "train")["status"]["phase"] == "Succeeded",
          lambda: the_object(cluster, "Training", "train")["status"], timeout_s=60)  # fmt: skip
    alive = lives(cluster, "train")
    uid = the_object(cluster, "Training", "train")["metadata"]["uid"]
    until(lambda: is_charged(database, uid), timeout_s=60)
    found = held(database, uid)
    spent = 0
    for node, pods_there in alive.items():
        parts = found.pop(node)
        # One part begins where another ends, but for the first and the last of each pod.
        begins, ends = Counter(part[0] for part in parts), Counter(part[1] for part in parts)
        assert begins - ends == Counter(began for began, _ in pods_there), parts
        last = sorted((ends - begins).elements())
        assert len(last) == len(pods_there), parts
        # The API server has whole seconds, and the pod says itself when its rank ended.
        wanted = sorted(ended for _, ended in pods_there)
        assert all(abs(told - stored) <= 2000 for told, stored in zip(last, wanted, strict=True)), (last, wanted)
        spent += sum((end - start) * share for start, end, share in parts)
    assert not found
    exact = spent * MICROUSD_PER_S / 1000 / WHOLE
    status = the_object(cluster, "Training", "train")["status"]
    assert abs(status["cost"]["microusd"] - exact) <= 2
    print(asking.total, f"${exact / 1e6:.6f}")
    assert asking.total["200 r1a"] >= 800

    # Another revision takes the places of the one before, ahead of a run that has waited for longer, with its own code.
    (desk.directory / "server.py").write_text(SERVER.replace('"a", 200', '"b", 200'))
    newer(desk, "run", "--detach", "serve.yaml")
    until(lambda: is_served(asking, "200 r2b", "200 r1a"),
          lambda: newer(desk, "status", "web").out, timeout_s=180, every_s=0.5)  # fmt: skip
    newer(desk, "rollback", "--no-wait", "web")
    until(lambda: is_served(asking, "200 r1a", "200 r2b"),
          lambda: newer(desk, "status", "web").out, timeout_s=180, every_s=0.5)  # fmt: skip
    assert is_waiting(cluster), the_object(cluster, "Training", "waits")["status"]
