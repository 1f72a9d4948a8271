"""Explains system errors of the state directory's disk, with remedies."""

import errno
import os
import stat
from pathlib import Path

from fairlead.errors import ClusterError, NoRoom
from fairlead.text.quantities import describe_memory

RESERVE = "reserve"
"""File name of ``Home.reserve``, which this module cannot import: its existence selects the remedy."""
NEEDED_BYTES = 256 * 1024
"""Space for a few transactions and the small files of a pod."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def explained(path: Path, error: OSError) -> ClusterError:
    """Explain a failed write to the state directory: the place, the numbers and the remedy."""
    other = "or set FAIRLEAD_HOME to a directory on another disk"
    if error.errno in NO_ROOM:
        remedy = f"Remove files from that disk, {other}."
        if (path / RESERVE).exists():
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
    if free >= NEEDED_BYTES:  # blocks and inodes remain: a limit on the process or the file
        return f"Nothing can be written to the state directory {path}: {error.strerror}."
    return (
        f"The disk of the state directory {path} is full: {describe_memory(free)} of "
        f"{describe_memory(seen.f_blocks * seen.f_frsize)} are free, {describe_memory(NEEDED_BYTES - free)} too little."
    )


def _say_owner(path: Path) -> str:
    """Describe the owner of a path; empty if it cannot be read."""
    try:
        seen = path.stat()
    except OSError:
        return ""
    return (
        f", or let user {os.getuid()} write there (it belongs to {seen.st_uid}, mode {stat.S_IMODE(seen.st_mode):04o})"
    )
