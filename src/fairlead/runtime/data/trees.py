"""Copies of whole data sets as directories, for programs that open files: one for each version on a machine.

All runs of the machine read the same copy, and a program may change what it reads, as by `sed -i` or by a cache beside
the files. A copied file has a time of modification that stands for its version: one with another time or size is copied
again before the next run reads it.
"""

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fairlead.runtime.data.manifest import DataManifest, Entry
from fairlead.runtime.data.stores import DataStore
from fairlead.runtime.errors import Misuse
from fairlead.runtime.paths import below

PART_BYTES = 16 << 20
THREADS = 64
# Times of modification that stand for versions: whole seconds from 1980 on, which every file system holds.
_FIRST_S, _NUM_S = 315_532_800, 600_000_000


def copy_tree(manifest: DataManifest, store: DataStore, trees: Path) -> Path:
    """Return the directory with the files of a version; copy first those that it lacks and those that were changed.

    One process copies, others wait for it. A copy that was killed goes on with the files that are not there yet. A file
    is replaced at once, so programs that have the changed one open read on in it.

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
            try:
                copy_files(manifest, store, tree, is_shared=True)
            except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
                raise Misuse(
                    f"data: {error.filename2 or error.filename} is where a file of the copy belongs, as a program put "
                    f"it there; `fairlead data rm {manifest.version}` removes the copy, and the next run makes it again"
                ) from error
            done.touch()
    finally:
        os.close(lock)
    return tree


def foreign_files(entries: Iterable[Entry], tree: Path) -> list[str]:
    """Return the names of files in a copy that are not of its version, such as caches of a program, sorted."""
    present = (
        os.path.relpath(os.path.join(folder, name), tree)
        for folder, _, names in os.walk(tree)
        for name in names
        if not name.endswith(".part")
    )
    return sorted(set(present) - {entry.key for entry in entries})


def _missing(manifest: DataManifest, tree: Path) -> list[Entry]:
    root, mark = os.fspath(tree), _mark_of(manifest.version)
    return [entry for entry in manifest.entries if not _is_intact(f"{root}/{entry.key}", entry.size, mark)]


def copy_files(manifest: DataManifest, store: DataStore, tree: Path, *, is_shared: bool = False) -> None:
    """Copy the files of a version that are not in a directory yet, each atomically; others of their names are replaced.

    Args:
        is_shared: Other programs read the files, so they have no write permission.

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
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in threads.map(lambda entry: _copy(store, below(tree, entry.key), entry, mark, is_shared), missing):
            pass


def _mark_of(version: str) -> int:
    """Return the time of modification of files of a version, in seconds of Unix time."""
    return _FIRST_S + int.from_bytes(version.encode(), "big") % _NUM_S


def _is_intact(path: str, size: int, mark: int) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and (status.st_size, int(status.st_mtime)) == (size, mark)


def _copy(store: DataStore, path: Path, entry: Entry, mark: int, is_shared: bool) -> None:
    partial = path.with_name(f".{path.name[:200]}.part")
    try:
        with open(partial, "wb") as file:
            for start in range(0, entry.size, PART_BYTES):
                file.write(store.get(entry, start, min(entry.size, start + PART_BYTES)))
        os.utime(partial, (mark, mark))
        if is_shared:
            partial.chmod(0o444)
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
