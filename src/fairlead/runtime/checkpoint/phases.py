"""Definitions that all contents of a checkpoint share: a phase, and the path of a rank's own files."""

from collections.abc import Callable
from pathlib import Path

Phase = Callable[[Path], None]
"""One phase. Its argument is the rank's workplace when saving and the checkpoint's directory when loading."""


def rank_directory(rank: int) -> str:
    """Return the directory name of a rank's own files, in a workplace and in a checkpoint."""
    return f"rank-{rank:05d}"


def of_rank(directory: Path, rank: int, name: str) -> Path | None:
    """Return the path of a rank's own file; rank 0's if more ranks load than saved; None if there is none."""
    for candidate in (rank, 0):
        path = directory / rank_directory(candidate) / name
        if path.exists():
            return path
    return None
