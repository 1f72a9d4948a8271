"""Reads and writes versioned JSON files of the state directory that hold records of one type."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fairlead.errors import ClusterError
from fairlead.runtime.podfiles import read_json, write_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")


def read_records(path: Path, name: str, record: type[Record], remedy: str) -> tuple[Record, ...]:
    """Return all records, in the order of the file; none if there is no file.

    Args:
        name: Name of the list in the file.
        remedy: Advice for a file that cannot be read.

    Raises:
        ClusterError: The file cannot be read; a partly read file must not be used.
    """
    try:
        content = read_json(path)
        if content is None:
            if path.exists():
                raise ValueError("it is not JSON")
            return ()
        return tuple(record(**entry) for entry in content[name])
    except (KeyError, TypeError, ValueError) as error:
        raise ClusterError(f"{path} cannot be read: {error}. {remedy}") from error


def write_records(path: Path, name: str, records: Iterable[Record]) -> None:
    """Replace all records of the file."""
    write_json(path, {"version": 1, name: [asdict(record) for record in records]})
