"""The words that all contents of a checkpoint share: a phase, and a rank's own files."""

from collections.abc import Callable
from pathlib import Path

Phase = Callable[[Path], None]
"""One phase; its argument is the rank's workplace for saving, the checkpoint for loading."""


def rank_directory(rank: int) -> str:
    """Return where a rank's own files are, in a workplace and in a checkpoint."""
    return f"rank-{rank:05d}"


def of_rank(directory: Path, rank: int, name: str) -> Path | None:
    """A rank's own file; that of rank 0 when more ranks load than saved; None when there is none."""
    for candidate in (rank, 0):
        path = directory / rank_directory(candidate) / name
        if path.exists():
            return path
    return None
