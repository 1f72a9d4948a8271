"""Describes valid values of a key, in the words that the parser and the API server of a cluster share."""

from collections.abc import Iterable

from fairlead.specs.constraints import Constraints, Limit
from fairlead.specs.field_types import Kind, ListField, MapField, OverlayField, Section, SectionKey, SectionMap, Single


def advice(kind: Single, key: SectionKey, rules: Constraints) -> str:
    """Return advice such as ``give 1 to 10000, such as `nodes: 2` ``."""
    return f"give {choices(kind, limits_of(key, rules))}, such as `{key.name}: {key.example}`"


def limits_of(key: SectionKey, rules: Constraints) -> list[Limit | None]:
    """Return the limits of each of a key's attributes."""
    return [rule if isinstance(rule := rules.get(attribute), Limit) else None for attribute in key.attributes]


def wanted(kind: Kind) -> str:
    """Return a description of a kind, with its article."""
    if isinstance(kind, Single):
        return kind.what
    if isinstance(kind, Section):
        return f"a mapping of {', '.join(key.name for key in kind.keys)}"
    if isinstance(kind, SectionMap):
        return f"a mapping of names to mappings of {', '.join(key.name for key in kind.item.keys)}"
    if isinstance(kind, OverlayField):
        return f"a mapping of {', '.join(kind.tree.fields)}"
    return "a mapping of names to texts" if isinstance(kind, MapField) else f"a list; each item is {_item(kind)}"


def choices(kind: Single, limits: Iterable[Limit | None]) -> str:
    """Return the valid values: the words of a closed set, or the bounds of a number, spelled as in files."""
    if kind.choices is not None:
        return kind.choices
    spelled = []
    places = list(limits)
    for place, limit in enumerate(places):
        if limit is None:
            continue
        ends = []
        for end in (limit.low, limit.high):
            parts: list[float | None] = [None] * len(places)
            parts[place] = int(end) if limit.whole else end
            ends.append(kind.render(parts[0] if len(parts) == 1 else tuple(parts)))
        spelled.append(f"{'0, or ' if limit.zero else ''}{ends[0]} to {ends[1]}")
    return ", or ".join(dict.fromkeys(spelled)) or kind.what


def _item(kind: ListField) -> str:
    return kind.item.what
