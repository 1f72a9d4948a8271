"""Versions of models in the local cluster's database. Its callers bring the transactions."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from fairlead.specs.goal import Goal
from fairlead.state.models import Content, ModelVersion

MODEL_SCHEMA = """
CREATE TABLE IF NOT EXISTS models (
    name TEXT NOT NULL, version INTEGER NOT NULL, digest TEXT NOT NULL, content TEXT NOT NULL,
    size_bytes INTEGER NOT NULL, created_at REAL NOT NULL, stage TEXT, metrics TEXT NOT NULL, objective TEXT,
    goal TEXT, lineage TEXT NOT NULL, PRIMARY KEY (name, version)
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS one_version_of_a_stage ON models (name, stage) WHERE stage IS NOT NULL
"""
_COLUMNS = "name, version, digest, content, size_bytes, created_at, stage, metrics, objective, goal, lineage"


class ModelTables:
    """The table of one connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def create(self) -> None:
        for each in MODEL_SCHEMA.split(";\n"):
            self._db.execute(each)

    def add(self, given: ModelVersion) -> ModelVersion:
        """Keep a new version under the next number; the number that it has is not looked at."""
        (last,) = self._db.execute(
            "SELECT coalesce(max(version), 0) FROM models WHERE name = ?", (given.name,)
        ).fetchone()
        self._db.execute(
            f"INSERT INTO models ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?, ?, ?)",
            (
                given.name, last + 1, given.digest, given.content, given.size_bytes, given.created_at,
                json.dumps(dict(given.metrics)), given.objective, given.goal, json.dumps(dict(given.lineage)),
            ),
        )  # fmt: skip
        return self.versions(given.name)[-1]

    def promote(self, name: str, version: int, stage: str) -> None:
        """Give a version a stage, and take it from the one that has it."""
        self._db.execute("UPDATE models SET stage = NULL WHERE name = ? AND stage = ?", (name, stage))
        self._db.execute("UPDATE models SET stage = ? WHERE name = ? AND version = ?", (stage, name, version))

    def versions(self, name: str | None = None) -> tuple[ModelVersion, ...]:
        """Those of a name, or all, by name and number."""
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
        content=Content(content),
        size_bytes=size_bytes,
        created_at=created_at,
        stage=stage,
        metrics=json.loads(metrics),
        objective=objective,
        goal=None if goal is None else Goal(goal),
        lineage=json.loads(lineage),
    )
