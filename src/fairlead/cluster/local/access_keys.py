"""Access keys of this machine's endpoints: a file in the state directory that holds only their hashes."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.cluster.local.json_records import read_records, write_records
from fairlead.errors import Conflict, NotFound
from fairlead.state.access_keys import AccessKey, too_many

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
        Conflict: The team already has a key of that name, or as many as it may have.
    """

    def with_it(keys: Keys) -> Keys:
        if any((other.team, other.name) == (key.team, key.name) for other in keys):
            raise Conflict(
                f"Team {key.team} has a key {key.name}. Give another name, or "
                f"`fairlead keys revoke {key.name} --team {key.team}` first."
            )
        if (refusal := too_many(key.team, keys)) is not None:
            raise Conflict(refusal)
        return (*keys, key)

    _change(path, with_it)


def remove_key(path: Path, team: str, name: str) -> None:
    """Delete a key.

    Raises:
        NotFound: The team has no key of that name.
    """

    def without(keys: Keys) -> Keys:
        left = tuple(key for key in keys if (key.team, key.name) != (team, name))
        if len(left) == len(keys):
            names = ", ".join(key.name for key in keys if key.team == team) or "none"
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
