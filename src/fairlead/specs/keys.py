"""The kinds of objects, each with its keys, from which parser, rendering, JSON Schema and CRDs are derived."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from fairlead.specs.field_types import Section
from fairlead.specs.sections import section_of

if TYPE_CHECKING:
    from fairlead.specs.dataset import Dataset
    from fairlead.specs.federation import Federation
    from fairlead.specs.fleet import Fleet
    from fairlead.specs.pipeline import Pipeline
    from fairlead.specs.pool import Pool
    from fairlead.specs.serving import Serving
    from fairlead.specs.simulation import Simulation
    from fairlead.specs.sweep import Sweep
    from fairlead.specs.team import Team
    from fairlead.specs.training import Training
    from fairlead.specs.workspace import Workspace

API_VERSION = "fairlead.dev/v1alpha1"

Spec: TypeAlias = (
    "Training | Workspace | Serving | Sweep | Pipeline | Federation | Dataset | Team | Pool | Simulation | Fleet"
)


_HOMES = {"Replica": "serving"}


class _Kinds(Mapping[str, Section]):
    """The section of each kind, imported on first use, since most files contain only runs."""

    def __init__(self, *homes: str) -> None:
        self._homes = homes

    def __getitem__(self, kind: str) -> Section:
        if kind not in self._homes:
            return section_of(added_kinds()[kind].KIND.spec)
        return section_of(getattr(import_module(f"fairlead.specs.{_HOMES.get(kind, kind.lower())}"), kind))

    def __iter__(self) -> Iterator[str]:
        yield from self._homes
        yield from added_kinds()

    def __len__(self) -> int:
        return len(self._homes) + len(added_kinds())

    def __contains__(self, kind: object) -> bool:
        return kind in self._homes or kind in added_kinds()


_WRITTEN = (
    "Training",
    "Workspace",
    "Serving",
    "Sweep",
    "Pipeline",
    "Federation",
    "Dataset",
    "Team",
    "Pool",
    "Simulation",
    "Fleet",
)
KINDS: Mapping[str, Section] = _Kinds(*_WRITTEN)
"""Kinds that users write."""
OBJECTS: Mapping[str, Section] = _Kinds(*_WRITTEN, "Replica")
"""Kinds that a cluster stores: the same, and those that workloads submit."""


@cache
def added_kinds() -> Mapping[str, Any]:
    """Return the modules of external kinds, by kind, from the comma-separated list in FAIRLEAD_KINDS.

    Each has ``KIND``, its record (see ``fairlead.policy.kinds.record``), whose ``spec`` is a dataclass with keys.
    """
    names = filter(None, os.environ.get("FAIRLEAD_KINDS", "").split(","))
    modules = [import_module(name.strip()) for name in names]
    return {module.KIND.spec.__name__: module for module in modules}
