"""The manifest, which makes a directory a complete checkpoint, and the check of a directory against it."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fairlead.runtime.paths import UnsafeName, below, parts_of

FORMAT = 1
MANIFEST = "MANIFEST.json"
INTERVAL = "interval"
"""Key in the content for the measurements that `checkpoint.every: auto` has made so far."""


class DamagedError(ValueError):
    """A checkpoint differs from what was written; the message is a clause that names the file and the difference."""


class NewerError(DamagedError):
    """A checkpoint is sound, but a newer version of Fairlead has saved it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """Size and checksum by which a file is verified.

    Attributes:
        size: Bytes.
        sha256: Hexadecimal.
    """

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One complete checkpoint.

    Attributes:
        step: Completed steps.
        world_size: Number of ranks that saved it.
        run: Identity of the run.
        attempt: Attempt of the run that saved it.
        created_at: Unix time in seconds.
        content: Facts that the state's own code needs to load it, and ``save_interval.Interval.measurements``.
        files: By path below the checkpoint's directory, with ``/`` between its parts.
    """

    step: int
    world_size: int
    run: str
    attempt: int
    created_at: float
    content: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, FileFacts]

    @property
    def size(self) -> int:
        """Total bytes of all files."""
        return sum(facts.size for facts in self.files.values())

    def to_json(self) -> bytes:
        """Return the manifest file's content, with a checksum of itself."""
        body = {"format": FORMAT, **asdict(self)}
        return json.dumps({**body, "checksum": checksum(body)}, indent=1, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Manifest":
        """Parse a manifest file's content.

        Raises:
            DamagedError: The content differs from what ``to_json`` wrote, or has another format.
            NewerError: It has the format of a newer version.
        """
        try:
            body = json.loads(data)
            claimed = body.pop("checksum")
            if claimed != checksum(body):
                raise DamagedError(f"{MANIFEST} was changed after it was written")
            form = body.pop("format")
            if isinstance(form, int) and form > FORMAT:
                raise NewerError(
                    f"it has format {form} of a newer version of Fairlead, and this one reads {FORMAT}; upgrade the "
                    "fairlead that the program imports, or move the checkpoint away to go on from an older one"
                )
            if form != FORMAT:
                raise DamagedError(f"{MANIFEST} has a format that this version does not know")
            files = {"/".join(parts_of(name)): FileFacts(**facts) for name, facts in body.pop("files").items()}
            return cls(**body, files=files)
        except DamagedError:
            raise
        except UnsafeName as error:
            raise DamagedError(f"{MANIFEST} names a file outside the checkpoint: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{MANIFEST} cannot be read") from error


def checksum(body: Mapping[str, Any]) -> str:
    """Return the hexadecimal SHA-256 of the JSON in a canonical form."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def files_below(directory: Path) -> dict[str, Path]:
    """Return every regular file below the directory, by its name in a manifest."""
    return {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*")) if path.is_file()}


def seal(path: Path) -> FileFacts:
    """Make the file durable and return its size and checksum."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256")
        return FileFacts(size=file.tell(), sha256=digest.hexdigest())


def verify(directory: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """Compare files with the manifest, sizes first because that is quick.

    Raises:
        DamagedError: A file is missing, has another size, cannot be read, or has another content.
    """
    chosen = list(names)
    for name in chosen:
        try:
            size = below(directory, name).stat().st_size
        except FileNotFoundError as error:
            raise DamagedError(f"{name} is missing") from error
        if size != manifest.files[name].size:
            raise DamagedError(f"{name} has {size} bytes where {manifest.files[name].size} were written")
    for name in chosen:
        try:
            with open(below(directory, name), "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DamagedError(f"{name} cannot be read ({error.strerror})") from error
        if digest != manifest.files[name].sha256:
            raise DamagedError(f"{name} differs from what was written")
