"""Access keys of this machine's endpoints: a file in the state directory that holds only their hashes."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.cluster.local.json_records import read_records, write_records
from fairlead.errors import Conflict, NotFound
from fairlead.state.access_keys import AccessKey

Keys = tuple[AccessKey, ...]


def read_keys(path: Path) -> Keys:
    """Return all keys, oldest first.

    Raises:
        ClusterError: The file cannot be read; a partly read file must not open endpoints.
    """
    return read_records(path, "keys", AccessKey, "Remove it and make new keys.")


def add_key(path: Path, key: AccessKey) -> None:
    """Add a key.

    Raises:
        Conflict: The team already has a key of that name.
    """

    def with_it(keys: Keys) -> Keys:
        if any((each.team, each.name) == (key.team, key.name) for each in keys):
            raise Conflict(
                f"Team {key.team} has a key {key.name}. Give another name, or "
                f"`fairlead keys revoke {key.name} --team {key.team}` first."
            )
        return (*keys, key)

    _change(path, with_it)


def remove_key(path: Path, team: str, name: str) -> None:
    """Delete a key.

    Raises:
        NotFound: The team has no key of that name.
    """

    def without(keys: Keys) -> Keys:
        left = tuple(each for each in keys if (each.team, each.name) != (team, name))
        if len(left) == len(keys):
            names = ", ".join(each.name for each in keys if each.team == team) or "none"
            raise NotFound(f"Team {team} has no key {name}; it has: {names}.")
        return left

    _change(path, without)


def _change(path: Path, of: Callable[[Keys], Keys]) -> None:
    with _locked(path.with_suffix(".lock")):
        write_records(path, "keys", of(read_keys(path)))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Serialize changes of the file among commands."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
