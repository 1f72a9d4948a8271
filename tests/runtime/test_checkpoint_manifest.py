"""What makes a directory a checkpoint."""

import json
from pathlib import Path

import pytest

from fairlead.runtime.checkpoint.manifest import DamagedError, Manifest, files_below, seal, verify


def manifest_of(directory: Path) -> Manifest:
    return Manifest(
        step=5,
        world_size=1,
        run="uid",
        attempt=0,
        created_at=1.5,
        content={"form": "files"},
        files={name: seal(path) for name, path in files_below(directory).items()},
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "weights.bin").write_bytes(b"weights" * 1000)
    (tmp_path / "state.json").write_text("{}")
    return tmp_path


def test_manifest_survives_its_file(directory: Path) -> None:
    manifest = manifest_of(directory)
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.size == 7002
    verify(directory, manifest, manifest.files)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda data: data.replace(b'"step": 5', b'"step": 6'), "was changed after it was written"),
        (lambda data: data[:-20], "cannot be read"),
        (lambda data: b"", "cannot be read"),
        (lambda data: b"[]", "cannot be read"),
        (lambda data: b"\xff\xfe", "cannot be read"),
        (lambda data: json.dumps({"checksum": ""}).encode(), "was changed after it was written"),
    ],
)
def test_damaged_manifest_is_noticed(directory: Path, damage: object, sentence: str) -> None:
    assert callable(damage)
    with pytest.raises(DamagedError, match=sentence):
        Manifest.from_json(damage(manifest_of(directory).to_json()))


def test_one_changed_bit_is_noticed(directory: Path) -> None:
    manifest = manifest_of(directory)
    path = directory / "deep" / "weights.bin"
    data = bytearray(path.read_bytes())
    data[3333] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=r"deep/weights\.bin differs from what was written"):
        verify(directory, manifest, manifest.files)


def test_truncated_file_is_noticed(directory: Path) -> None:
    manifest = manifest_of(directory)
    (directory / "deep" / "weights.bin").write_bytes(b"weights")
    with pytest.raises(DamagedError, match=r"weights\.bin has 7 bytes where 7000 were written"):
        verify(directory, manifest, manifest.files)


def test_missing_file_is_noticed(directory: Path) -> None:
    manifest = manifest_of(directory)
    (directory / "state.json").unlink()
    with pytest.raises(DamagedError, match=r"state\.json is missing"):
        verify(directory, manifest, manifest.files)
