"""Data sets of this machine that have names: a file for each Dataset, which is replaced as a whole."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from fairlead.errors import ClusterError, InvalidSpec, NotFound
from fairlead.runtime.paths import below
from fairlead.runtime.podfiles import read_json, write_json
from fairlead.specs.dataset import Dataset
from fairlead.specs.formats.serialization import from_json, to_json


def stored_datasets(directory: Path) -> Iterator[Dataset]:
    """Yield the stored data sets, by team and name.

    Raises:
        ClusterError: A file holds something else.
    """
    for path in sorted(directory.glob("*.json")):
        content = read_json(path)
        if content is None and not path.exists():
            continue  # removed at this moment
        try:
            dataset = from_json(str((content or {})["spec"]))
            if not isinstance(dataset, Dataset):
                raise ValueError("it is none")
        except (InvalidSpec, KeyError, ValueError) as error:
            raise ClusterError(f"{path} is no Dataset: {error}. Remove it, and apply it again.") from error
        yield dataset


def store_dataset(directory: Path, dataset: Dataset) -> None:
    """Store a data set, in place of the one of its team and name.

    Raises:
        ClusterError: It cannot be written.
    """
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        write_json(_place(directory, dataset), {"spec": to_json(dataset)})
    except OSError as error:
        raise ClusterError(f"{directory}: {error.strerror or error}") from error


def remove_dataset(directory: Path, dataset: Dataset) -> None:
    """Remove a data set; its objects stay where they are.

    Raises:
        NotFound: It was removed meanwhile.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_place(directory, dataset))
        return
    raise NotFound(f"The Dataset {dataset.name} of team {dataset.team} is not there any more.")


def _place(directory: Path, dataset: Dataset) -> Path:
    return below(directory, f"{dataset.team}.{dataset.name}.json")
