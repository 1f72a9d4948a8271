"""Converts our frozen values to plain data and JSON, and back, as clusters store them."""

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from fairlead.state.snapshot import Status

Value = TypeVar("Value")


def dump(value: Any) -> str:
    """Serialize a dataclass, or a tuple of them, as JSON."""
    plain = [asdict(item) for item in value] if isinstance(value, tuple) else asdict(value)
    return json.dumps(plain, separators=(",", ":"))


def load(kind: type[Value], text: str) -> Value:
    """Deserialize a dataclass that ``dump`` wrote. Keys that this version does not know are left out."""
    value: Value = _build(kind, json.loads(text))
    return value


def plain(value: Any) -> dict[str, Any]:
    """Convert a dataclass to plain data."""
    return asdict(value)


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
    # Imported here because only parents have a detail.
    from fairlead.policy.kinds.record import ParentKind
    from fairlead.policy.kinds.table import KINDS

    record = KINDS[kind]
    assert isinstance(record, ParentKind), f"a {kind} has no detail"
    return replace(status, detail=build(record.detail, status.detail))


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
        hints = get_type_hints(kind)
        inner = {attribute.name: hints[attribute.name] for attribute in fields(kind)}
        # Resolved on first use: a kind may contain itself. Most attributes are kept as they are.
        builders: dict[str, Callable[[Any], Any] | None] = {}

        def built(content: Mapping[str, Any]) -> Any:
            arguments = {}
            for name, value in content.items():
                if name not in inner:
                    continue
                if name not in builders:
                    read = _builder(inner[name])
                    builders[name] = None if read is _same else read
                make = builders[name]
                arguments[name] = value if value is None or make is None else make(value)
            return kind(**arguments)

        return built
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    return _same


def _same(value: Any) -> Any:
    return value
