"""Uses an object store as a pipeline's place: documents, outputs as archives, and a journal of one object per line.

Objects are never moved or appended to; each is complete or absent. The programs of steps read and write on the pod's
disk.

See decision 109.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.control.pipelines.artefacts import Artefacts, protect
from fairlead.runtime.errors import StoreUnavailable
from fairlead.runtime.extraction import InvalidArchive
from fairlead.runtime.places import open_place, translated, upload
from fairlead.runtime.step_files import GIVEN, RETURNED, archive_of, merge, pack, unpack

JOURNAL = "journal"
PARTIAL = "partial"
NUMBER_DIGITS = 9


class ObjectDocuments:
    """Small texts in an object store, by name.

    Raises:
        MissingExtra: fsspec, or its file system for this scheme, is not installed.
        Misuse: fsspec does not know the scheme.
        StoreUnavailable: The store cannot be reached, or refuses the request; from every method.
    """

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/")
        self.system, self.root = open_place(self.place, what="outputs of steps")

    def read(self, name: str) -> str | None:
        """Return a text; None if the name does not exist."""
        try:
            data: bytes = translated(
                partial(self.system.cat_file, f"{self.root}/{name}"), f"{self.place}/{name} cannot be read"
            )
        except FileNotFoundError:
            return None
        return data.decode("utf-8", "surrogatepass")

    def write(self, name: str, text: str) -> None:
        """Store a text under a name."""
        data = text.encode("utf-8", "surrogatepass")
        self._put(lambda goal: self.system.pipe_file(goal, data), name)

    def has(self, name: str) -> bool:
        """Return whether the name exists."""
        self.system.invalidate_cache()
        return bool(self._do(partial(self.system.exists, f"{self.root}/{name}"), f"{self.place} cannot be read"))

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted."""
        self.system.invalidate_cache()
        try:
            paths = self._do(partial(self.system.ls, f"{self.root}/{folder}", detail=False), f"{self.place}: no list")
        except FileNotFoundError:
            return []
        return sorted(str(path).rpartition("/")[2] for path in paths)

    def remove(self, name: str) -> None:
        """Remove an object, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._do(partial(self.system.rm_file, f"{self.root}/{name}"), f"{self.place}/{name} cannot be removed")

    def send(self, path: Path, name: str) -> None:
        """Upload a local file under a name."""
        self._put(lambda goal: upload(self.system, path, goal), name)

    def fetch(self, name: str, path: Path) -> None:
        """Download an object to a local file.

        Raises:
            FileNotFoundError: The name does not exist.
        """
        call = partial(self.system.get_file, f"{self.root}/{name}", str(path))
        self._do(call, f"{self.place}/{name} cannot be read")

    def _put(self, write: Callable[[str], object], name: str) -> None:
        """Write an object atomically, even if this process is killed."""
        goal = f"{self.root}/{name}"

        def put() -> None:
            if not _is_of_files(self.system):
                write(goal)
                return
            # In a folder that is never listed, so that leftovers of a killed process are never read.
            aside = f"{self.root}/{PARTIAL}/{os.urandom(8).hex()}"
            write(aside)
            self.system.mv(aside, goal)

        self._do(put, f"nothing can be written to {self.place}")

    def _do(self, call: Any, what: str) -> Any:
        return translated(call, what)


def _is_of_files(system: Any) -> bool:
    """Return whether an object becomes visible in a file system with its first byte instead of its last."""
    protocol = system.protocol
    return "local" in ((protocol,) if isinstance(protocol, str) else protocol)


class ObjectArtefacts(Artefacts):
    """Outputs of steps in an object store, each an archive named by the hash of its content, with a local cache.

    Args:
        root: Directory of the local copies.
    """

    def __init__(self, root: Path, documents: ObjectDocuments) -> None:
        super().__init__(root)
        self._documents = documents

    def has(self, digest: str) -> bool:
        """Return whether the content of a hash exists, here or in the store."""
        return self._has_here(digest) or self._documents.has(archive_of(digest))

    def is_lost(self, digest: str) -> bool:
        """Return whether the local copy that a program reads was changed in the meantime."""
        return os.path.lexists(super().path(digest)) and not self._has_here(digest)

    def keep(self, source: Path) -> str:
        """Upload a file or directory to the store and return its hash.

        Raises:
            OSError: It cannot be read or moved.
            StoreUnavailable: The store does not accept it.
        """
        digest = super().keep(source)
        if not self._documents.has(archive_of(digest)):
            with tempfile.NamedTemporaryFile(dir=self.root, prefix=".packed-") as file:
                pack(super().path(digest), file)
                file.flush()
                self._documents.send(Path(file.name), archive_of(digest))
        return digest

    def path(self, digest: str) -> Path:
        """Return the local path of the content of a hash, after downloading it if necessary.

        Raises:
            StoreUnavailable: It cannot be downloaded, or its content does not match the hash.
        """
        path = super().path(digest)
        if not os.path.lexists(path):
            self._fetch(digest, path)
        return path

    def _fetch(self, digest: str, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.root, prefix=".fetched-") as directory:
            packed = Path(directory, "packed")
            try:
                self._documents.fetch(archive_of(digest), packed)
                unpacked = unpack(packed, Path(directory), digest)
            except (FileNotFoundError, InvalidArchive) as error:
                raise StoreUnavailable(
                    f"{self._documents.place}/{archive_of(digest)} is not what was kept there; delete it, and the next "
                    "run of the pipeline makes it anew"
                ) from error
            protect(unpacked)
            os.rename(unpacked, path)
        self._note_fingerprint(digest)


class ObjectJournal:
    """The lines of a journal as numbered objects, one per line."""

    def __init__(self, documents: ObjectDocuments) -> None:
        self._documents = documents
        self._next = 0

    def restore(self, path: Path) -> None:
        """Write the stored lines to a local file."""
        names = self._documents.names(JOURNAL)
        texts = [self._documents.read(f"{JOURNAL}/{name}") or "" for name in names]
        path.write_bytes("".join(texts).encode())
        self._next = max((int(name) for name in names), default=-1) + 1

    def send(self, line: bytes) -> None:
        """Append a line."""
        self._documents.write(f"{JOURNAL}/{self._next:0{NUMBER_DIGITS}}", line.decode())
        self._next += 1


class StoreExchange:
    """Transfers inputs and outputs of steps that are runs through an object store.

    Args:
        documents: Documents of the pipeline's own run.
        artefacts: URL of the stored outputs of steps.
    """

    def __init__(self, documents: ObjectDocuments, artefacts: str) -> None:
        self._documents = documents
        self._artefacts = artefacts

    def give(self, task: str, inputs: Mapping[str, str | Mapping[str, str]], parts: dict[str, str]) -> dict[str, str]:
        """Store the inputs of a task's run, unless a previous driver has; return the dependencies they follow from.

        Args:
            task: Name of the task's place.
            inputs: Hashes of outputs of other steps, by their names in the task.
            parts: Current dependencies of the task.
        """
        name = f"steps/{task}/{GIVEN}"
        before = self._documents.read(name)
        known: dict[str, str] | None = None if before is None else json.loads(before).get("parts")
        if known is not None:
            return known
        record = {"artefacts": self._artefacts, "inputs": inputs, "parts": parts}
        self._documents.write(name, json.dumps(record))
        return parts

    def take_back(self, task: str) -> None:
        """Delete the dependencies of a failed run of a task, and the outputs of its pods.

        Its inputs stay, since it may be resumed, and start before a driver does.
        """
        for file_name in self._documents.names(f"steps/{task}/{RETURNED}"):
            self._documents.remove(f"steps/{task}/{RETURNED}/{file_name}")
        name = f"steps/{task}/{GIVEN}"
        before = self._documents.read(name)
        if before is not None:
            self._documents.write(name, json.dumps({**json.loads(before), "parts": None}))

    def take(self, task: str, room: Path) -> None:
        """Download the outputs of a run's pods into a directory; for equal names, that of the first pod.

        Raises:
            StoreUnavailable: They cannot be downloaded.
            OSError: They cannot be written here.
        """
        shutil.rmtree(room, ignore_errors=True)
        room.mkdir(parents=True)
        file_names = self._documents.names(f"steps/{task}/{RETURNED}")
        last = max((name.partition("-")[0] for name in file_names), default="")
        for name in file_names:
            if name.partition("-")[0] != last:
                continue
            with tempfile.TemporaryDirectory(dir=room.parent, prefix=".fetched-") as directory:
                packed = Path(directory, "packed")
                self._documents.fetch(f"steps/{task}/{RETURNED}/{name}", packed)
                try:
                    merge(unpack(packed, Path(directory), None), room)
                except InvalidArchive as error:
                    raise StoreUnavailable(f"what a pod of {task} returned cannot be taken: {error}") from error
