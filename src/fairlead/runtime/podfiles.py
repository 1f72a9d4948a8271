"""The small files by which a pod's shim and the supervisor tell each other what is true.

A file is replaced whole, so a reader sees the old or the new one, never half of one. Locks are flocks, which the kernel
drops when their holder dies. Nothing here knows what the files mean.
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
    """Replaces the file at path, readable by its owner only.

    Args:
        durably: It outlives a power cut, too. Waiting for the disk takes milliseconds, tens of them where it is busy.

    Raises:
        OSError: nothing was replaced.
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
    """Makes a file that was written without waiting for the disk outlive a power cut.

    Raises:
        OSError: it may not, or is not there.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in the file, or None if there is no such file or it holds no JSON object."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def take_lock(path: Path) -> int | None:
    """Locks the file for as long as the returned descriptor is open; None if someone else holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def is_locked(path: Path) -> bool:
    """Return whether some process holds the lock; False if there is no such file.

    A shared lock is tried, so two who ask do not see each other.
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
    """Holds the lock inside the block; the value says whether it was to be had."""
    fd = take_lock(path)
    try:
        yield fd is not None
    finally:
        if fd is not None:
            os.close(fd)
