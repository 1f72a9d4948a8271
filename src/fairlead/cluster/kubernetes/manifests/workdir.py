"""Packs a working directory for pods, named by its content and split over ConfigMaps.

A directory that is too large for that is stored beside the run's checkpoints, and only its name passes through the API.
``project_files`` defines the files that are included.
"""

import base64
import gzip
import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.project_files import ProjectFile, walk
from fairlead.frozen import dataclass
from fairlead.runtime.archives import DIGEST_CHARACTERS
from fairlead.state.snapshot import AnyWorkload

PART_BYTES = 900 * 1024  # a ConfigMap may have 1 MiB, including its names and labels
MOST_PARTS = 8
MOST_BYTES = PART_BYTES * MOST_PARTS
MOST_FILE_BYTES = 256 * 1024**2  # of files before packing; avoids reading files that are too large anyway
WORKDIR = f"{names.DOMAIN}/workdir"  # annotation of a Training: digest and number of parts, or digest and place
REVISION = f"{names.DOMAIN}/revision"  # annotation of a Training: JSON with commit, branch, dirty, and a packed diff
LEVEL, FAST = 6, 1  # compression levels; FAST for large archives
AT = "@"  # between digest and place
PART_PREFIX = "fairlead-workdir-"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkdirTree:
    """The files of a directory without those that git ignores.

    Attributes:
        num_bytes: Bytes of all files before packing.
        largest: Name below the directory and bytes of the largest file.
    """

    num_files: int
    num_bytes: int
    largest: tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A packed directory; the same files give the same bytes."""

    content: bytes
    num_files: int

    @property
    def digest(self) -> str:
        """The name of the content: the first characters of its hash."""
        return hashlib.sha256(self.content).hexdigest()[:DIGEST_CHARACTERS]

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The content in parts that fit into a ConfigMap."""
        return tuple(self.content[at : at + PART_BYTES] for at in range(0, len(self.content), PART_BYTES))

    @property
    def annotation(self) -> str:
        """The annotation of a Training with this working directory."""
        return f"{self.digest}-{len(self.parts)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeArchive:
    """A packed directory in a file; the same files give the same bytes."""

    path: Path
    digest: str

    def annotation(self, place: str) -> str:
        """Return the annotation of a Training whose archive is at this path or URL."""
        return f"{self.digest}{AT}{place}"


class _Enough(Exception):
    """Raised when more is written than the API accepts."""


def measure(directory: Path) -> WorkdirTree:
    """Measure the files of a directory."""
    sizes = {path: path.stat().st_size for path in files(directory)}
    largest = max(sizes, key=lambda path: sizes[path], default=directory)
    name = largest.relative_to(directory).as_posix()
    return WorkdirTree(num_files=len(sizes), num_bytes=sum(sizes.values()), largest=(name, sizes.get(largest, 0)))


def pack(directory: Path) -> Archive | None:
    """Pack a directory's files without those that git ignores; return None if they are too large for the API."""
    if measure(directory).num_bytes > MOST_FILE_BYTES:
        return None
    buffer = _Bounded()
    try:
        num_files = _write(directory, buffer, LEVEL)
    except _Enough:
        return None
    return Archive(content=buffer.getvalue(), num_files=num_files)


@contextmanager
def packed_large(directory: Path) -> Iterator[LargeArchive]:
    """Pack a directory of any size into a temporary file."""
    with tempfile.NamedTemporaryFile(prefix="fairlead-workdir-") as file:
        _write(directory, file, FAST)
        file.flush()
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_CHARACTERS]
        yield LargeArchive(path=Path(file.name), digest=digest)


def files(directory: Path) -> Iterator[Path]:
    """Yield the included files below a directory, sorted by name within each directory."""
    return (directory / entry.path for entry in walk(directory) if isinstance(entry, ProjectFile))


def render_parts(archive: Archive, namespace: str, workload: AnyWorkload | None) -> list[dict[str, Any]]:
    """Render the ConfigMaps with an archive; the garbage collector removes them after the last owning run.

    Runs share them, so each run's owner reference is applied by a separate field manager.

    Args:
        workload: The owner; None before there is one.
    """
    owners = [] if workload is None else [{**names.owner(workload), "controller": False}]
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {names.MANAGED_BY: names.MANAGER, names.CONTENT: "workdir"},
                **({"ownerReferences": owners} if owners else {}),
            },
            "immutable": True,
            "binaryData": {f"{place:03}": base64.b64encode(part).decode()},
        }
        for place, (name, part) in enumerate(zip(part_names(archive.annotation), archive.parts, strict=True))
    ]


def part_names(annotation: str) -> tuple[str, ...]:
    """Return the ConfigMaps named by a Training's annotation; empty if it is not of that form."""
    digest, _, num = annotation.partition("-")
    if not (digest.isalnum() and num.isdigit() and 0 < int(num) <= MOST_PARTS):
        return ()
    return tuple(f"{PART_PREFIX}{digest}-{place}" for place in range(int(num)))


def parts_digest(names_of_parts: Sequence[str]) -> str | None:
    """Return the digest of the archive whose parts are in ConfigMaps of these names; None for no parts."""
    return names_of_parts[0].removeprefix(PART_PREFIX).rpartition("-")[0] if names_of_parts else None


def archive_place(annotation: str) -> str | None:
    """Return the path or URL of the archive named by a Training's annotation; None if it is in ConfigMaps."""
    digest, _, place = annotation.partition(AT)
    return place if digest.isalnum() and place else None


def stored_digest(annotation: str) -> str | None:
    """Return the digest of an archive that is not stored in ConfigMaps, or None."""
    return annotation.partition(AT)[0] if archive_place(annotation) else None


def _write(directory: Path, target: IO[bytes], level: int) -> int:
    """Pack into a file and return the number of files."""
    num_files = 0
    with (
        gzip.GzipFile(filename="", fileobj=target, mode="wb", compresslevel=level, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for num_files, path in enumerate(files(directory), 1):  # noqa: B007 # the last number is the answer
            info = tarfile.TarInfo(path.relative_to(directory).as_posix())
            info.size, info.mode = path.stat().st_size, 0o755 if os.access(path, os.X_OK) else 0o644
            with path.open("rb") as file:
                archive.addfile(info, file)
    return num_files


class _Bounded(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > MOST_BYTES:
            raise _Enough
        return super().write(data)
