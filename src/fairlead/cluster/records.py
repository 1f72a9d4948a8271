"""Our frozen values as plain data and as JSON, and back: how clusters keep them."""

import json
import types
from dataclasses import asdict, fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from fairlead.state.snapshot import Status

Value = TypeVar("Value")
_HINTS: dict[type, dict[str, Any]] = {}


def dump(value: Any) -> str:
    """A dataclass, or a tuple of them, as JSON."""
    plain = [asdict(item) for item in value] if isinstance(value, tuple) else asdict(value)
    return json.dumps(plain, separators=(",", ":"))


def load(kind: type[Value], text: str) -> Value:
    """The dataclass that ``dump`` wrote. Keys that this version does not know are left out."""
    value: Value = _build(kind, json.loads(text))
    return value


def plain(value: Any) -> dict[str, Any]:
    """A dataclass as plain data."""
    return asdict(value)


def build(kind: type[Value], content: Any) -> Value:
    """The dataclass that ``plain`` made. Keys that this version does not know are left out."""
    value: Value = _build(kind, content)
    return value


def load_all(kind: type[Value], text: str) -> tuple[Value, ...]:
    """The tuple of dataclasses that ``dump`` wrote."""
    return tuple(_build(kind, item) for item in json.loads(text))


def with_detail(kind: str, status: Status) -> Status:
    """Return a status as it was read, its detail as the value that a kind says it is."""
    if status.detail is None:
        return status
    # Here and not above: only parents have any.
    from fairlead.policy.kinds.record import ParentKind
    from fairlead.policy.kinds.table import KINDS

    record = KINDS[kind]
    assert isinstance(record, ParentKind), f"a {kind} has no detail"
    return replace(status, detail=build(record.detail, status.detail))


def _build(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if value is None:
        return None
    if origin in (Union, types.UnionType):
        return _build(next(arg for arg in get_args(kind) if arg is not type(None)), value)
    if origin is tuple:
        return tuple(_build(get_args(kind)[0], item) for item in value)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _HINTS.get(kind)
        if hints is None:
            hints = _HINTS[kind] = get_type_hints(kind)
        return kind(**{f.name: _build(hints[f.name], value[f.name]) for f in fields(kind) if f.name in value})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    return value
