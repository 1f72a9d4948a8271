"""A container of a real node starts programs with the packages of an image that Fairlead built from a lock."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.control.image.archives import write_archive
from fairlead.control.image.base_images import pull_base
from fairlead.control.image.building import push
from fairlead.control.image.content import Image, config_blob
from fairlead.control.image.environments import push_environment
from fairlead.control.image.locks import lock_of
from fairlead.control.image.references import Reference, read_reference
from fairlead.control.image.registry import Registry
from fairlead.control.image.wheel_layers import LayerEntry, write_layer
from tests.image.environments import locked, packed_wheel, settings_on
from tests.image.registries import registry
from tests.kubernetes.clusters import started
from tests.kubernetes.test_fairlead_image import put_python
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes, pytest.mark.timeout(600)]
NAME = "test.example/environment:1"
AMD64 = "linux/amd64"
PODS = "/api/v1/namespaces/default/pods"
PROGRAM = "import sys, fl_one, fl_one_more; assert (sys.prefix, fl_one.VERSION) == ('/opt/environment', '1.0')"


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    with started(lambda: RealCluster(1), request) as made:
        yield made


def pulled(name: Reference, place: Path) -> Image:
    """An image of a registry, with all of its blobs."""
    place.mkdir()
    with Registry(name) as registry:
        base = pull_base(registry, name, AMD64, place)
        for layer in base.layers:
            layer.fetch()
    return Image(config=config_blob(base.config, place), settings=base.config, layers=base.layers, annotations={})


def put_base(host: str, place: Path) -> Reference:
    """Push the nodes' own image with its Python where the official images have it."""
    (place / "own").mkdir(parents=True)
    image = pulled(put_python(host, place / "own"), place / "pulled")
    link = write_layer({"/usr/local/bin/python3.11": LayerEntry(target="/usr/bin/python3.11")}, place)
    rootfs = image.settings["rootfs"]
    config = {**image.settings, "rootfs": {**rootfs, "diff_ids": [*rootfs["diff_ids"], link.diff_id]}}
    whole = replace(image, config=config_blob(config, place), settings=config, layers=(*image.layers, link.blob))
    name = read_reference(f"{host}/base:1")
    with Registry(name) as there:
        push(whole, there, name, lambda _: None)
    return name


def test_a_container_has_the_packages_and_programs_of_the_lock(cluster: RealCluster, tmp_path: Path) -> None:
    wheels = [
        packed_wheel(
            tmp_path / "wheels", "fl_one", "1.0", kib=100,
            data={"fl_one-1.0.dist-info/entry_points.txt": "[console_scripts]\nfl-one = os:getpid\n"},
        ),
        packed_wheel(tmp_path / "wheels", "fl_one_more", "1.0"),
    ]  # fmt: skip
    lock = lock_of([locked(path, hashlib.sha256(path.read_bytes()).hexdigest()) for path in wheels], "3.11.2")
    with registry(tmp_path / "registry") as server:
        base = put_base(server.host, tmp_path / "base")
        settings = settings_on(server.host, tmp_path, base=base)
        image = push_environment(lock, settings, tmp_path / "store", os.environ, lambda _: None)
        write_archive(pulled(read_reference(image), tmp_path / "image"), read_reference(NAME), tmp_path / "image.tar")
    cluster.import_image(tmp_path / "image.tar")
    script = (
        f'python -c "{PROGRAM}" && python3 -m fl_one && fl-one; test $? -gt 0 && test -e /opt/environment/pylock.toml'
    )
    container = {
        "name": "ranks",
        "image": NAME,
        "command": ["sh", "-c", script],
        "env": [{"name": "PYTHONPATH", "value": "/x"}],
    }
    body = {"metadata": {"name": "one"}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    cluster.request("POST", PODS, body)
    until(
        lambda: cluster.request("GET", f"{PODS}/one")["status"].get("phase") in ("Succeeded", "Failed"),
        lambda: cluster.request("GET", f"{PODS}/one")["status"],
        timeout_s=120,
    )
    assert cluster.request("GET", f"{PODS}/one")["status"]["phase"] == "Succeeded"
