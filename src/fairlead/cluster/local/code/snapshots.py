"""Snapshots of a working directory: its files, stored by content, and the differences from the directory now.

Small files that belong to a run are stored. An index records the status of each when it was read, as git's does, so
that an unchanged file is read once and not with every run.
"""

import json
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.cluster.local.code.objects import Objects, digest_of
from fairlead.cluster.project_files import Ignored, TooMany, walk
from fairlead.frozen import dataclass

MOST_BYTES = 200 * 1024**2
MOST_FILES = 5_000
MOST_LOOKED_AT = 20_000
MOST_IN_ONE = 1_000  # a directory with more entries is data
MOST_FILE_BYTES = 10 * 1024**2
RACY_NS = 2_000_000_000  # a file may change twice within one tick of the file system's clock without a different status

# fmt: off
SOURCES = frozenset(
    (
        ".bash", ".c", ".cc", ".cfg", ".cmake", ".conf", ".cpp", ".cu", ".cuh", ".cxx", ".gin", ".go", ".h", ".hpp",
        ".ini", ".ipynb", ".j2", ".java", ".jinja", ".jl", ".js", ".kt", ".lua", ".m", ".mjs", ".php", ".pl", ".proto",
        ".py", ".pyi", ".pyx", ".r", ".rb", ".rs", ".scala", ".sh", ".sql", ".swift", ".toml", ".ts", ".yaml", ".yml",
        ".zsh",
    )
)
# fmt: on


@dataclass(frozen=True, slots=True)
class File:
    """A stored file, by its path below the working directory."""

    path: str
    digest: str
    size: int
    executable: bool

    @property
    def is_source(self) -> bool:
        """Return whether people rather than programs write the file: by its extension, or because it is executable."""
        return self.executable or os.path.splitext(self.path)[1].lower() in SOURCES


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The stored files, and the paths left out because of their size or number."""

    files: tuple[File, ...]
    left_out: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def text(self) -> bytes:
        """Serialize the snapshot as an object."""
        rows = [[file.path, file.digest, file.size, int(file.executable)] for file in self.files]
        return json.dumps({"files": rows, "left_out": self.left_out}, separators=(",", ":")).encode()


def read_snapshot(content: bytes) -> Snapshot:
    """Deserialize a snapshot."""
    told = json.loads(content)
    files = tuple(File(path, digest, size, bool(executable)) for path, digest, size, executable in told["files"])
    return Snapshot(files=files, left_out=tuple(told["left_out"]))


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
            told = json.loads(path.read_bytes())
            self._known = told["files"]
            self.ignored = Ignored(told["ignored"])
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
            temporary.write_text(json.dumps({"files": known, "ignored": self.ignored.told()}, separators=(",", ":")))
            temporary.replace(self._path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def take(directory: Path, objects: Objects | None, index: Index, *, without: Path) -> Snapshot:
    """Store the files of a directory.

    Args:
        objects: The store of contents; None to write nothing.
        without: A directory below it whose files are not the user's.

    Raises:
        Unfit: The directory is not a project, or too large.
    """
    if (problem := no_project(directory)) is not None:
        raise Unfit(problem)
    if os.path.abspath(directory) == os.path.abspath(without):
        # Opening and closing the database's files would also release the supervisor's locks on them.
        raise Unfit(f"{directory} is the state directory of Fairlead")
    found: list[tuple[str, os.stat_result]] = []
    left_out: list[str] = []
    num_bytes = 0
    try:
        for each in walk(
            directory, most=MOST_LOOKED_AT, most_in_one=MOST_IN_ONE, without=str(without), ignored=index.ignored
        ):
            if isinstance(each, TooMany):
                left_out.append(f"{each}/")
            elif each.status.st_size > MOST_FILE_BYTES:
                left_out.append(each.path)
            else:
                found.append(each)
                num_bytes += each.status.st_size
    except TooMany:
        raise Unfit(f"{directory} holds more than {MOST_LOOKED_AT} files; put its data into .gitignore") from None
    if len(found) > MOST_FILES or num_bytes > MOST_BYTES:
        raise Unfit(
            f"{directory} holds {len(found)} files with {num_bytes // 1024**2} MiB, more than {MOST_FILES} or "
            f"{MOST_BYTES // 1024**2} MiB; put its data into .gitignore"
        )
    files = []
    for path, status in found:
        try:
            digest = index.digest(path, status, partial(_read, f"{directory}/{path}"))
            if objects is not None and not objects.has(digest, status.st_size):
                digest = objects.put(_read(f"{directory}/{path}"))
        except (FileNotFoundError, PermissionError):
            left_out.append(path)
            continue
        files.append(File(path, digest, status.st_size, bool(status.st_mode & 0o100)))
    if objects is not None:
        index.keep([path for path, _ in found])
    return Snapshot(files=tuple(files), left_out=tuple(sorted(left_out)))


def no_project(directory: Path) -> str | None:
    """Return the reason why the files of a directory are never stored; None when they may be."""
    home = Path(os.path.expanduser("~"))
    if directory == home or directory in home.parents:
        return f"{directory} is or holds a home directory; give the run a directory of its own"
    return None


def edited(
    snapshot: Snapshot,
    directory: Path,
    index: Index,
    *,
    named: str = "",
    was_running: Callable[[float], bool] = lambda _: False,
) -> tuple[str, ...]:
    """Return the stored files that people have changed or removed since.

    A file that a program may have written itself, such as a table of results, counts only if it lies beside sources and
    changed while nothing ran there.

    Args:
        named: The command; a file that it names is a source, whatever its extension.
        was_running: Returns whether a run was active in the directory at a Unix time.
    """
    with_sources = {os.path.dirname(file.path) for file in snapshot.files if file.is_source}
    changed = []
    for file in snapshot.files:
        is_source = file.is_source or is_named(file.path, named)
        if not is_source and os.path.dirname(file.path) not in with_sources:
            continue
        path = f"{directory}/{file.path}"
        try:
            status = os.lstat(path)
            now = index.digest(file.path, status, partial(_read, path))
            if now == file.digest and bool(status.st_mode & 0o100) == file.executable:
                continue
            if is_source or not was_running(status.st_mtime):
                changed.append(file.path)
        except OSError:
            if is_source:
                changed.append(file.path)
    return tuple(changed)


def differing(snapshot: Snapshot, directory: Path, index: Index) -> tuple[str, ...]:
    """Return all stored files that have changed or are gone, whatever changed them."""
    changed = []
    for file in snapshot.files:
        path = f"{directory}/{file.path}"
        try:
            status = os.lstat(path)
            if index.digest(file.path, status, partial(_read, path)) != file.digest:
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
