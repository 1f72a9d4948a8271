"""Snapshots of a working directory: its files, stored by content, and the differences from the directory now.

Small files that belong to a run are stored. An index records the status of each when it was read, as git's does, so
that an unchanged file is read once and not with every run.
"""

import json
import os
import stat
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.cluster.local.code.objects import Objects, digest_of
from fairlead.cluster.project_files import Ignored, ProjectFile, TooMany, Withheld, is_source, no_project, walk
from fairlead.frozen import dataclass

MOST_BYTES = 200 * 1024**2
MOST_FILES = 5_000
MOST_LOOKED_AT = 20_000
MOST_IN_ONE = 1_000  # a directory with more entries is data
MOST_FILE_BYTES = 10 * 1024**2
RACY_NS = 2_000_000_000  # a file may change twice within one tick of the file system's clock without a different status


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A stored file, by its path below the working directory."""

    path: str
    digest: str
    size: int
    executable: bool

    @property
    def is_source(self) -> bool:
        """Return whether people rather than programs write the file: by its extension, or because it is executable."""
        return is_source(self.path, executable=self.executable)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSnapshot:
    """The stored files, and the paths left out because of their size or number."""

    files: tuple[StoredFile, ...]
    left_out: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def text(self) -> bytes:
        """Serialize the snapshot as an object."""
        rows = [[file.path, file.digest, file.size, int(file.executable)] for file in self.files]
        return json.dumps({"files": rows, "left_out": self.left_out}, separators=(",", ":")).encode()


def read_snapshot(content: bytes) -> CodeSnapshot:
    """Deserialize a snapshot."""
    document = json.loads(content)
    files = tuple(
        StoredFile(path, digest, size, bool(executable)) for path, digest, size, executable in document["files"]
    )
    return CodeSnapshot(files=files, left_out=tuple(document["left_out"]))


class Unfit(Exception):
    """A directory of which nothing is stored; the message gives the reason."""


class Index:
    """Statuses and digests of one directory's files as of their last read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, list[Any]] = {}
        self._is_changed = False
        self.ignored = Ignored()
        try:
            document = json.loads(path.read_bytes())
            self._known = document["files"]
            self.ignored = Ignored(document["ignored"])
        except (OSError, ValueError, KeyError, TypeError):
            self._is_changed = True  # no index yet, or one that a power cut truncated

    def digest(self, path: str, status: os.stat_result, read: Callable[[], bytes]) -> str:
        """Return the digest of a file with this status, reading it only when it may have changed."""
        sign = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        known = self._known.get(path)
        if known is not None and known[:4] == sign and known[5]:
            return str(known[4])
        now = time.time_ns()
        digest = digest_of(read())
        settled = now - max(status.st_mtime_ns, status.st_ctime_ns) > RACY_NS
        entry = [*sign, digest, settled]
        if entry != known:
            self._known[path] = entry
            self._is_changed = True
        return digest

    def keep(self, paths: Iterable[str]) -> None:
        """Write the entries of these paths; losing them costs reading the files again."""
        if not self._is_changed and not self.ignored.is_changed:
            return
        known = {path: self._known[path] for path in paths if path in self._known}
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(json.dumps({"files": known, "ignored": self.ignored.answers()}, separators=(",", ":")))
            temporary.replace(self._path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def take(directory: Path, objects: Objects | None, index: Index, *, without: Path) -> CodeSnapshot:
    """Store the files of a directory.

    Args:
        objects: The store of contents; None to write nothing.
        without: A directory below it whose files are not the user's.

    Raises:
        Unfit: The directory is not a project, or too large.
    """
    entries, left_out = scan(directory, index, without=without)
    files = []
    for path, status in entries:
        try:
            digest = index.digest(path, status, partial(_read, f"{directory}/{path}"))
            if objects is not None and not objects.has(digest, status.st_size):
                digest = objects.put(_read(f"{directory}/{path}"))
        except (FileNotFoundError, PermissionError):
            left_out.append(path)
            continue
        files.append(StoredFile(path, digest, status.st_size, bool(status.st_mode & 0o100)))
    if objects is not None:
        index.keep([path for path, _ in entries])
    return CodeSnapshot(files=tuple(files), left_out=tuple(sorted(left_out)))


def scan(directory: Path, index: Index, *, without: Path) -> tuple[list[ProjectFile], list[str]]:
    """Return the files of a directory that would be stored, and the paths that are left out.

    Raises:
        Unfit: The directory is not a project, or too large.
    """
    if (problem := no_project(directory)) is not None:
        raise Unfit(problem)
    if os.path.abspath(directory) == os.path.abspath(without):
        # Opening and closing the database's files would also release the supervisor's locks on them.
        raise Unfit(f"{directory} is the state directory of Fairlead")
    files: list[ProjectFile] = []
    left_out: list[str] = []
    num_bytes = 0
    try:
        for entry in walk(
            directory, most=MOST_LOOKED_AT, most_in_one=MOST_IN_ONE, without=str(without), ignored=index.ignored
        ):
            if isinstance(entry, TooMany):
                left_out.append(f"{entry}/")
            elif isinstance(entry, Withheld) or entry.status.st_size > MOST_FILE_BYTES:
                left_out.append(entry.path)
            else:
                files.append(entry)
                num_bytes += entry.status.st_size
    except TooMany:
        raise Unfit(f"{directory} holds more than {MOST_LOOKED_AT} files; put its data into .gitignore") from None
    if len(files) > MOST_FILES or num_bytes > MOST_BYTES:
        raise Unfit(
            f"{directory} holds {len(files)} files with {num_bytes // 1024**2} MiB, more than {MOST_FILES} or "
            f"{MOST_BYTES // 1024**2} MiB; put its data into .gitignore"
        )
    return files, left_out


def differing(files: Iterable[StoredFile], directory: Path, index: Index) -> tuple[str, ...]:
    """Return the stored files that have changed or are gone, whatever changed them."""
    changed = []
    for file in files:
        path = f"{directory}/{file.path}"
        try:
            status = os.lstat(path)
            is_regular = stat.S_ISREG(status.st_mode)
            if not is_regular or index.digest(file.path, status, partial(_read, path)) != file.digest:
                changed.append(file.path)
        except OSError:
            changed.append(file.path)
    return tuple(changed)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def is_named(path: str, command: str) -> bool:
    """Return whether a command names a file."""
    at = command.find(path)
    return at >= 0 and not (at + len(path) < len(command) and command[at + len(path)].isalnum())
