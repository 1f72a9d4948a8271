"""The port to the place of the checkpoints; its adapters are ``directory``, ``remote`` and ``memory``."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fairlead.runtime.checkpoint.manifest import Manifest

STEP_NAME = re.compile(r"step-(\d{12})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A checkpoint that is being made.

    Attributes:
        step: Completed steps.
        tag: Tells this draft from every other one of the run, also from those of earlier attempts.
    """

    step: int
    tag: str


class Source(Protocol):
    """Checkpoints that can be loaded."""

    place: str
    shared: bool
    """Says that every rank reads the very files of ``fetch``; else each pod fetches its own."""

    def steps(self) -> list[int]:
        """Steps of complete checkpoints, ascending."""
        ...

    def manifest(self, step: int) -> Manifest:
        """The manifest of a complete checkpoint.

        Raises:
            DamagedError: It cannot be understood.
        """
        ...

    def fetch(self, step: int, names: Iterable[str]) -> Path:
        """A local directory with these files; those that are missing are left out.

        Raises:
            DamagedError: The store itself says that a file is not what was uploaded. Nothing is to be released then.
        """
        ...

    def release(self, directory: Path) -> None:
        """Give back a directory that ``fetch``, or a Sink's ``workplace``, returned; nothing else is ever removed."""
        ...


class Sink(Protocol):
    """The place into which checkpoints are saved.

    A save is: every rank takes a workplace, rank 0 begins, every rank puts its files, rank 0 commits. The caller sees
    to it that all ranks are through with one call before any makes the next. Before ``commit`` returns nothing
    counts, after it everything does, whenever processes or the machine die. Errors are OSError or StoreUnavailable:
    the save has failed, and ``discard`` by rank 0 and ``release`` by every rank leave nothing behind that a later
    ``tidy`` does not find.
    """

    place: str
    on_each_node: bool
    """Says that each node has a place of its own, so that its first rank does there what rank 0 does elsewhere."""

    def workplace(self, draft: Draft, rank: int) -> Path:
        """An empty directory for this rank's files."""
        ...

    def begin(self, draft: Draft) -> None:
        """Remove what an earlier attempt left in this draft's way. Rank 0."""
        ...

    def put(self, draft: Draft, workplace: Path) -> None:
        """Make the files of a workplace durable parts of the draft. They were flushed to disk before."""
        ...

    def commit(self, draft: Draft, manifest: Manifest) -> None:
        """Make the draft count. Rank 0."""
        ...

    def discard(self, draft: Draft) -> None:
        """Remove a draft that failed, as far as the store lets us. Rank 0."""
        ...

    def release(self, directory: Path) -> None:
        """Give back a directory that ``workplace`` returned."""
        ...

    def steps(self) -> list[int]:
        """Steps of complete checkpoints, ascending."""
        ...

    def tidy(self, outdated: Iterable[int]) -> None:
        """Remove these checkpoints and every draft. Only while none is being made. Rank 0."""
        ...


class Store(Source, Sink, Protocol):
    """A place of checkpoints that are saved there and loaded from there."""


def step_name(step: int) -> str:
    """The directory of a checkpoint; names sort like steps."""
    return f"step-{step:012d}"
