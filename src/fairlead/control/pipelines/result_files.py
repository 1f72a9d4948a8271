"""Results as small documents that several machines may write: for places where a database must not lie.

Each is written whole, so a reader finds the one before or the one after.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from fairlead.control.pipelines.result_store import key_of, listing_of
from fairlead.policy.kinds.steps import Result


class Documents(Protocol):
    """Keeps small texts by name."""

    def read(self, name: str) -> str | None:
        """Return a text; None where there is none of that name."""
        ...

    def write(self, name: str, text: str) -> None:
        """Keep a text under a name, whole or not at all."""
        ...

    def has(self, name: str) -> bool:
        """Return whether there is anything of that name."""
        ...


class FileDocuments:
    """Texts as files below a directory, each written under another name and then moved.

    Raises:
        OSError: One cannot be read or written.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, name: str) -> str | None:
        """Return a text; None where there is none of that name."""
        try:
            return (self._root / name).read_bytes().decode("utf-8", "surrogatepass")
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        """Keep a text under a name."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
        with temporary.open("wb") as file:
            file.write(text.encode("utf-8", "surrogatepass"))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def has(self, name: str) -> bool:
        """Return whether there is anything of that name."""
        return (self._root / name).exists()


class ResultFiles:
    """The results among some documents."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def close(self) -> None:
        """Nothing is held."""

    def same(self, parts: Mapping[str, str]) -> Result | None:
        """The newest result of a task that depended on just these parts."""
        return self._read(_place("results", key_of(parts)))

    def last(self, pipeline: str, task: str) -> Result | None:
        """The newest result of a task."""
        return self._read(_place("tasks", _name(pipeline, task)))

    def add(self, pipeline: str, task: str, result: Result) -> None:
        """Keep what a task returned."""
        text = json.dumps({"pipeline": pipeline, "task": task, **asdict(result)}, separators=(",", ":"))
        self._documents.write(_place("tasks", _name(pipeline, task)), text)
        # Last, as this is what makes a later run take it.
        self._documents.write(_place("results", key_of(result.parts)), text)

    def keep_listing(self, files: Mapping[str, str]) -> str:
        """Keep which files code consists of, with the hash of each; the hash of the whole."""
        digest, text = listing_of(files)
        if not self._documents.has(_place("listings", digest)):
            self._documents.write(_place("listings", digest), text)
        return digest

    def listing(self, digest: str) -> dict[str, str]:
        """The files of a listing; none of an unknown one."""
        text = self._documents.read(_place("listings", digest)) if digest else None
        return {} if text is None else dict(json.loads(text))

    def _read(self, name: str) -> Result | None:
        text = self._documents.read(name)
        if text is None:
            return None
        content = json.loads(text)
        known = ("parts", "outputs", "values", "at", "took_s", "run")
        return Result(**{field: content[field] for field in known})


def _place(folder: str, name: str) -> str:
    return f"{folder}/{name[:2]}/{name}.json"


def _name(pipeline: str, task: str) -> str:
    return hashlib.sha256(f"{pipeline}/{task}".encode("utf-8", "surrogatepass")).hexdigest()
