"""Makes directories that only this user can enter, in places where every user may write. Standard library only."""

from __future__ import annotations

import contextlib
import os
import stat


def make_private(path: str | os.PathLike[str]) -> None:
    """Create a directory of this user alone, or accept one that is there.

    Its mode is never changed: in a place where others write, one that is open may hold their files already, and a link
    may lead to any directory.

    Raises:
        PermissionError: It belongs to another user, is open to others, or is no directory.
        OSError: It cannot be created.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(1, "it is not a directory of this user alone", os.fspath(path))
