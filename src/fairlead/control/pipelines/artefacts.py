"""Stores outputs of steps by the hash of their content: files and directories that never change once stored.

Equal content is stored once. Content is moved into the store atomically, so a killed process leaves no partial output.
"""

import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead.errors import Conflict

# Maximum size of a file that conditions may read.
VALUE_BYTES = 64 * 1024
# Larger files of a working directory are identified by size and modification time instead of content.
LARGE_BYTES = 16 * 1024 * 1024
_CHUNK = 1 << 20
ALONE_S = 10.0
LOOK_S = 0.05


class Artefacts:
    """A store of outputs below one directory."""

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
        return self.root / digest[:2] / digest

    def has(self, digest: str) -> bool:
        """Return whether the content of a hash exists."""
        return os.path.lexists(self._at(digest))

    def keep(self, source: Path) -> str:
        """Move a file or directory into the store and return its hash.

        Raises:
            OSError: It cannot be read or moved.
        """
        digest = content_digest(source)
        target = self._at(digest)
        if os.path.lexists(target):
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
        return digest


class SharedArtefacts(Artefacts):
    """A store of outputs below a directory of a volume, shared by pods on several machines.

    Content is never removed, so no lock is needed. Content is synced to disk before it becomes visible.
    """

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


def read_value(path: Path) -> Any:
    """Read an output as conditions see it: JSON, or text without surrounding whitespace; None if it is too large."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > VALUE_BYTES:
            return None
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def content_digest(path: Path) -> str:
    """Return the hash of a file's or directory's content: names, bytes, executable bits, targets of links.

    Raises:
        OSError: It cannot be read.
    """
    return _digest(os.fspath(path)).hexdigest()


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


def _digest(path: str) -> "hashlib._Hash":
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return hashlib.sha256(b"link\0" + os.fsencode(os.readlink(path)))
    if not stat.S_ISDIR(status.st_mode):
        found = hashlib.sha256(b"program\0" if status.st_mode & stat.S_IXUSR else b"file\0")
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                found.update(chunk)
        return found
    found = hashlib.sha256(b"directory\0")
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            found.update(os.fsencode(entry.name) + b"\0" + _digest(entry.path).digest())
    return found


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
