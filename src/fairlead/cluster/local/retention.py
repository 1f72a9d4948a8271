"""Reads the retention of finished runs of one machine from an optional file of the state directory."""

from collections.abc import Callable
from pathlib import Path

from fairlead.errors import ClusterError
from fairlead.policy.kinds.retention import KEEP_ALL, Retention
from fairlead.specs.constraints import BrokenRules, quote
from fairlead.specs.quantities import parse_duration, parse_whole


def read_keep(path: Path) -> Retention:
    """Read the retention: a line ``for: 30d``, a line ``last: 20``, or both; everything is kept without a file.

    Raises:
        ClusterError: The file is malformed; no run is removed then.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return KEEP_ALL
    except (OSError, UnicodeError) as error:
        raise ClusterError(f"{path} cannot be read: {error}. Until it can no run is removed.") from error
    limits: dict[str, float] = {}
    try:
        for line in (line.partition("#")[0].strip() for line in lines):
            key, colon, value = line.partition(":")
            if line and (not colon or key not in _KEYS or key in limits):
                raise ValueError(f"{quote(line)} is not one line each of {', '.join(_KEYS)}")
            if line:
                limits[key] = _read(key, value.strip())
        if not limits:
            raise ValueError("it is empty")
        last = limits.get("last")
        return Retention(for_s=limits.get("for"), last=None if last is None else int(last))
    except (ValueError, BrokenRules) as error:
        raise ClusterError(
            f"{path}: {error}. Give `for: 30d`, `last: 20`, or both on a line each, or remove the file; until then no "
            "run is removed by itself."
        ) from error


def _read(key: str, text: str) -> float:
    try:
        return _KEYS[key](text)
    except ValueError as error:
        raise ValueError(f"{key}: {quote(text)} {error}") from error


_KEYS: dict[str, Callable[[str], float]] = {"for": parse_duration, "last": parse_whole}
