"""Paths of environments: a lock by the hash of its request, and a directory by the hash of its lock and Python.

``locks/REQUEST.json`` names the directory, and is written once that is complete; ``built/HASH`` is one with uv's
layout of a virtual environment. Whatever has no such file is not complete.
"""

import hashlib
from pathlib import Path

from fairlead.cluster.local.home import Home
from fairlead.frozen import dataclass
from fairlead.runtime.paths import UnsafeName, below
from fairlead.runtime.podfiles import read_json
from fairlead.untrusted_json import text


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


def directory_of(home: Home, lock: bytes, python: list[str]) -> Path:
    """Return the directory of a lock and a Python, existing or not."""
    digest = hashlib.sha256(b"\0".join([lock, *(part.encode() for part in python)])).hexdigest()[:32]
    return home.packages / "built" / digest


def complete(home: Home, request: str) -> Path | None:
    """Return the directory of a request; None before it is complete."""
    try:
        record = read_json(place_of(home, request).record)
        name = None if record is None else text(record.get("directory"))
        directory = None if name is None else below(home.packages / "built", name)
    except UnsafeName:
        return None
    return directory if directory is not None and (directory / "complete").exists() else None


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
