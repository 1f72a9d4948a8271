"""Room in the state directory: whether what has to be kept there can be, and a reserve for when it cannot.

The reserve is a small file. A command that ends or deletes a run may give it up, so that a full disk never keeps
anybody from making room; the supervisor makes it anew when there is room again.
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
"""With so much free a small write shows all that could be in the way: a quota, a mount that is read-only, a mode."""


def trouble(home: Home) -> ClusterError | None:
    """Return why nothing can be kept in the state directory now; None when it can."""
    try:
        free = os.statvfs(home.path)
        _try_to_write(home.path, 4096 if free.f_bavail * free.f_frsize >= PLENTY_BYTES else NEEDED_BYTES)
    except OSError as error:
        return explained(home.path, error)
    return None


def hold_reserve(home: Home) -> None:
    """Make the reserve unless it is there, or room is scarce."""
    try:
        if home.reserve.exists():
            return
        free = os.statvfs(home.path)
        if free.f_bavail * free.f_frsize >= RESERVE_FROM_BYTES:
            home.reserve.write_bytes(b"\0" * RESERVE_BYTES)
    except OSError:
        # Half a reserve is none, and takes room from what needs it now.
        release_reserve(home)


def release_reserve(home: Home) -> bool:
    """Give the reserve up; whether there was one."""
    try:
        home.reserve.unlink()
    except OSError:
        return False
    return True


def _try_to_write(directory: Path, num_bytes: int) -> None:
    """Write to a file that nobody sees and that goes when this process does."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        fd = os.open(directory, flags | os.O_TMPFILE, 0o600)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            raise
        # Another system, or a file system that knows no files without a name.
        path = directory / f".room-{os.getpid()}"
        fd = os.open(path, flags | os.O_CREAT, 0o600)
        path.unlink()
    try:
        left = b"\0" * num_bytes
        while left:
            left = left[os.write(fd, left) :]
    finally:
        os.close(fd)
