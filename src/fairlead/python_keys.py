"""Reads a spec from the values of Python programs, which have paths and NumPy's numbers where a file has text."""

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairlead.deferred import deferred
from fairlead.errors import InvalidSpec
from fairlead.specs.keys import Spec

if TYPE_CHECKING:
    from fairlead.specs.formats import reading
else:
    reading = deferred("fairlead.specs.formats.reading")


def read_keys(keys: Mapping[str, object], *, source: str, default_name: str | None = None) -> Spec:
    """Return the spec with these keys, as of a file.

    Args:
        keys: Texts, numbers, truth values, paths, scalars of NumPy and PyTorch, and lists and mappings of these.
        source: Name of the class that they were given to, for messages.
        default_name: Name of a spec in the short form without a name.

    Raises:
        InvalidSpec: A key or value is wrong; the message lists every mistake at once.
    """
    # JSON is YAML, and the reader's errors name keys and values in the same words as for a file.
    (spec,) = reading.parse(json.dumps(as_plain(keys, source=source)), source=source, default_name=default_name)
    return spec


def as_plain(keys: Mapping[str, object], *, source: str) -> dict[str, object]:
    """Return keys with values as JSON has them.

    Raises:
        InvalidSpec: A value has no form in a spec.
    """
    problems: list[str] = []
    plain = {str(key): _plain(value, str(key), problems) for key, value in keys.items()}
    if problems:
        raise InvalidSpec(tuple(f"{source}: {problem}" for problem in problems))
    return plain


def _plain(value: Any, path: str, problems: list[str]) -> object:
    """Return a value as JSON has it; add what it has no form for to the problems."""
    if isinstance(value, str | bool | int | float) or (value is None and "." not in path):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, f"{path}.{key}", problems) for key, inner in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(inner, f"{path}[{index}]", problems) for index, inner in enumerate(value)]
    if value is None:
        if not path.startswith("kubernetes."):
            problems.append(f"{path}: nothing is given (None); give a value, or leave the key out")
        return None
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        number = value.item()
        try:
            # NumPy's numbers of 32 bits print the digits that were written, which their doubles have more of.
            return float(str(value)) if isinstance(number, float) else _plain(number, path, problems)
        except ValueError:
            return number
    kind = type(value).__qualname__
    problems.append(f"{path}: {kind} has no form in a spec; give text, a number, True, False, a path, a list or a dict")
    return None
