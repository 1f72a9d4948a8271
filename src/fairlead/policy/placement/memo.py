"""Keeps what was last worked out of a value until another value comes: nodes and histories outlive many passes.

The key is the value itself, compared whole, so what is kept cannot be stale. Where its parts are the very same objects
as last time, as in the snapshots of a cluster on which nothing happened to them, comparing costs a pointer each.
"""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

Value = TypeVar("Value")
Result = TypeVar("Result")


def kept(function: Callable[[Value], Result]) -> Callable[[Value], Result]:
    """The function, which works nothing out again for what equals its last argument.

    Argument and result must not change: many get the same one.
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
