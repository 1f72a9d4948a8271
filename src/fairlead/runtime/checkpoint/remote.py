"""Checkpoints on an object store.

An object store has no rename, so a checkpoint is uploaded under its final name, and its manifest, the last object
uploaded, marks it as complete. Files wait for the upload on the pod's own disk.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fairlead.runtime.checkpoint.manifest import MANIFEST, DamagedError, Manifest, files_below
from fairlead.runtime.checkpoint.store import STEP_NAME, Draft, step_name
from fairlead.runtime.errors import StoreUnavailable
from fairlead.runtime.paths import below
from fairlead.runtime.places import open_place, translated, upload

T = TypeVar("T")


def open_remote(place: str, *, scratch: Path | None) -> "FsspecStore":
    """Return the store for a URL.

    Raises:
        MissingExtra: fsspec, or its file system for this scheme, is not installed.
        Misuse: fsspec does not support the scheme.
    """
    system, root = open_place(place, what="checkpoints")
    return FsspecStore(system, root, place=place, scratch=scratch)


class FsspecStore:
    """A Store on an fsspec file system."""

    shared = False
    on_each_node = False

    def __init__(self, system: Any, root: str, *, place: str, scratch: Path | None) -> None:
        self._system = system
        self._root = root
        self._scratch = scratch
        self._made: set[Path] = set()
        self.place = place

    def workplace(self, draft: Draft, rank: int) -> Path:
        return self._temporary(f"save-{draft.step}-{rank}-")

    def begin(self, draft: Draft) -> None:
        self._remove(draft.step)

    def put(self, draft: Draft, workplace: Path) -> None:
        for name, path in files_below(workplace).items():
            self._do("uploaded to", partial(upload, self._system, path, f"{self._at(draft.step)}/{name}"))

    def commit(self, draft: Draft, manifest: Manifest) -> None:
        data = manifest.to_json()
        self._do("uploaded to", lambda: self._system.pipe_file(f"{self._at(draft.step)}/{MANIFEST}", data))

    def discard(self, draft: Draft) -> None:
        self._remove(draft.step)

    def release(self, directory: Path) -> None:
        # Removing a tree could delete foreign files, so only directories that this object created are removed.
        if directory in self._made:
            self._made.remove(directory)
            shutil.rmtree(directory, ignore_errors=True)

    def steps(self) -> list[int]:
        return sorted(step for step, names in self._listed_files().items() if MANIFEST in names)

    def manifest(self, step: int) -> Manifest:
        try:
            data = self._do("read from", lambda: self._system.cat_file(f"{self._at(step)}/{MANIFEST}"))
        except FileNotFoundError as error:
            raise DamagedError(f"{MANIFEST} is missing") from error
        return Manifest.from_json(data)

    def fetch(self, step: int, names: Iterable[str]) -> Path:
        directory = self._temporary(f"load-{step}-")
        try:
            for name in names:
                self._download(f"{self._at(step)}/{name}", below(directory, name))
        except (ValueError, StoreUnavailable, OSError):
            self.release(directory)
            raise
        return directory

    def tidy(self, outdated: Iterable[int]) -> None:
        files_by_step = self._listed_files()
        for step in {*outdated, *(step for step, names in files_by_step.items() if MANIFEST not in names)}:
            self._remove(step)

    def _at(self, step: int) -> str:
        return f"{self._root}/{step_name(step)}"

    def _download(self, path: str, goal: Path) -> None:
        goal.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._do("read from", lambda: self._system.get_file(path, str(goal)))
        except FileNotFoundError:
            goal.unlink(missing_ok=True)  # the check against the manifest names it
        except StoreUnavailable as error:
            # Stores have their own checksums, and each client library raises its own error when one does not match.
            if "checksum" not in type(error.__cause__).__name__.lower():
                raise
            raise DamagedError(f"{goal.name} differs from what was uploaded") from error

    def _listed_files(self) -> dict[int, set[str]]:
        """Return the file names of each step. The listing is never cached, because other pods write too."""
        self._system.invalidate_cache()
        try:
            paths = self._do("read from", lambda: self._system.find(self._root))
        except FileNotFoundError:
            return {}
        files_by_step: dict[int, set[str]] = {}
        for path in paths:
            directory, _, name = path.removeprefix(f"{self._root}/").partition("/")
            match = STEP_NAME.fullmatch(directory)
            if match:
                files_by_step.setdefault(int(match[1]), set()).add(name)
        return files_by_step

    def _remove(self, step: int) -> None:
        """Remove a step, its manifest first, so that a partly removed checkpoint does not count as complete."""
        names = self._listed_files().get(step, set())
        for name in sorted(names, key=lambda name: name != MANIFEST):
            self._do("removed from", partial(self._system.rm_file, f"{self._at(step)}/{name}"))

    def _temporary(self, prefix: str) -> Path:
        if self._scratch is not None:
            self._scratch.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=f"fairlead-{prefix}", dir=self._scratch)).absolute()
        self._made.add(directory)
        return directory

    def _do(self, what: str, call: Callable[[], T]) -> T:
        return translated(call, f"a checkpoint cannot be {what} {self.place}")
