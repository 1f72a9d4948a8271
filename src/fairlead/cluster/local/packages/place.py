"""Paths of environments: a lock by the hash of its request, and a directory by the hash of its lock and Python.

``locks/REQUEST.json`` names the directory, and is written once that is complete; ``built/HASH`` is one with uv's
layout of a virtual environment. Whatever has no such file is not complete. All runs with the same lock share it, and a
program may install something into it: the names of its modules and commands are compared with those of the day it was
made, and the next run gets ``built/HASH-2``, while those that run keep theirs.
"""

import hashlib
import os
from pathlib import Path

from fairlead.cluster.local.home import Home
from fairlead.frozen import dataclass
from fairlead.runtime.paths import UnsafeName, below
from fairlead.runtime.podfiles import read_json, write_json
from fairlead.untrusted_json import text

_MARK = "complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPlace:
    """The files of one request."""

    record: Path
    lock: Path
    state: Path


def place_of(home: Home, request: str) -> EnvironmentPlace:
    """Return the files of a request, by its hash."""
    locks = home.packages / "locks"
    return EnvironmentPlace(
        record=below(locks, f"{request}.json"),
        lock=below(locks, f"{request}.toml"),
        state=below(home.packages / "states", f"{request}.json"),
    )


def directory_of(home: Home, lock: bytes, python: list[str], number: int = 1) -> Path:
    """Return the directory of a lock and a Python, existing or not; another one for each number from 1."""
    digest = hashlib.sha256(b"\0".join([lock, *(part.encode() for part in python)])).hexdigest()[:32]
    return home.packages / "built" / (digest if number == 1 else f"{digest}-{number}")


def lock_digest(directory: Path) -> str:
    """Return the hash of the lock and the Python of an environment."""
    return directory.name.partition("-")[0]


def is_complete(directory: Path) -> bool:
    """Return whether everything is installed in an environment."""
    return (directory / _MARK).exists()


def mark_complete(directory: Path) -> None:
    """Record that everything is installed in an environment, and what that is."""
    write_json(directory / _MARK, {"names": sorted(_names(directory))})


def unmark(directory: Path) -> None:
    """Record that an environment is about to be removed."""
    (directory / _MARK).unlink(missing_ok=True)


def changes_of(directory: Path) -> list[str]:
    """Return the modules, distributions and commands that a program added to an environment or removed from it."""
    names = (read_json(directory / _MARK) or {}).get("names")
    if not isinstance(names, list):  # made by an earlier version
        return []
    return sorted(set(map(str, names)) ^ _names(directory))


def _names(directory: Path) -> set[str]:
    folders = (directory / "bin", *directory.glob("lib/python3*/site-packages"))
    return {name for folder in folders for name in os.listdir(folder) if name != "__pycache__"}


def complete(home: Home, request: str) -> Path | None:
    """Return the directory of a request; None before it is complete."""
    try:
        record = read_json(place_of(home, request).record)
        name = None if record is None else text(record.get("directory"))
        directory = None if name is None else below(home.packages / "built", name)
    except UnsafeName:
        return None
    return directory if directory is not None and is_complete(directory) else None


def unchanged(home: Home, request: str) -> Path | None:
    """Return the directory of a request as it was made; None before it is complete, and after a program changed it."""
    directory = complete(home, request)
    return None if directory is None or changes_of(directory) else directory


def newest_lock(home: Home, uid: str) -> str | None:
    """Return the lock that a run got last; None without one."""
    requests = sorted(home.packages_of(uid).glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    digest = text((read_json(requests[-1]) or {}).get("digest")) if requests else None
    if digest is None:
        return None
    try:
        return below(home.packages_of(uid), f"{digest}.toml").read_text()
    except (OSError, UnicodeDecodeError, UnsafeName):  # not complete yet
        return None
