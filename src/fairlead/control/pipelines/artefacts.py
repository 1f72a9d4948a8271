"""Stores outputs of steps by the hash of their content: files and directories that never change once stored.

Equal content is stored once. Content is moved into the store atomically, so a killed process leaves no partial output.
Programs read it where it is stored, and one may change it there, as `sed -i`, `gunzip` and `mv` do: inodes, sizes and
times are compared with those of the day it was stored, and what differs and has another hash is moved aside, so that it
is made again and nothing is read under a hash that it does not have. See decision 288.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead.errors import Conflict
from fairlead.runtime.extraction import digest_of_directory, digest_of_file, digest_of_link
from fairlead.runtime.paths import below
from fairlead.runtime.self_contained import make_self_contained

# Maximum size of a file that conditions may read.
VALUE_BYTES = 64 * 1024
# Larger files of a working directory are identified by size and modification time instead of content.
LARGE_BYTES = 16 * 1024 * 1024
ALONE_S = 10.0
LOOK_S = 0.05
# Directories beside the content: of fingerprints, and of content that goes when outputs are pruned.
FINGERPRINTS, REMOVED = "fingerprints", "removed"


class Artefacts:
    """A store of outputs below one directory."""

    follows_links = True
    """True if links of an output lead to what its program meant."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Prevent removal of content between finding or storing it and recording a reference to it."""
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no process is in ``in_use``, and block it within the block.

        Raises:
            Conflict: The store stays in use for ``ALONE_S`` seconds.
        """
        with self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
            yield

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            until = time.monotonic() + ALONE_S
            while True:
                try:
                    fcntl.flock(lock, how)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise Conflict("Outputs of steps are being kept just now; try again in a moment.") from None
                    time.sleep(LOOK_S)
            yield
        finally:
            os.close(lock)

    def path(self, digest: str) -> Path:
        """Return the path of the content of a hash, whether it exists or not."""
        return self._at(digest)

    def _at(self, digest: str) -> Path:
        return below(self.root, digest[:2], digest)

    def has(self, digest: str) -> bool:
        """Return whether the content of a hash exists as it was stored; changed content is moved aside."""
        return self._has_here(digest)

    def is_lost(self, digest: str) -> bool:
        """Return whether content that a program reads was changed or removed in the meantime."""
        return not self._has_here(digest)

    def _has_here(self, digest: str) -> bool:
        path = self._at(digest)
        if not os.path.lexists(path) or path.is_symlink():  # earlier versions stored links
            return False
        try:
            current, names = fingerprint(path)
            if current == self._known_fingerprint(digest):
                return True
            added = self._added(digest, names)
            without = frozenset(f"{path}{name}" for name in added)
            if content_digest(path, without=without) == digest:
                for name in added:
                    _remove(Path(f"{path}{name}"))
                protect(path)
                self._note_fingerprint(digest)
                return True
        except OSError:
            pass  # it has just been changed or removed, or is nothing that can be read
        self._put_aside(digest)
        return os.path.lexists(path)

    def _added(self, digest: str, names: Iterable[str]) -> list[str]:
        """Return the files and directories that programs put into a stored directory, such as caches of their own."""
        try:
            known = set(json.loads(self._fingerprint(digest).read_text().partition("\n")[2]))
        except (FileNotFoundError, ValueError):
            return []
        return [name for name in names if name not in known and name.rpartition("/")[0] in known]

    def _put_aside(self, digest: str) -> None:
        """Move changed content away until outputs are pruned, unless another process has just replaced it."""
        aside = below(self.root, REMOVED, f"{digest}.{os.getpid()}.{time.monotonic_ns()}")
        aside.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            os.rename(self._at(digest), aside)
            is_replaced = content_digest(aside) == digest
        except OSError:
            is_replaced = False
        if is_replaced and not os.path.lexists(self._at(digest)):
            os.rename(aside, self._at(digest))
            self._note_fingerprint(digest)

    def _known_fingerprint(self, digest: str) -> str | None:
        try:
            with self._fingerprint(digest).open(encoding="utf-8") as mark:
                return mark.readline().rstrip("\n")
        except FileNotFoundError:
            return None

    def _fingerprint(self, digest: str) -> Path:
        return below(self.root, FINGERPRINTS, digest[:2], digest)

    def _note_fingerprint(self, digest: str) -> None:
        mark = self._fingerprint(digest)
        mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = mark.with_name(f".{mark.name}.{os.getpid()}.{time.monotonic_ns()}")
        current, names = fingerprint(self._at(digest))
        temporary.write_text(f"{current}\n{json.dumps(names)}", encoding="utf-8")
        os.rename(temporary, mark)

    def forget(self, digests: Iterable[str]) -> None:
        """Remove the fingerprints of content that is no longer stored."""
        for digest in digests:
            self._fingerprint(digest).unlink(missing_ok=True)

    def keep(self, source: Path) -> str:
        """Move a file or directory into the store, with what its links lead to, and return its hash.

        Raises:
            UnfitOutput: It holds a link that leads nowhere, a FIFO, a socket or a device.
            OSError: It cannot be read or moved.
        """
        make_self_contained(source, follows=self.follows_links)
        digest = content_digest(source)
        target = self._at(digest)
        if self._has_here(digest):
            _remove(source)
            return digest
        target.parent.mkdir(exist_ok=True)
        protect(source)
        try:
            os.rename(source, target)
        except OSError:
            # Another process has just stored the same content.
            if not os.path.lexists(target):
                raise
            _remove(source)
        self._note_fingerprint(digest)
        return digest


class SharedArtefacts(Artefacts):
    """A store of outputs below a directory of a volume, shared by pods on several machines.

    Content is never removed, so no lock is needed. Content is synced to disk before it becomes visible. A link in an
    output led to a file of the pod that wrote it, so those that lead out of it are refused.
    """

    follows_links = False

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Do nothing: nothing is removed here."""
        yield

    def keep(self, source: Path) -> str:
        """Move a file or directory into the store and return its hash.

        Raises:
            OSError: It cannot be read or moved.
        """
        for path in (source, *source.rglob("*")):
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        return super().keep(source)


def read_value(path: Path, most_bytes: int = VALUE_BYTES) -> Any:
    """Read an output as conditions see it: JSON, or text without surrounding whitespace; None if it is too large."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
            return None
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def content_digest(path: Path, *, at: Callable[[str], str] = str, without: frozenset[str] = frozenset()) -> str:
    """Return the hash of a file's or directory's content: names, bytes, executable bits, targets of links.

    Args:
        at: Returns where the content of a path is.
        without: Paths that are left out.

    Raises:
        OSError: It cannot be read, or is a FIFO, a socket or a device.
    """
    return _digest(os.fspath(path), at, without).hexdigest()


def fingerprint(path: Path) -> tuple[str, list[str]]:
    """Return a hash of the inodes, sizes and times of a file or of all files of a directory, and their names.

    Raises:
        OSError: It cannot be read.
    """
    hashed, names = hashlib.sha256(), []
    for name, status in _statuses(os.fspath(path), ""):
        of_file = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        hashed.update(f"{name!r} {of_file if not stat.S_ISDIR(status.st_mode) else ''}\n".encode())
        names.append(name)
    return hashed.hexdigest(), names


def _statuses(path: str, name: str) -> Iterator[tuple[str, os.stat_result]]:
    status = os.lstat(path)
    yield name, status
    if stat.S_ISDIR(status.st_mode):
        with os.scandir(path) as entries:
            inner_names = sorted(entry.name for entry in entries)
        for inner in inner_names:
            yield from _statuses(f"{path}/{inner}", f"{name}/{inner}")


def file_identity(path: str, status: os.stat_result, *, by_content: bool = False) -> str:
    """Return the hash of a file's content; of a large one its size and modification time.

    Args:
        by_content: Hash large files too, where modification times are meaningless, as after unpacking.

    Raises:
        OSError: It cannot be read.
    """
    if status.st_size > LARGE_BYTES and not by_content:
        return f"{status.st_size}-{status.st_mtime_ns}"
    return _digest(path).hexdigest()


def _digest(path: str, at: Callable[[str], str] = str, without: frozenset[str] = frozenset()) -> "hashlib._Hash":
    path = at(path)
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return digest_of_link(os.readlink(path))
    if stat.S_ISDIR(status.st_mode):
        with os.scandir(path) as entries:
            return digest_of_directory(
                {entry.name: _digest(entry.path, at, without) for entry in entries if entry.path not in without}
            )
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "neither a file nor a directory", path)
    with open(path, "rb") as file:
        return digest_of_file(file, is_executable=bool(status.st_mode & stat.S_IXUSR))


def protect(path: Path) -> None:
    """Remove write permission from every file, so that no later step changes it by mistake."""
    if path.is_symlink():
        return
    if path.is_dir():
        for directory, _, files in os.walk(path):
            for file in files:
                protect(Path(directory, file))
        return
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
