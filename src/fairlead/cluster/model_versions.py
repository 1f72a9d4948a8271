"""The port to versions of models, local or of a cluster's namespace, and the resolution of references to them."""

import difflib
from dataclasses import replace
from typing import Protocol

from fairlead.errors import NotFound
from fairlead.specs.model_reference import BEST, LATEST, ModelReference
from fairlead.state.models import ModelVersion, best_version
from fairlead.state.snapshot import AnyWorkload

MOST_NAMED = 5


class ModelVersions(Protocol):
    """Stores versions of models. Each method is atomic, also under concurrent callers."""

    def models(self, name: str | None = None) -> tuple[ModelVersion, ...]:
        """Return versions of models, of one name or of all, by name and number."""
        ...

    def add_model(self, version: ModelVersion) -> tuple[ModelVersion, bool]:
        """Store a new version, whose content already exists, and return it.

        If one of the same content and origin is there, that is returned with what is newly known of it, and False.
        """
        ...

    def remove_model(self, version: ModelVersion) -> None:
        """Remove a version; its number is not reused.

        Raises:
            Conflict: The version has a stage.
        """
        ...

    def promote_model(self, version: ModelVersion, stage: str) -> ModelVersion:
        """Give a version a stage, and take it from any other version of that name."""
        ...

    def named(self, *workloads: AnyWorkload) -> str:
        """Return the command-line arguments that select these workloads and this place."""
        ...


def is_same(one: ModelVersion, other: ModelVersion) -> bool:
    """Return whether two versions of a name have the same content and origin."""
    return (one.digest, one.lineage) == (other.digest, other.lineage)


def updated(version: ModelVersion, pushed: ModelVersion) -> ModelVersion:
    """Return a stored version with the metrics and the objective of a later push of the same."""
    by = (version.objective, version.goal) if pushed.objective is None else (pushed.objective, pushed.goal)
    return replace(version, metrics={**version.metrics, **pushed.metrics}, objective=by[0], goal=by[1])


def find_version(registry: ModelVersions, reference: ModelReference) -> ModelVersion:
    """Return the version to which a reference to a pushed model resolves now.

    Raises:
        NotFound: There is none.
    """
    name, which = reference.name, reference.which
    versions = registry.models(name)

    def command(words: str) -> str:
        return f"`{f'fairlead model {words} {registry.named()}'.rstrip()}`"

    if not versions:
        names = sorted({version.name for version in registry.models()})
        near = difflib.get_close_matches(name, names, MOST_NAMED) or names[:MOST_NAMED]
        known = f"; there are: {', '.join(near)}" if near else ""
        raise NotFound(f"No model is named {name!r}{known}. {command(f'push {name} RUN')} makes a version of one.")
    if which == LATEST:
        return versions[-1]
    if which == BEST:
        best = best_version(versions)
        if best is None:
            raise NotFound(
                f"No version of {name} has a metric by which it is better than others. "
                f"Push one with --objective, such as {command(f'push {name} RUN --objective loss')}."
            )
        return best
    number = reference.number
    version = next((version for version in versions if version.version == number or version.stage == which), None)
    if version is None:
        available = ", ".join(
            f"{version.version}" + (f" ({version.stage})" * (version.stage is not None)) for version in versions
        )
        what = f"no version {which}" if number is not None else f"no version at the stage {which!r}"
        remedy = "" if number is not None else f" {command(f'promote {name}@best --to {which}')} gives one that stage."
        raise NotFound(f"{name} has {what}; it has: {available}.{remedy}")
    return version
