"""Unpacks tar archives from elsewhere: working directories, and outputs of steps.

Python's filters of tarfile are not relied on: they exist from 3.11.4 on, and could be escaped later too. An archive
has files, directories and, where allowed, links that stay within their top-level entry; anything else is refused. Sizes
and numbers are bounded, of what is unpacked and of what is held in memory meanwhile.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import tarfile
import zlib
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

from fairlead.runtime.paths import UnsafeName, below, parts_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

MOST_MEMBERS = 1_000_000
MOST_LINK_BYTES = 4096
CHUNK_BYTES = 1 << 20
# tarfile reads a header of any length at once, and searches it by a pattern that is quadratic in a run of digits.
MOST_HEADER_BYTES = 16 << 10
_LONG_NUMBER = re.compile(rb"\d{100}")
_GZIP = b"\x1f\x8b"


class InvalidArchive(ValueError):
    """An archive that is damaged, or has a member that is not unpacked; the message is a clause."""


def extract(packed: IO[bytes], directory: str | os.PathLike[str], *, links: bool = False) -> None:
    """Unpack an archive into a directory, which is created if necessary.

    Args:
        packed: A tar file, compressed by gzip or not.
        links: Accept symbolic links that stay within the first part of their own name.

    Raises:
        InvalidArchive: It is damaged, or has a member outside the directory, of another type, or for which there is no
            room.
    """
    os.makedirs(directory, exist_ok=True)
    root = Path(os.path.realpath(directory))
    targets: dict[Path, str] = {}
    with _translated():
        for member, content in _members(packed, most_bytes=shutil.disk_usage(root).free):
            parts = parts_of(member.name)
            _make_directory(root, parts if member.isdir() else parts[:-1])
            if member.isdir():
                continue
            path = below(root, *parts)
            targets.pop(path, None)
            if os.path.lexists(path):
                if path.is_dir():
                    raise InvalidArchive(f"it has {member.name!r} as a file and as a directory")
                path.unlink()
            if content is None:
                if not links:
                    raise InvalidArchive(f"{member.name!r} is a link")
                targets[path] = link_target(member.name, member.linkname)
                continue
            with open(path, "xb") as file:
                shutil.copyfileobj(content, file, CHUNK_BYTES)
            os.chmod(path, 0o755 if member.mode & 0o100 else 0o644)
        # Last, so that nothing is written through a link.
        for path, target in targets.items():
            if os.path.lexists(path):
                raise InvalidArchive(f"it has {path.name!r} as a link and as a directory")
            os.symlink(target, path)


def read_files(packed: IO[bytes], *, most_bytes: int) -> dict[str, tuple[bytes, bool]]:
    """Return the content of each file of an archive by its name, and whether it is executable.

    Raises:
        InvalidArchive: It is damaged, has more bytes, or has a member outside its directory or of another type.
    """
    contents: dict[str, tuple[bytes, bool]] = {}
    with _translated():
        for member, content in _members(packed, most_bytes=most_bytes):
            if member.issym():
                raise InvalidArchive(f"{member.name!r} is a link")
            if content is not None:
                data = b"".join(iter(partial(content.read, CHUNK_BYTES), b""))
                contents["/".join(parts_of(member.name))] = data, bool(member.mode & 0o100)
    return contents


def archive_digest(packed: IO[bytes], *, most_bytes: int) -> str:
    """Return the hash that ``content_digest`` has for the only top-level entry of an archive, without unpacking it.

    Raises:
        InvalidArchive: It is damaged, has more bytes, none or several entries, or a member that ``extract`` refuses.
    """
    tree: dict[str, Any] = {}
    with _translated():
        for member, content in _members(packed, most_bytes=most_bytes):
            *parents, name = parts_of(member.name)
            place = tree
            for parent in parents:
                place = place.setdefault(parent, {})
                if not isinstance(place, dict):
                    raise InvalidArchive(f"it has {member.name!r} below a file")
            if member.isdir():
                place.setdefault(name, {})
            elif content is None:
                place[name] = digest_of_link(link_target(member.name, member.linkname))
            else:
                place[name] = digest_of_file(content, is_executable=bool(member.mode & 0o100))
        if len(tree) != 1:
            raise InvalidArchive(f"it has {len(tree)} entries where one is expected")
        return _digest_of(next(iter(tree.values()))).hexdigest()


def digest_of_file(content: IO[bytes], *, is_executable: bool) -> hashlib._Hash:
    """Hash a file as ``content_digest`` does."""
    digest = hashlib.sha256(b"program\0" if is_executable else b"file\0")
    while chunk := content.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest


def digest_of_link(target: str) -> hashlib._Hash:
    """Hash a link as ``content_digest`` does."""
    return hashlib.sha256(b"link\0" + os.fsencode(target))


def digest_of_directory(entries: dict[str, hashlib._Hash]) -> hashlib._Hash:
    """Hash a directory as ``content_digest`` does."""
    digest = hashlib.sha256(b"directory\0")
    for name in sorted(entries):
        digest.update(os.fsencode(name) + b"\0" + entries[name].digest())
    return digest


def link_target(name: str, target: str) -> str:
    """Return the target of a link, if it stays within the first part of its name.

    ``..`` is accepted only at the beginning, where it means the same as text and on the disk: nothing above a member is
    a link.

    Raises:
        InvalidArchive: The link leads elsewhere.
    """
    parts = PurePosixPath(target).parts
    ups = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    if (
        not parts
        or target.startswith("/")
        or ".." in parts[ups:]
        or ups > len(parts_of(name)) - 2
        or "\0" in target
        or len(target) > MOST_LINK_BYTES
    ):
        raise InvalidArchive(f"{name!r} is a link to {ascii(target)[:100]}, which is not within the archive")
    return target


def _digest_of(value: Any) -> hashlib._Hash:
    if not isinstance(value, dict):
        digest: hashlib._Hash = value
        return digest
    return digest_of_directory({name: _digest_of(entry) for name, entry in value.items()})


def _make_directory(root: Path, parts: tuple[str, ...]) -> None:
    for depth in range(1, len(parts) + 1):
        path = below(root, *parts[:depth])
        if path.is_symlink() or not path.is_dir():
            try:
                path.mkdir()
            except FileExistsError:
                raise InvalidArchive(
                    f"it has {'/'.join(parts[:depth])!r} as a directory and as something else"
                ) from None


def _members(packed: IO[bytes], *, most_bytes: int) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """Yield the files, directories and symbolic links of an archive; only a file has a content."""
    num_members = num_bytes = 0
    with _readable(packed) as source:
        archive = tarfile.TarFile(fileobj=source, mode="r")  # type: ignore[arg-type] # it reads and seeks alone
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined] # it holds all of them, for links, which are refused
            num_members += 1
            if num_members > MOST_MEMBERS:
                raise InvalidArchive(f"it has more than {MOST_MEMBERS:,} members")
            if member.isdir() and not PurePosixPath(member.name).parts:
                continue  # the directory itself
            parts_of(member.name)
            if member.issparse() or not (member.isfile() or member.isdir() or member.issym()):
                raise InvalidArchive(f"{ascii(member.name)[:100]} is neither a file nor a directory")
            num_bytes += max(member.size, 0)
            if member.size < 0 or num_bytes > most_bytes:
                raise InvalidArchive(f"it has more than {most_bytes:,} bytes, for which there is no room")
            source.is_header = False
            yield member, archive.extractfile(member) if member.isfile() else None
            source.is_header = True


@contextmanager
def _readable(packed: IO[bytes]) -> Iterator[_Bounded]:
    start = packed.tell()
    is_compressed = packed.read(len(_GZIP)) == _GZIP
    packed.seek(start)
    if is_compressed:
        with gzip.GzipFile(fileobj=packed) as source:
            yield _Bounded(source)
    else:
        yield _Bounded(packed)


class _Bounded:
    """A file whose headers are bounded.

    Attributes:
        is_header: Whether tarfile reads a header now, not the content of a file.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self.seek, self.tell = source.seek, source.tell
        self.is_header = True

    def read(self, size: int) -> bytes:
        if self.is_header and not 0 <= size <= MOST_HEADER_BYTES:
            raise InvalidArchive(f"a header of it has {size:,} bytes")
        data: bytes = self._source.read(size)
        if self.is_header and _LONG_NUMBER.search(data):
            raise InvalidArchive("a header of it has a number of more than 100 digits")
        return data


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except InvalidArchive:
        raise
    except UnsafeName as error:
        raise InvalidArchive(str(error)) from error
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError) as error:
        raise InvalidArchive(f"it is damaged ({error})") from error
    except (RecursionError, LookupError) as error:
        raise InvalidArchive("it is damaged") from error
