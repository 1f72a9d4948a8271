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
from collections.abc import Callable, Iterator
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
        """Return whether the content of a hash exists."""
        path = self._at(digest)
        return os.path.lexists(path) and not path.is_symlink()  # earlier versions stored links

    def keep(self, source: Path) -> str:
        """Move a file or directory into the store, with what its links lead to, and return its hash.

        Raises:
            UnfitOutput: It holds a link that leads nowhere, a FIFO, a socket or a device.
            OSError: It cannot be read or moved.
        """
        make_self_contained(source, follows=self.follows_links)
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


def content_digest(path: Path, *, at: Callable[[str], str] = str) -> str:
    """Return the hash of a file's or directory's content: names, bytes, executable bits, targets of links.

    Args:
        at: Returns where the content of a path is.

    Raises:
        OSError: It cannot be read.
    """
    return _digest(os.fspath(path), at).hexdigest()


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


def _digest(path: str, at: Callable[[str], str] = str) -> "hashlib._Hash":
    path = at(path)
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return digest_of_link(os.readlink(path))
    if not stat.S_ISDIR(status.st_mode):
        with open(path, "rb") as file:
            return digest_of_file(file, is_executable=bool(status.st_mode & stat.S_IXUSR))
    with os.scandir(path) as entries:
        return digest_of_directory({entry.name: _digest(entry.path, at) for entry in entries})


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
