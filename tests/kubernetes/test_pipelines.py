"""Pipelines on a real control plane whose nodes kwok plays: what is submitted, and what is refused with a reason."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.manifests import driver_bundle
from fairlead.cluster.kubernetes.names import FAMILY
from fairlead.specs.formats.packing import unpacked
from fairlead.specs.overlay import RANKS
from fairlead.specs.training import ENV_MOST
from fairlead.specs.workload import PIPELINE_VARIABLE
from tests.kubernetes.test_faces import Desk, a_desk, namespace, operating, phases, plane, prepared
from tests.kubernetes.test_kubectl import Kubectl
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

pytestmark = pytest.mark.kubernetes

__all__ = ["namespace", "plane", "prepared"]

REMOVED = '[{"op": "remove", "path": "/spec/schedule"}]'
ON_A_VOLUME: dict[str, Any] = {
    "checkpoint": "/team/runs",
    "kubernetes": {
        "metadata": {"annotations": {"fake/start": "0.1s", "fake/run": "600s", "fake/on-term": "ends"}},
        "spec": {
            "volumes": [{"name": "team", "nfs": {"server": "files.example", "path": "/team"}}],
            "containers": [{"name": RANKS, "volumeMounts": [{"name": "team", "mountPath": "/team"}]}],
        },
    },
}


@pytest.fixture
def desk(prepared: ControlPlane, namespace: str, tmp_path: Path) -> Desk:
    (tmp_path / "desk").mkdir()
    return replace(a_desk(prepared, namespace, tmp_path / "desk"), in_process=True)


def write(desk: Desk, **changes: Any) -> str:
    spec = {
        "kind": "Pipeline",
        "name": "churn",
        "image": "python:3.12",
        "workdir": ".",
        "resources": {"cpu": 0.1, "memory": "64Mi"},
        "steps": {"prepare": "python prepare.py"},
        **ON_A_VOLUME,
        **changes,
    }
    (desk.directory / "prepare.py").write_text("print('hello')\n")
    (desk.directory / "churn.yaml").write_text(json.dumps({key: value for key, value in spec.items() if value}))
    return "churn.yaml"


@pytest.mark.slow
def test_the_pod_of_a_pipeline_has_its_driver_and_its_steps(desk: Desk, plane: ControlPlane, namespace: str) -> None:
    with operating(desk):
        told = desk("run", "-d", write(desk, schedule="0 3 * * *")).err
        assert "Taking along" in told
        assert "It runs once now; `fairlead apply` lets it run by itself" in told
        until(lambda: phases(desk) == {"churn": "Running"})
        (pod,) = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        (ranks,) = (each for each in pod["spec"]["containers"] if each["name"] == RANKS)
        env = {each["name"]: each.get("value") for each in ranks["env"]}
        assert env["FAIRLEAD_COMMAND"] == "python3 /fairlead/runtime/driver.pyz"
        assert list(unpacked(env[PIPELINE_VARIABLE]).steps) == ["prepare"]
        place = f"/api/v1/namespaces/{namespace}/configmaps/{driver_bundle.bundle_name()}"
        assert plane.request("GET", place)["immutable"]
        shown = desk("status", "churn").out
        assert "1 step" in shown
        assert "churn is Running" in shown
        assert "is decided by its pod" in desk("plan", write(desk, name="other")).out
        assert "is decided by its pod" in desk("plan", "--diff", "churn.yaml", code=None).err
        desk("stop", "churn")
        until(lambda: phases(desk) == {"churn": "Stopped"})
        desk("resume", "churn")
        until(lambda: phases(desk) == {"churn": "Running"})
        desk("delete", "--yes", "churn")
        until(lambda: phases(desk) == {})


def test_a_pipeline_that_is_applied_stays_and_may_run_otherwise(
    desk: Desk, plane: ControlPlane, namespace: str
) -> None:
    with operating(desk):
        told = desk("apply", write(desk, schedule="0 3 1 1 *")).err
        assert f"Applied churn in the namespace {namespace}" in told
        assert "the operator runs it at `0 3 1 1 *` UTC" in told
        until(lambda: "next at" in desk("apply", "--list").out)
        assert phases(desk) == {"churn": "Running"}
        assert "is applied already" in desk("apply", "churn.yaml").err
        assert "Changed churn" in desk("apply", write(desk, schedule="30 4 1 1 *")).err
        until(lambda: "01-01 04:30 UTC" in desk("apply", "--list").out)
        kubectl = Kubectl(plane, namespace)
        row = kubectl("get", "pipelines").splitlines()[1].split()
        assert row[:4] == ["churn", "Running", "0", "runs"]
        # One that stays cannot become one that runs once, nor the other way about.
        assert "keeps one" in kubectl("patch", "pipeline", "churn", "--type=json", "-p", REMOVED)
        assert "not finished" in desk("run", "-d", "churn.yaml", code=None).err
        assert "On a cluster churn is an object" in desk("apply", "--remove", "churn", code=None).err
        assert "neither `schedule` nor `on`" in desk("apply", write(desk), code=None).err
        desk("stop", "churn")
        until(lambda: phases(desk) == {"churn": "Stopped"})
        desk("delete", "--yes", "churn")
        until(lambda: phases(desk) == {})


@pytest.mark.slow
def test_the_pod_that_looks_for_drift_is_told_from_where_rows_count(
    desk: Desk, plane: ControlPlane, namespace: str
) -> None:
    drift = {"data": "s3://bucket/seen.csv", "column": "error", "cost": 20}
    with operating(desk):
        told = desk("apply", write(desk, on={"drift": drift})).err
        assert "the operator runs it when s3://bucket/seen.csv drifts" in told
        until(lambda: "runs when s3://bucket/seen.csv drifts" in desk("apply", "--list").out)
        place = f"/api/v1/namespaces/{namespace}/pods/churn-watch-0-0"

        def family() -> str:
            return plane.request("GET", place)["metadata"]["annotations"].get(FAMILY, "") if plane.exists(place) else ""

        assert json.loads(until(family)) == {"cycle": {"run": 0, "is_new": True, "begin": 0, "fresh": None}}
        # A file beside the pipeline's is one of which the pod has a copy that never changes.
        told = desk("apply", write(desk, on={"drift": {**drift, "data": "seen.csv"}}), code=None).err
        assert "on.drift.data: seen.csv is on no volume of the pipeline" in " ".join(told.split())
        desk("delete", "--yes", "churn")
        until(lambda: phases(desk) == {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"checkpoint": None}, "what steps return has to outlive the pods that run them: give `checkpoint.to`"),
        ({"checkpoint": "memory://bucket/runs"}, "memory:// is gone with the process"),
        ({"checkpoint": "/elsewhere"}, "/elsewhere is on no volume of the pipeline that outlives its pods"),
        ({"env": dict.fromkeys(map("V{}".format, range(ENV_MOST)), "x")}, f"at most {ENV_MOST}, together with the one"),
    ],
)
def test_what_a_cluster_cannot_carry_out_is_refused_at_submission(
    desk: Desk, changes: dict[str, Any], sentence: str
) -> None:
    assert sentence in " ".join(desk("run", "-d", write(desk, **changes), code=None).err.split())
    assert phases(desk) == {}
