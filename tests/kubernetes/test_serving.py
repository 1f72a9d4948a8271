"""Endpoints on a real control plane: replicas are objects of their own, and the ready ones are behind one address."""

import json
import signal
import threading
import urllib.error
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.manifests.roles import render_binding
from fairlead.cluster.kubernetes.operator.pods import endpoint_publisher
from tests.kubernetes.operating import operating
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import Desk, a_desk
from tests.kubernetes.test_kubectl import Kubectl
from tests.kubernetes.test_sweeps import a_process, objects
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.serving.test_shared_weights import counting_store
from tests.waiting import until

pytestmark = pytest.mark.kubernetes

SERVE = "kind: Serving\nname: web\nrun: {run}\nimage: python:3.12\nreplicas: {replicas}\n{more}"
SERVE += "resources: {{cpu: 100m, memory: 64Mi}}\n"


@pytest.fixture
def desk(access: ClusterAccess, plane: ControlPlane, namespace: str, tmp_path: Path) -> Desk:
    """That of a member of the team, who has the role fairlead-user and nothing else."""
    (tmp_path / "desk").mkdir()
    desk = a_desk(plane, namespace, tmp_path / "desk")
    people = [{"kind": "Group", "name": "people", "apiGroup": "rbac.authorization.k8s.io"}]
    applied(plane, render_binding(namespace, "user", people))
    kubeconfig = str(plane.kubeconfig("nobody", namespace=namespace))
    return replace(desk, in_process=True, environ={**desk.environ, "KUBECONFIG": kubeconfig})


def spec(*, run: str = "serve", replicas: int = 2, more: str = "") -> str:
    return SERVE.format(run=run, replicas=replicas, more=more)


def backends(plane: ControlPlane, namespace: str) -> list[str]:
    """The pods behind the endpoint's address."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/serve-web"
    if not plane.exists(path):
        return []
    return sorted(each["targetRef"]["name"] for each in plane.request("GET", path).get("endpoints") or ())


def pods(plane: ControlPlane, namespace: str) -> dict[str, dict[str, Any]]:
    found = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {each["metadata"]["name"]: each for each in found}


def endpoint(plane: ControlPlane, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = plane.request("GET", objects_path("Serving", namespace, "web"))
    return found.get("status") or {}


@pytest.mark.slow
def test_an_endpoint_is_run_scaled_changed_rolled_back_and_stopped_by_the_commands(
    desk: Desk, plane: ControlPlane, namespace: str
) -> None:
    (desk.directory / "serve.yaml").write_text(spec())
    with a_process(desk):
        told = desk("run", "serve.yaml").err
        assert f"Submitted web in the namespace {namespace}" in told
        assert f"web serves r1 at http://serve-web.{namespace}.svc/" in told
        until(lambda: backends(plane, namespace) == ["web-r1-1-0-0", "web-r1-2-0-0"])
        made = pods(plane, namespace)["web-r1-1-0-0"]
        (ranks,) = made["spec"]["containers"]
        assert ranks["readinessProbe"]["httpGet"] == {"path": "/", "port": 29500, "scheme": "HTTP"}
        environment = json.loads(
            next(each["value"] for each in ranks["env"] if each["name"] == "FAIRLEAD_INSTRUCTIONS")
        )
        found = {name: environment["env"][name] for name in ("HOST", "PORT", "FAIRLEAD_SERVICE", "FAIRLEAD_REVISION")}
        assert found == {"HOST": "0.0.0.0", "PORT": "29500", "FAIRLEAD_SERVICE": "web", "FAIRLEAD_REVISION": "r1"}
        shown = desk("status", "web").out
        assert "web is Running: 2 of 2 replicas of r1 are ready" in shown
        assert f"http://serve-web.{namespace}.svc/" in shown
        assert "it answers its probe" in shown
        assert json.loads(desk("status", "web-r1-1", "--json").out)["spec"]["kind"] == "Replica"
        assert "RevisionReady" in desk("events", "web").out
        assert "Nothing has changed of web" in desk("run", "serve.yaml").err
        (desk.directory / "serve.yaml").write_text(spec(replicas=3))
        assert "Changed web" in desk("run", "serve.yaml").err
        until(lambda: len(backends(plane, namespace)) == 3)
        assert endpoint(plane, namespace)["message"] == "3 of 3 replicas of r1 are ready"
        (desk.directory / "serve.yaml").write_text(spec(run="other", replicas=3))
        assert "web serves r2" in desk("run", "serve.yaml").err
        until(lambda: all("-r2-" in name for name in backends(plane, namespace)))
        until(lambda: len(backends(plane, namespace)) == 3 and len(objects(plane, "Replica", namespace)) == 3)
        assert "web goes back to r1" in desk("rollback", "web").err
        until(lambda: [name[:7] for name in backends(plane, namespace)] == ["web-r1-"] * 2)
        desk("stop", "web")
        until(lambda: endpoint(plane, namespace).get("phase") == "Stopped")
        assert backends(plane, namespace) == []
        desk("delete", "--yes", "web")
        until(lambda: not objects(plane, "Replica", namespace) and not objects(plane, "Serving", namespace))
        assert pods(plane, namespace) == {}


@pytest.mark.slow
def test_replicas_with_weights_find_each_other_by_a_service_with_a_key_of_the_endpoint(
    desk: Desk, plane: ControlPlane, namespace: str
) -> None:
    place = f"/api/v1/namespaces/{namespace}"
    with a_process(desk), counting_store() as url:
        data = f'data: {{weights: {{from: "{url}", mode: copy}}}}\n'
        (desk.directory / "serve.yaml").write_text(spec(more=data))
        assert "Submitted web" in desk("run", "serve.yaml").err
        until(lambda: len(backends(plane, namespace)) == 2)
        uid = objects(plane, "Serving", namespace)[0]["metadata"]["uid"]
        name = f"weights-web-{uid[:6]}"
        for pod in pods(plane, namespace).values():
            variables = {variable["name"]: variable for variable in pod["spec"]["containers"][0]["env"]}
            env = json.loads(variables["FAIRLEAD_INSTRUCTIONS"]["value"])["env"]
            assert env["FAIRLEAD_DATA_PEERS"] == f"{name}.{namespace}.svc:29499"
            assert env["FAIRLEAD_DATA_WEIGHTS"].startswith("/fairlead/local/data/trees/")
            assert variables["FAIRLEAD_KEY"]["valueFrom"]["secretKeyRef"]["name"] == name
        assert plane.exists(f"{place}/secrets/{name}")
        query = f"labelSelector=kubernetes.io/service-name={name}"
        slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{query}"

        def addresses() -> set[str]:
            entries = [entry for part in plane.request("GET", slices)["items"] for entry in part["endpoints"] or ()]
            return {address for entry in entries for address in entry["addresses"]}

        until(lambda: addresses() == {pod["status"]["podIP"] for pod in pods(plane, namespace).values()})
        desk("stop", "web")
        desk("delete", "--yes", "web")
        until(lambda: not plane.exists(f"{place}/secrets/{name}") and not plane.exists(f"{place}/services/{name}"))


@pytest.mark.slow
def test_a_revision_without_a_working_directory_has_no_files_of_the_one_before(
    desk: Desk, plane: ControlPlane, namespace: str
) -> None:
    (desk.directory / "code").mkdir()
    (desk.directory / "code" / "serve.py").write_text("")

    def has_files(pod: str) -> bool:
        return "fairlead-workdir" in {each["name"] for each in pods(plane, namespace)[pod]["spec"]["volumes"]}

    with a_process(desk):
        (desk.directory / "serve.yaml").write_text(spec(replicas=1, more="workdir: code\n"))
        assert "Taking along 1 file" in desk("run", "serve.yaml").err
        assert has_files("web-r1-1-0-0")
        (desk.directory / "serve.yaml").write_text(spec(replicas=1))
        assert "web serves r2" in desk("run", "serve.yaml").err
        assert not has_files("web-r2-2-0-0")
        desk("rollback", "web")
        until(lambda: backends(plane, namespace) == ["web-r1-3-0-0"])
        assert has_files("web-r1-3-0-0")
        desk("delete", "--yes", "web")
        until(lambda: not objects(plane, "Serving", namespace) and not pods(plane, namespace))


@pytest.mark.slow
def test_each_revision_serves_the_files_that_came_with_it(desk: Desk, plane: ControlPlane, namespace: str) -> None:
    (desk.directory / "code").mkdir()
    maps = f"/api/v1/namespaces/{namespace}/configmaps?labelSelector=fairlead.dev/content%3Dworkdir"

    def write(text: str, replicas: int = 1) -> None:
        (desk.directory / "code" / "serve.py").write_text(text)
        (desk.directory / "code" / "serve.yaml").write_text(spec(replicas=replicas, more="workdir: .\n"))

    def files(pod: str) -> str:
        volumes = {each["name"]: each for each in pods(plane, namespace)[pod]["spec"]["volumes"]}
        (source,) = volumes["fairlead-workdir"]["projected"]["sources"]
        return str(source["configMap"]["name"])

    def kept() -> set[str]:
        return {each["metadata"]["name"] for each in plane.request("GET", maps)["items"]}

    with a_process(desk):
        write("one")
        assert "web serves r1" in desk("run", "code/serve.yaml").err
        first = files("web-r1-1-0-0")
        assert "Nothing has changed of web" in desk("run", "code/serve.yaml").err
        write("one", replicas=2)
        assert "Changed web" in desk("run", "code/serve.yaml").err
        until(lambda: backends(plane, namespace) == ["web-r1-1-0-0", "web-r1-2-0-0"])  # a spec is no code
        again = files("web-r1-2-0-0")
        assert kept() == {first, again}

        assert desk("plan", "code/serve.yaml").out.endswith("`fairlead run` would change nothing\n")
        write("two")
        (desk.directory / "code" / "more.py").write_text("")
        planned = desk("plan", "code/serve.yaml").out
        assert "web: `fairlead run` would make another revision, r2, in the place of r1\nKEY" in planned
        assert "(more.py, serve.py)\nweb: new replicas start first, at most 2 replicas at once" in planned
        assert "(more.py, serve.py)" in desk("plan", "--diff", "code/serve.yaml", code=1).out
        assert endpoint(plane, namespace)["message"] == "2 of 2 replicas of r1 are ready"
        (desk.directory / "code" / "more.py").unlink()
        assert "web serves r2" in desk("run", "code/serve.yaml").err
        until(lambda: backends(plane, namespace) == ["web-r2-3-0-0"])
        second = files("web-r2-3-0-0")
        assert second not in (first, again)
        assert "web goes back to r1" in desk("rollback", "web").err
        until(lambda: [name[:7] for name in backends(plane, namespace)] == ["web-r1-"])
        assert files(backends(plane, namespace)[0]) == again
        # Files of replicas that are there are kept until the code changes again.
        until(lambda: len(objects(plane, "Replica", namespace)) == 1)

        write("three")
        assert "web serves r3" in desk("run", "code/serve.yaml").err
        until(lambda: kept() == {again, second, files(backends(plane, namespace)[0])})  # of those that are remembered
        desk("rollback", "web", "--to", "r2")
        until(lambda: [name[:7] for name in backends(plane, namespace)] == ["web-r2-"])
        assert files(backends(plane, namespace)[0]) == second
        desk("delete", "--yes", "web")
        until(lambda: not objects(plane, "Serving", namespace) and not pods(plane, namespace) and not kept())


def test_what_only_a_gateway_does_is_refused_by_the_command_where_there_is_none(
    desk: Desk, plane: ControlPlane, namespace: str
) -> None:
    for more, said in (
        ("canary: {}\n", "a gateway gives a revision its share of the requests"),
        ("access: {}\n", "a gateway asks for keys"),
        ("timeout: 5s\n", "a gateway ends requests"),
    ):
        (desk.directory / "serve.yaml").write_text(spec(more=more))
        told = desk("run", "serve.yaml", code=None).err
        assert said in told
        assert "there is none on this cluster; `fairlead install --gateways 2` adds some" in told
    (desk.directory / "serve.yaml").write_text(spec().replace("replicas: 2", "replicas: 0..2"))
    assert "a gateway counts requests" in desk("run", "serve.yaml", code=None).err
    (desk.directory / "serve.yaml").write_text(spec(more="model: run://train@best\n"))
    assert "which pods cannot look up" in desk("run", "serve.yaml", code=None).err
    assert objects(plane, "Serving", namespace) == []


@pytest.mark.slow
def test_one_that_kubectl_made_says_that_it_needs_a_gateway(desk: Desk, plane: ControlPlane, namespace: str) -> None:
    whole = {
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Serving", "metadata": {"name": "web"},
        "spec": {"run": "serve", "image": "python:3.12", "max_concurrency": 2},
    }  # fmt: skip
    kubectl = Kubectl(plane, namespace)
    kubectl("apply", "-f", "-", given=json.dumps(whole))
    with a_process(desk):
        until(lambda: "AddressRefused" in kubectl("describe", "serving", "web"))
        told = kubectl("describe", "serving", "web")
        assert "max_concurrency: requests wait at a gateway, and there is none on this cluster" in told
        assert "`fairlead install --gateways 2` adds some" in told
        assert backends(plane, namespace) == []
        assert "it has no address: max_concurrency: requests wait at a gateway" in desk("status", "web").out
        assert "AddressRefused" in desk("events", "web").out
        kubectl("patch", "serving", "web", "--type=merge", "-p", json.dumps({"spec": {"max_concurrency": None}}))
        until(lambda: len(backends(plane, namespace)) == 1)
        until(lambda: "AddressGiven" in desk("events", "web").out)
        assert "no address" not in desk("status", "web").out


@pytest.mark.slow
@pytest.mark.parametrize("model", ["run://train@best", "churn@production"])
def test_a_model_that_pods_cannot_have_is_refused_by_the_api_server(
    plane: ControlPlane, namespace: str, model: str
) -> None:
    whole = {
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Serving", "metadata": {"name": "web"},
        "spec": {"run": "serve", "image": "python:3.12", "model": model},
    }  # fmt: skip
    kubectl = Kubectl(plane, namespace)
    told = kubectl("apply", "-f", "-", given=json.dumps(whole))
    assert f'"{model}" is a checkpoint or a version of a model' in told
    assert "give a path in the image" in told
    for fine in ("/models/chat", "s3://models/a@b"):
        whole["spec"] = {**whole["spec"], "model": fine}  # type: ignore[dict-item]  # a mapping
        assert "serving.fairlead.dev/web" in kubectl("apply", "-f", "-", given=json.dumps(whole))


def test_an_address_that_somebody_deleted_is_put_right(
    desk: Desk, access: ClusterAccess, plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_publisher, "CHECK_S", 0.5)
    (desk.directory / "serve.yaml").write_text(spec(replicas=1))
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/serve-web"
    service = f"/api/v1/namespaces/{namespace}/services/serve-web"
    with operating(access, namespace):
        desk("run", "serve.yaml")
        until(lambda: len(backends(plane, namespace)) == 1)
        for path in (service, slices):
            plane.request("DELETE", path)
            until(lambda: plane.exists(service) and len(backends(plane, namespace)) == 1)


def drain(plane: ControlPlane, namespace: str, node: str) -> None:
    """Cordon a node and evict its pods by the eviction API, as `kubectl drain` does, until none of them is left."""
    plane.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}}, kind="merge-patch+json")
    place = f"/api/v1/namespaces/{namespace}/pods"

    def is_drained() -> bool:
        there = [each for each in pods(plane, namespace).values() if each["spec"].get("nodeName") == node]
        for each in there:
            name = each["metadata"]["name"]
            if each["metadata"].get("deletionTimestamp"):
                continue
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            try:
                plane.request("POST", f"{place}/{name}/eviction", eviction)
            except urllib.error.HTTPError as error:
                if error.code not in (404, 429):  # 429: the budget allows no eviction now
                    raise
        return not there

    until(is_drained)


@contextmanager
def fewest_backends(plane: ControlPlane, namespace: str) -> Iterator[list[int]]:
    """The numbers of pods behind the endpoint's address during the block, sampled all the time."""
    seen: list[int] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(0.02):
            seen.append(len(backends(plane, namespace)))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_a_drained_node_leaves_an_endpoint_of_two_replicas_with_one_all_the_time(
    desk: Desk, access: ClusterAccess, plane: ControlPlane, namespace: str
) -> None:
    budget = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/serve-web"
    slow = 'kubernetes: {metadata: {annotations: {fake/start: "2s"}}}\n'
    (desk.directory / "serve.yaml").write_text(spec(more=slow))
    with operating(access, namespace):
        desk("run", "serve.yaml")
        until(lambda: len(backends(plane, namespace)) == 2)
        until(lambda: plane.exists(budget) and plane.request("GET", budget)["status"].get("currentHealthy") == 2)
        made = plane.request("GET", budget)
        assert (made["spec"]["minAvailable"], made["status"]["disruptionsAllowed"]) == (1, 1)
        (owner,) = made["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("Serving", "web")
        held = {each["spec"]["nodeName"] for each in pods(plane, namespace).values()}
        assert len(held) == 1, "packing put both on one node"
        (node,) = held
        try:
            with fewest_backends(plane, namespace) as seen:
                drain(plane, namespace, node)
                until(lambda: len(backends(plane, namespace)) == 2)
        finally:
            plane.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}}, kind="merge-patch+json")
        assert min(seen) == 1, f"of {len(seen)} samples"
        assert {each["spec"]["nodeName"] for each in pods(plane, namespace).values()} != held
        (desk.directory / "serve.yaml").write_text(spec(replicas=3, more=slow))
        desk("run", "serve.yaml")
        until(lambda: plane.request("GET", budget)["spec"]["minAvailable"] == 2)
        (desk.directory / "serve.yaml").write_text(spec(replicas=1, more=slow))
        desk("run", "serve.yaml")
        until(lambda: not plane.exists(budget))
        desk("delete", "--yes", "web")
        until(lambda: not objects(plane, "Serving", namespace))


@pytest.mark.slow
def test_a_replica_that_is_not_ready_or_told_to_go_is_not_behind_the_address(
    desk: Desk, plane: ControlPlane, namespace: str
) -> None:
    kubectl = Kubectl(plane, namespace)
    (desk.directory / "serve.yaml").write_text(spec())
    with a_process(desk):
        desk("run", "serve.yaml")
        until(lambda: len(backends(plane, namespace)) == 2)
        unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
        path = f"/api/v1/namespaces/{namespace}/pods/web-r1-1-0-0"
        plane.request("PATCH", f"{path}/status", unready, kind="strategic-merge-patch+json")
        until(lambda: backends(plane, namespace) == ["web-r1-2-0-0"])
        until(lambda: endpoint(plane, namespace)["message"].startswith("1 of 2 replicas of r1 are ready"))
        unready["status"]["conditions"][0]["status"] = "True"
        plane.request("PATCH", f"{path}/status", unready, kind="strategic-merge-patch+json")
        until(lambda: len(backends(plane, namespace)) == 2)
        kubectl("delete", "pod", "web-r1-2-0-0", "--wait=false")
        until(lambda: backends(plane, namespace) == ["web-r1-1-0-0", "web-r1-2-1-0"])
        patch = ("patch", "replica", "web-r1-1", "--type=merge", "-p", json.dumps({"spec": {"run": "x"}}))
        assert "stays as it is; change its Serving" in kubectl(*patch)
        desk("delete", "--yes", "web")
        until(lambda: not objects(plane, "Serving", namespace))


@pytest.mark.long
def test_an_operator_that_is_killed_during_a_rollout_makes_no_replica_twice(
    desk: Desk, plane: ControlPlane, namespace: str
) -> None:
    (desk.directory / "serve.yaml").write_text(spec(replicas=3))
    with a_process(desk):
        desk("run", "serve.yaml")
        until(lambda: len(backends(plane, namespace)) == 3)

    def serves(revision: int) -> bool:
        return [name[:7] for name in backends(plane, namespace)] == [f"web-r{revision}-"] * 3

    def goes_on(revision: int, seen: Collection[str]) -> bool:
        return pods(plane, namespace).keys() != seen or serves(revision)

    for revision in (2, 3, 4):
        (desk.directory / "serve.yaml").write_text(spec(run=f"other-{revision}", replicas=3))
        for _ in range(2):
            with a_process(desk) as process:
                desk("run", "-d", "serve.yaml")
                until(partial(goes_on, revision, pods(plane, namespace).keys()))
                process.send_signal(signal.SIGKILL)
            assert backends(plane, namespace), "somebody serves all the time"
        with a_process(desk):
            until(partial(serves, revision))
            until(lambda: len(objects(plane, "Replica", namespace)) == 3)
            numbers = [int(each["metadata"]["name"].split("-")[2]) for each in objects(plane, "Replica", namespace)]
            assert sorted(numbers) == [3 * revision - 2, 3 * revision - 1, 3 * revision]
    with a_process(desk):
        desk("delete", "--yes", "web")
        until(lambda: not objects(plane, "Serving", namespace) and not pods(plane, namespace))


@pytest.mark.slow
def test_a_service_that_somebody_else_made_is_left_alone_and_told_of(
    desk: Desk, plane: ControlPlane, namespace: str
) -> None:
    kubectl = Kubectl(plane, namespace)
    kubectl("create", "service", "clusterip", "serve-web", "--tcp=80:8080")
    (desk.directory / "serve.yaml").write_text(spec(replicas=1))
    with a_process(desk):
        desk("run", "serve.yaml")
        until(lambda: "AddressRefused" in kubectl("describe", "serving", "web"))
        assert "ownerReferences" not in kubectl("get", "service", "serve-web", "-o", "yaml")
        assert backends(plane, namespace) == []
        kubectl("delete", "service", "serve-web")
        until(lambda: backends(plane, namespace) == ["web-r1-1-0-0"])
        desk("suspend", "web")
        until(lambda: endpoint(plane, namespace)["phase"] == "Suspended" and not pods(plane, namespace))
        assert backends(plane, namespace) == []
        desk("resume", "web")
        until(lambda: len(backends(plane, namespace)) == 1)
        desk("delete", "--yes", "web")
        until(lambda: not objects(plane, "Serving", namespace))
        until(lambda: not plane.exists(f"/api/v1/namespaces/{namespace}/services/serve-web"))
