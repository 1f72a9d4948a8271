"""Builds reproducible layers: the same files give the same bytes at any time and place.

Entries are sorted, owned by root, with mtime 0, and readable by all. Compression depends on the zlib of the Python, so
another Python may compress the same layer to other bytes.
"""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Protocol

from fairlead.control.image.content import LAYER, Blob
from fairlead.frozen import dataclass

LEVEL = 6  # gzip's own; 9 took twice as long for 1 % less


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFile:
    """A regular file of a layer."""

    content: bytes
    is_executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A built layer.

    Attributes:
        diff_id: Digest of the uncompressed layer, which the config names.
    """

    blob: Blob
    diff_id: str


class _Writable(Protocol):
    def write(self, data: bytes, /) -> int: ...


class _Hashing(io.RawIOBase):
    """A writer that forwards data and computes its hash."""

    def __init__(self, below: _Writable) -> None:
        self.sha256 = hashlib.sha256()
        self._below = below

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # type: ignore[override]  # the base accepts any buffer; callers write bytes
        self.sha256.update(data)
        self._below.write(data)
        return len(data)


def make_layer(files: Mapping[str, LayerFile], own: str, directory: Path) -> Layer:
    """Build a layer.

    Args:
        files: Files by absolute path.
        own: Folder that only this layer has; its directories become entries too. Those above belong to the base image.
        directory: Directory of the layer's file.
    """
    unfinished = directory / "unfinished.tar.gz"
    with unfinished.open("wb") as file:
        packed = _Hashing(file)
        with gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=packed, mtime=0) as compressed:
            plain = _Hashing(compressed)
            with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                _add_all(tar, files, own)
    digest = packed.sha256.hexdigest()
    path = unfinished.rename(directory / f"{digest}.tar.gz")
    blob = Blob(media_type=LAYER, digest=f"sha256:{digest}", size=path.stat().st_size, fetch=lambda: path)
    return Layer(blob=blob, diff_id=f"sha256:{plain.sha256.hexdigest()}")


def _add_all(tar: tarfile.TarFile, files: Mapping[str, LayerFile], own: str) -> None:
    folders = _folders(files, own)
    for name in sorted({*files, *folders}):
        entry = tarfile.TarInfo(name.lstrip("/"))
        file = files.get(name)
        if file is None:
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        else:
            entry.mode, entry.size = 0o755 if file.is_executable else 0o644, len(file.content)
            tar.addfile(entry, io.BytesIO(file.content))


def _folders(names: Iterable[str], own: str) -> set[str]:
    above = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    return {folder for folder in above if folder == own or folder.startswith(f"{own}/")}
