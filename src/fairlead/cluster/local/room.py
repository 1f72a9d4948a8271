"""Room in the state directory: whether what has to be kept there can be, in words, and a reserve for when it cannot.

The reserve is a small file. A command that ends or deletes a run may give it up, so that a full disk never keeps
anybody from making room; the supervisor makes it anew when there is room again.
"""

import errno
import os
import stat
from pathlib import Path

from fairlead.cluster.local.home import Home
from fairlead.errors import ClusterError, NoRoom
from fairlead.text.quantities import describe_memory

NEEDED_BYTES = 256 * 1024
"""What a few transactions and the small files of a pod take."""
RESERVE_BYTES = 256 * 1024
RESERVE_FROM_BYTES = 4 * RESERVE_BYTES
PLENTY_BYTES = 64 * NEEDED_BYTES
"""With so much free a small write shows all that could be in the way: a quota, a mount that is read-only, a mode."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def trouble(home: Home) -> ClusterError | None:
    """Why nothing can be kept in the state directory now; None when it can."""
    try:
        free = os.statvfs(home.path)
        _try_to_write(home.path, 4096 if free.f_bavail * free.f_frsize >= PLENTY_BYTES else NEEDED_BYTES)
    except OSError as error:
        return explained(home, error)
    return None


def explained(home: Home, error: OSError) -> ClusterError:
    """What the system says of a write to the state directory, with the place, the numbers and the remedy."""
    path, other = home.path, "or set FAIRLEAD_HOME to a directory on another disk"
    if error.errno in NO_ROOM:
        remedy = f"Remove files from that disk, {other}."
        if home.reserve.exists():
            remedy = (
                "Runs that are there go on where they can; nothing new is recorded until there is room. Remove files "
                "from that disk, or runs: `fairlead delete NAME` works now too, and takes their logs and own "
                "checkpoints along."
            )
        return NoRoom(f"{_say_full(path, error)} {remedy}")
    if error.errno == errno.EROFS:
        return ClusterError(
            f"The state directory {path} is on a file system that is mounted read-only. Mount it for writing, {other}."
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return ClusterError(
            f"The state directory {path} cannot be used: {error.strerror}. Set FAIRLEAD_HOME to a directory that you "
            f"may write to{_say_owner(path)}."
        )
    return ClusterError(
        f"The state directory {path} cannot be used: {error.strerror or error}. "
        "Set FAIRLEAD_HOME to a directory that you may write to."
    )


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


def _say_full(path: Path, error: OSError) -> str:
    if error.errno == errno.EDQUOT:
        return f"Your disk quota for the state directory {path} is used up."
    try:
        seen = os.statvfs(path)
    except OSError:
        return f"The disk of the state directory {path} is full."
    free = seen.f_bavail * seen.f_frsize
    if seen.f_files and not seen.f_favail:
        return f"The disk of the state directory {path} has no inodes left: all of {seen.f_files} files are used."
    if free >= NEEDED_BYTES:  # neither blocks nor inodes: a limit on the process or the file
        return f"Nothing can be written to the state directory {path}: {error.strerror}."
    return (
        f"The disk of the state directory {path} is full: {describe_memory(free)} of "
        f"{describe_memory(seen.f_blocks * seen.f_frsize)} are free, {describe_memory(NEEDED_BYTES - free)} too little."
    )


def _say_owner(path: Path) -> str:
    """Whose it is, where that can be seen."""
    try:
        seen = path.stat()
    except OSError:
        return ""
    return (
        f", or let user {os.getuid()} write there (it belongs to {seen.st_uid}, mode {stat.S_IMODE(seen.st_mode):04o})"
    )
