"""Names of archives, objects, manifests and peers never become a path outside the directory that they belong to."""

import base64
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kept_code import KeptCode, KeptFile
from fairlead.cluster.kubernetes.client.run_code import read_code
from fairlead.cluster.kubernetes.manifests.workdir import PART_PREFIX, WORKDIR
from fairlead.cluster.written_code import write_code
from fairlead.control.pipelines.artefacts import Artefacts, content_digest
from fairlead.control.pipelines.object_place import ObjectArtefacts, ObjectDocuments, StoreExchange
from fairlead.errors import Conflict
from fairlead.runtime.checkpoint.manifest import MANIFEST, DamagedError, FileFacts, Manifest
from fairlead.runtime.checkpoint.remote import open_remote
from fairlead.runtime.errors import StoreUnavailable
from fairlead.runtime.paths import UnsafeName
from fairlead.runtime.serving import model_files
from fairlead.runtime.serving.predictor import Unusable
from fairlead.runtime.step_files import GIVEN, archive_of, fetch_given, pack

OUTSIDE = "must stay as it is"
HOSTILE = ["../outside", "a/../../outside", "/{root}/outside"]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """Give a directory whose file ``outside`` has to survive."""
    (tmp_path / "outside").write_text(OUTSIDE)
    (tmp_path / "work").mkdir()
    yield tmp_path
    assert (tmp_path / "outside").read_text() == OUTSIDE


@pytest.fixture(params=HOSTILE)
def name(request: pytest.FixtureRequest, root: Path) -> str:
    return str(request.param).format(root=str(root).lstrip("/"))


def test_an_export_stays_in_its_directory(root: Path, name: str) -> None:
    file = KeptFile(path=name, size=1, digest="", executable=True)
    with pytest.raises(Conflict, match="is not written"):
        write_code(KeptCode(files=(file,), read=lambda _: b"x"), root / "work")


class OneRun:
    """Answers requests for a run and the ConfigMap with its archive."""

    def __init__(self, archive: bytes, digest: str) -> None:
        self.annotation = {WORKDIR: f"{digest}-1"}
        self.data = {"000": base64.b64encode(archive).decode()}

    def get(self, path: str) -> dict[str, Any]:
        if PART_PREFIX in path:
            return {"binaryData": self.data}
        return {"metadata": {"uid": "uid", "annotations": self.annotation}, "spec": {}}


def archive_with(name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return buffer.getvalue()


def test_code_on_a_cluster_with_such_a_name_is_not_readable(name: str) -> None:
    archive = archive_with(name)
    found = read_code(OneRun(archive, hashlib.sha256(archive).hexdigest()[:16]), "Training", "team", "run", "uid")  # type: ignore[arg-type]
    assert found.files is None
    assert "its archive is damaged" in (found.why or "")


def test_code_on_a_cluster_that_is_not_the_code_that_was_sent_is_not_readable() -> None:
    found = read_code(OneRun(archive_with("train.py"), "0" * 32), "Training", "team", "run", "uid")  # type: ignore[arg-type]
    assert (found.files, found.why) == (None, "its archive differs from what was sent")


def a_manifest(name: str) -> Manifest:
    facts = FileFacts(size=1, sha256=hashlib.sha256(b"x").hexdigest())
    return Manifest(step=3, world_size=1, run="r", attempt=0, created_at=0.0, files={name: facts})


def test_a_manifest_that_names_a_file_elsewhere_is_damaged(root: Path, name: str) -> None:
    with pytest.raises(DamagedError, match="names a file outside the checkpoint"):
        Manifest.from_json(a_manifest(name).to_json())
    store = open_remote(f"local://{root}/store", scratch=root / "work")
    with pytest.raises(UnsafeName):
        store.fetch(3, [name])
    assert os.listdir(root / "work") == []


def test_an_object_of_a_model_stays_in_its_directory(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Objects:
        def find(self, place: str) -> list[str]:
            return [f"{place}/{name}"]

        def get_file(self, _: str, path: str) -> None:
            Path(path).write_text("x")

    monkeypatch.setattr(model_files, "open_place", lambda *_, **__: (Objects(), "bucket/model"))
    with pytest.raises(Unusable, match=r"absolute path|leads out"):
        model_files.fetched_model("s3://bucket/model", str(root / "work"))


def stored(root: Path, content: bytes = b"weights") -> str:
    """Store an output as a pipeline on an object store does, and return its hash."""
    (root / "output").write_bytes(content)
    digest = content_digest(root / "output")
    place = root / "store" / archive_of(digest)
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as file:
        pack(root / "output", file)
    return digest


def given(root: Path, inputs: dict[str, Any]) -> str:
    told = {"artefacts": f"local://{root}/store", "inputs": inputs, "parts": {}}
    (root / "step").mkdir()
    (root / "step" / GIVEN).write_text(json.dumps(told))
    return f"local://{root}/step"


def test_an_input_of_a_step_stays_in_its_directory(root: Path, name: str) -> None:
    digest = stored(root)
    with pytest.raises(UnsafeName):
        fetch_given(given(root, {name: digest}), root / "work")


def test_an_item_of_an_input_stays_in_its_directory(root: Path, name: str) -> None:
    digest = stored(root)
    with pytest.raises(UnsafeName):
        fetch_given(given(root, {"data": {name: digest}}), root / "work")


def test_a_hash_that_is_none_names_no_archive_and_no_output(root: Path, name: str) -> None:
    with pytest.raises(UnsafeName):
        fetch_given(given(root, {"data": name}), root / "work")
    with pytest.raises(UnsafeName):
        Artefacts(root / "work").path(name)


def replaced(root: Path, digest: str, content: bytes) -> None:
    """Replace an archive in the store by another one, as whoever may write there can."""
    (root / "output").write_bytes(content)
    with (root / "store" / archive_of(digest)).open("wb") as file:
        pack(root / "output", file)


def test_an_input_that_differs_from_its_hash_is_not_unpacked(root: Path) -> None:
    digest = stored(root)
    fetch_given(given(root, {"data": digest, "more": {"0": digest}}), root / "work")
    assert (root / "work/inputs/data").read_bytes() == (root / "work/inputs/more/0").read_bytes() == b"weights"
    replaced(root, digest, b"others")
    with pytest.raises(ValueError, match="it has another content"):
        fetch_given(f"local://{root}/step", root / "work")
    assert not (root / "work/inputs/data").exists()


def test_an_output_that_differs_from_its_hash_is_not_unpacked(root: Path) -> None:
    digest = stored(root)
    documents = ObjectDocuments(f"local://{root}/store")
    assert ObjectArtefacts(root / "first", documents).path(digest).read_bytes() == b"weights"
    replaced(root, digest, b"others")
    with pytest.raises(StoreUnavailable, match="is not what was kept there"):
        ObjectArtefacts(root / "second", documents).path(digest)
    assert not list((root / "second").rglob("content"))


def test_outputs_that_a_pod_returned_stay_in_their_directory(root: Path, name: str) -> None:
    place = root / "store/steps/train/returned"
    place.mkdir(parents=True)
    (place / "000000-000000.tar").write_bytes(archive_with(name))
    exchange = StoreExchange(ObjectDocuments(f"local://{root}/store"), f"local://{root}/store")
    with pytest.raises(StoreUnavailable, match="what a pod of train returned cannot be taken"):
        exchange.take("train", root / "work" / "room")


def test_a_manifest_without_such_names_is_read() -> None:
    manifest = a_manifest("rank-00000/weights.bin")
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert MANIFEST not in manifest.files
