"""The working directory as it goes to a cluster: what is in it, what it is called, and which way it goes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fairlead.cluster.kubernetes.manifests import workdir
from fairlead.cluster.kubernetes.manifests.workdir import (
    MOST_PARTS,
    PART_BYTES,
    archive_place,
    files,
    pack,
    packed_large,
    part_names,
    render_parts,
    stored_digest,
)
from fairlead.runtime.archives import fetch, unpack
from tests.kubernetes.builders import a_workload

TREE = {
    "train.py": "print('hi')",
    "data/big.bin": "x",
    "data/keep.txt": "x",
    "data/.gitignore": "!keep.txt\n",
    "pkg/module.py": "",
    "pkg/module.pyc": "",
    "pkg/build/out.o": "",
    "build/out.o": "",
    "docs/build/index.html": "",
    "notes.md": "",
    ".env": "SECRET=1",
    ".gitignore": "*.pyc\n/build/\n*.bin\ndata/*.txt\n.env\n# comment\ndocs/**/index.html\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, text in TREE.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "link").symlink_to("/etc/passwd")
    return root


@pytest.mark.skipif(shutil.which("git") is None, reason="git says what is right here, and is not installed")
def test_the_files_that_go_are_those_that_git_would_take(tree: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tree), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True, env=env, timeout=60)
    argv = ["git", "ls-files", "--others", "--exclude-standard"]
    listed = subprocess.run(argv, cwd=tree, check=True, capture_output=True, text=True, env=env, timeout=60)
    taken = {path.relative_to(tree).as_posix() for path in files(tree)}
    assert taken == set(listed.stdout.split()) - {"link"}
    assert "data/keep.txt" in taken
    assert ".env" not in taken


def test_the_same_files_have_the_same_name_whenever_they_are_packed(tree: Path) -> None:
    before = pack(tree)
    os.utime(tree / "train.py", (1, 1))
    assert pack(tree) == before
    (tree / "train.py").write_text("print('ho')")
    assert pack(tree) != before


def test_a_directory_of_several_parts_arrives_as_it_was(tree: Path, tmp_path: Path) -> None:
    (tree / "random").write_bytes(os.urandom(PART_BYTES + 1))
    (tree / "run.sh").write_text("#!/bin/sh\n")
    (tree / "run.sh").chmod(0o700)
    archive = pack(tree)
    assert archive is not None
    assert len(archive.parts) == 2
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for place, part in enumerate(archive.parts):
        (mounted / f"{place:03}").write_bytes(part)
    unpack(str(mounted), str(tmp_path / "arrived"))
    assert contents(tmp_path / "arrived") == contents(tree)
    assert os.access(tmp_path / "arrived" / "run.sh", os.X_OK)


def test_what_is_too_large_for_the_api_goes_in_one_piece_under_its_own_name(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "random").write_bytes(os.urandom(3 * 1024**2))
    monkeypatch.setattr(workdir, "MOST_BYTES", 2 * 1024**2)
    assert pack(tree) is None
    with packed_large(tree) as large, packed_large(tree) as again:
        assert large.digest == again.digest
        annotation = large.annotation(f"s3://bucket/runs/{large.digest}.tar.gz")
        assert archive_place(annotation) == f"s3://bucket/runs/{large.digest}.tar.gz"
        assert stored_digest(annotation) == large.digest
        assert part_names(annotation) == ()
        fetch(str(shutil.copy(large.path, tmp_path / f"{large.digest}.tar.gz")), str(tmp_path / "arrived"), "")
    assert set(contents(tmp_path / "arrived")) == set(contents(tree))


def test_files_that_are_too_large_even_before_they_are_packed_are_not_read(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workdir, "MOST_FILE_BYTES", 10)
    monkeypatch.setattr(workdir, "_write", None)
    assert pack(tree) is None


def test_each_part_fits_into_a_configmap_of_the_api_server() -> None:
    archive = workdir.Archive(content=os.urandom(PART_BYTES * MOST_PARTS), num_files=1)
    parts = render_parts(archive, "research", a_workload())
    assert len(parts) == MOST_PARTS
    assert [part["metadata"]["name"] for part in parts] == list(part_names(archive.annotation))
    for part in parts:
        assert sum(len(value) for value in part["binaryData"].values()) * 3 // 4 < 1024**2
        (owner,) = part["metadata"]["ownerReferences"]
        assert owner["controller"] is False


@pytest.mark.parametrize("annotation", ["", "abc", "abc-0", "abc-9", "../x-1", "abc-x", "@/x", "abc@"])
def test_an_annotation_that_is_not_ours_names_nothing(annotation: str) -> None:
    assert part_names(annotation) == ()
    assert archive_place(annotation) is None


def contents(directory: Path) -> dict[Path, bytes]:
    return {path.relative_to(directory): path.read_bytes() for path in files(directory)}
