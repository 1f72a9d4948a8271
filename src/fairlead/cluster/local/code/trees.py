"""The directory in which a run works: its stored files as submitted, and everything else that of the working directory.

A tree mirrors a working directory and some directories above it, so that ``..`` and git's top are where they were.
Directories with stored files are real ones, with copies of those; all else is a link. An entry that a program creates
there is at once linked to from the working directory (``sync``), and moved to it when nothing runs in the tree
(``settle``). At the end the tree becomes a link to the directory that it mirrored (``close``), so that recorded paths
stay valid. Every step can be repeated after a kill.
"""

import errno
import functools
import hashlib
import os
import shutil
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.cluster.local.code.objects import Objects, digest_of
from fairlead.cluster.local.code.snapshots import StoredFile
from fairlead.cluster.project_files import MARKS, NEVER, repository
from fairlead.runtime.podfiles import read_json, write_json

if TYPE_CHECKING:
    import ctypes

CACHE = "__pycache__"  # excluded: compiled files of the working directory would be taken for those of the tree
TREES = ".fairlead-trees"  # a directory for trees on a disk other than that of the state directory
PART = ".fairlead-part"  # end of the names of files that are just being made
SPARE = "spare-"
LEFT = ".left"  # suffix of the records of trees that are kept only for what stayed in them
LEVELS_ABOVE = 1  # outside of a git repository
MOST_SPARES = 4
MOST_BESIDE = 200  # entries of a mirrored directory without stored files; a larger one is a link
MOST_OWN = 5_000
COMPARED_BYTES = 256 * 1024
# Files to which programs append lines: those that two runs began at the same time are joined.
OF_LINES = frozenset((".csv", ".jsonl", ".log", ".ndjson", ".tsv", ".txt"))
RACY_NS = 50_000_000  # a directory may change twice within one tick of the file system's clock
AT_FDCWD, RENAME_EXCHANGE = -100, 2


class Damaged(Exception):
    """A stored content cannot be read any more."""


class Written:
    """The files of one working directory that runs have written, with the digest of what they wrote last if small.

    Args:
        path: A file that this process alone writes.
    """

    MOST = 5_000

    def __init__(self, path: Path) -> None:
        self._path = path
        record = read_json(path) or {}
        self._digests = {name: text for name, text in record.items() if isinstance(text, str)}
        self._is_changed = False

    def __contains__(self, path: str) -> bool:
        """Return whether a run wrote an entry, or a directory that it lies in."""
        return any(place in self._digests for place in (path, *_parents(path)))

    def is_by_run(self, path: str, digest: str) -> bool:
        """Return whether a content is what a run wrote last."""
        return self._digests.get(path) == digest

    def is_last(self, path: str, live: Path) -> bool:
        """Return whether a file holds what a run wrote last."""
        return path in self and (self._digests.get(path) or None) == _digest(str(live))

    def add(self, path: str, digest: str = "") -> None:
        """Record that a run wrote a file."""
        if self._digests.get(path) != digest:
            self._digests.pop(path, None)
            self._digests[path] = digest
            self._is_changed = True

    def save(self) -> None:
        """Write the newest entries; losing them makes the next change look like one of the user."""
        if self._is_changed:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(self._path, dict(list(self._digests.items())[-self.MOST :]), durably=False)
            self._is_changed = False


class Tree:
    """A tree and its record. Paths are relative to ``base`` unless said otherwise.

    Attributes:
        record: Path of the record.
        root: The mirror of ``base``.
        base: The highest directory that is mirrored.
        workdir: The working directory, without links in its path.
        copies: Digests of the stored files in it, by path below ``workdir``.
        left: Files that stay in the tree since the working directory has others of the same name.
    """

    def __init__(self, record: Path, content: Mapping[str, object]) -> None:
        self.record = record
        self.root, self.base, self.workdir, self._without = (
            str(content[key]) for key in ("root", "base", "workdir", "without")
        )
        self.copies = _texts(content["copies"])
        self.left = frozenset(_texts(content["left"]))
        self._below = _joined("", os.path.relpath(self.workdir, self.base))
        # Contents of copies that runs wrote and that were written back, by path below the working directory.
        self._returned = _texts(content["returned"])
        # Entries that were made as links to those of the base, and as directories.
        self._links = set(_texts(content["links"]))
        self._own = set(_texts(content["own"]))
        # Status change time of the last copy: what changed before it is as it was built.
        self._built_ns = int(str(content["built"]))
        self._watched = tuple(path for path in self.copies if not StoredFile(path, "", 0, False).is_source)
        self._recorded: dict[str, object] = {}
        self._looked: dict[str, tuple[int, int]] = {}
        self._signs: dict[str, tuple[int, int]] = {}

    @classmethod
    def read(cls, record: Path) -> "Tree | None":
        """Read a tree's record; return None without one."""
        content = read_json(record)
        return None if content is None else cls(record, content)

    @property
    def cwd(self) -> Path:
        """Return the directory that stands for the working directory."""
        return Path(self.root, self._below)

    @property
    def is_there(self) -> bool:
        """Return whether the tree can be worked in: it is neither closed nor removed."""
        return os.path.isdir(self.cwd) and not os.path.islink(self.root)

    def build(self, files: Iterable[StoredFile], objects: Objects) -> None:
        """Build the tree atomically, and write its record.

        Args:
            files: The files that get their submitted content.

        Raises:
            Damaged: The content of one of them is no longer stored.
        """
        part = f"{self.root}.part"
        for remains in (part, self.root):  # of a build that was killed before anything could start there
            _remove(remains)
        copies = {_joined(self._below, file.path): file for file in files}
        self._own = {"", self._below, *_parents(self._below)}
        self._own |= {parent for path in copies for parent in _parents(path)}
        had = self._reuse(part, copies)
        for directory in sorted(self._own):
            _make_directory(part, directory, had)
        self._mirror(sorted(self._own), part, had)
        for path, file in copies.items():
            if had.pop(path, None) is not None:
                continue
            content = objects.get(file.digest)
            if content is None:
                raise Damaged(file.path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with open(os.open(f"{part}/{path}", flags, 0o777 if file.executable else 0o666), "wb", 0) as copy:
                copy.write(content)
                self._built_ns = os.fstat(copy.fileno()).st_ctime_ns
        for path in had:
            _remove(f"{part}/{path}")
        self._write()
        os.rename(part, self.root)

    def sync(self, written: Written) -> None:
        """Link new entries of either side to the other; processes may run in the tree."""
        changed, replaced = False, list[str]()
        for directory in sorted(self._own):
            changed |= self._sync(directory, written, replaced)
        if replaced:
            # Where a program has put a file in the place of a link, it may have renamed the link first.
            self._rename_all(written)
            for path in replaced:
                changed |= self._publish(path, written, is_replacing=True)
        for path in self._watched:
            changed |= self._publish_copy(path, written)
        if changed:
            self._write()
            written.save()

    def settle(self, written: Written) -> tuple[str, ...]:
        """Move what programs wrote to the working directory; return the paths that newly stay in the tree.

        No process may run in the tree.
        """
        left = {path for path, digest in self.copies.items() if not self._return(path, digest, written)}
        self._rename_all(written)
        for directory in sorted(self._own):
            left |= set(self._settle(directory, written))
        self._remove_live(written)
        new = left - self.left
        self.left = frozenset(left)
        self._looked.clear()
        self._write()
        written.save()
        return tuple(sorted(new))

    def close(self, written: Written, *, is_forgotten: bool = False) -> tuple[str, ...]:
        """Settle a tree that is not needed any more, and put a link to the directory that it mirrored in its place.

        Args:
            is_forgotten: Drop files that stayed in the tree, too.

        Returns:
            The paths that newly stay in the tree, which is kept for them.
        """
        new: tuple[str, ...] = ()
        if os.path.isdir(self.root) and not os.path.islink(self.root):
            new = self.settle(written)
        if self.left and not is_forgotten:
            os.replace(self.record, self.record.with_suffix(LEFT))
            return new
        if not self.left:
            self._spare()
        with suppress(OSError):
            os.rename(self.root, f"{self.root}.gone")
        if not os.path.lexists(self.root):
            os.symlink(self.base, self.root)
        _remove(f"{self.root}.gone")
        self.record.unlink(missing_ok=True)
        return new

    def written_copies(self) -> tuple[str, ...]:
        """Return the copies of stored files that programs have changed or removed, by path below ``workdir``."""
        return tuple(path for path, digest in self.copies.items() if not self._is_as_built(path, digest))

    def meant(self, path: str) -> str:
        """Return the path of the entry that an entry of the tree stands for: the one that a link of it leads to."""
        inside = path.startswith(f"{self.root}/") and self._is_link(path[len(self.root) + 1 :])
        return f"{self.base}/{path[len(self.root) + 1 :]}" if inside else path

    def _write(self) -> None:
        content = self._content()
        if content != self._recorded:
            self.record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(self.record, content, durably=False)
            self._recorded = content

    def _content(self) -> dict[str, object]:
        content: dict[str, object] = {"root": self.root, "base": self.base, "workdir": self.workdir}
        content |= {"without": self._without, "built": self._built_ns, "copies": self.copies}
        for key, paths in (("links", self._links), ("own", self._own), ("left", self.left)):
            content[key] = dict.fromkeys(sorted(paths), "")
        return {**content, "returned": dict(self._returned)}

    def _spare(self) -> None:
        """Keep a settled tree for the next run of the directory, since a new file costs far more than one kept."""
        for spare in self._spares():
            if not os.path.lexists(spare) and _is_directory(self.root):
                write_json(Path(f"{spare}.spare"), self._content(), durably=False)
                os.rename(self.root, spare)
                return

    def _spares(self) -> Iterator[str]:
        name = hashlib.sha256(os.fsencode(self.workdir)).hexdigest()[:16]
        for number in range(MOST_SPARES):
            yield f"{os.path.dirname(self.root)}/{SPARE}{name}-{number}"

    def _reuse(self, part: str, copies: Mapping[str, StoredFile]) -> dict[str, str]:
        """Begin with a tree of an earlier run of the directory; return the kinds of its entries by path."""
        os.makedirs(os.path.dirname(part), mode=0o700, exist_ok=True)
        for spare in self._spares():
            with suppress(FileNotFoundError):
                os.rename(spare, part)
                earlier = Tree.read(Path(f"{spare}.spare"))
                if earlier is not None and (earlier.base, earlier.workdir) == (self.base, self.workdir):
                    earlier.root, self._built_ns = part, earlier._built_ns
                    return earlier._kinds(copies)
                _remove(part)
        os.mkdir(part, 0o700)
        return {"": "directory"}

    def _kinds(self, wanted: Mapping[str, StoredFile]) -> dict[str, str]:
        """Return the kinds of the entries that another tree can keep, and remove all else."""
        reusable = set()
        for path, digest in self.copies.items():
            file, inner = wanted.get(_joined(self._below, path)), _joined(self._below, path)
            if file is not None and file.digest == digest and path not in self._returned:
                with suppress(OSError):
                    is_executable = bool(os.lstat(f"{self.root}/{inner}").st_mode & 0o100)
                    if is_executable == file.executable and self._is_as_built(path, digest):
                        reusable.add(inner)
        # Compiled files are valid for the sources that they were made from.
        before = {_joined(self._below, path) for path in self.copies}
        stale = {os.path.dirname(path) for path in {*before, *wanted} - reusable}
        kinds, queue = {"": "directory"}, [""]
        while queue:
            directory = queue.pop()
            with os.scandir(_joined(self.root, directory)) as entries:
                listed = list(entries)
            for entry in listed:
                path = _joined(directory, entry.name)
                if entry.is_symlink() and os.readlink(entry.path) == f"{self.base}/{path}":
                    kinds[path] = "link"
                elif entry.is_dir(follow_symlinks=False) and (entry.name != CACHE or directory in stale):
                    if entry.name == CACHE:
                        shutil.rmtree(entry.path)
                    else:
                        kinds[path] = "directory"
                        queue.append(path)
                elif path in reusable:
                    kinds[path] = "copy"
                elif entry.name != CACHE:
                    os.unlink(entry.path)
        return kinds

    def _mirror(self, directories: Iterable[str], root: str, had: dict[str, str]) -> None:
        """Fill directories of the tree with links; small directories below them become directories with links.

        A program can remove a directory, which it could not with a link to one.
        """
        queue = deque(directories)
        while queue:
            directory = queue.popleft()
            live = _joined(self.base, directory)
            try:
                with os.scandir(live) as entries:
                    children = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
            except OSError:
                continue
            if not _is_within(directory, self._below):  # above the working directory
                children = [(name, is_directory) for name, is_directory in children if name[0] != "." or name == ".git"]
            for name, is_directory in children:
                path = _joined(directory, name)
                if path in self._own or self._is_copy(path) or self._is_left_out(path):
                    continue
                if is_directory and self._is_small(path):
                    _make_directory(root, path, had)
                    self._own.add(path)
                    queue.append(path)
                else:
                    kind = had.pop(path, None)
                    if kind not in (None, "link"):
                        _remove(f"{root}/{path}")
                    if kind != "link":
                        os.symlink(f"{self.base}/{path}", f"{root}/{path}")
                    self._links.add(path)

    def _is_small(self, path: str) -> bool:
        """Return whether a directory of the working directory is mirrored, as it has few entries."""
        if not _is_within(path, self._below) or os.path.basename(path) in NEVER:
            return False
        names = _names(f"{self.base}/{path}")
        return len(self._own) < MOST_OWN and len(names) <= MOST_BESIDE and MARKS.isdisjoint(names)

    def _is_left_out(self, path: str) -> bool:
        name = os.path.basename(path)
        return name in (CACHE, TREES) or name.endswith(PART) or f"{self.base}/{path}" == self._without

    def _sync(self, directory: str, written: Written, replaced: list[str]) -> bool:
        here, live = _joined(self.root, directory), _joined(self.base, directory)
        try:
            signs = os.stat(here).st_mtime_ns, os.stat(live).st_mtime_ns
            if self._looked.get(directory) == signs and directory in self._own:
                return False
            ours, theirs = set(os.listdir(here)), set(os.listdir(live))
        except OSError:  # removed by the program or the user
            return False
        if time.time_ns() - max(signs) > RACY_NS:
            self._looked[directory] = signs
        changed = False
        for name in sorted(ours):
            path = _joined(directory, name)
            if self._is_known(path) or self._is_published(path):
                continue
            if (origin := self._renamed_from(path)) is not None:
                changed |= self._rename(origin, path, written)
            elif path in self._links:
                replaced.append(path)
            elif name not in theirs:
                changed |= self._publish(path, written)
            elif _is_directory(f"{here}/{name}") and os.path.isdir(f"{live}/{name}"):
                changed |= self._sync(path, written, replaced)
        for name in sorted(theirs - ours):
            path = _joined(directory, name)
            if self._is_published(path):
                if not os.path.lexists(f"{here}/{name}"):
                    with suppress(OSError):
                        os.unlink(f"{live}/{name}")
            elif not (path in self._own or path in self._links or self._is_copy(path) or self._is_left_out(path)):
                changed |= (_is_within(directory, self._below) or name[0] != ".") and self._take_in(path)
        return changed

    def _take_in(self, path: str) -> bool:
        """Link to a later entry of the working directory, or mirror it."""
        here, live = f"{self.root}/{path}", f"{self.base}/{path}"
        try:
            if _is_directory(live) and self._is_small(path):
                os.mkdir(here, 0o700)
                self._own.add(path)
                self._mirror((path,), self.root, {})
            else:
                os.symlink(live, here)
                self._links.add(path)
        except OSError:  # the program has just created it
            return False
        return True

    def _publish(self, path: str, written: Written, *, is_replacing: bool = False) -> bool:
        """Link to a new entry of the tree from the working directory.

        Args:
            is_replacing: The entry took the place of a link or a copy, as it would have of the file of that name. A
                program may also have removed the link since its directory was listed, or put it back: the file stays.
        """
        here, live = f"{self.root}/{path}", f"{self.base}/{path}"
        if not os.path.lexists(here) or self._is_link(path) or _is_directory(live):
            return False
        try:
            if is_replacing:
                _link_over(here, live)
            else:
                os.symlink(here, live)
        except OSError:  # no permission, or one of that name was just created; the entry stays in the tree
            return False
        self._links.discard(path)
        self._note(path, written)
        return True

    def _publish_copy(self, path: str, written: Written) -> bool:
        """Show what a program wrote into the copy of a file that is no source.

        A source is written back when nothing runs, so that it is never taken for an edit of the user.
        """
        inner = _joined(self._below, path)
        try:
            status = os.lstat(f"{self.root}/{inner}")
        except OSError:
            return False
        sign = status.st_ctime_ns, status.st_size
        if status.st_ctime_ns < self._built_ns or self._signs.get(path) == sign:
            return False
        self._signs[path] = sign
        if self._is_published(inner) or self._is_as_built(path, self.copies[path]):
            return False
        return self._is_unedited(path, self.copies[path], written) and self._publish(inner, written, is_replacing=True)

    def _renamed_from(self, path: str) -> str | None:
        """Return the link that a program renamed to a new entry; None if it is none."""
        target = _target(f"{self.root}/{path}")
        origin = None if target is None or not target.startswith(f"{self.base}/") else target[len(self.base) + 1 :]
        return origin if origin in self._links and not self._is_link(origin) else None

    def _rename_all(self, written: Written) -> None:
        for directory in sorted(self._own):
            for name in _names(_joined(self.root, directory)):
                path = _joined(directory, name)
                if not self._is_known(path) and (origin := self._renamed_from(path)) is not None:
                    self._rename(origin, path, written)

    def _rename(self, origin: str, path: str, written: Written) -> bool:
        """Rename the linked file as the program renamed its link."""
        here, live = f"{self.root}/{path}", f"{self.base}/{path}"
        try:
            if _is_directory(live):
                return False
            os.rename(f"{self.base}/{origin}", live)
            _link_over(live, here)
        except OSError:
            return False
        self._links.add(path)
        if not os.path.lexists(f"{self.root}/{origin}"):
            self._links.discard(origin)
        self._note(path, written)
        return True

    def _is_as_built(self, path: str, digest: str) -> bool:
        inner = f"{self.root}/{_joined(self._below, path)}"
        try:
            if os.lstat(inner).st_ctime_ns < self._built_ns:
                return True
        except OSError:
            return False
        return _digest(inner, most=None) == digest

    def _return(self, path: str, digest: str, written: Written) -> bool:
        """Write what programs wrote into a copy back to the working directory; return False if it stays in the tree."""
        if self._is_as_built(path, digest) and path not in self._returned:
            return True
        inner = _joined(self._below, path)
        here, live = f"{self.root}/{inner}", f"{self.base}/{inner}"
        now = _digest(here, most=None)
        if now is None:
            # Of what is gone only a file that runs wrote is removed; a source of the user is not.
            if not os.path.lexists(here) and path in self._returned and _digest(live) == self._returned[path]:
                os.unlink(live)
            return not os.path.lexists(here)
        if now == self._returned.get(path, digest) and not self._is_published(inner):
            return True
        if not self._is_published(inner) and not self._is_unedited(path, digest, written):
            return _digest(live) == now
        try:
            _copy_over(here, live)
        except OSError:  # no room, or no permission to write
            return False
        self._returned[path] = now
        written.add(path, now)
        return True

    def _is_unedited(self, path: str, digest: str, written: Written) -> bool:
        """Return whether a file of the working directory is as submitted, as a run wrote it, or gone."""
        live = f"{self.base}/{_joined(self._below, path)}"
        now = _digest(live, most=None)
        if now is None:
            return not os.path.lexists(live)
        return now in (digest, self._returned.get(path)) or written.is_by_run(path, now)

    def _settle(self, directory: str, written: Written) -> Iterator[str]:
        """Move the new entries of a directory; yield those that cannot be moved."""
        here, live = _joined(self.root, directory), _joined(self.base, directory)
        for name in _names(here):
            path = _joined(directory, name)
            if path in self._own or self._is_copy(path):
                continue
            if self._is_link(path):
                if not os.path.lexists(f"{self.base}/{path}"):
                    os.unlink(f"{here}/{name}")
                    self._links.discard(path)
            elif not self._is_known(path):
                yield from self._move(path, written)
        for name in _names(live):
            path = _joined(directory, name)
            if not self._is_copy(path) and self._is_published(path) and not os.path.lexists(f"{here}/{name}"):
                os.unlink(f"{live}/{name}")

    def _move(self, path: str, written: Written) -> Iterator[str]:
        here, live = f"{self.root}/{path}", f"{self.base}/{path}"
        # The program may also have replaced a link by a file, as it would have replaced the linked file.
        is_replaced = path in self._links and not os.path.isdir(here) and not os.path.isdir(live)
        if not os.path.lexists(live) or self._is_published(path) or is_replaced:
            try:
                os.makedirs(os.path.dirname(live), exist_ok=True)
                _move_over(here, live)
            except OSError:  # no room, or no permission to write
                yield path
                return
            self._note(path, written, _digest(live))
        elif _is_directory(here) and os.path.isdir(live):
            yield from self._settle(path, written)
            self._own.add(path)
            return
        elif not _is_same(here, live) and not self._join(path, written):
            yield path
            return
        _remove(here)
        self._links.discard(path)
        self._take_in(path)

    def _join(self, path: str, written: Written) -> bool:
        """Append the lines of a file to those that another run began at the same time."""
        here, live = f"{self.root}/{path}", f"{self.base}/{path}"
        live = os.path.realpath(live)  # that other run may still be under way
        is_by_runs = os.path.relpath(f"{self.base}/{path}", self.workdir) in written
        if os.path.splitext(path)[1].lower() not in OF_LINES or not is_by_runs:
            return False
        if _digest(here) is None or _digest(live) is None:
            return False
        new, lines = Path(here).read_bytes().splitlines(True), Path(live).read_bytes().splitlines(True)
        while new and lines and new[0] == lines[0]:  # a head that both wrote
            new, lines = new[1:], lines[1:]
        with open(live, "ab") as file:
            file.write(b"".join(new))
        self._note(path, written, _digest(live))
        return True

    def _remove_live(self, written: Written) -> None:
        """Remove from the working directory what runs had written and programs have removed."""
        for path in sorted(self._links, reverse=True):
            if not os.path.lexists(f"{self.root}/{path}"):
                self._links.discard(path)
                relative = os.path.relpath(f"{self.base}/{path}", self.workdir)
                if relative in written and not _is_directory(f"{self.base}/{path}"):
                    with suppress(OSError):
                        os.unlink(f"{self.base}/{path}")
        for path in sorted(self._own, reverse=True):
            if not os.path.lexists(f"{self.root}/{path}"):
                self._own.discard(path)
                if os.path.relpath(f"{self.base}/{path}", self.workdir) in written:
                    with suppress(OSError):  # it holds files of the user
                        os.rmdir(f"{self.base}/{path}")

    def _note(self, path: str, written: Written, digest: str | None = None) -> None:
        """Record that a run wrote an entry of the tree."""
        written.add(os.path.relpath(f"{self.base}/{path}", self.workdir), digest or "")

    def _is_known(self, path: str) -> bool:
        """Return whether an entry of the tree is one that it was made with."""
        return path in self._own or self._is_copy(path) or self._is_left_out(path) or self._is_link(path)

    def _is_copy(self, path: str) -> bool:
        below = f"{self._below}/" if self._below else ""
        return path.startswith(below) and path[len(below) :] in self.copies

    def _is_link(self, path: str) -> bool:
        """Return whether an entry of the tree is a link to that of the working directory."""
        return _target(f"{self.root}/{path}") == f"{self.base}/{path}"

    def _is_published(self, path: str) -> bool:
        """Return whether an entry of the working directory is a link to that of the tree."""
        return _target(f"{self.base}/{path}") == f"{self.root}/{path}"


def new_tree(record: Path, root: Path, workdir: Path, files: Iterable[StoredFile], *, without: Path) -> Tree:
    """Return a tree of a working directory that is still to be built.

    Args:
        without: A directory that is not linked to.
    """
    real = os.path.realpath(workdir)
    content: dict[str, object] = {"root": str(root), "base": _base_of(real), "workdir": real, "without": str(without)}
    content |= {"built": 0, "copies": {file.path: file.digest for file in files}}
    return Tree(record, content | {key: {} for key in ("links", "own", "left", "returned")})


def place_for_trees(state: Path, workdir: Path) -> Path:
    """Return the directory for trees of a working directory, on its disk so that large outputs need not be copied.

    It is in the state directory if that is on the same disk; else in the highest directory of this user on the disk.
    """
    real = os.path.realpath(workdir)
    disk, place = os.stat(real).st_dev, None
    if os.stat(state).st_dev == disk:
        return state / "trees"
    for directory in (real, *(str(parent) for parent in Path(real).parents)):
        status = os.stat(directory)
        if status.st_dev != disk:
            break
        if status.st_uid == os.geteuid() and os.access(directory, os.W_OK | os.X_OK):
            place = Path(directory, TREES)
    if place is None:
        return state / "trees"
    place.mkdir(mode=0o700, exist_ok=True)
    place.joinpath("CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n")
    place.joinpath(".gitignore").write_text("*\n")
    return place


def _base_of(workdir: str) -> str:
    """Return the highest directory above a working directory that its tree mirrors."""
    top, home = repository(workdir), os.path.realpath(os.path.expanduser("~"))
    base, level = workdir, 0
    while True:
        parent, level = os.path.dirname(base), level + 1
        is_in_repository = top is not None and f"{parent}/".startswith(f"{top}/")
        if parent in (base, "/") or home.startswith(f"{parent}/") or not (is_in_repository or level <= LEVELS_ABOVE):
            return base
        if len(_names(parent)) not in range(1, MOST_BESIDE + 1):
            return base
        base = parent


def _texts(content: object) -> dict[str, str]:
    assert isinstance(content, dict)
    return {str(key): str(value) for key, value in content.items()}


def _joined(directory: str, name: str) -> str:
    if not directory or name == ".":
        return "" if name == "." else name
    return f"{directory}/{name}" if name else directory


def _is_within(path: str, directory: str) -> bool:
    return not directory or path == directory or path.startswith(f"{directory}/")


def _make_directory(root: str, path: str, had: dict[str, str]) -> None:
    """Make a directory below a root unless it is there; what else is there goes."""
    kind = had.pop(path, None)
    if kind not in (None, "directory"):
        _remove(f"{root}/{path}")
    if kind != "directory":
        os.mkdir(f"{root}/{path}", 0o700)


def _parents(path: str) -> Iterator[str]:
    while (path := os.path.dirname(path)) != "":
        yield path


def _names(directory: str) -> list[str]:
    """Return the names in a directory; none if it cannot be read."""
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _target(path: str) -> str | None:
    """Return where a link leads; None if the path is no link."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def _digest(path: str, *, most: int | None = COMPARED_BYTES) -> str | None:
    """Return the digest of a regular file; None for what is none, or is larger."""
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or (most is not None and status.st_size > most):
            return None
        return digest_of(Path(path).read_bytes())
    except OSError:
        return None


def _is_same(one: str, other: str) -> bool:
    """Return whether both are regular files with the same content."""
    digest = _digest(one, most=None)
    return digest is not None and digest == _digest(other, most=None)


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _remove(path: str) -> None:
    if _is_directory(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _link_over(target: str, path: str) -> None:
    """Put a link in the place of a file, or of nothing, atomically."""
    beside = _beside(path)
    _remove(beside)
    os.symlink(target, beside)
    os.rename(beside, path)


def _copy_over(source: str, path: str) -> None:
    """Replace a file by a copy of another, atomically."""
    beside = _beside(path)
    _remove(beside)
    shutil.copy2(source, beside, follow_symlinks=False)
    if os.path.isfile(path) and not os.path.islink(path):
        shutil.copymode(path, beside)
    os.rename(beside, path)


def _move_over(source: str, path: str) -> None:
    """Move an entry to the place of a link, of a file, or of nothing."""
    if _is_directory(source) and os.path.islink(path) and _exchange(source, path):
        os.unlink(source)
        return
    try:
        if _is_directory(source) and os.path.islink(path):
            os.unlink(path)
        os.rename(source, path)
    except OSError as error:
        if error.errno != errno.EXDEV or not (_is_directory(source) or stat.S_ISREG(os.lstat(source).st_mode)):
            raise
        beside = _beside(path)
        _remove(beside)
        if _is_directory(source):
            shutil.copytree(source, beside, symlinks=True)
        else:
            shutil.copy2(source, beside, follow_symlinks=False)
        os.rename(beside, path)


def _beside(path: str) -> str:
    directory, name = os.path.split(path)
    return f"{directory}/.{name[:200]}{PART}"


@functools.cache
def _renameat2() -> "ctypes._NamedFuncPointer | None":
    import ctypes  # imported here because a submission does not need it

    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _exchange(one: str, other: str) -> bool:
    """Exchange two entries, so that neither path is without one for a moment; return False where that is impossible."""
    call = _renameat2()
    if call is None:
        return False
    return bool(call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)
