"""The small files by which a pod's shim and the supervisor tell each other what is true.

A file is replaced whole, so a reader sees the old or the new one, never half of one. Locks are flocks, which the kernel
drops when their holder dies. Nothing here knows what the files mean.
"""

from __future__ import annotations

import fcntl
import json
import os


def write_json(path: str, value: object) -> None:
    """Replaces the file at path, durably, readable by its owner only.

    Raises:
        OSError: nothing was replaced.
    """
    data = json.dumps(value).encode()
    temporary = f"{path}.{os.getpid()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            while data:
                data = data[os.write(fd, data) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def read_json(path: str) -> dict[str, object] | None:
    """The object in the file, or None if there is no such file or it holds no JSON object."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def take_lock(path: str) -> int | None:
    """Locks the file for as long as the returned descriptor is open; None if someone else holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def is_locked(path: str) -> bool:
    """Whether some process holds the lock; False if there is no such file."""
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
