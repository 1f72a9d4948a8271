"""Copies of whole data sets as directories, for programs that open files: one for each version on a machine.

All runs of the machine read the same copy, and a program may change what it reads, as by `sed -i` or by a cache beside
the files. A copied file has a time of modification that stands for its version: one with another time or size is copied
again before the next run reads it.

Parts of files are read from other nodes where there are some, and are there for them: the server of this node reads the
list of them beside the copy.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fairlead.runtime.data.manifest import DataManifest, Entry, bundle_name
from fairlead.runtime.data.peer_server import PARTS, partial_path
from fairlead.runtime.data.peers import Peers
from fairlead.runtime.data.stores import DataStore
from fairlead.runtime.errors import Misuse
from fairlead.runtime.paths import below

PART_BYTES = 16 << 20
THREADS = 64
PEER_THREADS = 16
"""Threads where parts are kept in memory until their hash is known."""
# Times of modification that stand for versions: whole seconds from 1980 on, which every file system holds.
_FIRST_S, _NUM_S = 315_532_800, 600_000_000


def copy_tree(manifest: DataManifest, store: DataStore, trees: Path, peers: Peers | None = None) -> Path:
    """Return the directory with the files of a version; copy first those that it lacks and those that were changed.

    One process copies, others wait for it. A copy that was killed goes on with the files that are not there yet. A file
    is replaced at once, so programs that have the changed one open read on in it.

    Args:
        trees: Directory of copies.
        peers: The other nodes that have, or need, the same copy; None if there are none.

    Raises:
        Misuse: The disk has no room for it.
        DataChanged: An object is not the one of the manifest any more.
    """
    trees.mkdir(parents=True, exist_ok=True)
    tree, done = below(trees, manifest.version), below(trees, f"{manifest.version}.done")
    if done.exists() and not _missing(manifest, tree):
        return tree
    lock = os.open(below(trees, f"{manifest.version}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists() or _missing(manifest, tree):
            parts = None
            if peers is not None:
                parts = _PeerParts(peers, manifest.version, store.url, below(trees, f"{manifest.version}{PARTS}"))
            try:
                copy_files(manifest, store, tree, is_shared=True, peer_parts=parts)
            except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
                raise Misuse(
                    f"data: {error.filename2 or error.filename} is where a file of the copy belongs, as a program put "
                    f"it there; `fairlead data rm {manifest.version}` removes the copy, and the next run makes it again"
                ) from error
            finally:
                if parts is not None:
                    parts.close()
            done.touch()
    finally:
        os.close(lock)
    return tree


def foreign_files(entries: Iterable[Entry], tree: Path) -> list[str]:
    """Return the names of files in a copy that are not of its version, such as caches of a program, sorted."""
    present = (
        os.path.relpath(f"{folder}/{name}", tree)
        for folder, _, names in os.walk(tree)
        for name in names
        if not name.endswith(".part")
    )
    return sorted(set(present) - {entry.key for entry in entries})


def _missing(manifest: DataManifest, tree: Path) -> list[Entry]:
    root, mark = os.fspath(tree), _mark_of(manifest.version)
    return [entry for entry in manifest.entries if not _is_intact(f"{root}/{entry.key}", entry.size, mark)]


def copy_files(
    manifest: DataManifest,
    store: DataStore,
    tree: Path,
    *,
    is_shared: bool = False,
    peer_parts: "_PeerParts | None" = None,
) -> None:
    """Copy the files of a version that are not in a directory yet, each atomically; others of their names are replaced.

    Args:
        is_shared: Other programs read the files, so they have no write permission.
        peer_parts: Reads parts from other nodes, and lets them read those of this one; None if there are none.

    Raises:
        Misuse: The disk has no room for them.
        DataChanged: An object is not the one of the manifest any more.
    """
    tree.mkdir(parents=True, exist_ok=True)
    missing = _missing(manifest, tree)
    needed = sum(entry.size for entry in missing)
    free = shutil.disk_usage(tree).free
    if needed > free:
        raise Misuse(
            f"data: copying {store.url} takes {needed / 1e9:.1f} GB more, and {tree} has {free / 1e9:.1f} GB "
            "free; give `mode: cache` or `stream`, or free some"
        )
    mark = _mark_of(manifest.version)
    for folder in {below(tree, entry.key).parent for entry in missing}:
        folder.mkdir(parents=True, exist_ok=True)
    files = [_File(below(tree, entry.key), entry, mark, is_shared) for entry in missing]
    parts = [(file, start) for file in files for start in range(0, max(1, file.entry.size), PART_BYTES)]

    def copy(part: tuple[_File, int]) -> None:
        file, start = part
        entry, stop = file.entry, min(file.entry.size, start + PART_BYTES)

        def get() -> bytes:
            return store.get(entry, start, stop) if stop > start else b""

        if peer_parts is None or start == stop:
            file.write(start, get())
        else:
            peer_parts.copy(file, start, stop, get)

    threads = ThreadPoolExecutor(THREADS if peer_parts is None else PEER_THREADS)
    try:
        for _ in threads.map(copy, parts):
            pass
    finally:
        threads.shutdown(cancel_futures=True)
        for file in files:
            file.close()


def _mark_of(version: str) -> int:
    """Return the time of modification of files of a version, in seconds of Unix time."""
    return _FIRST_S + int.from_bytes(version.encode(), "big") % _NUM_S


def _is_intact(path: str, size: int, mark: int) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and (status.st_size, int(status.st_mtime)) == (size, mark)


class _File:
    """A file that is written in parts by several threads, and has its name once it is whole."""

    def __init__(self, path: Path, entry: Entry, mark: int, is_shared: bool) -> None:
        self.entry = entry
        self._path = path
        self._mark = mark
        self._is_shared = is_shared
        self._missing = max(1, -(-entry.size // PART_BYTES))
        self._mutex = threading.Lock()
        self._file: int | None = None

    def write(self, start: int, data: "bytes | memoryview") -> None:
        """Write a part; the last one gives the file its name.

        Raises:
            OSError: The disk is full.
        """
        with self._mutex:
            if self._file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                self._file = os.open(partial_path(self._path), flags, 0o644)
            file = self._file
        view = memoryview(data)
        while view:
            count = os.pwrite(file, view, start)
            start, view = start + count, view[count:]
        with self._mutex:
            self._missing -= 1
            if not self._missing:
                os.utime(file, (self._mark, self._mark))
                if self._is_shared:
                    os.fchmod(file, 0o444)
                partial_path(self._path).replace(self._path)
                os.close(file)
                self._file = None

    def close(self) -> None:
        """Remove a file that is not whole."""
        if self._file is not None:
            os.close(self._file)
            with contextlib.suppress(OSError):
                partial_path(self._path).unlink()


class _PeerParts:
    """Parts of files that nodes read from each other."""

    def __init__(self, peers: Peers, version: str, url: str, path: Path) -> None:
        self._peers = peers
        self._version = version
        self._url = url
        self._mutex = threading.Lock()
        self._list = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def copy(self, file: _File, start: int, stop: int, get: Callable[[], bytes]) -> None:
        """Write a part of a file, from another node or from the store.

        Args:
            get: Reads it from the store.
        """
        name = bundle_name(self._url, [(file.entry, start, stop)])
        result = self._peers.obtain(self._version, name, memoryview(bytearray(stop - start)))
        try:
            data = memoryview(get()) if result.data is None else result.data
            file.write(start, data)
            line = json.dumps({"name": name, "start": start, "stop": stop, "key": file.entry.key}).encode() + b"\n"
            with self._mutex:
                os.write(self._list, line)
            if result.record is not None:
                result.record.fetched(result.digest or hashlib.sha256(data).hexdigest(), stop - start)
        except BaseException:
            if result.record is not None:
                result.record.release()
            raise

    def close(self) -> None:
        os.close(self._list)
