"""Finds the directory of ``--data``: one laid out as the public traces are, or the folder in it that is read."""

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

TRACES = "folder of the traces"


def folder_of(name: str) -> Callable[[str], Path]:
    """Return what turns the value of ``--data`` into the folder ``name`` in it, or itself where it has none."""

    def folder(text: str) -> Path:
        given = Path(text)
        return given / name if (given / name).is_dir() else given

    return folder


def step_traces(parser: ArgumentParser, folder: Path) -> list[Path]:
    """Return the traces of steps in a folder, or end the program with what to put there."""
    paths = sorted(folder.glob("trace-*.parquet"))
    if not paths:
        parser.error(f"no trace-*.parquet in {folder}: copy the folder `data` of ByteDance-Seed/StragglerAnalysis")
    return paths
