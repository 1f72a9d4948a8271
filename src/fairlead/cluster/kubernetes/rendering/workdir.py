"""The working directory's way into pods: packed once, named by its content, and carried by ConfigMaps in pieces.

``.gitignore`` files count, in every directory, as git reads them; ``.git`` itself never goes. What is too large is
refused with both numbers before anything is sent.
"""

import base64
import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

from fairlead.cluster.kubernetes import names
from fairlead.errors import Conflict
from fairlead.state.snapshot import Workload

PART_BYTES = 900 * 1024  # a ConfigMap holds 1 MiB, its names and labels included
MOST_PARTS = 8
MOST_BYTES = PART_BYTES * MOST_PARTS
MOST_FILE_BYTES = 256 * 1024**2  # of files before they are packed; reading more is a mistake that takes long to notice
WORKDIR = f"{names.DOMAIN}/workdir"  # annotation of a Training: digest and number of parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A packed directory; the same files give the same bytes."""

    content: bytes
    num_files: int

    @property
    def digest(self) -> str:
        """What the content is called."""
        return hashlib.sha256(self.content).hexdigest()[:16]

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The content in pieces that fit."""
        return tuple(self.content[at : at + PART_BYTES] for at in range(0, len(self.content), PART_BYTES))

    @property
    def annotation(self) -> str:
        """What a Training says of its working directory."""
        return f"{self.digest}-{len(self.parts)}"


def pack(directory: Path) -> Archive:
    """The directory's files but for those that git would ignore.

    Raises:
        Conflict: They are too large to go through the API.
    """
    buffer = io.BytesIO()
    num_files = num_bytes = 0
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in files(directory):
            size = path.stat().st_size
            num_files, num_bytes = num_files + 1, num_bytes + size
            if num_bytes > MOST_FILE_BYTES:
                raise Conflict(_too_large(directory, f"more than {_mib(MOST_FILE_BYTES)} in {num_files} files or more"))
            info = tarfile.TarInfo(path.relative_to(directory).as_posix())
            info.size, info.mode = size, 0o755 if os.access(path, os.X_OK) else 0o644
            with path.open("rb") as file:
                archive.addfile(info, file)
    content = buffer.getvalue()
    if len(content) > MOST_BYTES:
        largest = max(files(directory), key=lambda path: path.stat().st_size)
        detail = f"{_mib(len(content))} when packed; the largest of its {num_files} files is {largest}"
        raise Conflict(_too_large(directory, detail))
    return Archive(content=content, num_files=num_files)


def files(directory: Path) -> Iterator[Path]:
    """The regular files below a directory that git would not ignore, sorted by name; links are left out."""
    yield from _files(directory, ())


def render_parts(archive: Archive, namespace: str, workload: Workload | None) -> list[dict[str, Any]]:
    """The ConfigMaps that carry an archive; the cluster removes them with the last run that owns them.

    Runs share them, so each run's owner reference is applied by a field manager of its own.

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
    """The ConfigMaps that a Training's annotation speaks of; none when it is not one of ours."""
    digest, _, num = annotation.partition("-")
    if not (digest.isalnum() and num.isdigit() and 0 < int(num) <= MOST_PARTS):
        return ()
    return tuple(f"fairlead-workdir-{digest}-{place}" for place in range(int(num)))


def _files(directory: Path, specs: tuple[tuple[Path, GitIgnoreSpec], ...]) -> Iterator[Path]:
    rules = directory / ".gitignore"
    if rules.is_file():
        specs = (*specs, (directory, GitIgnoreSpec.from_lines(rules.read_text(errors="replace").splitlines())))
    for path in sorted(directory.iterdir()):
        if path.name == ".git" or path.is_symlink() or _is_ignored(path, specs):
            continue
        if path.is_dir():
            yield from _files(path, specs)
        elif path.is_file():
            yield path


def _is_ignored(path: Path, specs: Iterable[tuple[Path, GitIgnoreSpec]]) -> bool:
    """Whether git would ignore it: the last rule that speaks of it decides, inner files after outer ones."""
    ignored = False
    for base, spec in specs:
        name = path.relative_to(base).as_posix()
        said = spec.check_file(f"{name}/" if path.is_dir() else name).include
        ignored = ignored if said is None else said
    return ignored


def _too_large(directory: Path, size: str) -> str:
    return (
        f"workdir: {directory} is {size}; at most {_mib(MOST_BYTES)} goes through the API. Add what the run does not "
        "need to .gitignore, build it into the image, or put it on a volume and name that under `kubernetes`."
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 1024**2:.1f} MiB"
