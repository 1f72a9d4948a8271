"""Caches the last result of a function: nodes and histories stay the same over many passes.

The key is the value itself, compared as a whole, so the cache cannot be stale. If its parts are the same objects as
last time, as in successive snapshots of an unchanged cluster, comparing costs a pointer each.
"""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

Value = TypeVar("Value")
Result = TypeVar("Result")


def cached_last(function: Callable[[Value], Result]) -> Callable[[Value], Result]:
    """Cache the function's last result, for arguments equal to its last one.

    Argument and result must not be modified: callers share them.
    """
    last: tuple[Value, Result] | None = None

    @wraps(function)
    def remembering(value: Value) -> Result:
        nonlocal last
        known = last
        if known is None or known[0] != value:
            known = last = (value, function(value))
        return known[1]

    return remembering
