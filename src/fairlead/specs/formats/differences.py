"""Lists how two specs differ, key by key, as people write them."""

import hashlib
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

from fairlead.frozen import dataclass
from fairlead.specs.constraints import one_line
from fairlead.specs.formats.rendering import default_of, render_short
from fairlead.specs.tables.field_types import Section, Single
from fairlead.specs.tables.training_keys import TRAINING
from fairlead.specs.training import Training

NOTHING = "none"
_MOST_CHARACTERS = 60
_BEGINNING = 45
_DIGEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A dotted key whose value differs, and both values as short words."""

    key: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.key}: {self.old} -> {self.new}"


def differences(old: Training, new: Training) -> tuple[Difference, ...]:
    """Every key that differs, in the order of the tables."""
    return of_said(said(old), said(new))


def said(spec: Training) -> dict[str, str]:
    """Return what a spec says: each dotted key that is not at its default, with its value in at most 60 characters.

    A longer value ends in a digest, so that two that differ do so here.
    """
    found: dict[str, str] = {}
    _flatten(render_short(spec), "", found)
    return found


def of_said(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[Difference, ...]:
    """The differences between two of ``said``."""
    keys = sorted({*old, *new}, key=_rank)
    return tuple(
        Difference(key=key, old=old.get(key, _default(key)), new=new.get(key, _default(key)))
        for key in keys
        if old.get(key, _default(key)) != new.get(key, _default(key))
    )


def _flatten(value: Any, key: str, found: dict[str, str]) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _flatten(inner, f"{key}.{name}" if key else name, found)
    else:
        found[key] = _short(value)


def _short(value: Any) -> str:
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    if len(text) <= _MOST_CHARACTERS and text.isprintable():
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{one_line(text[:_BEGINNING])}... ({digest})"


def _default(key: str) -> str:
    """The value of a key that is not said."""
    section = TRAINING
    for part in key.split("."):
        known = section.key(part)
        if known is None:
            break
        if isinstance(known.kind, Section):
            section = known.kind
            continue
        default = default_of(known, section.type)
        if not isinstance(known.kind, Single) or default[0] in (None, MISSING):
            break
        return _short(known.kind.render(default[0] if len(default) == 1 else default))
    return NOTHING


def _rank(key: str) -> tuple[int, str]:
    names = [each.name for each in TRAINING.keys]
    first = key.partition(".")[0]
    return names.index(first) if first in names else len(names), key
