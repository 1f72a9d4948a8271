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
    return differences_of_values(_comparable_values(old, new), _comparable_values(new, old), type(new).__name__)


def explicit_values(spec: WorkloadSpec) -> dict[str, str]:
    """Return each dotted key of a spec that is not at its default, with its value in at most 60 characters.

    A longer value ends in a digest, so that different values stay different.
    """
    values: dict[str, str] = {}
    _flatten(render_short(spec), "", values)
    return values


def differences_of_values(
    old: Mapping[str, str], new: Mapping[str, str], kind: str = "Training"
) -> tuple[Difference, ...]:
    """Return the differences between two results of ``explicit_values`` for specs of a kind."""
    table = OBJECTS[kind]
    keys = sorted({*old, *new}, key=lambda key: _rank(table, key))
    return tuple(
        _difference(key, before, after)
        for key in keys
        if (before := _value(old, table, key)) != (after := _value(new, table, key))
    )


def _difference(key: str, before: str, after: str) -> Difference:
    if is_variable(key):
        was_set, is_set = (value not in (NOTHING, BY_DEFAULT) for value in (before, after))
        if is_set:
            after = "another value" if was_set else "a value"
        if was_set:
            before = "a value"
    return Difference(key=key, old=before, new=after)


def _comparable_values(spec: WorkloadSpec, other: WorkloadSpec) -> dict[str, str]:
    """Return ``explicit_values`` of a spec, with its sections that are all at defaults in it or in the other spec."""
    own, others = render_short(spec), render_short(other)
    return {key: BY_DEFAULT for key in own if {} in (own[key], others.get(key))} | explicit_values(spec)


def _value(values: Mapping[str, str], section: Section, key: str) -> str:
    """Return the explicit or default value of a key; ``NOTHING`` if its section is omitted."""
    if key in values:
        return values[key]
    section_key = section.key(key.partition(".")[0])
    is_section = section_key is not None and isinstance(section_key.kind, Section)
    if section_key is not None and is_section and default_of(section_key, section.type) == (None,):
        name = section_key.name
        if not any(other == name or other.startswith(f"{name}.") for other in values):
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
        section_key = section.key(part)
        if section_key is None:
            break
        if isinstance(section_key.kind, Section):
            section = section_key.kind
            continue
        default = default_of(section_key, section.type)
        if not isinstance(section_key.kind, Single) or default[0] in (None, MISSING):
            break
        return _short(section_key.kind.render(default[0] if len(default) == 1 else default))
    return NOTHING


def _rank(table: Section, key: str) -> tuple[int, str]:
    names = [table_key.name for table_key in table.keys]
    first = key.partition(".")[0]
    return names.index(first) if first in names else len(names), key
