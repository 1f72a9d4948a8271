"""Serializes specs as compact JSON for a database: every attribute in its base unit, lossless, without YAML.

Defaults are included, so that a stored spec keeps its meaning if a later version has other defaults. Attributes without
effect in a spec are excluded: a later version with another default would refuse them as given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, cast, get_args, get_origin

from fairlead.errors import InvalidSpec
from fairlead.frozen import dataclass
from fairlead.specs.constraints import one_line
from fairlead.specs.keys import KINDS

if TYPE_CHECKING:
    from fairlead.specs.dataset import Dataset
    from fairlead.specs.federation import Federation
    from fairlead.specs.fleet import Fleet
    from fairlead.specs.pipeline import Pipeline
    from fairlead.specs.pool import Pool
    from fairlead.specs.serving import Serving
    from fairlead.specs.sweep import Sweep
    from fairlead.specs.team import Team
    from fairlead.specs.training import Training
    from fairlead.specs.workload import WorkloadSpec

# By name, so that a database of runs imports no other kinds.
_HOMES = {
    "Training": "fairlead.specs.training",
    "Workspace": "fairlead.specs.workspace",
    "Pipeline": "fairlead.specs.pipeline",
    "Federation": "fairlead.specs.federation",
    "Sweep": "fairlead.specs.sweep",
    "Serving": "fairlead.specs.serving",
    "Replica": "fairlead.specs.serving",
    "Dataset": "fairlead.specs.dataset",
    "Team": "fairlead.specs.team",
    "Pool": "fairlead.specs.pool",
}


def to_json(spec: WorkloadSpec | Pipeline | Federation | Dataset | Team | Pool | Fleet) -> str:
    """Serialize a spec on one line."""
    content = {"kind": type(spec).__name__, **_flat(spec)}
    for name in getattr(spec, "unused", ()):
        del content[name]
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def from_json(text: str) -> Training | Pipeline | Serving | Sweep | Federation | Dataset | Team | Pool | Fleet:
    """Deserialize a spec from ``to_json``.

    Raises:
        InvalidSpec: The text is not a serialized spec.
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("not an object")
        spec: Training | Pipeline | Serving | Sweep | Federation | Dataset | Team | Pool | Fleet = _read(
            _type_of(content.pop("kind", None)), content
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidSpec((f"<stored spec>: {one_line(str(error))}",)) from error
    return spec


def _type_of(kind: object) -> type[Any]:
    if kind in _HOMES:
        spec_type: type[Any] = getattr(import_module(_HOMES[str(kind)]), str(kind))
        return spec_type
    if kind not in KINDS:
        raise ValueError(f"kind: give one of {', '.join(KINDS)}")
    return KINDS[str(kind)].type


def workload_spec(text: str) -> WorkloadSpec:
    """Deserialize the spec of a workload of any kind from ``to_json``.

    Raises:
        InvalidSpec: The text is not a serialized spec.
    """
    spec: Any = from_json(text)
    assert hasattr(spec, "labels"), "not a spec of a workload"
    workload: WorkloadSpec = spec
    return workload


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attribute:
    """The reader of an attribute's stored value."""

    name: str
    read: Callable[[Any], Any]


def _flat(value: Any) -> dict[str, Any]:
    return {field.name: _stored(getattr(value, field.name)) for field in fields(value)}


def _stored(value: Any) -> Any:
    if is_dataclass(value):
        return _flat(value)
    if isinstance(value, tuple):
        return [_stored(entry) for entry in value]
    return {name: _stored(entry) for name, entry in value.items()} if isinstance(value, Mapping) else value


def _read(owner: type[Any], content: Any) -> Any:
    if not isinstance(content, dict):
        raise ValueError(f"{owner.__name__}: not an object")
    known = {attribute.name: attribute for attribute in _attributes(cast(Hashable, owner))}
    # An unknown attribute of another version with an empty value has no effect.
    unknown = sorted(name for name in set(content) - set(known) if not _says_nothing(content[name]))
    if unknown:
        raise ValueError(f"{owner.__name__}: unknown attribute {unknown[0]}")
    return owner(**{name: known[name].read(value) for name, value in content.items() if name in known})


def _says_nothing(value: Any) -> bool:
    return value is None or value is False or value in ("", [], {})


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
    """Return a function that reads a stored value of a declared type, and refuses every other type."""
    declared = getattr(declared, "__origin__", declared) if hasattr(declared, "__metadata__") else declared
    if isinstance(declared, UnionType):
        (inner,) = (member for member in get_args(declared) if member is not NoneType)
        read = _reader(inner, where)
        return lambda value: None if value is None else read(value)
    if is_dataclass(declared):
        return lambda value: _read(declared, value)  # type: ignore[arg-type]
    origin = get_origin(declared)
    if origin is tuple:
        item = _reader(get_args(declared)[0], where)
        return lambda value: tuple(item(entry) for entry in _checked(value, list, where))
    if origin is not None:
        read_each = _reader(get_args(declared)[1], where)
        return lambda value: {name: read_each(entry) for name, entry in _checked(value, dict, where).items()}
    if issubclass(declared, StrEnum):
        return lambda value: declared(value)
    if declared is float:
        return lambda value: value if type(value) is int else _checked(value, float, where)
    return lambda value: _checked(value, declared, where)


def _checked(value: Any, wanted: type[Any], where: str) -> Any:
    if type(value) is not wanted:
        raise ValueError(f"{where}: {type(value).__name__} instead of {wanted.__name__}")
    return value
