"""The one description of every key of every kind: parser, rendering, JSON Schema and CRDs come from these tables.

Defaults are the dataclasses' own and bounds are their rules; nothing of that is repeated in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from fairlead.specs.tables.field_types import Section

if TYPE_CHECKING:
    from fairlead.specs.pool import Pool
    from fairlead.specs.simulation import Simulation
    from fairlead.specs.team import Team
    from fairlead.specs.training import Training

API_VERSION = "fairlead.dev/v1alpha1"

Spec: TypeAlias = "Training | Team | Pool | Simulation"


class _Kinds(Mapping[str, Section]):
    """The table of each kind, imported when it is first asked for: most files hold runs and nothing else."""

    _homes = ("Training", "Team", "Pool", "Simulation")

    def __getitem__(self, kind: str) -> Section:
        if kind not in self._homes:
            raise KeyError(kind)
        section: Section = getattr(import_module(f"fairlead.specs.tables.{kind.lower()}_keys"), kind.upper())
        return section

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)

    def __contains__(self, kind: object) -> bool:
        return kind in self._homes


KINDS: Mapping[str, Section] = _Kinds()
