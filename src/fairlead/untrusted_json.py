"""Reads JSON that a pod, a tenant, a peer or a file wrote: bounded in size and depth, with one error for any fault.

It uses the standard library alone and runs on Python 3.9, since pods have it beside the runtime.
"""

from __future__ import annotations

import json
import math
import re

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing it would delay every rank's start
    from typing import Any, NoReturn

# An escape of half a surrogate pair. Python takes it alone too, but no file, database or server can store such text.
_SURROGATE = re.compile("\\\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def parse_json(text: str | bytes, *, max_bytes: int, finite: bool = False) -> Any:
    """Return the value that a JSON text holds; half surrogate pairs in it become question marks.

    Args:
        max_bytes: The longest text, in bytes or, if it is decoded already, in characters.
        finite: Refuse NaN and infinity, which JSON itself lacks, and numbers beyond a double.

    Raises:
        ValueError: The text is too long, nested too deeply, or not JSON.
    """
    if len(text) > max_bytes:
        raise ValueError(f"it has {len(text)} bytes; at most {max_bytes} are read")
    try:
        decoded = text if isinstance(text, str) else str(text, "utf-8")
        value = json.loads(decoded, parse_constant=_refused, parse_float=_finite) if finite else json.loads(decoded)
        if _SURROGATE.search(decoded) is not None:
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def parse_object(text: str | bytes, *, max_bytes: int, finite: bool = False) -> dict[str, Any]:
    """Return the object that a JSON text holds, as ``parse_json`` reads it.

    Raises:
        ValueError: The text is too long, nested too deeply, not JSON, or another value than an object.
    """
    value = parse_json(text, max_bytes=max_bytes, finite=finite)
    if not isinstance(value, dict):
        raise ValueError(f"it holds {_name(value)} where an object is expected")
    return value


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is too large for a number")
    return value


def _name(value: object) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")


# Of a value in such JSON: the value if it has the type and the bounds, else None.
MOST_WHOLE = (1 << 63) - 1
"""The largest whole number that databases and API servers hold exactly."""
YEAR_10000 = 253_402_300_800.0
"""The Unix seconds up to which a moment can be written as a date."""


def whole(value: object) -> int | None:
    """Return a whole number of at most 64 bits."""
    return value if type(value) is int and abs(value) <= MOST_WHOLE else None


def number(value: object) -> float | None:
    """Return a number as a double, which may be NaN or infinite."""
    if type(value) is float:
        return value
    return None if (exact := whole(value)) is None else float(exact)


def moment(value: object) -> float | None:
    """Return a moment in Unix seconds that a date can show."""
    at = number(value)
    return at if at is not None and 0 <= at < YEAR_10000 else None


def text(value: object, most: int = 4096) -> str | None:
    """Return a text, cut after so many characters."""
    return value[:most] if isinstance(value, str) else None


def items(value: object) -> list[Any]:
    """Return the items of a list; none of any other value."""
    return value if isinstance(value, list) else []


def fields(value: object) -> dict[str, Any]:
    """Return the fields of an object; none of any other value."""
    return value if isinstance(value, dict) else {}
