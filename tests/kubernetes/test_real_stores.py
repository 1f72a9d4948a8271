"""An object store on real nodes: pipelines whose steps are runs, drift, and a model from training to endpoint."""

import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.roles import render_roles
from tests.cluster.test_drift import csv_of
from tests.kubernetes.clusters import started
from tests.kubernetes.desks import shown
from tests.kubernetes.operating import await_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import Desk, a_desk
from tests.kubernetes.test_real_nodes import new_namespace
from tests.kubernetes.test_real_pipelines import operator
from tests.kubernetes.test_real_runs import PATIENCE_S, comes_to, kubectl
from tests.kubernetes.testcluster import networks, own_python
from tests.kubernetes.testcluster import relaying as relay_program
from tests.kubernetes.testcluster.processes import Server
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.s3 import KEY, SECRET
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes]

PORT = 7070
TRAIN = """
import json, os
data = float(open(os.environ["FAIRLEAD_INPUT_PREPARE_DATA"]).read())
rank = os.environ["RANK"]
os.makedirs(os.environ["FAIRLEAD_OUTPUT_PARTS"], exist_ok=True)
with open(os.environ["FAIRLEAD_OUTPUT_PARTS"] + "/" + rank, "w") as file:
    print(data, file=file)
with open(os.environ["FAIRLEAD_OUTPUT_SCORE"], "w") as file:
    json.dump(data + int(rank), file)
"""
CHECK = """
import os
parts = os.environ["FAIRLEAD_INPUT_TRAIN_PARTS"]
print("parts", sorted(os.listdir(parts)), open(os.environ["FAIRLEAD_INPUT_TRAIN_SCORE"]).read(), flush=True)
"""
LEARN = """
import os
import fairlead
weight = [0.0]
def save(directory):
    (directory / "weight").write_text(str(weight[0]))
with fairlead.run(checkpoint_every_steps=1) as run:
    start = run.resume(load=lambda directory: None)
    for step in range(start, int(os.environ["STEPS"])):
        weight[0] += 1.0
        run.progress(step + 1, loss=1.0 / (step + 1))
        run.checkpoint(step + 1, save=save)
"""
SCALE = """
import pathlib

class Scale:
    def load(self, model):
        (self.weight,) = (float(path.read_text()) for path in pathlib.Path(model).rglob("weight"))

    def predict(self, inputs):
        return {"y": inputs["x"] * self.weight}
"""
# In the network of the cluster, which no proxy leads out of.
ASK = """
import json, sys, urllib.request
body = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [2.0]}]}).encode()
asked = urllib.request.Request(sys.argv[1], data=body, headers={"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(asked, timeout=10))["outputs"][0]["data"])
"""


@dataclass(frozen=True, kw_only=True)
class Store:
    """An S3 server in the network of the cluster; its objects are files.

    Attributes:
        outside: Its URL for people, who are in none of the cluster's networks.
    """

    directory: Path
    outside: str

    @property
    def environ(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://{networks.CONTROL_PLANE}:{PORT}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    archive = own_python.write_image(tmp_path_factory.mktemp("image") / "own-python.tar")
    with started(lambda: RealCluster(2, given=own_python.DIRECTORIES), request) as made:
        made.import_image(archive)
        for each in (*definitions(), *render_roles()):
            applied(made, each)
        await_kinds(made)
        yield made


@pytest.fixture(scope="module")
def store(cluster: RealCluster, s3_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    directory = tmp_path_factory.mktemp("objects")
    (directory / "team").mkdir()
    environ = ["env", f"ROOT_ACCESS_KEY={KEY}", f"ROOT_SECRET_KEY={SECRET}"]
    argv = [*environ, str(s3_binary), "--port", f"{networks.CONTROL_PLANE}:{PORT}", "posix", str(directory)]
    server = Server("s3", argv, directory.parent / "s3.log", network=cluster.control_network)
    server.start()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relaying = [sys.executable, relay_program.__file__, str(listener.fileno()), networks.CONTROL_PLANE, str(PORT)]
        log, fds = directory.parent / "relay.log", [listener.fileno()]
        relay = Server("s3-relay", relaying, log, network=cluster.control_network, pass_fds=fds)
        relay.start()
        outside = f"http://127.0.0.1:{listener.getsockname()[1]}"
    yield Store(directory=directory, outside=outside)
    relay.kill()
    server.kill()


@pytest.fixture
def desk(cluster: RealCluster, store: Store, tmp_path: Path) -> Iterator[Desk]:
    """A user in a namespace of the test's own, with an operator."""
    namespace = f"s-{secrets.token_hex(3)}"
    new_namespace(cluster, namespace)
    (tmp_path / "desk").mkdir()
    made = replace(a_desk(cluster, namespace, tmp_path / "desk"), in_process=True)
    looks_after = operator(made)
    yield made
    looks_after.kill()
    looks_after.wait(timeout=30)


def ask(cluster: RealCluster, pod: dict[str, Any]) -> str:
    """What the predictor in a pod answers, to somebody in the network of the cluster."""
    (port,) = (each["containerPort"] for each in pod["spec"]["containers"][0]["ports"])
    url = f"http://{pod['status'].get('podIP')}:{port}/v2/models/door/infer"
    argv = ["nsenter", f"--net=/var/run/netns/{cluster.control_network}", sys.executable, "-c", ASK, url]
    asked = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return asked.stdout.strip() or asked.stderr


def write(desk: Desk, name: str, spec: dict[str, Any], **files: str) -> str:
    for file, text in files.items():
        (desk.directory / f"{file}.py").write_text(text)
    base = {"name": name, "image": own_python.NAME, "workdir": ".", "grace": "5s"}
    (desk.directory / f"{name}.yaml").write_text(yaml.safe_dump({**base, **spec}))
    return f"{name}.yaml"


def steps(desk: Desk, name: str) -> dict[str, str]:
    return {step["name"]: step["phase"] for step in shown(desk, name)["steps"]}


def test_steps_that_are_runs_of_two_nodes_hand_on_what_they_return_by_the_store(desk: Desk, store: Store) -> None:
    small = {"cpu": 0.2, "memory": "256Mi"}
    spec = {
        "kind": "Pipeline", "resources": small, "checkpoint": "s3://team/pipelines", "env": store.environ,
        "steps": {
            "prepare": {"run": "echo 5 > $FAIRLEAD_OUTPUT_DATA", "outputs": ["data"], "code": ["churn.yaml"]},
            "train": {
                "needs": ["prepare"], "outputs": ["parts", "score"], "code": ["train.py"],
                "training": {"run": "python train.py", "nodes": 2, "resources": small},
            },
            "check": {"needs": ["train"], "run": "python check.py", "code": ["check.py"], "when": "train.score > 1"},
        },
    }  # fmt: skip
    file = write(desk, "churn", spec, train=TRAIN, check=CHECK)
    desk("run", "-d", file)
    comes_to(desk, "churn", "Succeeded")
    assert set(steps(desk, "churn").values()) == {"Succeeded"}
    # Both nodes read the input; directories are joined, and of a file the first node's counts.
    assert "parts ['0', '1'] 5.0" in desk("logs", "churn-driver").out
    desk("run", "-d", file)
    comes_to(desk, "churn-2", "Succeeded")
    assert set(steps(desk, "churn-2").values()) == {"Cached"}
    desk("delete", "--yes", "churn", "churn-2")


def test_a_model_that_has_grown_stale_is_trained_again_by_what_is_in_the_store(
    cluster: RealCluster, desk: Desk, store: Store
) -> None:
    seen = store.directory / "team" / "seen.csv"

    def put(text: str) -> None:
        # Whole or not at all, as a store has it: an emptied file would be one that was begun anew.
        seen.with_suffix(".new").write_text(text)
        seen.with_suffix(".new").rename(seen)

    put(csv_of([0] * 50))
    spec = {
        "kind": "Pipeline", "resources": {"cpu": 0.2, "memory": "256Mi"}, "checkpoint": "s3://team/drifting",
        "env": store.environ,
        "on": {
            "drift": {"data": "s3://team/seen.csv", "column": "error", "cost": 20, "window": 50}, "every": "1s",
        },
        "steps": {"train": {"run": "true", "code": ["stale.yaml"], "cache": {"off": True}}},
    }  # fmt: skip
    told = desk("apply", write(desk, "stale", spec))
    assert "the operator runs it when s3://team/seen.csv drifts" in told.err

    def listed() -> str:
        return desk("apply", "--list", code=None).out

    def says(sentence: str) -> None:
        until(
            lambda: sentence in listed(),
            lambda: listed() + desk("logs", "stale-watch", code=None).out,
            timeout_s=PATIENCE_S,
        )

    says("staleness has cost 0 of 20 (error) in 50 predictions")
    old = csv_of([0] * 50 + [1] * 30)
    put(old)
    says("stale-1 is Succeeded")
    assert "by drift: staleness has cost 30 of 20 (error) in 80 predictions" in desk("events", "stale").out
    says("staleness has cost 0 of 20 (error) in 0 predictions")
    # Whoever looks next is another pod.
    assert "deleted" in kubectl(cluster, desk, "delete", "pod", "stale-watch-0-0", "--grace-period=0", "--force")
    put(old + "".join(f"{number},1\n" for number in range(15)))
    says("staleness has cost 15 of 20 (error) in 15 predictions")
    assert "stale-2" not in desk("status", "--all").out
    put(old + "".join(f"{number},1\n" for number in range(25)))
    says("stale-2 is Succeeded")
    desk("delete", "--yes", "stale")


def test_a_promoted_version_is_served_and_the_next_one_is_a_new_revision(
    cluster: RealCluster, desk: Desk, store: Store
) -> None:
    small = {"cpu": 0.5, "memory": "512Mi"}
    common = {"resources": small, "env": store.environ}
    at_home = replace(desk, environ={**desk.environ, **store.environ, "AWS_ENDPOINT_URL": store.outside})

    def promoted(name: str, steps: int) -> str:
        """Train so many steps, and promote what came out."""
        env = {**store.environ, "STEPS": str(steps)}
        spec = {**common, "env": env, "run": "python learn.py", "checkpoint": {"to": "s3://team/runs"}}
        desk("run", "-d", write(desk, name, spec, learn=LEARN, double=SCALE))
        comes_to(desk, name, "Succeeded")
        version = at_home("model", "push", "scale", name, "--metric", f"loss={1 / steps}").out.strip()
        at_home("model", "promote", "scale@latest", "--to", "production")
        return version

    def comes_to_answer(told: str) -> None:
        """Wait until that is what the pods of the endpoint say to 2."""
        path = f"/api/v1/namespaces/{desk.namespace}/pods"

        def answers() -> list[str]:
            pods = cluster.request("GET", path)["items"]
            return [ask(cluster, pod) for pod in pods if pod["metadata"]["name"].startswith("door-")]

        until(lambda: answers() == [told], lambda: f"{answers()}\n{desk('status', 'door').out}", timeout_s=PATIENCE_S)

    assert promoted("three", 3) == "scale@1"
    spec = {**common, "kind": "Serving", "model": "scale@production", "predictor": "double:Scale", "replicas": 1}
    at_home("run", "-d", write(desk, "door", spec))
    comes_to_answer("[6.0]")
    assert promoted("six", 6) == "scale@2"
    planned = at_home("plan", "door.yaml", code=None).out
    assert "model" in planned, planned
    at_home("run", "-d", "door.yaml")
    comes_to_answer("[12.0]")
    assert "r2 is ready and serves" in desk("status", "door").out
    desk("delete", "--yes", "door", "three", "six")
