"""Removes environments that no run needs, what killed processes left of some, and their locks."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from fairlead.cluster.local.home import Home
from fairlead.cluster.local.packages import place as places
from fairlead.frozen import dataclass
from fairlead.runtime.podfiles import read_json, take_lock
from fairlead.untrusted_json import text


@dataclass(frozen=True, slots=True, kw_only=True)
class UnneededEnvironments:
    """Environments that no run needs.

    Attributes:
        directories: Their directories.
        locks: The hashes of requests that led to one of these, or to none.
    """

    directories: tuple[Path, ...]
    locks: tuple[str, ...]


def unneeded(home: Home, uids: Iterable[str]) -> UnneededEnvironments:
    """Return the environments that none of these workloads needs."""
    requests = {digest for uid in uids for digest in _requests(home.packages_of(uid))}
    needed = {places.lock_digest(place) for digest in requests if (place := places.complete(home, digest)) is not None}
    built, locks = home.packages / "built", home.packages / "locks"
    directories = [path for path in sorted(built.glob("*")) if path.is_dir() and places.lock_digest(path) not in needed]
    others = {path.stem for path in locks.glob("*.toml")} - requests
    return UnneededEnvironments(directories=tuple(directories), locks=tuple(sorted(others)))


def remove(home: Home, which: UnneededEnvironments) -> int:
    """Remove environments, except those that are being made, and return how many."""
    gone = 0
    for directory in which.directories:
        lock_path = directory.with_name(f"{places.lock_digest(directory)}.lock")
        lock = take_lock(lock_path)
        if lock is None:
            continue
        try:
            # Without its mark first: a run that starts meanwhile has it made again.
            places.unmark(directory)
            shutil.rmtree(directory, ignore_errors=True)
            gone += 1
        finally:
            os.close(lock)
    for digest in which.locks:
        place = places.place_of(home, digest)
        for path in (place.record, place.lock, place.state):
            path.unlink(missing_ok=True)
    return gone


def _requests(directory: Path) -> Iterable[str]:
    for path in directory.glob("*.json"):
        digest = text((read_json(path) or {}).get("digest"))
        if digest is not None:
            yield digest
