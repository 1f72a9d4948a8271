"""Operator and page run on real nodes from the image that Fairlead builds."""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fairlead.control.image.building import push
from fairlead.control.image.content import Blob, Image, config_blob
from fairlead.control.image.references import Reference, read_reference
from fairlead.control.image.registry import Registry
from tests.image.registries import registry
from tests.kubernetes.clusters import started
from tests.kubernetes.testcluster import images
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes, pytest.mark.timeout(1200)]
# Compiling all modules takes half a minute of a processor, which a busy machine stretches.
BUILD_S = 600.0
NAME = "test.example/fairlead:1"
SPACE = "/apis/apps/v1/namespaces/fairlead-system/deployments"


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    with started(lambda: RealCluster(2), request) as made:
        yield made


def put_python(host: str, place: Path) -> Reference:
    """Push the nodes' own image with Python to a registry."""
    with tarfile.open(images.python_image()) as tar:
        tar.extractall(place, **images.EXTRACTED)
        manifest = json.load(tar.extractfile("manifest.json") or io.BytesIO())[0]
    config = json.loads((place / manifest["Config"]).read_text())
    config["config"]["Env"].append("PYTHON_VERSION=3.11.2")
    layers = []
    for name, digest in zip(manifest["Layers"], config["rootfs"]["diff_ids"], strict=True):
        path = place / name
        kind = "application/vnd.oci.image.layer.v1.tar"
        layers.append(Blob(media_type=kind, digest=digest, size=path.stat().st_size, fetch=partial(Path, path)))
    image = Image(config=config_blob(config, place), settings=config, layers=tuple(layers), annotations={})
    reference = read_reference(f"{host}/python:1")
    with Registry(reference) as there:
        push(image, there, reference, lambda _: None)
    return reference


def test_operator_and_page_run_from_the_image_that_fairlead_builds(cluster: RealCluster, tmp_path: Path) -> None:
    environ = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig())}

    def fairlead(*arguments: str) -> str:
        argv = [sys.executable, "-m", "fairlead.cli.main", *arguments]
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=BUILD_S)
        assert done.returncode == 0, done.stderr
        return done.stderr

    with registry(tmp_path / "registry") as server:
        (tmp_path / "base").mkdir()
        base = put_python(server.host, tmp_path / "base")
        fairlead("image", "build", str(tmp_path / "fairlead.tar"), "--name", NAME, "--base-image", str(base))
    cluster.import_image(tmp_path / "fairlead.tar")
    said = fairlead("install", "--image", NAME, "--page", "--wait", "--timeout", "120")
    assert "The operator is ready." in said

    def ready(name: str) -> bool:
        return bool(cluster.request("GET", f"{SPACE}/{name}")["status"].get("readyReplicas") == 2)

    until(lambda: ready("fairlead-page"), "two ready replicas of the page", timeout_s=120)
    assert ready("fairlead-operator")
    body = {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "Training",
        "metadata": {"name": "hello"},
        "spec": {"run": "echo hello", "image": images.PYTHON, "resources": {"cpu": "100m", "memory": "64Mi"}},
    }
    path = "/apis/fairlead.dev/v1alpha1/namespaces/default/trainings"
    cluster.request("POST", path, body)
    until(
        lambda: cluster.request("GET", f"{path}/hello").get("status", {}).get("phase") == "Succeeded",
        lambda: cluster.request("GET", f"{path}/hello").get("status"),
        timeout_s=90,
    )
