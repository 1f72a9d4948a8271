"""What a place of checkpoints does, on a disk and on an object store that lives in memory."""

import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.runtime.channels import Alone
from fairlead.runtime.checkpoint.content import Files
from fairlead.runtime.checkpoint.directory import Directory, open_store
from fairlead.runtime.checkpoint.manifest import DamagedError, FileFacts, Manifest, files_below, seal
from fairlead.runtime.checkpoint.restoring import Rejected, restore
from fairlead.runtime.checkpoint.store import CheckpointStore, Draft
from fairlead.runtime.errors import MissingExtra, Misuse


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    if request.param == "directory":
        return open_store(str(tmp_path / "place"), scratch=None)
    fsspec: Any = pytest.importorskip("fsspec", reason="fsspec is not installed; pip install 'fairlead[remote]'")
    fsspec.filesystem("memory").store.clear()
    return open_store("memory://bucket/run", scratch=tmp_path / "scratch")


def write(
    store: CheckpointStore, step: int, *, tag: str = "0-a-1", content: bytes = b"weights"
) -> tuple[Draft, Manifest]:
    """All of a save but the commit."""
    draft = Draft(step=step, tag=tag)
    workplace = store.workplace(draft, 0)
    (workplace / "rank-00000").mkdir()
    (workplace / "rank-00000" / "w.bin").write_bytes(content)
    store.begin(draft)
    files = {name: seal(path) for name, path in files_below(workplace).items()}
    store.put(draft, workplace)
    store.release(workplace)
    return draft, Manifest(step=step, world_size=1, run="r", attempt=0, created_at=0.0, files=files)


def save(store: CheckpointStore, step: int, **given: Any) -> Manifest:
    draft, manifest = write(store, step, **given)
    store.commit(draft, manifest)
    return manifest


def read(store: CheckpointStore, step: int) -> dict[str, bytes]:
    directory = store.fetch(step, store.manifest(step).files)
    try:
        found = {name: path.read_bytes() for name, path in files_below(directory).items()}
        return {name: data for name, data in found.items() if name != "MANIFEST.json"}
    finally:
        store.release(directory)


def test_nothing_is_there_at_first(store: CheckpointStore) -> None:
    assert store.steps() == []


def test_what_was_committed_is_found_and_read(store: CheckpointStore) -> None:
    manifest = save(store, 100)
    assert store.steps() == [100]
    assert store.manifest(100) == manifest
    assert read(store, 100) == {"rank-00000/w.bin": b"weights"}


def test_before_the_commit_nothing_counts_and_discarding_leaves_nothing(store: CheckpointStore) -> None:
    save(store, 1)
    draft, _ = write(store, 2)
    assert store.steps() == [1]
    store.discard(draft)
    store.tidy([])
    assert store.steps() == [1]


def test_tidying_removes_what_it_is_told_and_every_draft(store: CheckpointStore) -> None:
    for step in (1, 2, 3):
        save(store, step)
    write(store, 4)
    store.tidy([1, 2])
    assert store.steps() == [3]
    save(store, 4, tag="1-b-1", content=b"again")
    assert read(store, 4) == {"rank-00000/w.bin": b"again"}


def test_step_that_was_damaged_is_replaced(store: CheckpointStore) -> None:
    save(store, 7, content=b"damaged")
    save(store, 7, tag="1-b-1", content=b"good")
    assert store.steps() == [7]
    assert read(store, 7) == {"rank-00000/w.bin": b"good"}


def test_missing_files_are_left_out_of_what_is_fetched(store: CheckpointStore) -> None:
    draft, manifest = write(store, 1)
    ghost = {"rank-00001/w.bin": FileFacts(size=1, sha256="")}
    store.commit(
        draft, Manifest(step=1, world_size=2, run="r", attempt=0, created_at=0.0, files={**manifest.files, **ghost})
    )
    assert read(store, 1) == {"rank-00000/w.bin": b"weights"}


def test_releasing_removes_nothing_that_the_store_did_not_make(
    store: CheckpointStore, tmp_path: Path, bystander: Path
) -> None:
    (tmp_path / "mine").mkdir()
    for directory in (Path(), Path("."), bystander, tmp_path / "mine", tmp_path):
        store.release(directory)
    assert (bystander / "bystander.txt").exists()
    assert (tmp_path / "mine").exists()


def test_download_that_turns_out_damaged_leaves_the_current_directory_alone(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, bystander: Path
) -> None:
    save(store, 1)

    def damaged(*_: object) -> Path:
        raise DamagedError("w.bin differs from what was uploaded")

    monkeypatch.setattr(store, "fetch", damaged)
    rejected: list[Rejected] = []
    restored = restore(
        store=store,
        content=Files(0, 1, lambda _: None),
        channel=Alone(),
        node=0,
        local_rank=0,
        reject=rejected.append,
    )
    assert restored.step == 0
    assert [item.reason for item in rejected] == ["w.bin differs from what was uploaded"]
    assert (bystander / "bystander.txt").exists()


def test_names_sort_like_steps(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}", scratch=None)
    for step in (9, 100, 20):
        save(store, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-000000000009",
        "step-000000000020",
        "step-000000000100",
    ]
    assert store.steps() == [9, 20, 100]
    assert isinstance(store, Directory)


def test_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingExtra, match=r'pip install "fairlead\[remote\]"'):
        open_store("s3://bucket/run", scratch=None)


def test_unknown_scheme_is_refused() -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed; pip install 'fairlead[remote]'")
    with pytest.raises(Misuse, match="checkpoints cannot go to 'tape://a'"):
        open_store("tape://a", scratch=None)
