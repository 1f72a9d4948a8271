"""Endpoints at engines: KServe's real controller on fake nodes, and the kinds of Knative and Seldon without theirs."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.kinds import objects_path
from tests.kubernetes.operating import loosely_defined
from tests.kubernetes.test_faces import Desk, a_desk
from tests.kubernetes.test_sweeps import a_process
from tests.kubernetes.testcluster import binaries
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.engines import define, engine
from tests.waiting import until

pytestmark = pytest.mark.long

SERVE = "kind: Serving\nname: web\nrun: {run}\nimage: registry.example/serve:1\nengine: {engine}\n{more}"
SERVE += "resources: {{cpu: 100m, memory: {memory}}}\n"


@pytest.fixture
def desk(access: ClusterAccess, plane: ControlPlane, namespace: str, tmp_path: Path) -> Desk:
    (tmp_path / "desk").mkdir()
    return a_desk(plane, namespace, tmp_path / "desk")


def write(desk: Desk, engine: str, *, run: str = "serve", memory: str = "64Mi", more: str = "") -> None:
    (desk.directory / "serve.yaml").write_text(SERVE.format(run=run, engine=engine, memory=memory, more=more))


def said(plane: ControlPlane, namespace: str) -> str:
    found = plane.request("GET", objects_path("Serving", namespace, "web"))
    return str((found.get("status") or {}).get("message"))


def pods(plane: ControlPlane, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    return [each for each in found if "deletionTimestamp" not in each["metadata"]]


def there(plane: ControlPlane, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plane.request("GET", path)["items"]
    return found


@pytest.fixture(scope="module")
def kserve(plane: ControlPlane) -> Iterator[None]:
    with engine(plane, "kserve"):
        yield


@pytest.mark.usefixtures("kserve")
def test_kserve_serves_an_endpoint_rolls_it_says_why_it_is_not_ready_and_lets_it_go(
    desk: Desk, plane: ControlPlane, namespace: str
) -> None:
    path = f"/apis/serving.kserve.io/v1beta1/namespaces/{namespace}/inferenceservices"
    with a_process(desk):
        write(desk, "kserve", more="replicas: 2\n")
        told = desk("run", "serve.yaml").err
        assert "web serves r1 at http://serve-web" in told
        assert said(plane, namespace) == "r1 is ready at KServe with 2 replicas"
        assert len(pods(plane, namespace)) == 2
        assert json.loads(desk("status", "web", "--json").out)["endpoint"]["replicas"] == {"ready": 2, "wanted": 2}
        write(desk, "kserve", run="other", more="replicas: 1\n")
        assert "web serves r2" in desk("run", "serve.yaml").err
        until(lambda: said(plane, namespace) == "r2 is ready at KServe with 1 replica")
        (pod,) = pods(plane, namespace)
        assert pod["spec"]["containers"][0]["command"] == ["sh", "-c", "exec other"]
        # It takes nothing, and the one before goes on.
        write(desk, "kserve", run="large", memory="900Ti", more="replicas: 1\nready_within: 20s\n")
        told = desk("run", "serve.yaml", code=1).err
        assert "kube-scheduler finds no place for serve-web-predictor" in told
        assert "the rollout of r3 failed and r2 keeps serving" in told
        until(lambda: said(plane, namespace).startswith("r2 is ready at KServe with 1 replica; r3 was given up"))
        desk("stop", "web")
        until(lambda: not there(plane, path) and not pods(plane, namespace))
        until(lambda: plane.request("GET", objects_path("Serving", namespace, "web"))["status"]["phase"] == "Stopped")
        desk("resume", "web")
        until(lambda: said(plane, namespace).startswith("r2 is ready") or said(plane, namespace).startswith("r3"))
        desk("delete", "--yes", "web")
        until(lambda: not there(plane, path) and not pods(plane, namespace))


SELDON = ("machinelearning.seldon.io/v1", "SeldonDeployment", "seldondeployments")
KINDS = "TESTCLUSTER_KINDS"
"""The variable that may name a directory with the definitions of kinds that no registry of modules serves."""


@pytest.fixture(scope="module")
def seldon(plane: ControlPlane) -> Iterator[None]:
    """Seldon's kind: its own where somebody has its definition, and else one that takes anything."""
    if directory := os.environ.get(KINDS):
        define(plane, Path(directory), "machinelearning.seldon.io_*.yaml")
        yield
    else:
        with loosely_defined(plane, [SELDON]):
            yield


@pytest.mark.usefixtures("seldon")
def test_seldon_is_given_an_endpoint_and_what_becomes_of_it_is_told(
    desk: Desk, plane: ControlPlane, namespace: str
) -> None:
    """No registry serves its controller; what that does with a predictor without an orchestrator is done here."""
    path = f"/apis/{SELDON[0]}/namespaces/{namespace}/{SELDON[2]}"
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"

    def carried_out(**status: Any) -> None:
        (content,) = there(plane, path)
        (predictor,) = content["spec"]["predictors"]
        (component,) = predictor["componentSpecs"]
        about, own = content["metadata"], {"seldon-app": "serve-web-default"}
        owner = {"apiVersion": SELDON[0], "kind": SELDON[1], "name": about["name"], "uid": about["uid"]}
        deployment = {
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {
                "name": "serve-web-default-0-server", "labels": predictor["labels"],
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": {
                "replicas": predictor["replicas"], "selector": {"matchLabels": own},
                "template": {
                    "metadata": {"labels": {**own, **component["metadata"]["labels"]}}, "spec": component["spec"],
                },
            },
        }  # fmt: skip
        where = f"{deployments}/serve-web-default-0-server?fieldManager=seldon&force=true"
        plane.request("PATCH", where, deployment, kind="apply-patch+yaml")
        url = f"http://serve-web-default.{namespace}.svc.cluster.local:8080/api/v1.0/predictions"
        told = {"status": {"address": {"url": url}, **status}}
        plane.request("PATCH", f"{path}/serve-web/status", told, kind="merge-patch+json")

    with a_process(desk):
        write(desk, "seldon", more="replicas: 2\n")
        desk("run", "--detach", "serve.yaml")
        until(lambda: len(there(plane, path)) == 1)
        failed = {"status": {"state": "Failed", "description": "no room for it"}}
        plane.request("PATCH", f"{path}/serve-web/status", failed, kind="merge-patch+json")
        until(lambda: said(plane, namespace) == "r1 is not ready at Seldon: no room for it")
        carried_out(state="Available", description="")
        until(lambda: said(plane, namespace) == "r1 is ready at Seldon with 2 replicas")
        assert f"http://serve-web-default.{namespace}.svc.cluster.local:8080\n" in desk("status", "web").out
        # The word that it is available is of the old revision until the Deployment has rolled.
        write(desk, "seldon", run="large", memory="900Ti", more="replicas: 2\nready_within: 20s\n")
        desk("run", "--detach", "serve.yaml")
        until(lambda: there(plane, path)[0]["metadata"]["labels"]["fairlead.dev/revision"] == "r2")
        told = said(plane, namespace)
        assert "r1" in told or "yet to say" in told, told
        carried_out(state="Creating")
        until(lambda: "kube-scheduler finds no place for serve-web-default" in said(plane, namespace))
        until(lambda: there(plane, path)[0]["metadata"]["labels"]["fairlead.dev/revision"] == "r1")
        carried_out(state="Available")
        until(lambda: said(plane, namespace).startswith("r1 is ready at Seldon with 2 replicas; r2 was given up"))
        write(desk, "seldon", run="other")
        serve = desk.directory / "serve.yaml"
        serve.write_text(serve.read_text().replace("engine: seldon\n", ""))
        assert "`engine` cannot change" in desk("run", "--detach", "serve.yaml", code=None).err
        desk("stop", "web")
        until(lambda: not there(plane, path) and not pods(plane, namespace))
        desk("resume", "web")
        until(lambda: len(there(plane, path)) == 1)
        desk("delete", "--yes", "web")
        until(lambda: not there(plane, path))


@pytest.fixture(scope="module")
def knative(plane: ControlPlane) -> None:
    source = binaries.source_of_module("autoscaling", "knative.dev/serving")
    define(plane, source / "config/core/300-resources", "*.yaml")


@pytest.mark.usefixtures("knative")
def test_knative_is_given_an_endpoint_and_a_weight_and_what_it_says_is_told(
    desk: Desk, plane: ControlPlane, namespace: str
) -> None:
    """Its part is played here, on fake nodes; `test_real_knative.py` has the real one."""
    path = f"/apis/serving.knative.dev/v1/namespaces/{namespace}/services"

    def tells(ready: str, message: str = "") -> dict[str, Any]:
        (service,) = there(plane, path)
        condition = {"type": "Ready", "status": ready, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {
            "observedGeneration": service["metadata"]["generation"], "conditions": [condition],
            "url": f"http://serve-web.{namespace}.example.com",
        }  # fmt: skip
        return plane.request("PATCH", f"{path}/serve-web/status", {"status": status}, kind="merge-patch+json")  # type: ignore[no-any-return]

    canary = "replicas: 0..3\ncanary: {steps: [20%]}\n"
    with a_process(desk):
        write(desk, "knative", more=canary)
        desk("run", "--detach", "serve.yaml")
        until(lambda: len(there(plane, path)) == 1)
        tells("False", "Revision has no image.")
        until(lambda: said(plane, namespace) == "r1 is not ready at Knative: Revision has no image")
        tells("True")
        until(lambda: said(plane, namespace) == "r1 sleeps at Knative; the next request wakes it")
        assert f"http://serve-web.{namespace}.example.com" in desk("status", "web").out
        (first,) = there(plane, path)
        write(desk, "knative", run="other", more=canary)
        desk("run", "--detach", "serve.yaml")
        until(lambda: there(plane, path)[0]["metadata"]["labels"]["fairlead.dev/revision"] == "r2")
        tells("True")
        until(lambda: len(there(plane, path)[0]["spec"]["traffic"]) == 2)
        traffic = there(plane, path)[0]["spec"]["traffic"]
        assert [each["percent"] for each in traffic] == [20, 80]
        assert traffic[1]["revisionName"] == first["spec"]["traffic"][0]["revisionName"]
        tells("True")
        until(lambda: said(plane, namespace) == "r2 is ready and gets 20.0% of the requests, r1 the others")
        write(desk, "knative", run="other", more="replicas: 0..3\n")
        desk("run", "--detach", "serve.yaml")
        until(lambda: [each["percent"] for each in there(plane, path)[0]["spec"]["traffic"]] == [100])
        serve = desk.directory / "serve.yaml"
        serve.write_text(serve.read_text().replace("engine: knative\n", "").replace("replicas: 0..3", "replicas: 1"))
        assert "`engine` cannot change" in desk("run", "--detach", "serve.yaml", code=None).err
        desk("delete", "--yes", "web")
        until(lambda: not there(plane, path))
