"""Data in the places where it usually is, at a real API server: pods get claims and URLs, and no object has a key."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.control.data import upload_directory
from tests.data_situations import IMAGES, LUSTRE, PARQUET, PRIVATE, SITUATIONS, TOKENS, forms
from tests.kubernetes.test_faces import Desk, desk, namespace, operator, phases, plane, prepared
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.s3 import KEY, S3, SECRET, s3, s3_binary
from tests.waiting import until

__all__ = ["desk", "namespace", "operator", "plane", "prepared", "s3", "s3_binary"]
KEYS = {
    "reader": {"AWS_ACCESS_KEY_ID": "reader-of-a-cluster", "AWS_SECRET_ACCESS_KEY": "a-key-of-the-cluster"},
    "lake": {"key.json": '{"private_key": "a-key-of-a-service-account"}'},
    "hub": {"HF_TOKEN": "hf_a-token-of-the-hub"},
}
VALUES = (KEY, SECRET, *(value for entries in KEYS.values() for value in entries.values()))
LISTED = (
    "/api/v1/namespaces/{}/pods", "/api/v1/namespaces/{}/configmaps", "/api/v1/namespaces/{}/secrets",
    "/api/v1/namespaces/{}/services", "/api/v1/namespaces/{}/events",
    "/apis/fairlead.dev/v1alpha1/namespaces/{}/trainings",
)  # fmt: skip


def claim(plane: ControlPlane, namespace: str, name: str, size: str, driver: dict[str, Any]) -> None:
    """A volume that an administrator made, and its claim."""
    common = {"storageClassName": "", "accessModes": ["ReadWriteMany"]}
    volume = f"{namespace}-{name}"
    plane.request("POST", "/api/v1/persistentvolumes", {
        "metadata": {"name": volume}, "spec": {**common, "capacity": {"storage": size}, **driver},
    })  # fmt: skip
    plane.request("POST", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", {
        "metadata": {"name": name},
        "spec": {**common, "volumeName": volume, "resources": {"requests": {"storage": size}}},
    })  # fmt: skip


@pytest.fixture
def equipped(plane: ControlPlane, namespace: str) -> Iterator[None]:
    """Secrets with the keys of the stores, the claim of an NFS server, and 4 TB of Lustre."""
    for name, entries in KEYS.items():
        body = {"metadata": {"name": name}, "stringData": entries}
        plane.request("POST", f"/api/v1/namespaces/{namespace}/secrets", body)
    claim(plane, namespace, "tokens", "200Gi", {"nfs": {"server": "10.0.0.9", "path": "/data", "readOnly": True}})
    claim(plane, namespace, "corpus", "4Ti", {"csi": {"driver": "lustre.csi.example", "volumeHandle": "corpus"}})
    yield
    for name in ("tokens", "corpus"):
        plane.request("DELETE", f"/api/v1/persistentvolumes/{namespace}-{name}")


@pytest.mark.slow
@pytest.mark.kubernetes
def test_pods_get_their_data_in_six_situations_and_no_object_has_a_key(
    desk: Desk, plane: ControlPlane, namespace: str, s3: S3, equipped: None, operator: None, tmp_path: Path
) -> None:
    desk.environ.update(s3.environ)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.JPEG").write_bytes(b"an image")
    upload_directory(tmp_path / "one", "s3://models/imagenet")
    fakes = {"image": "python:3.12-slim", "resources": {"cpu": "100m", "memory": "64Mi"},
             "kubernetes": {"metadata": {"annotations": {"fake/run": "1s"}}}}  # fmt: skip
    said = ""
    names = []
    for situation in SITUATIONS:
        spec = {**yaml.safe_load(situation), **fakes}
        names.append(spec["name"])
        (desk.directory / "train.yaml").write_text(yaml.safe_dump(spec))
        for words in (("plan", "train.yaml"), ("render", "train.yaml", "--pods"), ("run", "train.yaml", "--detach")):
            answer = desk(*words)
            said += answer.out + answer.err
    until(lambda: phases(desk) == dict.fromkeys(names, "Succeeded"))
    said += desk("status", "--json").out + "".join(desk("show", name).out for name in names)
    written = {place: plane.request("GET", place.format(namespace))["items"] for place in LISTED}
    text = said + json.dumps([
        item for items in written.values() for item in items if item["metadata"]["name"] not in KEYS
    ])  # fmt: skip
    assert [form for form in forms(VALUES) if form in text] == []
    pods = {pod["metadata"]["labels"]["fairlead.dev/run"]: pod["spec"] for pod in written[LISTED[0]]}
    assert sorted(pods) == sorted(names)

    def mounts(situation: str) -> dict[str, tuple[Any, ...]]:
        """What is mounted outside of our own directories: the path below a claim, and whether it is only read."""
        spec = pods[yaml.safe_load(situation)["name"]]
        (container,) = spec["containers"]
        claims = {one["name"] for one in spec["volumes"] if "persistentVolumeClaim" in one}
        return {
            one["mountPath"]: (one.get("subPath"), one.get("readOnly", False))
            for one in container["volumeMounts"] if one["name"] in claims
        }  # fmt: skip

    assert mounts(TOKENS) == {"/data/train": ("2026-11", True)}
    assert mounts(LUSTRE) == {"/mnt/corpus": (None, True), "/mnt/out": ("out", False)}
    assert [mounts(situation) for situation in (IMAGES, PARQUET, PRIVATE)] == [{}, {}, {}]
    secrets = {
        name: {one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one} for name, spec in pods.items()
    }
    assert {name: used & set(KEYS) for name, used in secrets.items()} == {
        "images": set(), "rows": {"lake"}, "tokens": set(), "hub": {"hub"}, "lustre": set(), "private": {"reader"},
    }  # fmt: skip
    trainings = {run["metadata"]["name"]: run["spec"]["data"]["train"] for run in written[LISTED[-1]]}
    assert len(trainings["images"]["version"]) == 16
