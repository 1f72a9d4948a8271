"""Manifest of a data set: its objects with sizes and ETags, whose hash is the version.

See decision 209.
"""

import fnmatch
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from fairlead.runtime.errors import Misuse
from fairlead.runtime.paths import UnsafeName, parts_of

VERSION_DIGITS = 16
MOST_ENTRIES = 20_000_000
_VERSION = re.compile(rf"[0-9a-f]{{{VERSION_DIGITS}}}")


class Entry(NamedTuple):
    """One object of a data set.

    Attributes:
        key: Name below the root, with slashes.
        size: Bytes.
        etag: Opaque text of the store that differs when the bytes differ; of a file, its size and time of change.
    """

    key: str
    size: int
    etag: str


@dataclass(frozen=True)
class DataManifest:
    """The objects of a version of a data set, sorted by key."""

    entries: Sequence[Entry]

    @cached_property
    def version(self) -> str:
        """Sixteen hexadecimal digits of the SHA-256 over keys, sizes and ETags."""
        digest = hashlib.sha256()
        for key, size, etag in self.entries:
            digest.update(f"{key}\0{size}\0{etag}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:VERSION_DIGITS]

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of all objects."""
        return sum(entry.size for entry in self.entries)


def bundle_name(url: str, members: Iterable[tuple[Entry, int, int]]) -> str:
    """Return the name of ranges of objects, the same on all nodes: 32 hexadecimal digits.

    Args:
        members: Each object with the first byte of its range and the one after the last.
    """
    digest = hashlib.sha256(url.encode())
    for entry, start, stop in members:
        digest.update(f"\0{entry.key}\0{entry.etag}\0{start}\0{stop}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


def make(entries: Iterable[Entry], include: str | None, where: str) -> DataManifest:
    """Return the manifest of the objects of a store whose names match a pattern.

    Objects of zero bytes whose names end with a slash are folders that tools of stores make, and are left out.

    Args:
        include: Shell pattern for the whole key, or for its last part if it has no slash; None for all objects.
        where: URL of the data set, for messages.

    Raises:
        Misuse: No object is left, or a name cannot be a path.
    """
    listed = [entry for entry in entries if not (entry.key.endswith("/") and entry.size == 0)]
    chosen = listed if include is None else [entry for entry in listed if _matches(entry.key, include)]
    if not chosen:
        if listed:
            raise Misuse(
                f"data: none of the {len(listed)} objects of {where} matches include {include!r}, for example "
                f"{listed[0].key!r} does not; correct `include`"
            )
        raise Misuse(f"data: {where} has no objects; correct the path, which is compared by whole parts")
    for entry in chosen:
        try:
            parts_of(entry.key)
        except UnsafeName as error:
            raise Misuse(f"data: an object of {where} cannot be a file: {error}; leave it out by `include`") from error
    return DataManifest(sorted(chosen))


def _matches(key: str, include: str) -> bool:
    return fnmatch.fnmatchcase(key if "/" in include else key.rpartition("/")[2], include)


def is_version(text: str) -> bool:
    """Return whether a text is a version."""
    return _VERSION.fullmatch(text) is not None


def save(manifest: DataManifest, path: Path) -> None:
    """Write a manifest, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps([list(entry) for entry in manifest.entries], separators=(",", ":")))
    partial.replace(path)


def load(path: Path) -> DataManifest | None:
    """Return a stored manifest; None if there is none, or if it is not of the version in its name."""
    try:
        listed = json.loads(path.read_bytes())
        manifest = DataManifest([Entry(str(key), int(size), str(etag)) for key, size, etag in listed])
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return manifest if manifest.version == path.stem else None
