"""Brings a step of a pipeline that is a run what it is given, and takes along what it returns, where both lie in an
object store: `runtime.pyz give PLACE DIRECTORY` before its ranks start and `... return PLACE DIRECTORY NUMBER` after.

The driver keeps in ``given.json`` of PLACE which outputs of other steps it is given, by their hashes; they are archives
in the store already. What a pod returns is one archive, numbered by the attempt and by its first rank: the end of the
run says that all of them are there.
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
# Since 3.12 Python warns of, and later refuses, archives of which nobody says whether they are trusted.
_AS_IT_WAS: Any = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}


def main(arguments: list[str]) -> int:
    """Bring or take along; the exit code, with the problem on standard error."""
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
    """The name of the archive that holds an output of that hash."""
    return f"outputs/{digest[:2]}/{digest}.tar"


def pack(source: Path, archive: Any) -> None:
    """Write a file or directory to an open file, as an archive."""
    with tarfile.open(fileobj=archive, mode="w") as file:
        file.add(source, CONTENT)


def unpack(archive: Path, directory: Path) -> Path:
    """Unpack an archive into a directory; the path of what it held.

    Raises:
        TarError: It is none, or not whole.
    """
    with tarfile.open(archive) as file:
        file.extractall(directory, **_AS_IT_WAS)
    return directory / CONTENT


def fetch_given(place: str, directory: Path) -> None:
    """Put what a step is given into ``inputs`` of a directory, and make an empty ``outputs`` in it."""
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
    """Keep all of ``outputs`` of a directory, as that of one pod."""
    system, root = open_place(place, what="outputs of steps")
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".packed-") as file:
        pack(directory / "outputs", file)
        file.flush()
        goal = f"{root}/{RETURNED}/{number}.tar"
        translated(partial(upload, system, file.name, goal), f"nothing can be written to {place}")


def number_of(attempt: int, first_rank: int) -> str:
    """The number of what a pod returns, so that those of the last attempt are last, by their ranks."""
    return f"{attempt:06}-{first_rank:06}"


def merge(source: Path, target: Path) -> None:
    """Move what is in a directory into another; what is there already stays."""
    for entry in sorted(source.iterdir()):
        there = target / entry.name
        if not os.path.lexists(there):
            os.rename(entry, there)
        elif entry.is_dir() and there.is_dir() and not entry.is_symlink() and not there.is_symlink():
            merge(entry, there)
