"""Reads and writes the small files through which a pod's shim and the supervisor communicate.

A file is replaced as a whole, so a reader sees the old content or the new, never a mixture. Locks are flocks, which the
kernel releases when their holder dies. This module does not interpret the files.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Path = str | os.PathLike[str]


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
    """Return the object in the file, or None if the file does not exist or holds no JSON object."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


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
