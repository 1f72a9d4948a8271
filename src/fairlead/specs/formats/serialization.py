"""Specs as compact JSON for a database: every attribute in its base unit, exact both ways, without YAML.

Defaults are written out, so that what is stored keeps its meaning when a later version has other defaults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, cast, get_args, get_origin

from fairlead.errors import InvalidSpec
from fairlead.specs.constraints import one_line

if TYPE_CHECKING:
    from fairlead.specs.pool import Pool
    from fairlead.specs.team import Team
    from fairlead.specs.training import Training

# By name, so that a database of runs needs none of the other kinds.
_HOMES = {"Training": "fairlead.specs.training", "Team": "fairlead.specs.team", "Pool": "fairlead.specs.pool"}


def to_json(spec: Training | Team | Pool) -> str:
    """The spec on one line."""
    content = {"kind": type(spec).__name__, **_flat(spec)}
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def from_json(text: str) -> Training | Team | Pool:
    """The spec that ``to_json`` wrote.

    Raises:
        InvalidSpec: The text is something else.
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("kind") not in _HOMES:
            raise ValueError(f"kind: give one of {', '.join(_HOMES)}")
        kind = content.pop("kind")
        spec: Training | Team | Pool = _read(getattr(import_module(_HOMES[kind]), kind), content)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidSpec((f"<stored spec>: {one_line(str(error))}",)) from error
    return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attribute:
    """How one attribute's stored value is read."""

    name: str
    read: Callable[[Any], Any]


def _flat(value: Any) -> dict[str, Any]:
    return {field.name: _stored(getattr(value, field.name)) for field in fields(value)}


def _stored(value: Any) -> Any:
    if is_dataclass(value):
        return _flat(value)
    if isinstance(value, tuple):
        return [_stored(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value


def _read(owner: type[Any], content: Any) -> Any:
    if not isinstance(content, dict):
        raise ValueError(f"{owner.__name__}: not an object")
    known = {each.name: each for each in _attributes(cast(Hashable, owner))}
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise ValueError(f"{owner.__name__}: unknown attribute {unknown[0]}")
    return owner(**{name: known[name].read(value) for name, value in content.items()})


@cache
def _attributes(owner: type[Any]) -> tuple[_Attribute, ...]:
    return tuple(
        _Attribute(
            name=field.name,
            read=_reader(field.type, f"{owner.__name__}.{field.name}"),
        )
        for field in fields(owner)
    )


def _reader(declared: Any, where: str) -> Callable[[Any], Any]:
    """Reads one stored value of a declared type, and refuses every other type."""
    if isinstance(declared, UnionType):
        (inner,) = (each for each in get_args(declared) if each is not NoneType)
        read = _reader(inner, where)
        return lambda value: None if value is None else read(value)
    if is_dataclass(declared):
        return lambda value: _read(declared, value)  # type: ignore[arg-type]
    origin = get_origin(declared)
    if origin is tuple:
        item = _reader(get_args(declared)[0], where)
        return lambda value: tuple(item(each) for each in _checked(value, list, where))
    if origin is not None:
        return lambda value: {name: _checked(each, str, where) for name, each in _checked(value, dict, where).items()}
    if issubclass(declared, StrEnum):
        return lambda value: declared(value)
    if declared is float:
        return lambda value: value if type(value) is int else _checked(value, float, where)
    return lambda value: _checked(value, declared, where)


def _checked(value: Any, wanted: type[Any], where: str) -> Any:
    if type(value) is not wanted:
        raise ValueError(f"{where}: {type(value).__name__} instead of {wanted.__name__}")
    return value
