"""Versions of models in the local cluster's database. The callers manage transactions."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from fairlead.specs.goal import Goal
from fairlead.state.models import ModelContent, ModelVersion

# The highest number of each model of which a version was removed.
_NUMBERS = "CREATE TABLE IF NOT EXISTS model_numbers (name TEXT PRIMARY KEY, version INTEGER NOT NULL)"
_COLUMNS = "name, version, digest, content, size_bytes, created_at, stage, metrics, objective, goal, lineage"


class ModelTables:
    """The table of models on one connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def remove(self, name: str, version: int) -> None:
        """Remove a version; its number is not reused."""
        self._db.execute(_NUMBERS)
        self._db.execute("INSERT OR REPLACE INTO model_numbers (name, version) VALUES (?, ?)", (name, self._last(name)))
        self._db.execute("DELETE FROM models WHERE name = ? AND version = ?", (name, version))

    def _last(self, name: str) -> int:
        """Return the highest number that a version of a name ever had; 0 for none."""
        self._db.execute(_NUMBERS)
        (last,) = self._db.execute(
            "SELECT max(coalesce((SELECT max(version) FROM models WHERE name = ?1), 0), "
            "coalesce((SELECT version FROM model_numbers WHERE name = ?1), 0))",
            (name,),
        ).fetchone()
        return int(last)

    def add(self, version: ModelVersion) -> ModelVersion:
        """Store a new version under the next number, ignoring the number given."""
        last = self._last(version.name)
        self._db.execute(
            f"INSERT INTO models ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?, ?, ?)",
            (
                version.name, last + 1, version.digest, version.content, version.size_bytes, version.created_at,
                json.dumps(dict(version.metrics)), version.objective, version.goal, json.dumps(dict(version.lineage)),
            ),
        )  # fmt: skip
        return self.versions(version.name)[-1]

    def update(self, version: ModelVersion) -> None:
        """Store the metrics and the objective of a version that is there."""
        self._db.execute(
            "UPDATE models SET metrics = ?, objective = ?, goal = ? WHERE name = ? AND version = ?",
            (json.dumps(dict(version.metrics)), version.objective, version.goal, version.name, version.version),
        )

    def promote(self, name: str, version: int, stage: str) -> None:
        """Give a version a stage, and take it from its previous holder."""
        self._db.execute("UPDATE models SET stage = NULL WHERE name = ? AND stage = ?", (name, stage))
        self._db.execute("UPDATE models SET stage = ? WHERE name = ? AND version = ?", (stage, name, version))

    def versions(self, name: str | None = None) -> tuple[ModelVersion, ...]:
        """Return the versions of a name, or all, by name and number."""
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM models WHERE name = coalesce(?, name) ORDER BY name, version", (name,)
        )
        return tuple(map(_version, rows))


def _version(row: Sequence[Any]) -> ModelVersion:
    name, version, digest, content, size_bytes, created_at, stage, metrics, objective, goal, lineage = row
    return ModelVersion(
        name=name,
        version=version,
        digest=digest,
        content=ModelContent(content),
        size_bytes=size_bytes,
        created_at=created_at,
        stage=stage,
        metrics=json.loads(metrics),
        objective=objective,
        goal=None if goal is None else Goal(goal),
        lineage=json.loads(lineage),
    )
