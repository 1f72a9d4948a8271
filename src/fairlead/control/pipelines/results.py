"""Stores results of tasks by their dependencies, for the cache of steps and the lineage of artefacts."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.control.pipelines.result_store import key_of, listing_of
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass
from fairlead.policy.kinds.steps import Result

if TYPE_CHECKING:  # a driver removes no results, and this import takes longer than a short pipeline
    from fairlead.policy.kinds.retention import Retention

_SCHEMA = """
CREATE TABLE IF NOT EXISTS results (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, pipeline TEXT NOT NULL, task TEXT NOT NULL, parts TEXT NOT NULL,
    outputs TEXT NOT NULL, "values" TEXT NOT NULL, at REAL NOT NULL, took_s REAL NOT NULL, run TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS results_by_key ON results (key, id);
CREATE INDEX IF NOT EXISTS results_by_task ON results (pipeline, task, id);
CREATE TABLE IF NOT EXISTS produced (digest TEXT NOT NULL, result INTEGER NOT NULL, output TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS produced_by_digest ON produced (digest);
CREATE TABLE IF NOT EXISTS listings (digest TEXT PRIMARY KEY, files TEXT NOT NULL);
"""
_COLUMNS = 'parts, outputs, "values", at, took_s, run'


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The task that made an artefact."""

    pipeline: str
    task: str
    output: str
    result: Result


class Results:
    """The database of results. An instance belongs to one thread; any number of processes may use one file.

    Raises:
        ClusterError: The file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._db = sqlite3.connect(path, timeout=30.0, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            # As in the store of runs: a killed process loses nothing, a power cut may lose the last transactions.
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise ClusterError(f"{path}: {error}") from error

    def close(self) -> None:
        self._db.close()

    def same(self, parts: Mapping[str, str]) -> Result | None:
        """Return the newest result of a task with exactly these dependencies."""
        row = self._db.execute(
            f"SELECT {_COLUMNS} FROM results WHERE key = ? ORDER BY id DESC LIMIT 1", (key_of(parts),)
        ).fetchone()
        return None if row is None else _result(row)

    def last(self, pipeline: str, task: str) -> Result | None:
        """Return the newest result of a task."""
        row = self._db.execute(
            f"SELECT {_COLUMNS} FROM results WHERE pipeline = ? AND task = ? ORDER BY id DESC LIMIT 1", (pipeline, task)
        ).fetchone()
        return None if row is None else _result(row)

    def add(self, pipeline: str, task: str, result: Result) -> None:
        """Store the result of a task."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            added = self._db.execute(
                f"INSERT INTO results (key, pipeline, task, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    key_of(result.parts),
                    pipeline,
                    task,
                    json.dumps(dict(result.parts)),
                    json.dumps(dict(result.outputs)),
                    json.dumps(dict(result.values)),
                    result.at,
                    result.took_s,
                    result.run,
                ),
            )
            self._db.executemany(
                "INSERT INTO produced (digest, result, output) VALUES (?, ?, ?)",
                [(digest, added.lastrowid, name) for name, digest in result.outputs.items()],
            )
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def divided(self, keep: "Retention", now: float) -> tuple[set[str], tuple[int, ...]]:
        """Return the hashes of outputs of retained results, and the numbers of the other results.

        Args:
            keep: Retention by age, or by number of newest results per task.
            now: Unix time.
        """
        rows = self._db.execute("SELECT id, pipeline, task, outputs, at FROM results ORDER BY id DESC")
        counts: dict[tuple[str, str], int] = {}
        digests, gone = set[str](), list[int]()
        for number, pipeline, task, outputs, at in rows:
            place = counts[pipeline, task] = counts.get((pipeline, task), 0) + 1
            is_young = keep.for_s is not None and now - at < keep.for_s
            keeps_all = keep.for_s is None and keep.last is None
            if keeps_all or is_young or (keep.last is not None and place <= keep.last):
                digests.update(json.loads(outputs).values())
            else:
                gone.append(int(number))
        return digests, tuple(gone)

    def forget(self, numbers: Sequence[int]) -> None:
        """Delete results, so that the cache no longer uses them."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for table, column in (("results", "id"), ("produced", "result")):
                self._db.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(number,) for number in numbers])
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def origins(self, digest: str) -> tuple[Origin, ...]:
        """Return the tasks that made the content of a hash, or of the only hash with a prefix; newest first."""
        rows = self._db.execute(
            'SELECT r.pipeline, r.task, p.output, r.parts, r.outputs, r."values", r.at, r.took_s, r.run '
            "FROM produced p JOIN results r ON r.id = p.result WHERE p.digest >= ? AND p.digest < ? ORDER BY r.id DESC",
            (digest, digest + "g"),
        ).fetchall()
        return tuple(
            Origin(pipeline=str(row[0]), task=str(row[1]), output=str(row[2]), result=_result(row[3:])) for row in rows
        )

    def keep_listing(self, files: Mapping[str, str]) -> str:
        """Store the files of some code with their hashes; return the hash of the listing."""
        digest, text = listing_of(files)
        self._db.execute("INSERT OR IGNORE INTO listings (digest, files) VALUES (?, ?)", (digest, text))
        return digest

    def listing(self, digest: str) -> dict[str, str]:
        """Return the files of a listing; empty for an unknown one."""
        row = self._db.execute("SELECT files FROM listings WHERE digest = ?", (digest,)).fetchone()
        return {} if row is None else dict(json.loads(row[0]))


def _result(row: tuple[Any, ...]) -> Result:
    parts, outputs, values, at, took_s, run = row
    return Result(
        parts=json.loads(parts),
        outputs=json.loads(outputs),
        values=json.loads(values),
        at=float(at),
        took_s=float(took_s),
        run=str(run),
    )
