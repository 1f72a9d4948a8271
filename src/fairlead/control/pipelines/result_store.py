"""The port to results that are kept: what a driver and a preview ask of it, and the keys by which they are found."""

import hashlib
import json
from collections.abc import Mapping
from typing import Protocol

from fairlead.policy.kinds.steps import Result


class ResultStore(Protocol):
    """Keeps what tasks returned, by what they depended on."""

    def close(self) -> None:
        """Let go of what it holds."""
        ...

    def same(self, parts: Mapping[str, str]) -> Result | None:
        """The newest result of a task that depended on just these parts."""
        ...

    def last(self, pipeline: str, task: str) -> Result | None:
        """The newest result of a task."""
        ...

    def add(self, pipeline: str, task: str, result: Result) -> None:
        """Keep what a task returned."""
        ...

    def keep_listing(self, files: Mapping[str, str]) -> str:
        """Keep which files code consists of, with the hash of each; the hash of the whole."""
        ...

    def listing(self, digest: str) -> dict[str, str]:
        """The files of a listing; none of an unknown one."""
        ...


def key_of(parts: Mapping[str, str]) -> str:
    """One hash for all that a task depends on."""
    return _digest(_canonical(parts))


def listing_of(files: Mapping[str, str]) -> tuple[str, str]:
    """Return the hash of which files code consists of, and the text of which it is the hash."""
    text = _canonical(files)
    return _digest(text), text


def _canonical(of: Mapping[str, str]) -> str:
    return json.dumps(dict(sorted(of.items())), separators=(",", ":"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
