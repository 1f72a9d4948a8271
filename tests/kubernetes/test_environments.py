"""`environment` on Kubernetes: a real API server gets an image in its place, and a registry has that image."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess, load_access
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.control.image.registry_settings import write_settings
from fairlead.policy.kinds.table import leaf
from tests.image.environments import packed_wheel, settings_on
from tests.image.registries import RegistryServer, registry
from tests.kubernetes.operating import operating
from tests.kubernetes.test_faces import Desk, a_desk
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes
from tests.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

FILES = """\
run: python a.py
resources: {cpu: 100m, memory: 64Mi}
environment: requirements.txt
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
def desk(
    access: ClusterAccess, plane: ControlPlane, namespace: str, server: RegistryServer, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Desk:  # fmt: skip
    """A user with a registry, in a directory with a program and wheels of two versions."""
    monkeypatch.delenv("CI", raising=False)  # where it is set, a plan starts no programs
    (tmp_path / "desk").mkdir()
    desk = a_desk(plane, namespace, tmp_path / "desk")
    home = Path(desk.environ["FAIRLEAD_HOME"])
    home.mkdir(mode=0o700)
    write_settings(home / "registry.json", settings_on(server.host, tmp_path / "base"))
    desk.environ.update(UV_CACHE_DIR=str(tmp_path / "cache"), DOCKER_CONFIG=str(tmp_path / "docker"))
    (desk.directory / "a.py").write_text("import fl_one\n")
    (desk.directory / "a.yaml").write_text(FILES)
    for version in ("1.0", "2.0"):
        packed_wheel(desk.directory / "wheels", "fl_one", version)
    want(desk, "fl_one<2")
    return Desk(**{name: getattr(desk, name) for name in ("directory", "environ", "namespace", "operator_config")},
                in_process=True)  # fmt: skip


def want(desk: Desk, requirement: str) -> None:
    text = f"--no-index\n--find-links wheels\n{requirement}\n"
    (desk.directory / "requirements.txt").write_text(text)


def the_object(desk: Desk, plane: ControlPlane, name: str, kind: str = "Training") -> dict[str, Any]:
    content: dict[str, Any] = plane.request("GET", objects_path(kind, desk.namespace, name))
    return content


def test_a_run_gets_an_image_and_its_lock_is_shown_and_compared(
    desk: Desk, plane: ControlPlane, server: RegistryServer
) -> None:
    planned = desk("plan", "a.yaml").out
    assert "environment: 1 package, " in planned
    assert "file: requirements.txt" in planned
    pushed = len(server.requests("PUT"))
    told = desk("run", "-d", "a.yaml", "--name", "one").err
    assert "Building the image of 1 package on " in told
    assert "Taking along " in told
    assert len(server.requests("PUT")) > pushed
    spec = the_object(desk, plane, "one")["spec"]
    assert spec["image"].startswith(f"{server.host}/acme/environments@sha256:")
    assert "environment" not in spec
    assert spec["workdir"] == "."
    lock = desk("show", "one", "--environment").out
    assert 'name = "fl-one"\nversion = "1.0"' in lock
    again = desk("run", "-d", "a.yaml", "--name", "two").err
    assert "Building" not in again
    assert the_object(desk, plane, "two")["spec"]["image"] == spec["image"]
    want(desk, "fl_one")
    desk("run", "-d", "a.yaml", "--name", "three")
    assert "fl-one: 1.0 -> 2.0" in desk("compare", "one", "three").out
    (desk.directory / "pylock.toml").write_text(lock)
    (desk.directory / "a.yaml").write_text(FILES.replace("requirements.txt", "pylock.toml"))
    desk("run", "-d", "a.yaml", "--name", "four")
    assert the_object(desk, plane, "four")["spec"]["image"] == spec["image"], "the lock gives the same image"
    plane.request(
        "PATCH", objects_path("Training", desk.namespace, "one"), {"spec": {"image": "other"}}, kind="merge-patch+json"
    )
    assert "fairlead: one has no lock" in desk("show", "one", "--environment", code=6).err, "the image is another one"


def test_a_resumed_run_gets_the_image_of_its_changed_file(
    desk: Desk, access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane
) -> None:
    desk("run", "-d", "a.yaml")
    image = the_object(desk, plane, "a")["spec"]["image"]
    want(desk, "fl_one")
    with operating(access, desk.namespace):
        desk("suspend", "a")
        until(lambda: the_object(desk, plane, "a")["status"].get("phase") == "Suspended", "a suspended run")
        desk("resume", "a", "a.yaml")
    changed = the_object(desk, plane, "a")["spec"]
    assert changed["image"] != image
    assert "environment" not in changed
    assert 'version = "2.0"' in desk("show", "a", "--environment").out


def test_trials_have_the_image_and_the_lock_of_their_sweep(
    desk: Desk, access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane
) -> None:
    (desk.directory / "grid.yaml").write_text(
        "kind: Sweep\nname: grid\nparameters: {lr: 0.1 | 0.2}\ntrial:\n  run: python a.py {{lr}}\n"
        "  environment: auto\n  resources: {cpu: 100m, memory: 64Mi}\n"
    )
    desk("run", "-d", "grid.yaml")
    image = the_object(desk, plane, "grid", "Sweep")["spec"]["trial"]["image"]
    with operating(access, desk.namespace):
        until(lambda: len(cluster.workloads()) == 3, "two trials")
    (first, _) = [run for run in cluster.workloads() if run.parent is not None]
    assert leaf(first).spec.image == image
    assert 'version = "1.0"' in desk("show", first.spec.name, "--environment").out
    assert 'version = "1.0"' in desk("show", "grid", "--environment").out


def test_steps_of_a_pipeline_and_replicas_of_an_endpoint_have_the_image_of_their_environment(
    desk: Desk, plane: ControlPlane
) -> None:
    (desk.directory / "two.txt").write_text("--no-index\n--find-links wheels\nfl_one>=2\n")
    (desk.directory / "c.yaml").write_text(
        "kind: Pipeline\nname: steps\nenvironment: requirements.txt\ncheckpoint: {to: s3://bucket/x}\n"
        "steps:\n  one: {run: python a.py}\n  two: {training: {run: python a.py}}\n"
        "  three: {training: {run: python a.py, environment: two.txt}}\n"
    )
    desk("run", "-d", "c.yaml")
    spec = the_object(desk, plane, "steps", "Pipeline")["spec"]
    steps = {name: step.get("training", {}) for name, step in spec["steps"].items()}
    assert spec["image"].partition("@")[0].endswith("/acme/environments")
    assert steps["two"]["image"] == spec["image"]
    assert steps["three"]["image"] != spec["image"]
    assert "environment" not in {*spec, *steps["two"], *steps["three"]}
    assert 'version = "1.0"' in desk("show", "steps", "--environment").out
    (desk.directory / "d.yaml").write_text(
        "kind: Serving\nname: chat\nenvironment: requirements.txt\nrun: python a.py\n"
        "resources: {cpu: 100m, memory: 64Mi}\n"
    )
    desk("run", "-d", "d.yaml")
    endpoint = the_object(desk, plane, "chat", "Serving")["spec"]
    assert endpoint["image"] == spec["image"]
    assert "environment" not in endpoint
    for kind, rest in (("Serving", {"run": "x"}), ("Pipeline", {"steps": {"a": {"run": "x"}}})):
        body = {
            "apiVersion": "fairlead.dev/v1alpha1", "kind": kind, "metadata": {"name": "b"},
            "spec": {**rest, "image": "i", "environment": {"file": "requirements.txt"}},
        }  # fmt: skip
        with pytest.raises(ApiError, match="its image is built by `fairlead run`"):
            Client(load_access((plane.kubeconfig(),))).create(objects_path(kind, desk.namespace), body)


def test_what_cannot_work_is_refused_before_there_is_an_object(
    desk: Desk, plane: ControlPlane, server: RegistryServer
) -> None:
    def nothing() -> bool:
        return not plane.request("GET", objects_path("Training", desk.namespace))["items"]

    want(desk, "fl_nobody")
    for command in (("plan",), ("run", "-d")):
        assert "a: environment: no index has a package fl-nobody." in desk(*command, "a.yaml", code=6).err
    want(desk, "fl_one")
    for wheel in (desk.directory / "wheels").iterdir():
        locked = wheel.read_bytes()
        desk("plan", "a.yaml")
        wheel.write_bytes(locked + b" ")
    assert "a: environment: A file of fl-one has another hash" in desk("run", "-d", "a.yaml", code=7).err
    body = {
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Training", "metadata": {"name": "a"},
        "spec": {"run": "x", "image": "i", "environment": {"file": "requirements.txt"}},
    }  # fmt: skip
    with pytest.raises(ApiError, match="its image is built by `fairlead run`"):
        Client(load_access((plane.kubeconfig(),))).create(objects_path("Training", desk.namespace), body)
    assert nothing()


def test_a_secret_to_pull_with_has_to_be_in_the_namespace(
    desk: Desk, access: ClusterAccess, plane: ControlPlane
) -> None:
    path = Path(desk.environ["FAIRLEAD_HOME"]) / "registry.json"
    path.write_text(path.read_text().replace('"pull_secret": null', '"pull_secret": "pull"'))
    refused = desk("run", "-d", "a.yaml", code=2).err
    assert (
        f"there is no Secret `pull` in namespace {desk.namespace}; `kubectl -n {desk.namespace} create sec" in refused
    )
    secret = {"metadata": {"name": "pull"}, "type": "Opaque", "stringData": {"x": "y"}}
    plane.request("POST", f"/api/v1/namespaces/{desk.namespace}/secrets", secret)
    desk("run", "-d", "a.yaml")
    assert the_object(desk, plane, "a")["spec"]["kubernetes"]["spec"]["imagePullSecrets"] == [{"name": "pull"}]


def test_packages_that_no_driver_of_the_nodes_runs_are_refused_and_a_newer_driver_is_named(
    desk: Desk, plane: ControlPlane
) -> None:
    wheels = desk.directory / "wheels"
    packed_wheel(wheels, "torch", "2.11.0")
    packed_wheel(wheels, "nvidia_cuda_runtime", "13.0.96")
    want(desk, "torch\nnvidia-cuda-runtime")
    of_old_nodes = FILES.replace("memory: 64Mi", "memory: 64Mi, gpu: 1")
    selector = "kubernetes: {spec: {nodeSelector: {drivers: old}}}\n"
    (desk.directory / "a.yaml").write_text(of_old_nodes + selector)
    capability = {"nvidia.com/gpu.compute.major": "9", "nvidia.com/gpu.compute.minor": "0"}
    old = {"drivers": "old", "nvidia.com/cuda.driver-version.full": "535.54.03", **capability}
    (name,) = add_nodes(plane, 1, prefix=f"old-{desk.namespace}", gpus=1, labels=old)
    try:
        for command in (("plan",), ("run", "-d")):
            refused = desk(*command, "a.yaml", code=6).err
            assert (
                "a: environment: it cannot work on the nodes that may get it: torch 2.11.0 brings CUDA 13.0" in refused
            )
            assert "has 535.54.03. Take torch built for CUDA 12.8" in refused
        driver = {"metadata": {"labels": {"nvidia.com/cuda.driver-version.full": "580.65.06"}}}
        plane.request("PATCH", f"/api/v1/nodes/{name}", driver, kind="merge-patch+json")
        assert "torch 2.11.0 brings CUDA 13.0, which driver 580.65.06 runs" in desk("plan", "a.yaml").out
    finally:
        plane.request("DELETE", f"/api/v1/nodes/{name}")
