"""The port to checkpoint storage; its adapters are ``directory``, ``remote`` and ``memory``."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fairlead.runtime.checkpoint.manifest import Manifest

STEP_NAME = re.compile(r"step-(\d{12})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A checkpoint that is being saved.

    Attributes:
        step: Completed steps.
        tag: Distinguishes this draft from every other one of the run, including those of earlier attempts.
    """

    step: int
    tag: str


class CheckpointSource(Protocol):
    """Checkpoints that can be loaded."""

    place: str
    shared: bool
    """True if every rank reads the same files that ``fetch`` returns; False if each pod fetches its own copy."""

    def steps(self) -> list[int]:
        """Return the steps of complete checkpoints, ascending."""
        ...

    def manifest(self, step: int) -> Manifest:
        """Return the manifest of a complete checkpoint.

        Raises:
            DamagedError: The manifest cannot be parsed.
        """
        ...

    def fetch(self, step: int, names: Iterable[str]) -> Path:
        """Return a local directory with these files, except those that are missing.

        Raises:
            DamagedError: The store itself reports that a file differs from what was uploaded. Nothing has to be
            released then.
        """
        ...

    def release(self, directory: Path) -> None:
        """Release a directory that ``fetch``, or a Sink's ``workplace``, returned; no other is ever removed."""
        ...


class Sink(Protocol):
    """Storage into which checkpoints are saved.

    In a save every rank takes a workplace, rank 0 begins, every rank puts its files and rank 0 commits. The caller
    ensures that all ranks have finished one call before any makes the next. Before ``commit`` returns the checkpoint is
    not complete, afterwards it is, no matter when processes or the machine die. A failed save raises OSError or
    StoreUnavailable; then ``discard`` by rank 0 and ``release`` by every rank leave nothing that a later ``tidy`` does
    not find.
    """

    place: str
    on_each_node: bool
    """True if each node has its own storage, where its first rank acts as rank 0 does elsewhere."""

    def workplace(self, draft: Draft, rank: int) -> Path:
        """Return an empty directory for this rank's files."""
        ...

    def begin(self, draft: Draft) -> None:
        """Remove files of an earlier attempt that are in the way of this draft. Rank 0 only."""
        ...

    def put(self, draft: Draft, workplace: Path) -> None:
        """Make the files of a workplace durable parts of the draft. The caller has flushed them to disk."""
        ...

    def commit(self, draft: Draft, manifest: Manifest) -> None:
        """Make the draft a complete checkpoint. Rank 0 only."""
        ...

    def discard(self, draft: Draft) -> None:
        """Remove a failed draft, as far as the store allows. Rank 0 only."""
        ...

    def release(self, directory: Path) -> None:
        """Release a directory that ``workplace`` returned."""
        ...

    def steps(self) -> list[int]:
        """Return the steps of complete checkpoints, ascending."""
        ...

    def tidy(self, outdated: Iterable[int]) -> None:
        """Remove these checkpoints and every draft. Only called while no save is in progress. Rank 0 only."""
        ...


class CheckpointStore(CheckpointSource, Sink, Protocol):
    """Storage into which checkpoints are saved and from which they are loaded."""


def step_name(step: int) -> str:
    """Return the directory name of a checkpoint; names sort in the order of steps."""
    return f"step-{step:012d}"
