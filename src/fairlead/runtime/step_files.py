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

from fairlead.errors import RuntimeFault
from fairlead.runtime.extraction import InvalidArchive, archive_digest, extract
from fairlead.runtime.paths import UnsafeName, below
from fairlead.runtime.places import open_place, translated, upload
from fairlead.runtime.self_contained import make_self_contained

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

GIVEN = "given.json"
RETURNED = "returned"
CONTENT = "content"
"""Name of a file or directory within its archive."""
_DIGITS = frozenset("0123456789abcdef")


def main(arguments: list[str]) -> int:
    """Fetch inputs or upload outputs; return the exit code, with the problem on standard error."""
    try:
        if arguments[0] == "give":
            fetch_given(arguments[1], Path(arguments[2]))
        else:
            send_returned(arguments[1], Path(arguments[2]), arguments[3])
    except (OSError, RuntimeFault, ValueError) as error:
        how = (
            "what this step is given cannot be fetched" if arguments[0] == "give" else "what it returns cannot be kept"
        )
        print(f"fairlead: {how}: {error}", file=sys.stderr)
        return 1
    return 0


def archive_of(digest: str) -> str:
    """Return the name of the archive of the output with this hash.

    Raises:
        UnsafeName: It is no hash.
    """
    if len(digest) != 64 or not _DIGITS.issuperset(digest):
        raise UnsafeName(f"{digest[:100]!a} is not the hash of an output")
    return f"outputs/{digest[:2]}/{digest}.tar"


def pack(source: Path, archive: Any) -> None:
    """Write a file or directory to an open file, as an archive."""
    with tarfile.open(fileobj=archive, mode="w") as file:
        file.add(source, CONTENT)


def unpack(archive: Path, directory: Path, digest: str | None) -> Path:
    """Unpack an archive into a directory and return the path of its content.

    Args:
        digest: Hash of the content, compared before anything is written; None where none is known.

    Raises:
        InvalidArchive: The file is not an archive, is incomplete, has another content, or one that is not unpacked.
    """
    with archive.open("rb") as file:
        if digest is not None:
            if archive_digest(file, most_bytes=shutil.disk_usage(directory).free) != digest:
                raise InvalidArchive(f"it has another content than {digest}")
            file.seek(0)
        extract(file, directory, links=True)
    content = directory / CONTENT
    if not os.path.lexists(content):
        raise InvalidArchive(f"it has no {CONTENT}")
    return content


def fetch_given(place: str, directory: Path) -> None:
    """Fetch a step's inputs into ``inputs`` of a directory, and create an empty ``outputs`` in it."""
    system, root = open_place(place, what="outputs of steps")
    data = translated(partial(system.cat_file, f"{root}/{GIVEN}"), f"{place}/{GIVEN} cannot be read")
    manifest: Mapping[str, Any] = json.loads(data)
    store, folder = open_place(manifest["artefacts"], what="outputs of steps")
    for name in ("inputs", "outputs"):
        shutil.rmtree(directory / name, ignore_errors=True)
        (directory / name).mkdir(parents=True)
    for name, made in manifest["inputs"].items():
        goal = below(directory / "inputs", name)
        if isinstance(made, str):
            _fetch(store, folder, made, goal)
            continue
        goal.mkdir()
        for index, digest in made.items():
            _fetch(store, folder, digest, below(goal, index))


def _fetch(system: Any, root: str, digest: str, goal: Path) -> None:
    with tempfile.TemporaryDirectory(dir=goal.parent, prefix=".fetched-") as directory:
        packed = Path(directory, "packed")
        call = partial(system.get_file, f"{root}/{archive_of(digest)}", str(packed))
        translated(call, f"{root}/{archive_of(digest)} cannot be read")
        try:
            os.rename(unpack(packed, Path(directory), digest), goal)
        except InvalidArchive as error:
            raise InvalidArchive(f"{root}/{archive_of(digest)}: {error}") from error


def send_returned(place: str, directory: Path, number: str) -> None:
    """Upload everything in ``outputs`` of a directory as the outputs of one pod."""
    system, root = open_place(place, what="outputs of steps")
    make_self_contained(directory / "outputs")
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
        destination = below(target, entry.name)
        if not os.path.lexists(destination):
            os.rename(entry, destination)
        elif entry.is_dir() and destination.is_dir() and not entry.is_symlink() and not destination.is_symlink():
            merge(entry, destination)
