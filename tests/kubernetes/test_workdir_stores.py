"""Working directories that are too large for the API: by way of a real object store, and onto a volume by its receiver.

The API server is real, and asked with the rights of a team's users; pods are processes with what theirs would have.
"""

import hashlib
import io
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.client.pending_uploads import STORED, UPLOADS
from fairlead.cluster.kubernetes.client.workdir_stores import receiving
from fairlead.cluster.kubernetes.client.workdir_upload import HERE, is_same, send
from fairlead.cluster.kubernetes.manifests import workdir
from fairlead.cluster.kubernetes.manifests.roles import render_binding, render_roles
from fairlead.cluster.kubernetes.manifests.runtime_bundle import bundle
from fairlead.cluster.kubernetes.manifests.workdir import WORKDIR, archive_place
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.runtime.archives import fetch
from fairlead.runtime.errors import StoreUnavailable
from fairlead.runtime.places import open_place
from fairlead.specs.overlay import overlay
from fairlead.specs.training import Checkpoint
from tests.kubernetes.operating import gang
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.s3 import S3

PLACE = "s3://models/runs"
TIMEOUT_S = 30.0


class Person:
    """Somebody with the role of a team's users, and directories that do not go through the API."""

    def __init__(self, plane: ControlPlane, namespace: str, directory: Path, s3: S3) -> None:
        people = [{"kind": "Group", "name": "people", "apiGroup": "rbac.authorization.k8s.io"}]
        applied(plane, render_binding(namespace, "user", people))
        self.plane, self.namespace, self.directory, self.s3 = plane, namespace, directory, s3
        self.client = Client(load_access((plane.kubeconfig("nobody", namespace=namespace),)))
        self.cluster = WorkloadApi(self.client, namespace=namespace)
        self.runs = f"/apis/fairlead.dev/v1alpha1/namespaces/{namespace}/trainings"

    def write(self, program: str) -> Path:
        place = self.directory / program
        place.mkdir(exist_ok=True)
        (place / "train.py").write_text(f"print({program!r})")
        return place

    def run(self, name: str, program: str) -> str:
        """Submit it; what its object says of the working directory."""
        spec = replace(gang(self.namespace, name, gpus=0), workdir=HERE, checkpoint=Checkpoint(to=f"{PLACE}/"))
        send(self.client, spec, self.write(program), self.cluster.submit)
        return str(self.plane.request("GET", f"{self.runs}/{name}")["metadata"]["annotations"][WORKDIR])

    def kept(self) -> set[str]:
        """Names of the archives in the store."""
        return {path.name for path in (self.s3.directory / "models").rglob("*.tar.gz")}

    def on_the_way(self) -> list[str]:
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/{UPLOADS}"
        return list(self.plane.request("GET", path).get("data") or ())


@pytest.fixture
def person(
    plane: ControlPlane, namespace: str, tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Person]:
    for content in render_roles():
        applied(plane, content)
    monkeypatch.setattr(workdir, "MOST_BYTES", 10)
    yield Person(plane, namespace, tmp_path, s3)
    for run in plane.request("GET", f"/apis/fairlead.dev/v1alpha1/namespaces/{namespace}/trainings")["items"]:
        path = f"/apis/fairlead.dev/v1alpha1/namespaces/{namespace}/trainings/{run['metadata']['name']}"
        plane.request("PATCH", path, {"metadata": {"finalizers": None}}, kind="merge-patch+json")


def test_a_directory_reaches_pods_by_way_of_the_object_store_of_their_checkpoints(
    person: Person, tmp_path: Path
) -> None:
    said = person.run("train", "one")
    place = archive_place(said)
    assert place is not None
    assert place.startswith(f"{PLACE}/fairlead-workdirs/")
    fetch(place, str(tmp_path / "work"), str(tmp_path))
    assert (tmp_path / "work" / "train.py").read_text() == "print('one')"
    assert person.on_the_way() == []
    assert is_same(said, person.directory / "one")
    (person.directory / "one" / "train.py").write_text("print('two')")
    assert not is_same(said, person.directory / "one")


def test_runs_share_what_is_the_same_and_what_no_run_needs_goes_with_the_next(person: Person) -> None:
    one, same, two = person.run("first", "one"), person.run("second", "one"), person.run("third", "two")
    assert one == same
    names = [str(archive_place(said)).rpartition("/")[2] for said in (one, two)]
    assert person.kept() == set(names)
    for name in ("first", "third"):
        path = f"{person.runs}/{name}"
        person.plane.request("PATCH", path, {"metadata": {"finalizers": None}}, kind="merge-patch+json")
        person.plane.request("DELETE", path)
    three = str(archive_place(person.run("fourth", "three"))).rpartition("/")[2]
    assert person.kept() == {names[0], three}


def test_what_somebody_else_sends_just_now_stays(person: Person) -> None:
    said = person.run("first", "one")
    name = str(archive_place(said)).rpartition("/")[2]
    path = f"{person.runs}/first"
    person.plane.request("PATCH", path, {"metadata": {"finalizers": None}}, kind="merge-patch+json")
    person.plane.request("DELETE", path)
    note = {"data": {f"{name.removesuffix('.tar.gz')}{STORED}": "99999999999"}}
    maps = f"/api/v1/namespaces/{person.namespace}/configmaps/{UPLOADS}"
    person.plane.request("PATCH", maps, note, kind="merge-patch+json")
    person.run("second", "two")
    assert name in person.kept()


def test_a_store_that_is_down_leaves_no_run_that_waits_for_files(person: Person) -> None:
    person.s3.stop()
    with pytest.raises(StoreUnavailable, match=rf"{PLACE}/fairlead-workdirs/.* cannot be listed"):
        person.run("train", "one")
    assert person.plane.request("GET", person.runs)["items"] == []


def test_what_was_changed_in_the_store_is_not_run(person: Person, tmp_path: Path) -> None:
    place = str(archive_place(person.run("train", "one")))
    system, path = open_place(place, what="archives")
    system.pipe_file(path, b"something else")
    with pytest.raises(StoreUnavailable, match="differs from what was sent; remove it"):
        fetch(place, str(tmp_path / "work"), str(tmp_path))
    system.rm_file(path)
    with pytest.raises(StoreUnavailable, match="no longer exists; submit the run again"):
        fetch(place, str(tmp_path / "work"), str(tmp_path))


def test_the_run_that_takes_files_in_has_the_volumes_of_the_other_and_no_program_of_its_own() -> None:
    mounts = [{"name": "team", "mountPath": "/team"}]
    pod = {
        "nodeSelector": {"zone": "a"},
        "volumes": [{"name": "team", "persistentVolumeClaim": {"claimName": "team"}}],
        "containers": [{"name": "ranks", "volumeMounts": mounts, "env": [{"name": "TOKEN", "value": "x"}]}],
        "initContainers": [{"name": "beside", "image": "x", "restartPolicy": "Always"}],
    }
    spec = replace(gang("research", "n" * 50), nodes=4, most_nodes=8, env={"A": "b"}, kubernetes=overlay({"spec": pod}))
    found = receiving(spec, "/team/it's $(here)/a.tar.gz")
    assert found.name == f"{'n' * 44}-files"
    assert shlex.split(found.run)[-2:] == ["await", "/team/it's $(here)/a.tar.gz"]
    assert (found.nodes, found.most_nodes, found.env, found.resources.gpu) == (1, None, {}, None)
    assert found.kubernetes.pod["spec"] == {
        "nodeSelector": {"zone": "a"},
        "volumes": pod["volumes"],
        "containers": [{"name": "ranks", "volumeMounts": mounts}],
    }


class Volume:
    """What a pod that takes an archive in has: the runtime, and a directory."""

    def __init__(self, directory: Path) -> None:
        self.runtime = directory / "runtime.pyz"
        self.runtime.write_bytes(bundle())
        self.directory = directory / "volume" / "fairlead-workdirs"
        self.content = os.urandom(3_000_000)
        self.path = self.directory / f"{hashlib.sha256(self.content).hexdigest()[:16]}.tar.gz"

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, str(self.runtime), *words, str(self.path)]
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe)

    @contextmanager
    def awaiting(self) -> "Iterator[subprocess.Popen[bytes]]":
        process = self.start("await")
        try:
            yield process
        finally:
            process.kill()
            process.communicate(timeout=TIMEOUT_S)

    def receive(self, content: bytes, *keep: str) -> tuple[int, bytes]:
        """The exit code and what was complained of, once an input like that of ``fairlead run`` has ended."""
        told = io.BytesIO()
        told.write(json.dumps({"size": len(self.content), "keep": keep}).encode() + b"\n")
        told.write(content)
        receiver = self.start("receive")
        out, err = receiver.communicate(told.getvalue(), timeout=TIMEOUT_S)
        assert out == b"send\n"
        return receiver.returncode, err


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path)


def test_a_volume_has_the_archive_when_the_pod_that_takes_it_in_ends(volume: Volume) -> None:
    volume.directory.mkdir(parents=True)
    for name in ("aa.tar.gz", "bb.tar.gz", "notes.txt"):
        (volume.directory / name).touch()
    with volume.awaiting() as pod:
        assert volume.receive(volume.content, "aa.tar.gz") == (0, b"")
        assert pod.wait(TIMEOUT_S) == 0
    assert volume.path.read_bytes() == volume.content
    assert {path.name for path in volume.directory.iterdir()} == {volume.path.name, "aa.tar.gz", "notes.txt"}
    with volume.awaiting() as again:
        assert again.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("missing", [1, 0], ids=["cut off", "changed"])
def test_what_does_not_arrive_whole_is_not_there(volume: Volume, missing: int) -> None:
    with volume.awaiting() as pod:
        content = volume.content[:-1] if missing else bytes([volume.content[0] ^ 1]) + volume.content[1:]
        assert volume.receive(content) == (1, f"{volume.path} cannot be written: it arrived incomplete\n".encode())
        assert pod.poll() is None
    assert list(volume.directory.iterdir()) == []


def test_what_cannot_be_written_is_told_once_all_of_it_was_taken(volume: Volume) -> None:
    volume.path.with_name(f"{volume.path.name}.{socket.gethostname()}.part").mkdir(parents=True)
    code, said = volume.receive(volume.content)
    assert code == 1
    assert b"cannot be written: " in said
    assert b"Is a directory" in said
