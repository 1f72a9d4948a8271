"""Builds the layers of an environment: wheels as installed, in a virtual environment on the Python of the base image.

The same wheels give the same bytes on any machine, whatever its zlib: a layer is a sequence of gzip members, and that
of a file is the stream of its wheel as it is (RFC 1952 allows members, and an image's layers are read as one stream).
What no wheel has compressed is stored. Nothing is compressed here, so that a layer costs its download and its hash.

A large wheel is a layer of its own. Others are divided by the hash of their name, so that a changed requirement changes
the one layer that has it, and no other wheel moves.

See decision 254.
"""

import configparser
import contextlib
import hashlib
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from fairlead.control.image.content import LAYER, Blob
from fairlead.control.image.layers import Layer
from fairlead.control.image.locks import LockedWheel
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass
from fairlead.runtime.paths import UnsafeName, below, parts_of

PREFIX = "/opt/environment"
BASE_PYTHON = "/usr/local/bin"
"""Directory of Python in the official images, and in images made from these."""
LARGE_BYTES = 4 << 20
MOST_LARGE = 60
NUM_SHARED = 48
"""Layers of smaller wheels. With those of large ones and of the base they stay below the 127 that overlayfs takes."""
FORMAT = 1
"""Raised when the same wheels get other bytes, so that records of layers are not used."""
STORED_MOST = 0xFFFF
CHUNK = 1 << 20
_GZIP = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # deflated, without time, name and system
_SCRIPT = """#!{python}
import sys
from {module} import {first}
if __name__ == "__main__":
    sys.exit({attribute}())
"""
_ENTRY = re.compile(r"\s*(?P<module>[\w.]+)\s*:\s*(?P<attribute>(?P<first>\w+)[\w.]*)\s*(?:\[[^\]]*\])?\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerEntry:
    """A file or link of a layer.

    Attributes:
        content: Its bytes; None for a member of a wheel, and for a link.
        wheel: The wheel that has it.
        member: Its place in the wheel.
        target: Target of a link; None for a file.
    """

    is_executable: bool = False
    content: bytes | None = None
    wheel: Path | None = None
    member: zipfile.ZipInfo | None = None
    target: str | None = None


def cut(wheels: Iterable[LockedWheel]) -> tuple[tuple[LockedWheel, ...], ...]:
    """Divide wheels into layers, large ones first; it depends on each wheel alone but for very many large ones."""
    ordered = sorted(wheels, key=lambda wheel: wheel.name)
    least = LARGE_BYTES
    while sum(wheel.size >= least for wheel in ordered) > MOST_LARGE:
        least *= 2
    large = [(wheel,) for wheel in ordered if wheel.size >= least]
    shared: dict[int, list[LockedWheel]] = {}
    for wheel in ordered:
        if wheel.size < least:
            digest = hashlib.sha256(wheel.name.encode()).digest()
            shared.setdefault(int.from_bytes(digest[:4], "big") % NUM_SHARED, []).append(wheel)
    return (*large, *(tuple(shared[number]) for number in sorted(shared)))


def layer_of(wheels: Sequence[tuple[LockedWheel, Path]], python: str, directory: Path) -> Layer:
    """Build the layer of some wheels.

    Args:
        python: Version of the base's Python, such as 3.12.7.

    Raises:
        ClusterError: One of them is damaged, or has a file outside of its place.
    """
    entries: dict[str, LayerEntry] = {}
    for wheel, path in wheels:
        with _explained(wheel):
            entries |= installed(path, python)
    with _explained(*(wheel for wheel, _ in wheels)):
        return write_layer(entries, directory)


@contextlib.contextmanager
def _explained(*wheels: LockedWheel) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, UnsafeName, NotImplementedError, ValueError) as error:
        names = ", ".join(wheel.filename for wheel in wheels)
        raise ClusterError(f"{names} cannot be installed: {error}.") from error


def base_layer(lock: str, python: str, directory: Path) -> Layer:
    """Build the layer with the virtual environment itself, and the lock of its packages."""
    minor = ".".join(python.split(".")[:2])
    settings = f"home = {BASE_PYTHON}\ninclude-system-site-packages = false\nversion = {python}\n"
    return write_layer(
        {
            f"{PREFIX}/pyvenv.cfg": LayerEntry(content=settings.encode()),
            f"{PREFIX}/pylock.toml": LayerEntry(content=lock.encode()),
            f"{PREFIX}/bin/python": LayerEntry(target=f"{BASE_PYTHON}/python{minor}"),
            f"{PREFIX}/bin/python3": LayerEntry(target="python"),
            f"{PREFIX}/bin/python{minor}": LayerEntry(target="python"),
        },
        directory,
    )


def installed(wheel: Path, python: str) -> dict[str, LayerEntry]:
    """Return the files of a wheel by their paths in the image, as the binary distribution format (PEP 427) has them.

    Raises:
        zipfile.BadZipFile: It is no wheel.
        UnsafeName: A file of it lies outside of its place.
    """
    minor = ".".join(python.split(".")[:2])
    name = wheel.name.partition("-")[0]
    schemes = {
        "purelib": f"lib/python{minor}/site-packages",
        "platlib": f"lib/python{minor}/site-packages",
        "scripts": "bin",
        "headers": f"include/site/python{minor}/{name}",
        "data": "",
    }
    entries: dict[str, LayerEntry] = {}
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.is_dir():
                continue
            parts = parts_of(member.filename)
            folder, is_executable = schemes["purelib"], bool(member.external_attr >> 22 & 1)
            content = None
            if parts[0].endswith(".data") and len(parts) > 2:
                if parts[1] not in schemes:
                    raise ValueError(f"its folder {parts[1]!r} is unknown")
                folder, parts, of = schemes[parts[1]], parts[2:], parts[1]
                if of == "scripts":
                    is_executable, content = True, _script(archive.read(member))
            path = below(PurePosixPath(PREFIX, folder), "/".join(parts)).as_posix()
            if content is not None:
                entries[path] = LayerEntry(content=content, is_executable=True)
            else:
                entries[path] = LayerEntry(wheel=wheel, member=member, is_executable=is_executable)
            if len(parts) == 2 and parts[0].endswith(".dist-info") and parts[1] == "entry_points.txt":
                entries |= _programs(archive.read(member).decode())
    return entries


def write_layer(entries: Mapping[str, LayerEntry], directory: Path) -> Layer:
    """Write a layer to a file of a directory."""
    folders = {str(parent) for name in entries for parent in PurePosixPath(name).parents}
    folders = {folder for folder in folders if folder == PREFIX or folder.startswith(f"{PREFIX}/")}
    names = sorted({*entries, *folders})
    key = hashlib.sha256("\0".join(names).encode()).hexdigest()
    unfinished = below(directory, f"{key}.unfinished")
    with unfinished.open("wb") as file:
        members = _Members(file)
        for name in names:
            info, entry = tarfile.TarInfo(name.lstrip("/")), entries.get(name)
            if entry is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                members.store(_header(info))
            elif entry.target is not None:
                info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, entry.target
                members.store(_header(info))
            else:
                info.mode = 0o755 if entry.is_executable else 0o644
                _add(members, info, entry)
        members.store(bytes(2 * tarfile.BLOCKSIZE))
        digest, diff_id = members.close()
    path = unfinished.rename(below(directory, f"{digest}.tar.gz"))
    blob = Blob(media_type=LAYER, digest=f"sha256:{digest}", size=path.stat().st_size, fetch=lambda: path)
    return Layer(blob=blob, diff_id=f"sha256:{diff_id}")


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _add(members: "_Members", info: tarfile.TarInfo, entry: LayerEntry) -> None:
    """Add a file; a member of a wheel as it is compressed there."""
    if entry.content is not None:
        info.size = len(entry.content)
        members.store(_header(info) + entry.content)
    else:
        assert entry.wheel is not None
        assert entry.member is not None
        info.size = entry.member.file_size
        members.store(_header(info))
        if info.size:
            with entry.wheel.open("rb") as file:
                members.copy(file, entry.member)
    members.store(bytes(-info.size % tarfile.BLOCKSIZE))


class _Members:
    """Writes gzip members to a file, and hashes it and what it unpacks to."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._packed, self._plain = hashlib.sha256(), hashlib.sha256()
        self._waiting = bytearray()

    def store(self, data: bytes) -> None:
        """Add bytes without compression; those that follow each other become one member."""
        self._waiting += data
        if len(self._waiting) >= CHUNK:
            self._flush()

    def copy(self, file: BinaryIO, member: zipfile.ZipInfo) -> None:
        """Add a file of a wheel with its stream of bytes as it is.

        Raises:
            zipfile.BadZipFile: It is damaged.
        """
        chunks = _raw(file, member)
        if member.compress_type == zipfile.ZIP_STORED:
            checksum = 0
            for chunk in chunks:
                checksum = zlib.crc32(chunk, checksum)
                self.store(chunk)
            if checksum != member.CRC:
                raise zipfile.BadZipFile(f"{member.filename} is damaged")
            return
        if member.compress_type != zipfile.ZIP_DEFLATED:
            raise NotImplementedError(f"{member.filename} is compressed in another way than wheels are")
        self._flush()
        self._write(_GZIP)
        inflater, checksum, size = zlib.decompressobj(-zlib.MAX_WBITS), 0, 0
        for chunk in chunks:
            self._write(chunk)
            waiting = chunk
            while waiting:
                plain = inflater.decompress(waiting, CHUNK)
                waiting = inflater.unconsumed_tail
                self._plain.update(plain)
                checksum, size = zlib.crc32(plain, checksum), size + len(plain)
        plain = inflater.flush()
        self._plain.update(plain)
        checksum, size = zlib.crc32(plain, checksum), size + len(plain)
        if not inflater.eof or inflater.unused_data or checksum != member.CRC or size != member.file_size:
            raise zipfile.BadZipFile(f"{member.filename} is damaged")
        self._end(checksum, size)

    def close(self) -> tuple[str, str]:
        """Return the hashes of the file and of what it unpacks to, in hexadecimal."""
        self._flush()
        return self._packed.hexdigest(), self._plain.hexdigest()

    def _flush(self) -> None:
        if not self._waiting:
            return
        data = bytes(self._waiting)
        self._waiting.clear()
        self._plain.update(data)
        self._write(_GZIP)
        for start in range(0, len(data), STORED_MOST):
            block = data[start : start + STORED_MOST]
            size = len(block)
            is_last = start + STORED_MOST >= len(data)
            # RFC 1951, 3.2.4: a stored block begins with its size and the complement of that.
            self._write(bytes([is_last]) + size.to_bytes(2, "little") + (size ^ STORED_MOST).to_bytes(2, "little"))
            self._write(block)
        self._end(zlib.crc32(data), len(data))

    def _end(self, checksum: int, size: int) -> None:
        self._write(checksum.to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little"))

    def _write(self, data: bytes) -> None:
        self._packed.update(data)
        self._file.write(data)


def _raw(file: BinaryIO, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the bytes of a member as the archive has them (APPNOTE.TXT, 4.3.7)."""
    file.seek(member.header_offset)
    header = file.read(30)
    if header[:4] != b"PK\x03\x04" or member.flag_bits & 1:
        raise zipfile.BadZipFile(f"{member.filename} is damaged or encrypted")
    file.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), io.SEEK_CUR)
    remaining = member.compress_size
    while remaining:
        chunk = file.read(min(CHUNK, remaining))
        if not chunk:
            raise zipfile.BadZipFile(f"{member.filename} is cut off")
        remaining -= len(chunk)
        yield chunk


def _script(content: bytes) -> bytes:
    """Return a script of a wheel with the environment's Python."""
    first, newline, rest = content.partition(b"\n")
    if not first.startswith(b"#!python"):
        return content
    return f"#!{PREFIX}/bin/python".encode() + newline + rest


def _programs(entry_points: str) -> dict[str, LayerEntry]:
    """Return the programs of a wheel's entry points, as the specification of entry points has them."""
    parser = configparser.ConfigParser(delimiters=("=",), strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # names have capitals
    try:
        parser.read_string(entry_points)
    except configparser.Error as error:
        raise ValueError("its entry points cannot be read") from error
    entries = {}
    for section in ("console_scripts", "gui_scripts"):
        for name, value in parser.items(section) if parser.has_section(section) else ():
            match = _ENTRY.fullmatch(value)
            if match is None:
                raise ValueError(f"its entry point {name!r} cannot be read")
            text = _SCRIPT.format(python=f"{PREFIX}/bin/python", **match.groupdict())
            path = below(PurePosixPath(PREFIX, "bin"), name).as_posix()
            entries[path] = LayerEntry(content=text.encode(), is_executable=True)
    return entries
