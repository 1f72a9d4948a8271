"""The cache of this machine: a file for each bundle, for all ranks and runs, without a daemon.

A bundle is written beside its name and renamed. Whoever holds the flock of the unfinished file fetches it, and the
kernel releases that lock when its process dies. Within a version the cache keeps what came first; between versions it
keeps those with the most bytes a second taken for each byte stored. See decision 210.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairlead.runtime.paths import below

PAGE = 65_536
_TAIL = struct.Struct("<8sQII")
_MAGIC = b"FLBUNDL1"
ACTIVE_S = 120.0
"""A version whose readers have not been heard of for this long has no reader."""
RECOUNT_S = 60.0
NOTE_S = 5.0


class Bundle:
    """The bytes of a bundle, mapped from its file; a page is verified when it is first read.

    Args:
        is_verified: True for bytes that this process just wrote.
    """

    def __init__(self, data: mmap.mmap | bytes, size: int, sums: tuple[int, ...], *, is_verified: bool = False) -> None:
        self._data = data
        self._view = memoryview(data)
        self._sums = sums
        self._verified = bytearray(bytes([is_verified]) * len(sums))
        self.size = size

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes of the bundle.

        Raises:
            ValueError: They are not the bytes that were written.
        """
        for page in range(start // PAGE, (stop + PAGE - 1) // PAGE):
            if not self._verified[page]:
                if zlib.crc32(self._view[page * PAGE : min(self.size, (page + 1) * PAGE)]) != self._sums[page]:
                    raise ValueError("a page of the bundle is damaged")
                self._verified[page] = 1
        return self._data[start:stop]


class FetchClaim:
    """The right to fetch one bundle."""

    def __init__(self, cache: BundleCache, name: str, partial: Path, descriptor: int) -> None:
        self._cache = cache
        self._name = name
        self._partial = partial
        self._descriptor = descriptor

    def write(self, data: bytes | memoryview, reserve: int | None = None) -> Bundle | None:
        """Store the bundle if the cache admits it, give up the right, and return it; None if it is not stored.

        Args:
            reserve: For a copy of another node's bundle the bytes that stay free for others; None for one of the store.
        """
        try:
            if not self._cache.admit(len(data), self._descriptor, reserve):
                return None
            whole = memoryview(data)
            sums = [zlib.crc32(whole[at : at + PAGE]) for at in range(0, len(data), PAGE)]
            table = struct.pack(f"<{len(sums)}I", *sums)
            for part in (whole, table, _TAIL.pack(_MAGIC, len(data), len(sums), zlib.crc32(table))):
                view = memoryview(part)
                while view:
                    view = view[os.write(self._descriptor, view) :]
            self._partial.rename(self._cache.path(self._name))
            mapped = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
            return Bundle(mapped, len(data), tuple(sums), is_verified=True)
        except OSError as error:
            self._cache.returned(len(data))
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOENT):
                raise
            return None
        finally:
            self.release()

    def release(self) -> None:
        """Give up the right; what is unfinished is removed."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):
            if _is_at(self._descriptor, self._partial):
                self._partial.unlink()
        # Unlocked by itself too, since a forked process may hold the same open file.
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)
        self._descriptor = -1


class BundleCache:
    """The bundles of one version on this machine; methods are for any thread.

    Args:
        root: Directory of the cache, shared by all versions.
        version: The version whose bundles are stored.
        limit: Most bytes of all bundles; None for half of what the disk has free or the cache already uses.
    """

    def __init__(self, root: Path, version: str, limit: int | None = None) -> None:
        self._root = root
        self._version = version
        self._directory = below(root, version)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._limit = limit
        self._is_full = False
        self._counted_at = 0.0
        self._taken = 0
        self._noted_at = time.monotonic()
        self._mutex = threading.Lock()
        self._sweep()

    def path(self, name: str) -> Path:
        """Return the path of a bundle, existing or not."""
        return below(self._directory, name)

    def has(self, name: str) -> bool:
        """Return whether a bundle is stored."""
        return os.path.exists(self.path(name))

    def open(self, name: str) -> Bundle | None:
        """Return a stored bundle; None if it is not stored. A damaged file is removed."""
        try:
            return open_bundle(self.path(name))
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            self.damaged(name)
            return None

    def damaged(self, name: str) -> None:
        """Remove a bundle whose bytes are not those that were written."""
        with contextlib.suppress(OSError):
            self.path(name).unlink()

    def claim(self, name: str) -> FetchClaim | None:
        """Return the right to fetch a bundle; None if another process has it, or if the disk takes no file."""
        partial = below(self._directory, f"{name}.part")
        try:
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, partial):
                return FetchClaim(self, name, partial, descriptor)
        except OSError:
            pass
        os.close(descriptor)
        return None

    def takes_files(self) -> bool:
        """Return whether files can be made at all, which a full or read-only disk does not allow."""
        probe = below(self._directory, f"probe-{os.getpid()}-{threading.get_ident()}.part")
        try:
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT, 0o600))
            probe.unlink()
        except OSError:
            return False
        return True

    def note(self, num_bytes: int) -> None:
        """Count bytes that a reader took, by which versions are compared."""
        with self._mutex:
            self._taken += num_bytes
            elapsed = time.monotonic() - self._noted_at
            if elapsed < NOTE_S:
                return
            rate, self._taken, self._noted_at = self._taken / elapsed, 0, time.monotonic()
        with contextlib.suppress(OSError), self._usage() as usage:
            readers = _record(usage, self._version)["readers"]
            readers[str(os.getpid())] = [rate, time.time()]

    def admit(self, num_bytes: int, descriptor: int, reserve: int | None = None) -> bool:
        """Count a bundle that is about to be stored in an open file; return False if it must not be.

        Args:
            reserve: Bytes that have to be free beside it, without removing others; None to make room.
        """
        now = time.time()
        if self._is_full and now - self._counted_at < RECOUNT_S:
            return False
        with self._usage() as usage:
            own = _record(usage, self._version)
            limit = self._limit if self._limit is not None else self._half_of_the_disk(usage)
            if _total(usage) + num_bytes > limit and now - self._counted_at >= RECOUNT_S:
                self._recount(usage)
                self._counted_at = now
            missing = _total(usage) + num_bytes - limit
            if reserve is not None and missing + reserve > 0:
                return False
            if missing > 0:
                missing -= self._evict(usage, missing, now)
            self._is_full = missing > 0
            if self._is_full:
                return False
            # From now on the file has the size by which another process counts it.
            os.ftruncate(descriptor, num_bytes)
            own["bytes"] += num_bytes
            own["at"] = now
        return True

    def returned(self, num_bytes: int) -> None:
        """Take back the count of a bundle that could not be stored."""
        with contextlib.suppress(OSError), self._usage() as usage:
            own = _record(usage, self._version)
            own["bytes"] = max(0, own["bytes"] - num_bytes)

    def forget(self) -> None:
        """Take this version, whose bundles were removed, out of the record."""
        with self._usage() as usage:
            usage.pop(self._version, None)
        with contextlib.suppress(OSError):
            self._directory.rmdir()

    def _evict(self, usage: dict[str, Any], missing: int, now: float) -> int:
        """Remove bundles of versions of a lower density than this one; return the bytes that became free."""
        freed = 0
        own = max(_density(_record(usage, self._version), now), 1e-12)
        others = sorted(
            (_density(record, now), record["at"], version)
            for version, record in usage.items()
            if version != self._version and record["bytes"] > 0
        )
        for density, _, version in others:
            if density >= own or freed >= missing:
                break
            for path in _bundles(below(self._root, version)):
                try:
                    size = path.stat().st_size
                    path.unlink()
                except OSError:
                    continue
                usage[version]["bytes"] = max(0, usage[version]["bytes"] - size)
                freed += size
                if freed >= missing:
                    break
            else:
                usage[version]["bytes"] = 0
        return freed

    def _half_of_the_disk(self, usage: dict[str, Any]) -> int:
        status = os.statvfs(self._root)
        return (status.f_bavail * status.f_frsize + _total(usage)) // 2

    def _recount(self, usage: dict[str, Any]) -> None:
        for version in os.listdir(self._root):
            directory = below(self._root, version)
            if directory.is_dir():
                _record(usage, version)["bytes"] = sum(map(_size, directory.iterdir()))

    @contextlib.contextmanager
    def _usage(self) -> Iterator[dict[str, Any]]:
        """Yield the record of all versions, which is written back; one process at a time."""
        descriptor = os.open(self._root / "usage.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            usage = read_usage(self._root)
            yield usage
            partial = self._root / "usage.part"
            partial.write_text(json.dumps(usage))
            partial.replace(self._root / "usage.json")
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove what killed processes left unfinished."""
        for path in self._directory.glob("*.part"):
            claim = self.claim(path.name.removesuffix(".part"))
            if claim is not None:
                claim.release()


def open_bundle(path: Path) -> Bundle:
    """Return the bundle of a file of the cache.

    Raises:
        OSError: There is no such file, or it cannot be read.
        ValueError: It is not whole.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    try:
        magic, length, pages, digest = _TAIL.unpack(data[size - _TAIL.size :])
        table = data[length : length + 4 * pages]
        if magic == _MAGIC and size == length + 4 * pages + _TAIL.size and zlib.crc32(table) == digest:
            return Bundle(data, length, struct.unpack(f"<{pages}I", table))
    except (struct.error, IndexError):
        pass
    raise ValueError("the bundle is not whole")


def read_usage(root: Path) -> dict[str, Any]:
    """Return the record of the cache by version: bytes, time of the last write, bytes a second of readers."""
    try:
        usage = json.loads((root / "usage.json").read_bytes())
        return {
            str(version): {
                "bytes": int(record["bytes"]),
                "at": float(record["at"]),
                "readers": {str(pid): [float(rate), float(at)] for pid, (rate, at) in record["readers"].items()},
            }
            for version, record in usage.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _record(usage: dict[str, Any], version: str) -> Any:
    return usage.setdefault(version, {"bytes": 0, "at": time.time(), "readers": {}})


def _density(record: Any, now: float) -> float:
    """Return the bytes a second that readers of a version take, for each byte of it that is stored."""
    rate = sum(rate for rate, at in record["readers"].values() if now - at < ACTIVE_S)
    return float(rate / max(record["bytes"], PAGE))


def _total(usage: dict[str, Any]) -> int:
    return sum(int(record["bytes"]) for record in usage.values())


def _bundles(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.suffix == ""] if directory.is_dir() else []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one of a name."""
    try:
        status = path.stat()
    except OSError:
        return False
    own = os.fstat(descriptor)
    return (own.st_dev, own.st_ino) == (status.st_dev, status.st_ino)
