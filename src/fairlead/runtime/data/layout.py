"""Bundles and samples of a data set: plain files, tar files (WebDataset) and Parquet files.

A bundle is what is fetched, cached and put in order as one: small files joined in an order hashed from the version,
ranges of 4 MiB of a tar file, or a row group. A sample is a dictionary: of a file ``{"__key__": "a/0001", "jpg":
bytes}``, of a tar file the same with all its members of that name, of Parquet the values by column.
"""

import bisect
import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fairlead.runtime.data.manifest import DataManifest, Entry
from fairlead.runtime.data.stores import DataStore
from fairlead.runtime.errors import MissingExtra, Misuse
from fairlead.runtime.paths import below

BUNDLE_BYTES = 4 << 20
BLOCK = 512
OPEN_SHARDS = 16
MOST_EXTENDED = 1 << 20
"""Longest extended header of a tar file that is read."""

Ranges = Callable[[int, int, int], bytes]
"""Reads a range of an object, by its index in the manifest, start and stop."""


class BundleMember(NamedTuple):
    """A range of an object, as part of a bundle."""

    entry: int
    start: int
    stop: int


class Ref(NamedTuple):
    """A sample: the bundle in which it begins, and its number there."""

    bundle: int
    number: int


class Layout(Protocol):
    """The division of a data set into bundles and samples."""

    @property
    def bundles(self) -> Sequence[Sequence[BundleMember]]:
        """The ranges of each bundle, in their order in it."""
        ...

    def places(self, rng: random.Random | None) -> list[int]:
        """Return the order of bundles in an epoch; None for that of the manifest."""
        ...

    def count(self, bundle: int, ranges: Ranges) -> int:
        """Return the number of samples that begin in a bundle, after those before it in its file were counted."""
        ...

    def needs(self, bundle: int) -> Sequence[int]:
        """Return the bundles that reading a bundle's samples takes, itself first."""
        ...

    def read(self, ref: Ref, ranges: Ranges) -> dict[str, Any]:
        """Return a sample."""
        ...

    def pieces(self, entry: int, start: int, stop: int) -> Sequence[tuple[int, int, int]]:
        """Return bundle, start and stop in it, of the parts of a range of an object."""
        ...


def open_layout(manifest: DataManifest, store: DataStore, index: Path | None) -> Layout:
    """Return the layout that the names of the objects imply.

    Args:
        index: Directory for positions of samples that had to be searched; None to keep none.

    Raises:
        Misuse: Tar or Parquet files are mixed with others.
    """
    ends = {os.path.splitext(entry.key)[1].lower() for entry in manifest.entries}
    for end in (".tar", ".parquet"):
        if end in ends and len(ends) > 1:
            other = next(entry.key for entry in manifest.entries if not entry.key.lower().endswith(end))
            raise Misuse(f'data: {end} files are mixed with others, such as {other}; give `include: "*{end}"`')
    if ends == {".tar"}:
        return TarLayout(manifest, index)
    if ends == {".parquet"}:
        return ParquetLayout(manifest, store, index)
    if ends & {".gz", ".tgz", ".zst"} and len(ends) == 1:
        raise Misuse("data: compressed archives cannot be read from the middle; store plain .tar files")
    return FileLayout(manifest)


class FileLayout:
    """Each object is a sample."""

    def __init__(self, manifest: DataManifest) -> None:
        self._entries = manifest.entries
        order = list(range(len(self._entries)))
        random.Random(manifest.version).shuffle(order)
        self.bundles: list[list[BundleMember]] = []
        self._places: list[tuple[int, int]] = [(0, 0)] * len(order)
        size = BUNDLE_BYTES
        for number in order:
            own = self._entries[number].size
            if size + own > BUNDLE_BYTES:
                self.bundles.append([])
                size = 0
            self._places[number] = (len(self.bundles) - 1, size)
            self.bundles[-1].append(BundleMember(number, 0, own))
            size += own

    def places(self, rng: random.Random | None) -> list[int]:
        order = list(range(len(self.bundles)))
        if rng is not None:
            rng.shuffle(order)
        return order

    def count(self, bundle: int, ranges: Ranges) -> int:
        return len(self.bundles[bundle])

    def needs(self, bundle: int) -> Sequence[int]:
        return (bundle,)

    def member(self, ref: Ref) -> BundleMember:
        """Return the object of a sample."""
        return self.bundles[ref.bundle][ref.number]

    def read(self, ref: Ref, ranges: Ranges) -> dict[str, Any]:
        member = self.member(ref)
        return self.sample(member, ranges(*member))

    def sample(self, member: BundleMember, data: bytes) -> dict[str, Any]:
        """Return the sample of an object's bytes."""
        name, end = os.path.splitext(self._entries[member.entry].key)
        return {"__key__": name, end[1:] or "data": data}

    def pieces(self, entry: int, start: int, stop: int) -> Sequence[tuple[int, int, int]]:
        bundle, at = self._places[entry]
        return ((bundle, at + start, at + stop),)


class _Shard:
    """Samples of a tar file as far as it was read.

    Attributes:
        starts: Position of the first header of each sample.
        samples: Name of each sample, with extension, position and size of its members.
        at: Position of the next header; None at the end.
    """

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.samples: list[tuple[str, list[tuple[str, int, int]]]] = []
        self.at: int | None = 0


class TarLayout:
    """Samples are members of tar files with the same name up to the first dot, as WebDataset has them.

    A file is read from its begin, in ranges of which sixteen files have one each in turn, since only its headers say
    where samples begin.
    """

    def __init__(self, manifest: DataManifest, index: Path | None) -> None:
        self._entries = manifest.entries
        self._index = index
        self._first: list[int] = []
        self.bundles: list[list[BundleMember]] = []
        for number, entry in enumerate(self._entries):
            self._first.append(len(self.bundles))
            for start in range(0, max(entry.size, 1), BUNDLE_BYTES):
                self.bundles.append([BundleMember(number, start, min(entry.size, start + BUNDLE_BYTES))])
        self._shards = [self._known(entry) for entry in self._entries]

    def places(self, rng: random.Random | None) -> list[int]:
        shards = list(range(len(self._entries)))
        if rng is None:
            return list(range(len(self.bundles)))
        rng.shuffle(shards)
        order: list[int] = []
        for at in range(0, len(shards), OPEN_SHARDS):
            group = [self._bundles_of(shard) for shard in shards[at : at + OPEN_SHARDS]]
            for turn in range(max(map(len, group))):
                order += [bundles[turn] for bundles in group if turn < len(bundles)]
        return order

    def count(self, bundle: int, ranges: Ranges) -> int:
        first, last = self._span(bundle, ranges)
        return last - first

    def needs(self, bundle: int) -> Sequence[int]:
        follows = bundle + 1 in self._bundles_of(self.bundles[bundle][0].entry)
        return (bundle, bundle + 1) if follows else (bundle,)

    def read(self, ref: Ref, ranges: Ranges) -> dict[str, Any]:
        number = self.bundles[ref.bundle][0].entry
        first, _ = self._span(ref.bundle, ranges)
        name, members = self._shards[number].samples[first + ref.number]
        return {"__key__": name, **{end: ranges(number, at, at + size) for end, at, size in members}}

    def pieces(self, entry: int, start: int, stop: int) -> Sequence[tuple[int, int, int]]:
        parts, first = [], self._first[entry]
        while start < stop:
            number, at = divmod(start, BUNDLE_BYTES)
            size = min(stop - start, BUNDLE_BYTES - at)
            parts.append((first + number, at, at + size))
            start += size
        return parts

    def _bundles_of(self, shard: int) -> range:
        last = self._first[shard + 1] if shard + 1 < len(self._first) else len(self.bundles)
        return range(self._first[shard], last)

    def _span(self, bundle: int, ranges: Ranges) -> tuple[int, int]:
        """Return the numbers in the file of the first sample of a bundle and of the first one after it."""
        ((number, start, stop),) = self.bundles[bundle]
        shard = self._shards[number]
        if shard.at is not None and shard.at < stop:
            self._walk(number, stop, ranges)
        return bisect.bisect_left(shard.starts, start), bisect.bisect_left(shard.starts, stop)

    def _walk(self, number: int, stop: int, ranges: Ranges) -> None:
        """Read headers until those of samples that begin before ``stop`` are all known."""
        shard, entry = self._shards[number], self._entries[number]
        name, size, extended = "", -1, 0
        while shard.at is not None:
            at, begin = shard.at + extended, shard.at
            if at + BLOCK > entry.size:
                break
            header = ranges(number, at, at + BLOCK)
            if not header.strip(b"\0"):
                break
            kind, length, own = _read_header(header, entry.key, at)
            data = at + BLOCK
            after = data + -(-length // BLOCK) * BLOCK
            if kind in (b"x", b"L", b"g"):
                if length > MOST_EXTENDED:
                    raise Misuse(f"data: {entry.key} has an extended header of {length} bytes at {at}")
                text = ranges(number, data, data + length)
                if kind == b"L":
                    name = text.rstrip(b"\0").decode("utf-8", "replace")
                elif kind == b"x":
                    fields = _read_extended(text)
                    name, size = fields.get("path", name), int(fields.get("size", size))
                extended += after - at
                continue
            if size >= 0:
                length, after = size, data + -(-size // BLOCK) * BLOCK
            if kind in (b"0", b"\0", b"7"):
                if data + length > entry.size:
                    raise Misuse(f"data: {entry.key} ends within a member; it was not written to its end")
                folder, _, last = (name or own).removeprefix("./").rpartition("/")
                stem, _, end = last.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if shard.samples and shard.samples[-1][0] == key:
                    shard.samples[-1][1].append((end or "data", data, length))
                else:
                    if begin >= stop:
                        return  # it belongs to a later bundle, whose walk begins with it
                    shard.samples.append((key, [(end or "data", data, length)]))
                    shard.starts.append(begin)
            name, size, extended = "", -1, 0
            shard.at = after
        shard.at = None
        self._keep(entry, shard)

    def _path(self, entry: Entry) -> Path | None:
        if self._index is None:
            return None
        digest = _digest(f"{entry.key}\0{entry.size}\0{entry.etag}")
        return below(self._index, f"{digest}.tar.json")

    def _known(self, entry: Entry) -> _Shard:
        shard, path = _Shard(), self._path(entry)
        if path is not None and path.exists():
            try:
                starts, samples = json.loads(path.read_bytes())
                shard.starts = [int(start) for start in starts]
                shard.samples = [
                    (str(name), [(str(end), int(at), int(size)) for end, at, size in members])
                    for name, members in samples
                ]
                shard.at = None
            except (OSError, ValueError, TypeError, RecursionError):
                return _Shard()
        return shard

    def _keep(self, entry: Entry, shard: _Shard) -> None:
        path = self._path(entry)
        if path is not None:
            _write(path, json.dumps([shard.starts, shard.samples], separators=(",", ":")).encode())


def _read_header(header: bytes, key: str, at: int) -> tuple[bytes, int, str]:
    """Return type, size and name of a member.

    Raises:
        Misuse: The block is no header of a tar file.
    """
    try:
        checksum = int(header[148:156].split(b"\0")[0].strip() or b"0", 8)
        sound = checksum == sum(header[:148]) + 256 + sum(header[156:])
        if header[124] & 0x80:
            size = int.from_bytes(header[125:136], "big")
        else:
            size = int(header[124:136].split(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        sound = False
    if not sound:
        raise Misuse(f"data: {key} is not a tar file at byte {at}; compressed ones cannot be read from the middle")
    name = header[:100].split(b"\0")[0]
    prefix = header[345:500].split(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    whole = prefix + b"/" + name if prefix else name
    return header[156:157], size, whole.decode("utf-8", "replace")


def _read_extended(text: bytes) -> dict[str, str]:
    """Return the records of an extended header: length, a space, name, an equals sign, value, a line break."""
    fields: dict[str, str] = {}
    while text:
        length, _, _ = text.partition(b" ")
        if not length.isdigit() or not 0 < int(length) <= len(text):
            break
        record, text = text[len(length) + 1 : int(length) - 1], text[int(length) :]
        name, _, value = record.partition(b"=")
        fields[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return fields


class ParquetLayout:
    """Rows of Parquet files; a row group is a bundle."""

    def __init__(self, manifest: DataManifest, store: DataStore, index: Path | None) -> None:
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise MissingExtra('data: Parquet files need pyarrow; pip install "fairlead[parquet]"') from error
        self._parquet = pyarrow.parquet
        self._entries = manifest.entries
        self.bundles: list[list[BundleMember]] = []
        self._groups: list[tuple[int, int, int]] = []
        self._metadata: list[Any] = []
        self._tables: dict[int, Any] = {}
        self._starts: list[list[tuple[int, int]]] = []
        for number, entry in enumerate(self._entries):
            footer = self._footer(number, entry, store, index)
            metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(footer))
            self._metadata.append(metadata)
            self._starts.append([])
            for group in range(metadata.num_row_groups):
                start, stop = _group_range(metadata.row_group(group), entry)
                self._starts[number].append((start, len(self.bundles)))
                self._groups.append((number, group, metadata.row_group(group).num_rows))
                self.bundles.append([BundleMember(number, start, stop)])

    def places(self, rng: random.Random | None) -> list[int]:
        order = list(range(len(self.bundles)))
        if rng is not None:
            rng.shuffle(order)
        return order

    def count(self, bundle: int, ranges: Ranges) -> int:
        return self._groups[bundle][2]

    def needs(self, bundle: int) -> Sequence[int]:
        return (bundle,)

    def read(self, ref: Ref, ranges: Ranges) -> dict[str, Any]:
        table = self._tables.get(ref.bundle)
        if table is None:
            number, group, _ = self._groups[ref.bundle]
            source = _RangeFile(self._entries[number].size, lambda start, stop: ranges(number, start, stop))
            file = self._parquet.ParquetFile(source, metadata=self._metadata[number])
            table = file.read_row_group(group, use_threads=False)
            while len(self._tables) >= OPEN_SHARDS:
                self._tables.pop(next(iter(self._tables)))
            self._tables[ref.bundle] = table
        return {name: table[name][ref.number].as_py() for name in table.column_names}

    def pieces(self, entry: int, start: int, stop: int) -> Sequence[tuple[int, int, int]]:
        place = bisect.bisect_right(self._starts[entry], (start, len(self.bundles))) - 1
        first, bundle = self._starts[entry][max(place, 0)]
        return ((bundle, start - first, stop - first),)

    def _footer(self, number: int, entry: Entry, store: DataStore, index: Path | None) -> bytes:
        """Return the end of a file that holds its metadata, behind the magic of its begin."""
        path = None
        if index is not None:
            path = below(index, f"{_digest(f'{entry.key}{chr(0)}{entry.size}{chr(0)}{entry.etag}')}.footer")
            try:
                return path.read_bytes()
            except OSError:
                pass
        tail = store.get(entry, max(0, entry.size - BLOCK * 128), entry.size)
        if tail[-4:] != b"PAR1":
            raise Misuse(f"data: {entry.key} is not a Parquet file; leave it out by `include`")
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if length > entry.size - 4:
            raise Misuse(f"data: {entry.key} is not a whole Parquet file")
        if length > len(tail):
            tail = store.get(entry, entry.size - length, entry.size)
        footer = b"PAR1" + tail[-length:]
        if path is not None:
            _write(path, footer)
        return footer


class _RangeFile:
    """A file for pyarrow whose ranges come from bundles."""

    def __init__(self, size: int, read: Callable[[int, int], bytes]) -> None:
        self._size = size
        self._read = read
        self._at = 0
        self.closed = False

    def read(self, count: int = -1) -> bytes:
        stop = self._size if count < 0 else min(self._size, self._at + count)
        data = self._read(self._at, stop)
        self._at = stop
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def _group_range(group: Any, entry: Entry) -> tuple[int, int]:
    """Return the range of a row group's columns in its file."""
    start, stop = entry.size, 0
    for number in range(group.num_columns):
        column = group.column(number)
        begin = column.dictionary_page_offset or column.data_page_offset
        begin = min(begin, column.data_page_offset)
        start, stop = min(start, begin), max(stop, begin + column.total_compressed_size)
    if not 0 <= start <= stop <= entry.size:
        raise Misuse(f"data: {entry.key} has a row group that lies outside of it")
    return start, stop


def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError:  # the index is made again where a disk is full
        partial.unlink(missing_ok=True)
