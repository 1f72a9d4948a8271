"""Acts of a program or the user, while a tree is compared with the working directory, harm no file of the user."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.cluster.local.code.objects import Objects
from fairlead.cluster.local.code.trees import Tree, Written, new_tree


class Mirrored:
    """A working directory with a file of the user, and a tree of it."""

    def __init__(self, path: Path) -> None:
        self.project, self.written = path / "project", Written(path / "written.json")
        self.project.mkdir()
        self.data = self.project / "table.bin"
        self.data.write_bytes(b"of the user")
        self.tree: Tree = new_tree(path / "tree.json", path / "trees" / "one", self.project, [], without=path / "home")
        self.tree.build([], Objects(path / "objects"))
        self.root = Path(self.tree.cwd)
        assert (self.root / "table.bin").is_symlink()


@pytest.fixture
def mirrored(tmp_path: Path) -> Mirrored:
    return Mirrored(tmp_path)


def interrupt(monkeypatch: pytest.MonkeyPatch, directory: Path, act: Callable[[], object]) -> None:
    """Have something happen once, right after the names of a directory were listed."""
    listdir = os.listdir
    todo = [act]

    def listed(path: str) -> list[str]:
        names = listdir(path)
        if os.path.realpath(path) == os.path.realpath(directory) and todo:
            todo.pop()()
        return names

    monkeypatch.setattr(os, "listdir", listed)


def rewrite(link: Path) -> None:
    target = link.readlink()
    link.unlink()
    link.symlink_to(target)


@pytest.mark.parametrize("act", [Path.unlink, rewrite], ids=["removes", "puts back"])
def test_a_link_that_a_program_removes_meanwhile_takes_no_file_of_the_user_along(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], object]
) -> None:
    (mirrored.root / "new.txt").write_text("so that the directory is looked at")
    interrupt(monkeypatch, mirrored.root, lambda: act(mirrored.root / "table.bin"))
    mirrored.tree.sync(mirrored.written)
    mirrored.tree.sync(mirrored.written)
    assert not mirrored.data.is_symlink()
    assert mirrored.data.read_bytes() == b"of the user"
    mirrored.tree.close(mirrored.written)
    assert mirrored.data.read_bytes() == b"of the user"


def test_a_file_that_the_user_makes_meanwhile_is_not_replaced_by_that_of_a_program(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mirrored.root / "notes.bin").write_bytes(b"of the program")
    interrupt(monkeypatch, mirrored.project, lambda: (mirrored.project / "notes.bin").write_bytes(b"of the user"))
    mirrored.tree.sync(mirrored.written)
    assert (mirrored.project / "notes.bin").read_bytes() == b"of the user"
    assert mirrored.tree.close(mirrored.written) == ("project/notes.bin",)
    assert (mirrored.project / "notes.bin").read_bytes() == b"of the user"
    assert (mirrored.root / "notes.bin").read_bytes() == b"of the program"


def test_a_file_in_the_place_of_a_link_replaces_that_of_the_user_as_it_would_without_a_tree(mirrored: Mirrored) -> None:
    (mirrored.root / "table.bin").unlink()
    (mirrored.root / "table.bin").write_bytes(b"of the program")
    mirrored.tree.sync(mirrored.written)
    mirrored.tree.close(mirrored.written)
    assert mirrored.data.read_bytes() == b"of the program"
