"""Defines the interface to stored results for a driver and a preview, and the keys of results."""

import hashlib
import json
from collections.abc import Mapping
from typing import Protocol

from fairlead.policy.kinds.steps import Result


class ResultStore(Protocol):
    """Stores results of tasks by their dependencies."""

    def close(self) -> None:
        """Release its resources."""
        ...

    def same(self, parts: Mapping[str, str]) -> Result | None:
        """Return the newest result of a task with exactly these dependencies."""
        ...

    def last(self, pipeline: str, task: str) -> Result | None:
        """Return the newest result of a task."""
        ...

    def add(self, pipeline: str, task: str, result: Result) -> None:
        """Store the result of a task."""
        ...

    def keep_listing(self, files: Mapping[str, str]) -> str:
        """Store the files of some code with their hashes; return the hash of the listing."""
        ...

    def listing(self, digest: str) -> dict[str, str]:
        """Return the files of a listing; empty for an unknown one."""
        ...


def key_of(parts: Mapping[str, str]) -> str:
    """Return a single hash of all dependencies of a task."""
    return _digest(_canonical(parts))


def listing_of(files: Mapping[str, str]) -> tuple[str, str]:
    """Return the hash of a listing of files, and the hashed text."""
    text = _canonical(files)
    return _digest(text), text


def _canonical(of: Mapping[str, str]) -> str:
    return json.dumps(dict(sorted(of.items())), separators=(",", ":"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
