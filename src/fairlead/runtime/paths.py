"""Joins names from elsewhere to directories of this machine: of archives, manifests, objects, peers and other users.

Every such join goes through ``below``, which a test of the source checks.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

MOST_NAME_BYTES = 255
MOST_PATH_BYTES = 4096
_PLAIN = re.compile(r"(?:[A-Za-z0-9_][-A-Za-z0-9_.]{0,199}/){0,15}[A-Za-z0-9_][-A-Za-z0-9_.]{0,199}")
"""Names without anything to look at closely, as nearly all of a million objects have."""


class UnsafeName(ValueError):
    """A name that is not one of a file below a directory; the message is a clause that shows it."""


def below(root: str | os.PathLike[str], *names: str) -> Path:
    """Return a path strictly below a directory.

    Raises:
        UnsafeName: A name is absolute, leads out of the directory or names no file.
    """
    return Path(root, *(part for name in names for part in parts_of(name)))


def parts_of(name: str) -> tuple[str, ...]:
    """Return the parts of a relative name with slashes.

    Raises:
        UnsafeName: It is absolute, leads out of its directory or names no file.
    """
    if not isinstance(name, str):
        raise UnsafeName(f"{_shown(name)} is not a name")
    if _PLAIN.fullmatch(name):
        return tuple(name.split("/"))
    if name.startswith("/"):
        raise UnsafeName(f"{_shown(name)} is an absolute path")
    parts = PurePosixPath(name).parts
    if not parts:
        raise UnsafeName(f"{_shown(name)} names no file")
    if ".." in parts:
        raise UnsafeName(f"{_shown(name)} leads out of its directory")
    try:
        sizes = [len(os.fsencode(part)) for part in parts]
    except UnicodeEncodeError:
        raise UnsafeName(f"{_shown(name)} has characters that no file name has") from None
    if "\0" in name:
        raise UnsafeName(f"{_shown(name)} has characters that no file name has")
    if max(sizes) > MOST_NAME_BYTES or sum(sizes) + len(sizes) > MOST_PATH_BYTES:
        raise UnsafeName(f"{_shown(name)} is longer than a file name may be")
    return parts


def _shown(name: object) -> str:
    text = ascii(name)
    return text if len(text) <= 100 else f"{text[:97]}..."
