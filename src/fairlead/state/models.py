"""Versions of models as a registry has them, and which of them is the best."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any

from fairlead.frozen import dataclass
from fairlead.specs.goal import Goal


class Content(StrEnum):
    """The kinds of content of a model."""

    CHECKPOINT = "checkpoint"
    DIRECTORY = "directory"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    """One version of a model, which never changes but for its stage.

    Attributes:
        version: From 1; of one name each number is given once.
        digest: The hash of its content, by which the content is kept.
        size_bytes: Of all its files.
        created_at: When it was pushed, in Unix seconds.
        stage: What it was promoted to; of one name each stage has at most one version.
        metrics: What it reached, by name.
        objective: The metric by which versions compare; None where nobody said one.
        goal: Which values of that are good ones.
        lineage: Where it came from, as plain data for people and programs.
        place: Of a version on a cluster: the URL of a directory that has its content and nothing else; None for one of
            this machine, whose content is kept by its hash.
    """

    name: str
    version: int
    digest: str
    content: Content
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
    """The version with the best value of the newest version's objective, the newest of equals; None without one.

    Args:
        versions: Of one name.
    """
    ordered = sorted(versions, key=lambda each: -each.version)
    newest = next((each for each in ordered if each.objective is not None and each.goal is not None), None)
    if newest is None or newest.objective is None or newest.goal is None:
        return None
    metric, sign = newest.objective, newest.goal.sign
    told = [each for each in ordered if metric in each.metrics]
    return min(told, key=lambda each: sign * each.metrics[metric], default=None)
