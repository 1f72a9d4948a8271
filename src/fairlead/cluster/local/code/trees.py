"""An attempt's own directory, where edited files have their submitted content and everything else is the live one.

Sources are copies, in real directories; everything else, later files included, is linked. So a program writes to the
same places as before, except for new files beside sources, which are moved to the working directory when the attempt is
over. Every step can be repeated after a kill.
"""

import filecmp
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from fairlead.cluster.local.code.objects import Objects, digest_of
from fairlead.cluster.local.code.snapshots import File
from fairlead.frozen import dataclass
from fairlead.runtime.podfiles import write_json

CACHE = "__pycache__"  # excluded: compiled files of the live directory would be taken for those of the tree


class Damaged(Exception):
    """A stored content cannot be read any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The outcome of settling a tree: paths moved into the working directory, and paths left in the tree."""

    workdir: Path
    moved: tuple[str, ...]
    left: tuple[str, ...]


def build(tree: Path, workdir: Path, files: Iterable[File], objects: Objects) -> None:
    """Build the tree atomically.

    Args:
        files: Files that get their submitted content.

    Raises:
        Damaged: The content of one of them is no longer stored.
    """
    files = tuple(files)
    part = tree.with_name(f"{tree.name}.part")
    for earlier in (part, tree):  # remains of a build that was killed before anything could start there
        shutil.rmtree(earlier, ignore_errors=True)
    copies = {file.path: file for file in files}
    own = {""} | {str(parent) for path in copies for parent in Path(path).parents if str(parent) != "."}
    links: list[str] = []
    for directory in sorted(own):
        (part / directory).mkdir(mode=0o700, parents=True)
        live = workdir / directory
        for name in sorted(os.listdir(live)) if live.is_dir() else ():
            path = os.path.join(directory, name)
            if path not in own and path not in copies and name != CACHE:
                (part / path).symlink_to(workdir / path)
                links.append(path)
    for path, file in copies.items():
        content = objects.get(file.digest)
        if content is None:
            raise Damaged(path)
        (part / path).write_bytes(content)
        (part / path).chmod(0o755 if file.executable else 0o644)
    digests = {path: file.digest for path, file in copies.items()}
    write_json(_about(tree), {"workdir": str(workdir), "own": sorted(own), "copies": digests, "links": links})
    part.rename(tree)


def settle(tree: Path) -> Settled | None:
    """Move what an attempt wrote into its working directory; return None when there is nothing to settle.

    Files that conflict with others there stay in the tree; copies and links are removed. No process may run in the
    tree.
    """
    try:
        about = json.loads(_about(tree).read_bytes())
    except FileNotFoundError:
        return None
    if about.get("settled"):
        return None
    moving = _Moving(tree, Path(about["workdir"]), about)
    if tree.is_dir():
        moving.directory("")
    if moving.left:
        write_json(_about(tree), {**about, "settled": True})
    else:
        shutil.rmtree(tree, ignore_errors=True)
        _about(tree).unlink(missing_ok=True)
    return Settled(workdir=moving.workdir, moved=tuple(moving.moved), left=tuple(moving.left))


class _Moving:
    def __init__(self, tree: Path, workdir: Path, about: dict[str, object]) -> None:
        self.tree, self.workdir = tree, workdir
        self.moved: list[str] = []
        self.left: list[str] = []
        own, copies, links = about["own"], about["copies"], about["links"]
        assert isinstance(own, list)
        assert isinstance(copies, dict)
        assert isinstance(links, list)
        self._own, self._links = frozenset(own), frozenset(links)
        self._copies: dict[str, str] = copies

    def directory(self, below: str) -> None:
        """Settle everything in a directory of the tree, and remove the directory if it is empty then."""
        for name in sorted(os.listdir(self.tree / below)):
            self._entry(os.path.join(below, name))
        if below and not os.listdir(self.tree / below):
            (self.tree / below).rmdir()

    def _entry(self, path: str) -> None:
        here, live = self.tree / path, self.workdir / path
        if here.is_symlink():
            if path in self._links and os.readlink(here) == str(live):
                here.unlink()
            else:
                self._move(path)
        elif here.is_dir():
            if os.path.basename(path) == CACHE:
                shutil.rmtree(here)
            elif path in self._own or (live.is_dir() and not live.is_symlink()):
                self.directory(path)
            else:
                self._move(path)
        elif path not in self._copies:
            self._move(path)
        elif digest_of(here.read_bytes()) == self._copies[path] or _is_same(here, live):
            here.unlink()
        elif live.is_file() and digest_of(live.read_bytes()) == self._copies[path]:
            self._replace(path)  # the live file is unedited, so the program's own change counts
        else:
            self.left.append(path)

    def _move(self, path: str) -> None:
        here, live = self.tree / path, self.workdir / path
        if _is_same(here, live):
            here.unlink()  # a kill came between the two steps of an earlier move
        elif path in self._links and not here.is_dir() and not live.is_dir():
            self._replace(path)  # the program replaced the link by a file, as it would the linked file
        elif os.path.lexists(live) or not live.parent.is_dir():
            self.left.append(path)
        else:
            self._replace(path)

    def _replace(self, path: str) -> None:
        here, live = self.tree / path, self.workdir / path
        try:
            here.rename(live)
        except OSError:  # the state directory is on another disk
            beside = live.with_name(f".{live.name}.fairlead-part")
            if beside.is_dir() and not beside.is_symlink():
                shutil.rmtree(beside)
            try:
                if here.is_dir() and not here.is_symlink():
                    shutil.copytree(here, beside, symlinks=True)
                else:
                    shutil.copy2(here, beside, follow_symlinks=False)
                beside.rename(live)
            except OSError:  # no room, or no permission to write
                self.left.append(path)
                return
            if here.is_dir() and not here.is_symlink():
                shutil.rmtree(here)
            else:
                here.unlink()
        self.moved.append(path)


def _is_same(here: Path, live: Path) -> bool:
    """Return whether both are regular files with the same content."""
    if here.is_symlink() or live.is_symlink() or not here.is_file() or not live.is_file():
        return False
    return filecmp.cmp(here, live, shallow=False)


def _about(tree: Path) -> Path:
    return tree.with_name(f"{tree.name}.json")
