"""Converts our frozen values to plain data and JSON, and back, as clusters store them.

A field of a dataclass may say in its metadata how it is stored: ``stored`` under which name, and ``flat`` that the
fields of its value, a dataclass, stand beside the others.

See decision 250.
"""

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from fairlead.policy.kinds.record import ParentKind
from fairlead.policy.kinds.table import KINDS
from fairlead.state.snapshot import Status

Value = TypeVar("Value")


def dump(value: Any) -> str:
    """Serialize a dataclass, or a tuple of them, as JSON."""
    return json.dumps(_plain(value), separators=(",", ":"))


def load(kind: type[Value], text: str) -> Value:
    """Deserialize a dataclass that ``dump`` wrote. Keys that this version does not know are left out."""
    value: Value = _build(kind, json.loads(text))
    return value


def plain(value: Any) -> dict[str, Any]:
    """Convert a dataclass to plain data."""
    content: dict[str, Any] = _plain(value)
    return content


def build(kind: type[Value], content: Any) -> Value:
    """Build a dataclass from the data of ``plain``. Keys that this version does not know are left out."""
    value: Value = _build(kind, content)
    return value


def load_all(kind: type[Value], text: str) -> tuple[Value, ...]:
    """Deserialize a tuple of dataclasses that ``dump`` wrote."""
    return tuple(_build(kind, item) for item in json.loads(text))


def with_detail(kind: str, status: Status) -> Status:
    """Return a status with its detail, read as plain data, converted to the class of its kind."""
    if status.detail is None:
        return status
    record = KINDS[kind]
    assert isinstance(record, ParentKind), f"a {kind} has no detail"
    return replace(status, detail=build(record.detail, status.detail))


def _plain(value: Any) -> Any:
    return _plain_converter(value.__class__)(value)


@cache
def _plain_converter(kind: type) -> Callable[[Any], Any]:
    """Return a cached converter of values of a class to plain data."""
    if is_dataclass(kind):
        names = [(attribute.name, _stored_name(attribute)) for attribute in fields(kind) if not _is_flat(attribute)]
        parts = [attribute.name for attribute in fields(kind) if _is_flat(attribute)]

        def convert(value: Any) -> dict[str, Any]:
            content = {stored: _plain(getattr(value, name)) for name, stored in names}
            for name in parts:
                content.update(_plain(getattr(value, name)))
            return content

        return convert
    if issubclass(kind, tuple):
        return lambda value: tuple([_plain(item) for item in value])
    if issubclass(kind, list):
        return lambda value: [_plain(item) for item in value]
    if issubclass(kind, Mapping):
        return lambda value: {name: _plain(item) for name, item in value.items()}
    return _same


def _is_flat(attribute: Field[Any]) -> bool:
    return bool(attribute.metadata.get("flat"))


def _stored_name(attribute: Field[Any]) -> str:
    return str(attribute.metadata.get("stored", attribute.name))


def _build(kind: Any, value: Any) -> Any:
    return None if value is None else _builder(kind)(value)


@cache
def _builder(kind: Any) -> Callable[[Any], Any]:
    """Return a cached builder of values of a kind from plain data; a loop reads thousands of the same few kinds."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _builder(next(arg for arg in get_args(kind) if arg is not type(None)))
    if origin is tuple:
        item = get_args(kind)[0]
        return lambda value: tuple(_build(item, entry) for entry in value)
    if origin in (dict, Mapping):
        read = _builder(get_args(kind)[1])
        if read is _same:
            return _same
        return lambda value: {name: _build(get_args(kind)[1], entry) for name, entry in value.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass_builder(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    return _same


def _dataclass_builder(kind: type) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    names = {_stored_name(attribute): attribute.name for attribute in fields(kind) if not _is_flat(attribute)}
    parts = {
        _stored_name(inner): attribute.name
        for attribute in fields(kind)
        if _is_flat(attribute)
        for inner in fields(hints[attribute.name])
    }
    # Resolved on first use: a kind may contain itself. Most attributes are kept as they are.
    builders: dict[str, Callable[[Any], Any] | None] = {}

    def built(content: Mapping[str, Any]) -> Any:
        arguments: dict[str, Any] = {}
        of_parts: dict[str, dict[str, Any]] = {}
        for stored, value in content.items():
            name = names.get(stored)
            if name is None:
                if stored in parts and value is not None:
                    of_parts.setdefault(parts[stored], {})[stored] = value
                continue
            if stored not in builders:
                read = _builder(hints[name])
                builders[stored] = None if read is _same else read
            make = builders[stored]
            arguments[name] = value if value is None or make is None else make(value)
        for name, part in of_parts.items():
            arguments[name] = _build(hints[name], part)
        return kind(**arguments)

    return built


def _same(value: Any) -> Any:
    return value
