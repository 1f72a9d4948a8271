"""Fetches the inputs of a pipeline step that is a run, and uploads its outputs, if both are in an object store.

`runtime.pyz give PLACE DIRECTORY` runs before its ranks start, `... return PLACE DIRECTORY NUMBER` after they end. The
driver writes ``given.json`` in PLACE, which lists the outputs of other steps that are its inputs, by hash; they are
archives in the store already. A pod's outputs are one archive, numbered by the attempt and its first rank; once the run
has ended, all of them are there.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
from functools import partial
from pathlib import Path

from fairlead.runtime.places import open_place, translated, upload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

GIVEN = "given.json"
RETURNED = "returned"
CONTENT = "content"
"""Name of a file or directory within its archive."""
# Python warns since 3.12, and later refuses, to extract an archive without a filter.
_AS_IT_WAS: Any = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}


def main(arguments: list[str]) -> int:
    """Fetch inputs or upload outputs; return the exit code, with the problem on standard error."""
    from fairlead.errors import RuntimeFault

    try:
        if arguments[0] == "give":
            fetch_given(arguments[1], Path(arguments[2]))
        else:
            send_returned(arguments[1], Path(arguments[2]), arguments[3])
    except (OSError, RuntimeFault, tarfile.TarError) as error:
        how = (
            "what this step is given cannot be fetched" if arguments[0] == "give" else "what it returns cannot be kept"
        )
        print(f"fairlead: {how}: {error}", file=sys.stderr)
        return 1
    return 0


def archive_of(digest: str) -> str:
    """Return the name of the archive of the output with this hash."""
    return f"outputs/{digest[:2]}/{digest}.tar"


def pack(source: Path, archive: Any) -> None:
    """Write a file or directory to an open file, as an archive."""
    with tarfile.open(fileobj=archive, mode="w") as file:
        file.add(source, CONTENT)


def unpack(archive: Path, directory: Path) -> Path:
    """Unpack an archive into a directory and return the path of its content.

    Raises:
        TarError: The file is not an archive, or is incomplete.
    """
    with tarfile.open(archive) as file:
        file.extractall(directory, **_AS_IT_WAS)
    return directory / CONTENT


def fetch_given(place: str, directory: Path) -> None:
    """Fetch a step's inputs into ``inputs`` of a directory, and create an empty ``outputs`` in it."""
    system, root = open_place(place, what="outputs of steps")
    data = translated(partial(system.cat_file, f"{root}/{GIVEN}"), f"{place}/{GIVEN} cannot be read")
    given: Mapping[str, Any] = json.loads(data)
    store, below = open_place(given["artefacts"], what="outputs of steps")
    for name in ("inputs", "outputs"):
        shutil.rmtree(directory / name, ignore_errors=True)
        (directory / name).mkdir(parents=True)
    for name, made in given["inputs"].items():
        goal = directory / "inputs" / name
        if isinstance(made, str):
            _fetch(store, below, made, goal)
            continue
        goal.mkdir()
        for index, digest in made.items():
            _fetch(store, below, digest, goal / index)


def _fetch(system: Any, root: str, digest: str, goal: Path) -> None:
    with tempfile.TemporaryDirectory(dir=goal.parent, prefix=".fetched-") as directory:
        packed = Path(directory, "packed")
        call = partial(system.get_file, f"{root}/{archive_of(digest)}", str(packed))
        translated(call, f"{root}/{archive_of(digest)} cannot be read")
        os.rename(unpack(packed, Path(directory)), goal)


def send_returned(place: str, directory: Path, number: str) -> None:
    """Upload everything in ``outputs`` of a directory as the outputs of one pod."""
    system, root = open_place(place, what="outputs of steps")
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".packed-") as file:
        pack(directory / "outputs", file)
        file.flush()
        goal = f"{root}/{RETURNED}/{number}.tar"
        translated(partial(upload, system, file.name, goal), f"nothing can be written to {place}")


def number_of(attempt: int, first_rank: int) -> str:
    """Return the number of a pod's outputs; numbers sort by attempt, then by rank."""
    return f"{attempt:06}-{first_rank:06}"


def merge(source: Path, target: Path) -> None:
    """Move the entries of a directory into another; entries that exist there are kept."""
    for entry in sorted(source.iterdir()):
        there = target / entry.name
        if not os.path.lexists(there):
            os.rename(entry, there)
        elif entry.is_dir() and there.is_dir() and not entry.is_symlink() and not there.is_symlink():
            merge(entry, there)
