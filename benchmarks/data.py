"""Finds the directory of ``--data``: one laid out as the public traces are, or the folder in it that is read."""

from collections.abc import Callable
from pathlib import Path


def folder_of(name: str) -> Callable[[str], Path]:
    """Return what turns the value of ``--data`` into the folder ``name`` in it, or itself where it has none."""

    def folder(text: str) -> Path:
        given = Path(text)
        return given / name if (given / name).is_dir() else given

    return folder
