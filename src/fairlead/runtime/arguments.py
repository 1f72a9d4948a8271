"""Checks the arguments of ``run.progress`` and ``run.checkpoint`` at the call.

These checks run in every step, so an argument of the usual type costs one comparison. No tensor on a device is read,
except one that is given as a count.
"""

import math
import operator

from fairlead.runtime.errors import Misuse


def whole(value: object, where: str, *, least: int = 0) -> int:
    """Return the value as an int: any integer, also of numpy or a one-element tensor; a bool or float is refused.

    A float is refused even if it is whole: a computed one is whole only in some steps, and would fail late.

    Args:
        where: The argument as the message names it, as in "run.progress(step)".
        least: The lowest number allowed.

    Raises:
        Misuse: The value is not a whole number, or is lower than ``least``.
    """
    if type(value) is not int:
        try:
            if isinstance(value, bool):
                raise TypeError
            value = operator.index(value)  # type: ignore[arg-type] # whatever has __index__
        except (TypeError, ValueError, RuntimeError):
            raise Misuse(f"{where} was given {described(value)}; {_whole_fix(value, least)}") from None
    if value < least:
        raise Misuse(f"{where} was given {value}; give a whole number from {least} on")
    return value


def passes(value: object) -> float:
    """Return an epoch as a float, fractions allowed.

    Raises:
        Misuse: The value is not a finite number, or is below 0.
    """
    if type(value) is not float and type(value) is not int:
        value = math.nan if isinstance(value, bool) or not _is_one_number(value) else _read(value)
    if not 0 <= value < math.inf:
        text = described(value) if value == value else "no number"
        raise Misuse(f"run.progress(epoch=...) was given {text}; give a number from 0 on, such as 2.5")
    return float(value)


def check_number(name: str, value: object) -> None:
    """Refuse a loss or a metric that cannot be a number. A tensor is not read, and None means no value at this step.

    Raises:
        Misuse: The value is neither a number nor a tensor or array of one element.
    """
    kind = type(value)
    if kind is float or kind is int or value is None or _is_one_number(value):
        return
    raise Misuse(
        f"run.progress({name}=...) was given {described(value)}; give a number or a tensor of one element, "
        "such as loss.mean()"
    )


def described(value: object) -> str:
    """Return the value as messages show it, with its type: "the string 'x'", "a value of type list", "1.6 (float)"."""
    kind = type(value).__name__
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int | float):
        return f"{value!r} ({kind})"
    count = _num_elements(value)
    return f"a value of type {kind}" + ("" if count is None else f" with {count} elements")


def _whole_fix(value: object, least: int) -> str:
    fix = "; round it with int() if that is what you mean" if isinstance(value, float) else ""
    return f"give a whole number from {least} on{fix}"


def _is_one_number(value: object) -> bool:
    return hasattr(value, "__float__") and _num_elements(value) in (None, 1)


def _num_elements(value: object) -> int | None:
    """Return the number of elements of a tensor or an array; None for anything else."""
    count = getattr(value, "numel", None)
    count = count() if callable(count) else getattr(value, "size", None)
    return count if isinstance(count, int) else None


def _read(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type] # it has __float__
    except (TypeError, ValueError, RuntimeError):
        return math.nan
