"""Stores results as small documents that several machines may write, for places unsuited to a database.

Each document is written atomically, so a reader finds the old or the new version.
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
from fairlead.runtime.paths import below


class Documents(Protocol):
    """Stores small texts by name."""

    def read(self, name: str) -> str | None:
        """Return a text; None if the name does not exist."""
        ...

    def write(self, name: str, text: str) -> None:
        """Store a text under a name atomically."""
        ...

    def has(self, name: str) -> bool:
        """Return whether the name exists."""
        ...


class FileDocuments:
    """Texts as files below a directory, each written under a temporary name and then moved.

    Raises:
        OSError: A file cannot be read or written.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, name: str) -> str | None:
        """Return a text; None if the name does not exist."""
        try:
            return (below(self._root, name)).read_bytes().decode("utf-8", "surrogatepass")
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        """Store a text under a name."""
        path = below(self._root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
        with temporary.open("wb") as file:
            file.write(text.encode("utf-8", "surrogatepass"))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def has(self, name: str) -> bool:
        """Return whether the name exists."""
        return (below(self._root, name)).exists()


class ResultFiles:
    """Results of tasks in a store of documents."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def same(self, parts: Mapping[str, str]) -> Result | None:
        """Return the newest result of a task with exactly these dependencies."""
        return self._read(_place("results", key_of(parts)))

    def last(self, pipeline: str, task: str) -> Result | None:
        """Return the newest result of a task."""
        return self._read(_place("tasks", _name(pipeline, task)))

    def add(self, pipeline: str, task: str, result: Result) -> None:
        """Store the result of a task."""
        text = json.dumps({"pipeline": pipeline, "task": task, **asdict(result)}, separators=(",", ":"))
        self._documents.write(_place("tasks", _name(pipeline, task)), text)
        # Last, since this document makes the result available to later runs.
        self._documents.write(_place("results", key_of(result.parts)), text)

    def keep_listing(self, files: Mapping[str, str]) -> str:
        """Store the files of some code with their hashes; return the hash of the listing."""
        digest, text = listing_of(files)
        if not self._documents.has(_place("listings", digest)):
            self._documents.write(_place("listings", digest), text)
        return digest

    def listing(self, digest: str) -> dict[str, str]:
        """Return the files of a listing; empty for an unknown one."""
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
