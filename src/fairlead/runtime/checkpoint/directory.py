"""A checkpoint store in a directory, and the choice between it and an object store."""

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from fairlead.runtime.checkpoint.manifest import MANIFEST, DamagedError, Manifest, files_below
from fairlead.runtime.checkpoint.store import STEP_NAME, CheckpointStore, Draft, step_name
from fairlead.runtime.errors import StoreUnavailable
from fairlead.runtime.paths import below
from fairlead.runtime.places import is_url

PARTIAL = ".partial-"


def open_store(place: str, *, scratch: Path | None) -> CheckpointStore:
    """Return the store for a directory or URL.

    Args:
        place: A path, ``file://`` and a path, or a URL that fsspec supports.
        scratch: Directory for files that wait to be uploaded; None for the system's temporary directory.

    Raises:
        MissingExtra: The URL needs a package that is not installed.
        Misuse: The URL's scheme is not known.
    """
    if place.startswith("file://"):
        return Directory(Path(place.removeprefix("file://")))
    if not is_url(place):
        return Directory(Path(place).expanduser())
    # Imported here because a store on disk does not need it.
    from fairlead.runtime.checkpoint.remote import open_remote

    return open_remote(place, scratch=scratch)


class Directory:
    """Checkpoints in a directory that all ranks see, on one machine or over a network file system."""

    shared = True
    on_each_node = False

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.place = str(self._root)

    def workplace(self, draft: Draft, rank: int) -> Path:
        path = self._draft(draft) / f".rank-{rank:05d}"
        path.mkdir(parents=True)
        return path

    def begin(self, draft: Draft) -> None:
        """Do nothing: each draft has a unique name, so no earlier files are in the way."""

    def put(self, draft: Draft, workplace: Path) -> None:
        target = self._draft(draft)
        parents = {target}
        for name, path in files_below(workplace).items():
            goal = below(target, name)
            goal.parent.mkdir(parents=True, exist_ok=True)
            path.replace(goal)
            parents.update(parent for parent in goal.parents if parent.is_relative_to(target))
        shutil.rmtree(workplace)
        for parent in parents:
            sync_directory(parent)

    def commit(self, draft: Draft, manifest: Manifest) -> None:
        source, goal = self._draft(draft), self._root / step_name(draft.step)
        with open(source / MANIFEST, "xb") as file:
            file.write(manifest.to_json())
            file.flush()
            os.fsync(file.fileno())
        sync_directory(source)
        if goal.exists():
            # A step is saved a second time only if its checkpoint was found damaged.
            goal.rename(self._root / f"{PARTIAL}{goal.name}-replaced-by-{draft.tag}")
        source.rename(goal)
        sync_directory(self._root)

    def discard(self, draft: Draft) -> None:
        shutil.rmtree(self._draft(draft), ignore_errors=True)

    def release(self, directory: Path) -> None:
        """Do nothing: the fetched directory is the checkpoint itself, and a workplace is removed with its draft."""

    def steps(self) -> list[int]:
        try:
            entries = list(os.scandir(self._root))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreUnavailable(f"checkpoints cannot be read from {self.place}: {error.strerror}") from error
        matches = (STEP_NAME.fullmatch(entry.name) for entry in entries)
        return sorted(int(match[1]) for match in matches if match and (self._root / match[0] / MANIFEST).exists())

    def manifest(self, step: int) -> Manifest:
        try:
            return Manifest.from_json((self._root / step_name(step) / MANIFEST).read_bytes())
        except OSError as error:
            raise DamagedError(f"{MANIFEST} cannot be read ({error.strerror})") from error

    def fetch(self, step: int, names: Iterable[str]) -> Path:
        return self._root / step_name(step)

    def tidy(self, outdated: Iterable[int]) -> None:
        gone = {step_name(step) for step in outdated}
        for entry in list(os.scandir(self._root)):
            path = Path(entry.path)
            incomplete = STEP_NAME.fullmatch(entry.name) is not None and not (path / MANIFEST).exists()
            if entry.name in gone:
                # A partly removed checkpoint would still have a manifest under its own name.
                doomed = self._root / f"{PARTIAL}{entry.name}-outdated"
                shutil.rmtree(doomed, ignore_errors=True)
                path.rename(doomed)
                shutil.rmtree(doomed)
            elif incomplete or entry.name.startswith(PARTIAL):
                shutil.rmtree(path)

    def _draft(self, draft: Draft) -> Path:
        return self._root / f"{PARTIAL}{step_name(draft.step)}-{draft.tag}"


def sync_directory(path: Path) -> None:
    """Make a directory's entries durable, if the file system supports that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
