"""Pipelines in the containers of real nodes: killed pods and a killed operator, results that the next run takes."""

import json
import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.roles import render_roles
from fairlead.specs.overlay import RANKS
from tests.kubernetes.clusters import started
from tests.kubernetes.desks import shown
from tests.kubernetes.operating import await_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import COMMAND, Desk, a_desk
from tests.kubernetes.test_real_nodes import new_namespace
from tests.kubernetes.test_real_runs import PATIENCE_S, comes_to, kubectl
from tests.kubernetes.testcluster import images, volumes
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes]

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PREPARE = """
import os
with open("/team/ledger", "a") as file:
    print("prepare", file=file)
with open(os.environ["FAIRLEAD_OUTPUT_DATA"], "w") as file:
    file.write(open("given").read())
"""
TRAIN = """
import os, time
with open("/team/ledger", "a") as file:
    print("train", file=file)
while os.path.exists("/team/hold"):
    time.sleep(0.1)
with open(os.environ["FAIRLEAD_OUTPUT_MODEL"], "w") as file:
    file.write(open(os.environ["FAIRLEAD_INPUT_PREPARE_DATA"]).read())
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    with started(lambda: RealCluster(2), request) as made:
        for each in (*definitions(), *render_roles()):
            applied(made, each)
        await_kinds(made)
        yield made


@pytest.fixture
def desk(cluster: RealCluster, tmp_path: Path) -> Desk:
    """A user in a namespace of the test's own, with a volume that all pods share."""
    namespace = f"p-{secrets.token_hex(3)}"
    new_namespace(cluster, namespace)
    volumes.share(cluster, namespace, "team")
    (tmp_path / "desk").mkdir()
    return a_desk(cluster, namespace, tmp_path / "desk")


def operator(desk: Desk) -> "subprocess.Popen[bytes]":
    """An operator that may be killed."""
    arguments = ["operator", "--namespace", desk.namespace, "--only", desk.namespace, "--listen", "127.0.0.1:0"]
    environ = {**desk.environ, "KUBECONFIG": str(desk.operator_config)}
    with (desk.directory.parent / "operator.log").open("ab") as log:
        return subprocess.Popen([*COMMAND, *arguments], cwd="/", env=environ, stderr=log, stdout=log)


def write(desk: Desk) -> str:
    for name, text in {"prepare.py": PREPARE, "train.py": TRAIN, "given": "5"}.items():
        (desk.directory / name).write_text(text)
    claim = {"name": "team", "persistentVolumeClaim": {"claimName": "team"}}
    mounted = {"name": RANKS, "volumeMounts": [{"name": "team", "mountPath": "/team"}]}
    spec = {
        "kind": "Pipeline",
        "name": "churn",
        "image": images.PYTHON,
        "workdir": ".",
        "grace": "5s",
        "resources": {"cpu": 0.2, "memory": "128Mi"},
        "checkpoint": "/team/runs",
        "kubernetes": {"spec": {"volumes": [claim], "containers": [mounted]}},
        "steps": {
            "prepare": {"run": "python3 prepare.py", "outputs": ["data"], "code": ["prepare.py", "given"]},
            "train": {
                "needs": ["prepare"],
                "run": "python3 train.py",
                "outputs": ["model"],
                "code": ["train.py"],
                "gate": "model > 1",
            },
        },
    }
    (desk.directory / "churn.yaml").write_text(json.dumps(spec))
    return "churn.yaml"


def test_a_pipeline_goes_on_in_another_pod_and_its_results_are_taken_by_the_next(
    cluster: RealCluster,
    desk: Desk,
) -> None:
    volume = cluster.home / "volumes" / desk.namespace / "team"
    (volume / "hold").touch()
    ledger = volume / "ledger"

    def did() -> list[str]:
        return ledger.read_text().split() if ledger.exists() else []

    looks_after = operator(desk)
    try:
        told = desk("run", "-d", write(desk), timeout_s=PATIENCE_S).err
        assert f"Submitted churn in the namespace {desk.namespace}" in told
        until(lambda: did() == ["prepare", "train"], lambda: desk("status", "churn").out, timeout_s=PATIENCE_S)
        looks_after.kill()
        looks_after.wait(timeout=30)
        assert "deleted" in kubectl(cluster, desk, "delete", "pod", "churn-0-0", "--grace-period=0", "--force")
        looks_after = operator(desk)
        until(lambda: did() == ["prepare", "train", "train"], lambda: desk("status", "churn").out, timeout_s=PATIENCE_S)
        desk("stop", "churn", timeout_s=PATIENCE_S)
        comes_to(desk, "churn", "Stopped")
        (volume / "hold").unlink()
        desk("resume", "churn")
        comes_to(desk, "churn", "Succeeded")
        # What was done is not done again, what was cut short is.
        assert did() == ["prepare", "train", "train", "train"]
        steps = {step["name"]: step["phase"] for step in shown(desk, "churn")["steps"]}
        assert steps == {"prepare": "Succeeded", "train": "Succeeded"}

        desk("run", write(desk), timeout_s=PATIENCE_S)
        assert did() == ["prepare", "train", "train", "train"]
        rows = desk("status", "churn-2").out
        assert "prepare  Cached" in rows
        assert "unchanged since run" in rows
        (desk.directory / "given").write_text("0")
        ended = desk("run", "churn.yaml", code=None, timeout_s=PATIENCE_S)
        assert ended.code == 1
        rows = desk("status", "churn-3").out
        assert "code given has changed" in rows
        assert "gate: `model > 1` does not hold: model is 0" in rows
        desk("delete", "--yes", "churn", "churn-2", "churn-3", timeout_s=PATIENCE_S)
    finally:
        looks_after.kill()
        looks_after.wait(timeout=30)


def test_the_example_tunes_trains_and_tests_on_nodes_and_does_again_only_what_has_changed(
    cluster: RealCluster,
    desk: Desk,
) -> None:
    example = (EXAMPLES / "cluster_pipeline.yaml").read_text().replace("python:3.12-slim", images.PYTHON)
    (desk.directory / "flowers.py").write_text((EXAMPLES / "flowers.py").read_text())
    (desk.directory / "flowers.yaml").write_text(example)
    looks_after = operator(desk)

    def steps(name: str) -> dict[str, str]:
        return {step["name"]: step["phase"] for step in shown(desk, name)["steps"]}

    try:
        desk("run", "-d", "flowers.yaml", timeout_s=PATIENCE_S)
        until(
            lambda: steps("flowers")["tune"] == "Running", lambda: desk("status", "flowers").out, timeout_s=PATIENCE_S
        )
        looks_after.kill()
        looks_after.wait(timeout=30)
        kubectl(cluster, desk, "delete", "pod", "flowers-driver-0-0", "--grace-period=0", "--force")
        looks_after = operator(desk)
        comes_to(desk, "flowers", "Succeeded")
        assert set(steps("flowers").values()) == {"Succeeded"}
        family = desk("status", "--all", "--json").out
        names = sorted(run["name"] for run in json.loads(family))
        trials = [f"flowers-tune-{number}" for number in range(6)]
        assert names == ["flowers", "flowers-driver", "flowers-train", "flowers-tune", *trials]
        # What trials print is a curve, on nodes too.
        drawn = desk("compare", "flowers-tune-0", "flowers-tune-1", "--metric", "accuracy", "--plot", "curves.svg")
        assert "Wrote accuracy of 2 runs" in drawn.err
        assert "accuracy" in desk("sweep", "best", "flowers-tune").out

        desk("run", "flowers.yaml", timeout_s=PATIENCE_S)
        assert set(steps("flowers-2").values()) == {"Cached"}
        assert re.search(r"train +Cached .*unchanged since run", desk("status", "flowers-2").out)
        assert "flowers-2-train" not in desk("status", "--all").out

        (desk.directory / "flowers.yaml").write_text(example.replace("SEED: 1", "SEED: 2"))
        desk("run", "flowers.yaml", timeout_s=PATIENCE_S)
        assert set(steps("flowers-3").values()) == {"Succeeded"}
        assert "variable SEED has changed" in desk("status", "flowers-3").out
        desk("delete", "--yes", "flowers", "flowers-2", "flowers-3", timeout_s=PATIENCE_S)
    finally:
        looks_after.kill()
        looks_after.wait(timeout=30)
