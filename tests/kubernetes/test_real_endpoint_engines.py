"""Endpoints at engines: KServe's real controller on fake nodes, and Knative's kinds without their controller."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.config import Access
from fairlead.cluster.kubernetes.kinds import objects_path
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
def desk(access: Access, plane: ControlPlane, namespace: str, tmp_path: Path) -> Desk:
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
        assert "r3 takes nothing and r2 goes on serving" in told
        until(lambda: said(plane, namespace).startswith("r2 is ready at KServe with 1 replica; r3 was given up"))
        desk("stop", "web")
        until(lambda: not there(plane, path) and not pods(plane, namespace))
        until(lambda: plane.request("GET", objects_path("Serving", namespace, "web"))["status"]["phase"] == "Stopped")
        desk("resume", "web")
        until(lambda: said(plane, namespace).startswith("r2 is ready") or said(plane, namespace).startswith("r3"))
        desk("delete", "--yes", "web")
        until(lambda: not there(plane, path) and not pods(plane, namespace))


@pytest.fixture(scope="module")
def knative(plane: ControlPlane) -> None:
    define(plane, binaries.source_of_kinds("knative.dev/serving") / "config/core/300-resources", "*.yaml")


@pytest.mark.usefixtures("knative")
def test_knative_is_given_an_endpoint_and_a_weight_and_what_it_says_is_told(
    desk: Desk, plane: ControlPlane, namespace: str
) -> None:
    """Its controller needs addresses that are not this machine's alone, so its part is played here."""
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
        write(desk, "kserve", run="other")
        assert "`engine` stays as it is" in desk("run", "--detach", "serve.yaml", code=None).err
        desk("delete", "--yes", "web")
        until(lambda: not there(plane, path))
