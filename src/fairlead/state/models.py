"""Versions of models in a registry, and the choice of the best."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any

from fairlead.frozen import dataclass
from fairlead.specs.goal import Goal


class ModelContent(StrEnum):
    """The kinds of content of a model."""

    CHECKPOINT = "checkpoint"
    DIRECTORY = "directory"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    """One version of a model; its content and origin never change.

    Attributes:
        version: From 1; each number is used once per name.
        digest: The hash of its content, under which the content is stored.
        size_bytes: The total of all its files.
        created_at: When it was pushed, in Unix seconds.
        stage: The stage it was promoted to; each stage of a name has at most one version.
        metrics: The values it reached, by name.
        objective: The metric by which versions compare; None if not given.
        goal: Whether that metric is minimised or maximised.
        lineage: Its origin, as plain data.
        place: On a cluster, the URL of a directory with exactly its content; None on the local machine, where content
            is stored by hash.
    """

    name: str
    version: int
    digest: str
    content: ModelContent
    size_bytes: int
    created_at: float
    stage: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    objective: str | None = None
    goal: Goal | None = None
    lineage: Mapping[str, Any] = field(default_factory=dict)
    place: str | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


def best_version(versions: Sequence[ModelVersion]) -> ModelVersion | None:
    """Return the version with the best value of the newest objective, the newest among equals; None without one.

    Args:
        versions: Versions of one name.
    """
    ordered = sorted(versions, key=lambda version: -version.version)
    newest = next((version for version in ordered if version.objective is not None and version.goal is not None), None)
    if newest is None or newest.objective is None or newest.goal is None:
        return None
    metric, sign = newest.objective, newest.goal.sign
    measured = [version for version in ordered if metric in version.metrics]
    return min(measured, key=lambda version: sign * version.metrics[metric], default=None)
