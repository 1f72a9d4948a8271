"""Reads and writes the small files through which a pod's shim and the supervisor communicate.

A file is replaced as a whole, so a reader sees the old content or the new, never a mixture. Locks are flocks, which the
kernel releases when their holder dies. This module does not interpret the files.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from contextlib import contextmanager

from fairlead.untrusted_json import parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Path = str | os.PathLike[str]

MOST_JSON_BYTES = 16 << 20
# Errors of opening a path at which there is no file, or none that its own user may read.
NO_FILE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG}
)


def write_json(path: Path, value: object, *, durably: bool = True) -> None:
    """Replace the file at a path, readable by its owner only.

    Args:
        durably: Whether the file survives a power failure. Waiting for the disk takes milliseconds, or tens of them if
            it is busy.

    Raises:
        OSError: The file was not replaced.
    """
    data = json.dumps(value).encode()
    temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            while data:
                data = data[os.write(fd, data) :]
            if durably:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def write_private(path: Path, content: str) -> None:
    """Write a text to a file that its owner alone can read.

    Raises:
        OSError: The file was not written.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(content)


def make_durable(path: Path) -> None:
    """Make a file that was written without waiting for the disk survive a power failure.

    Raises:
        OSError: The file does not exist, or may not be durable.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in the file, or None if there is no such file or it holds no JSON object.

    A program may have put anything in the place of a file, so anything else than a file counts as none.
    """
    try:
        return parse_object(read_regular(path, 0, MOST_JSON_BYTES + 1), max_bytes=MOST_JSON_BYTES)
    except ValueError:
        return None


def read_regular(path: Path, start: int, most_bytes: int) -> bytes:
    """Return so many bytes of a file from an offset on; none if there is no such file or it is not a regular one."""
    try:
        # Opening a FIFO would otherwise wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in NO_FILE:
            return b""
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        parts = []
        while most_bytes > 0:
            data = os.pread(fd, min(most_bytes, 1 << 20), start)
            if not data:
                break
            parts.append(data)
            start, most_bytes = start + len(data), most_bytes - len(data)
        return b"".join(parts)
    finally:
        os.close(fd)


def take_lock(path: Path) -> int | None:
    """Lock the file for as long as the returned descriptor is open; return None if another process holds the lock."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def is_locked(path: Path) -> bool:
    """Return whether some process holds the lock; False if there is no such file.

    This tries a shared lock, so that two simultaneous callers do not see each other.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Hold the lock inside the block; the yielded value is False if another process holds it."""
    fd = take_lock(path)
    try:
        yield fd is not None
    finally:
        if fd is not None:
            os.close(fd)
