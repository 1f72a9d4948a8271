"""Checks that the state directory can be written, and holds a reserve of disk space for when it cannot.

The reserve is a small file. A command that ends or deletes a run may release it, so that a full disk never prevents
making room; the supervisor creates it again when there is room.
"""

import errno
import os
from pathlib import Path

from fairlead.cluster.local.disk_errors import NEEDED_BYTES, explained
from fairlead.cluster.local.home import Home
from fairlead.errors import ClusterError

RESERVE_BYTES = 256 * 1024
RESERVE_FROM_BYTES = 4 * RESERVE_BYTES
PLENTY_BYTES = 64 * NEEDED_BYTES
"""With this much free space a small write detects every other obstacle: a quota, a read-only mount, a mode."""


def write_problem(home: Home) -> ClusterError | None:
    """Return the reason why the state directory cannot be written now; None when it can."""
    try:
        free = os.statvfs(home.path)
        _try_to_write(home.path, 4096 if free.f_bavail * free.f_frsize >= PLENTY_BYTES else NEEDED_BYTES)
    except OSError as error:
        return explained(home.path, error)
    return None


def hold_reserve(home: Home) -> None:
    """Create the reserve unless it exists or space is scarce."""
    try:
        if home.reserve.exists():
            return
        free = os.statvfs(home.path)
        if free.f_bavail * free.f_frsize >= RESERVE_FROM_BYTES:
            home.reserve.write_bytes(b"\0" * RESERVE_BYTES)
    except OSError:
        # A partial reserve is useless, and takes space that others need now.
        release_reserve(home)


def release_reserve(home: Home) -> bool:
    """Delete the reserve; return whether there was one."""
    try:
        home.reserve.unlink()
    except OSError:
        return False
    return True


def _try_to_write(directory: Path, num_bytes: int) -> None:
    """Write to an unlinked file, which disappears with this process."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        fd = os.open(directory, flags | os.O_TMPFILE, 0o600)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            raise
        # Another system, or a file system without unnamed files.
        path = directory / f".room-{os.getpid()}"
        fd = os.open(path, flags | os.O_CREAT, 0o600)
        path.unlink()
    try:
        left = b"\0" * num_bytes
        while left:
            left = left[os.write(fd, left) :]
    finally:
        os.close(fd)
