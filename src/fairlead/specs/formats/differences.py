"""Lists the differences between two specs by key, in the syntax of files."""

import hashlib
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

from fairlead.frozen import dataclass
from fairlead.specs.constraints import one_line
from fairlead.specs.field_types import Section, Single
from fairlead.specs.formats.rendering import default_of, render_short
from fairlead.specs.formats.secret_values import is_variable
from fairlead.specs.keys import OBJECTS
from fairlead.specs.workload import WorkloadSpec

NOTHING, BY_DEFAULT = "none", "by default"
_MOST_CHARACTERS = 60
_BEGINNING = 45
_DIGEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A dotted key whose value differs, with both values as short texts; those of variables are hidden."""

    key: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.key}: {self.old} -> {self.new}"


def differences(old: WorkloadSpec, new: WorkloadSpec) -> tuple[Difference, ...]:
    """Return every key that differs between two specs of a kind, in the order of its table."""
    return of_said(_whole(old, new), _whole(new, old), type(new).__name__)


def said(spec: WorkloadSpec) -> dict[str, str]:
    """Return each dotted key of a spec that is not at its default, with its value in at most 60 characters.

    A longer value ends in a digest, so that different values stay different.
    """
    values: dict[str, str] = {}
    _flatten(render_short(spec), "", values)
    return values


def of_said(old: Mapping[str, str], new: Mapping[str, str], kind: str = "Training") -> tuple[Difference, ...]:
    """Return the differences between two results of ``said`` for specs of a kind."""
    table = OBJECTS[kind]
    keys = sorted({*old, *new}, key=lambda key: _rank(table, key))
    return tuple(
        _difference(key, before, after)
        for key in keys
        if (before := _value(old, table, key)) != (after := _value(new, table, key))
    )


def _difference(key: str, before: str, after: str) -> Difference:
    if is_variable(key):
        was, now = (value in (NOTHING, BY_DEFAULT) for value in (before, after))
        before, after = before if was else "a value", after if now else "a value" if was else "another value"
    return Difference(key=key, old=before, new=after)


def _whole(spec: WorkloadSpec, other: WorkloadSpec) -> dict[str, str]:
    """Return ``said`` of a spec, with its sections that are all at defaults in it or in the other spec."""
    own, others = render_short(spec), render_short(other)
    return {key: BY_DEFAULT for key in own if {} in (own[key], others.get(key))} | said(spec)


def _value(values: Mapping[str, str], section: Section, key: str) -> str:
    """Return the given or default value of a key; ``NOTHING`` if its section is omitted."""
    if key in values:
        return values[key]
    first = section.key(key.partition(".")[0])
    if first is not None and isinstance(first.kind, Section) and default_of(first, section.type) == (None,):
        is_there = any(name == first.name or name.startswith(f"{first.name}.") for name in values)
        if not is_there:
            return NOTHING
    return _default(section, key)


def _flatten(value: Any, key: str, values: dict[str, str]) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _flatten(inner, f"{key}.{name}" if key else name, values)
    else:
        values[key] = _short(value)


def _short(value: Any) -> str:
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    if len(text) <= _MOST_CHARACTERS and text.isprintable():
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{one_line(text[:_BEGINNING])}... ({digest})"


def _default(section: Section, key: str) -> str:
    """Return the value of an omitted key."""
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


def _rank(table: Section, key: str) -> tuple[int, str]:
    names = [table_key.name for table_key in table.keys]
    first = key.partition(".")[0]
    return names.index(first) if first in names else len(names), key
