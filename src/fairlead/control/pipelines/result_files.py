"""Results as small files that several machines may write: for places where a database must not lie.

A file is written whole under another name and then moved, so a reader finds the one before or the one after.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from fairlead.control.pipelines.result_store import key_of, listing_of
from fairlead.policy.kinds.steps import Result


class ResultFiles:
    """The results below a directory.

    Raises:
        OSError: It cannot be read or written.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def close(self) -> None:
        """Nothing is held."""

    def same(self, parts: Mapping[str, str]) -> Result | None:
        """The newest result of a task that depended on just these parts."""
        return self._read("results", key_of(parts))

    def last(self, pipeline: str, task: str) -> Result | None:
        """The newest result of a task."""
        return self._read("tasks", _name(pipeline, task))

    def add(self, pipeline: str, task: str, result: Result) -> None:
        """Keep what a task returned."""
        text = json.dumps({"pipeline": pipeline, "task": task, **asdict(result)}, separators=(",", ":"))
        self._write("tasks", _name(pipeline, task), text)
        # Last, as this is what makes a later run take it.
        self._write("results", key_of(result.parts), text)

    def keep_listing(self, files: Mapping[str, str]) -> str:
        """Keep which files code consists of, with the hash of each; the hash of the whole."""
        digest, text = listing_of(files)
        if not self._path("listings", digest).exists():
            self._write("listings", digest, text)
        return digest

    def listing(self, digest: str) -> dict[str, str]:
        """The files of a listing; none of an unknown one."""
        try:
            return dict(json.loads(self._path("listings", digest).read_text())) if digest else {}
        except FileNotFoundError:
            return {}

    def _read(self, folder: str, name: str) -> Result | None:
        try:
            content = json.loads(self._path(folder, name).read_text())
        except FileNotFoundError:
            return None
        known = ("parts", "outputs", "values", "at", "took_s", "run")
        return Result(**{field: content[field] for field in known})

    def _write(self, folder: str, name: str, text: str) -> None:
        path = self._path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{name}.{os.urandom(6).hex()}")
        with temporary.open("wb") as file:
            file.write(text.encode("utf-8", "surrogatepass"))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def _path(self, folder: str, name: str) -> Path:
        return self._root / folder / name[:2] / f"{name}.json"


def _name(pipeline: str, task: str) -> str:
    return hashlib.sha256(f"{pipeline}/{task}".encode("utf-8", "surrogatepass")).hexdigest()
