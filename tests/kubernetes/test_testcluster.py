"""The test cluster is a real one: what it claims about itself, shown."""

import json
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.testcluster import binaries, leftovers
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.errors import Unavailable
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.processes import Child
from tests.waiting import until

PATIENCE_S = 20.0
READY_S = 60.0
"""Alone it takes about five; what else a machine does is no fault of a control plane."""


@pytest.fixture
def nodes(control_plane: ControlPlane, namespace: str) -> Iterator[list[str]]:
    names = add_nodes(control_plane, 2, prefix=namespace, labels={"for": namespace})
    yield names
    for name in names:
        control_plane.request("DELETE", f"/api/v1/nodes/{name}")


def create_pod(plane: ControlPlane, namespace: str, name: str, *, gpus: int = 0, **annotations: str) -> None:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    pod = {
        "metadata": {"name": name, "annotations": {f"fake/{k.replace('_', '-')}": v for k, v in annotations.items()}},
        "spec": {
            "nodeSelector": {"for": namespace},
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "any", "resources": resources}],
        },
    }
    plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)


def status_of(plane: ControlPlane, namespace: str, name: str) -> dict[str, Any]:
    status: dict[str, Any] = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]
    return status


def until_phase(plane: ControlPlane, namespace: str, name: str, phase: str) -> dict[str, Any]:
    until(lambda: status_of(plane, namespace, name)["phase"] == phase, f"{name} {phase}")
    return status_of(plane, namespace, name)


def test_it_is_the_version_that_it_says(control_plane: ControlPlane) -> None:
    assert control_plane.request("GET", "/version")["gitVersion"] == f"v{binaries.DEFAULT}"


def test_the_scheduler_counts_the_gpus_of_fake_nodes(
    control_plane: ControlPlane, namespace: str, nodes: list[str]
) -> None:
    until(lambda: all(is_ready(control_plane.request("GET", f"/api/v1/nodes/{name}")) for name in nodes), "ready nodes")
    create_pod(control_plane, namespace, "p0", gpus=8)
    create_pod(control_plane, namespace, "p1", gpus=8)
    until_phase(control_plane, namespace, "p0", "Running")
    until_phase(control_plane, namespace, "p1", "Running")
    create_pod(control_plane, namespace, "p2", gpus=8)
    path = f"/api/v1/namespaces/{namespace}/pods/p2"
    condition = until(lambda: control_plane.request("GET", path)["status"].get("conditions"), "verdict")[0]
    assert condition["reason"] == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in condition["message"]


def test_annotations_say_how_a_pod_ends(control_plane: ControlPlane, namespace: str, nodes: list[str]) -> None:
    create_pod(control_plane, namespace, "well", run="100ms", message="all done")
    create_pod(control_plane, namespace, "killed", run="100ms", exit_code="137", reason="OOMKilled")
    create_pod(control_plane, namespace, "missing", image="missing")
    ended = until_phase(control_plane, namespace, "well", "Succeeded")["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (0, "Completed", "all done")
    ended = until_phase(control_plane, namespace, "killed", "Failed")["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")
    status = until(
        lambda: (s := status_of(control_plane, namespace, "missing")).get("containerStatuses") and s, "image error"
    )
    assert status["containerStatuses"][0]["state"]["waiting"]["reason"] == "ImagePullBackOff"


def test_a_lost_node_is_not_ready_and_comes_back(control_plane: ControlPlane, namespace: str, nodes: list[str]) -> None:
    path = f"/api/v1/nodes/{nodes[0]}"
    until(lambda: is_ready(control_plane.request("GET", path)), "a ready node")
    for value, expected in (("true", False), (None, True)):
        annotations = {"metadata": {"annotations": {"fake/lost": value}}}
        control_plane.request("PATCH", path, annotations, kind="merge-patch+json")
        until(lambda: is_ready(control_plane.request("GET", path)) is expected, f"ready: {expected}")  # noqa: B023


def test_a_deleted_pod_takes_the_time_that_it_was_given(
    control_plane: ControlPlane, namespace: str, nodes: list[str]
) -> None:
    create_pod(control_plane, namespace, "slow", stop="1s")
    until_phase(control_plane, namespace, "slow", "Running")
    path = f"/api/v1/namespaces/{namespace}/pods/slow"
    control_plane.request("DELETE", path)
    assert control_plane.request("GET", path)["metadata"]["deletionTimestamp"]

    def is_gone() -> bool:
        try:
            control_plane.request("GET", path)
        except urllib.error.HTTPError as error:
            return error.code == 404
        return False

    until(is_gone, "end of the pod")


def test_a_user_without_a_role_may_do_nothing(control_plane: ControlPlane, namespace: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        control_plane.request("GET", f"/api/v1/namespaces/{namespace}/pods", user="nobody")


@pytest.mark.long
def test_a_killed_api_server_comes_back_with_everything(control_plane: ControlPlane, namespace: str) -> None:
    body = {"metadata": {"name": "kept"}, "data": {"key": "value"}}
    control_plane.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", body)
    control_plane.kill("apiserver")
    control_plane.kill("etcd")
    control_plane.restart("etcd")
    control_plane.restart("apiserver")
    kept = control_plane.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/kept")
    assert kept["data"] == {"key": "value"}


def test_kubectl_works_with_its_kubeconfig(control_plane: ControlPlane, namespace: str) -> None:
    kubeconfig = control_plane.kubeconfig(namespace=namespace)
    argv = [str(binaries.ensure()["kubectl"]), f"--kubeconfig={kubeconfig}", "get", "configmaps", "--output=name"]

    def listed() -> str:
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout

    until(lambda: "configmap/kube-root-ca.crt" in listed(), "the certificate that the controller manager gives")


@pytest.mark.long
def test_two_control_planes_side_by_side_are_ready_in_seconds_and_know_nothing_of_each_other(
    control_plane: ControlPlane, namespace: str
) -> None:
    before = time.monotonic()
    with ControlPlane() as other:
        assert time.monotonic() - before < READY_S
        assert other.url != control_plane.url
        assert not other.exists(f"/api/v1/namespaces/{namespace}")
        home = other.home
    assert not home.exists()


@pytest.mark.long
def test_a_control_plane_dies_with_its_process_and_the_next_sweep_removes_its_files() -> None:
    code = """
import os, signal
from tests.kubernetes.testcluster.control_plane import ControlPlane
plane = ControlPlane()
plane.start()
print(plane.home, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    died = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    home = died.stdout.strip()
    assert home, died.stderr

    def left() -> list[str]:
        listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True, timeout=60).stdout
        return [line for line in listed.splitlines() if home in line]

    until(lambda: not left(), "end of its servers")
    leftovers.sweep()
    assert not Path(home).exists()


def test_several_sweeps_at_once_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, groups = tmp_path / "logs", tmp_path / "cgroups" / "memory"
    logs.mkdir()
    for number in range(20):
        name = f"{leftovers.PREFIX}{number}"
        (groups / name / "0").mkdir(parents=True)
        for pod in range(50):
            (logs / f"{name}-{pod}.log").symlink_to(tmp_path / name / f"{pod}.log")
    monkeypatch.setattr(leftovers, "BASE", tmp_path)
    monkeypatch.setattr(leftovers, "CGROUPS", tmp_path / "cgroups")
    monkeypatch.setattr(leftovers, "NAMESPACES", tmp_path / "namespaces")
    monkeypatch.setattr(leftovers, "CONTAINER_LOGS", logs)
    with ThreadPoolExecutor(max_workers=5) as threads:
        for sweep in [threads.submit(leftovers.sweep) for _ in range(5)]:
            sweep.result(timeout=60)
    assert not list(logs.iterdir())
    assert not list(groups.iterdir())


@pytest.mark.long
def test_what_users_did_is_in_the_audit_log() -> None:
    with ControlPlane(users={"alice": ["system:masters"]}, audit=True) as plane:
        plane.request("GET", "/api/v1/nodes", user="alice")
        events = [json.loads(line) for line in plane.audit_log.read_text().splitlines()]
    asked = [
        (event["verb"], event["objectRef"]["resource"]) for event in events if event["user"]["username"] == "alice"
    ]
    assert asked == [("list", "nodes")]


@pytest.mark.long
def test_the_command_prints_a_kubeconfig_and_goes_at_ctrl_c() -> None:
    argv = [sys.executable, "-m", "tests.kubernetes.testcluster", "up", "--nodes", "3"]
    with Child(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        kubeconfig = Path(command.stdout.readline().strip().removeprefix("export KUBECONFIG="))
        listing = [str(binaries.ensure()["kubectl"]), f"--kubeconfig={kubeconfig}", "get", "nodes", "--output=name"]
        listed = subprocess.run(listing, capture_output=True, text=True, check=True, timeout=60).stdout
        command.send_signal(signal.SIGINT)
        _, said = command.communicate(timeout=60)
    assert listed.split() == ["node/fake-0", "node/fake-1", "node/fake-2"]
    assert command.returncode == 0
    assert "with 3 fake nodes" in said
    assert not kubeconfig.parent.exists()


@pytest.mark.long
def test_the_oldest_kubernetes_that_we_support_runs_a_pod_on_a_fake_node() -> None:
    with ControlPlane(version=binaries.OLDEST) as plane:
        assert plane.request("GET", "/version")["gitVersion"] == f"v{binaries.OLDEST}"
        add_nodes(plane, 1, labels={"for": "default"})
        create_pod(plane, "default", "p", run="100ms")
        until_phase(plane, "default", "p", "Succeeded")


@pytest.mark.slow
def test_a_machine_without_go_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(binaries, "GO_PACKAGE", "./no-such-package")
    with pytest.raises(Unavailable) as told:
        binaries.ensure()
    assert str(told.value).startswith("the test cluster is built with Go: none on PATH, and installing")
    assert "\n" not in str(told.value)


def test_what_is_not_built_is_not_built_where_only_what_is_there_is_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(binaries.BUILT_ONLY, "1")
    older = partial(binaries.ensure, binaries.OLDEST, ["kube-apiserver"])
    asked: list[Callable[[], object]] = [binaries.ensure_helm, partial(binaries.ensure_engine, "jobset"), older]
    for each in asked:
        with pytest.raises(Unavailable, match=r"is not built yet, and FAIRLEAD_BUILT_ONLY is set; `python -m"):
            each()
    assert list(tmp_path.rglob("*")) == []


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(Unavailable, match=r"no Kubernetes 1\.2\.3 for tests; there are"):
        binaries.ensure("1.2.3")
