"""Copies of whole data sets as directories, for programs that open files: one for each version on a machine."""

import contextlib
import fcntl
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fairlead.runtime.data.manifest import DataManifest, Entry
from fairlead.runtime.data.stores import DataStore
from fairlead.runtime.errors import Misuse
from fairlead.runtime.paths import below

PART_BYTES = 16 << 20
THREADS = 64


def copy_tree(manifest: DataManifest, store: DataStore, trees: Path) -> Path:
    """Return the directory with the files of a version; copy them first if it is not complete.

    One process copies, others wait for it. A copy that was killed goes on with the files that are not there yet.

    Raises:
        Misuse: The disk has no room for it.
        DataChanged: An object is not the one of the manifest any more.
    """
    trees.mkdir(parents=True, exist_ok=True)
    tree, done = below(trees, manifest.version), below(trees, f"{manifest.version}.done")
    if done.exists():
        return tree
    lock = os.open(below(trees, f"{manifest.version}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return tree
        copy_files(manifest, store, tree)
        done.touch()
    finally:
        os.close(lock)
    return tree


def copy_files(manifest: DataManifest, store: DataStore, tree: Path) -> None:
    """Copy the files of a version that are not in a directory yet, each atomically.

    Raises:
        Misuse: The disk has no room for them.
        DataChanged: An object is not the one of the manifest any more.
    """
    tree.mkdir(parents=True, exist_ok=True)
    missing = [entry for entry in manifest.entries if not _is_there(tree, entry)]
    needed = sum(entry.size for entry in missing)
    free = shutil.disk_usage(tree).free
    if needed > free:
        raise Misuse(
            f"data: copying {store.url} takes {needed / 1e9:.1f} GB more, and {tree} has {free / 1e9:.1f} GB "
            "free; give `mode: cache` or `stream`, or free some"
        )
    for folder in {below(tree, entry.key).parent for entry in missing}:
        folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in threads.map(lambda entry: _copy(store, tree, entry), missing):
            pass


def _is_there(tree: Path, entry: Entry) -> bool:
    try:
        return below(tree, entry.key).stat().st_size == entry.size
    except OSError:
        return False


def _copy(store: DataStore, tree: Path, entry: Entry) -> None:
    path = below(tree, entry.key)
    partial = path.with_name(f".{path.name[:200]}.part")
    try:
        with open(partial, "wb") as file:
            for start in range(0, entry.size, PART_BYTES):
                file.write(store.get(entry, start, min(entry.size, start + PART_BYTES)))
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
