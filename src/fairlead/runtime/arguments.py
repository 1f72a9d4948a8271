"""Checks what a program gives ``run.progress`` and ``run.checkpoint``, where it calls them.

Called in every step, so that the usual value costs one comparison. Nothing here reads a tensor of a device but one that
is given as a count.
"""

import math
import operator

from fairlead.runtime.errors import Misuse


def whole(value: object, where: str, *, least: int = 0) -> int:
    """Return the value as an int: any integer, also one of numpy or a tensor of one element; no bool and no float.

    A float is refused even if it is whole: one that is computed is whole in some steps only, and would fail late.

    Args:
        where: What the program gave, as in "run.progress(step)"; for the message.
        least: The lowest number that makes sense.

    Raises:
        Misuse: It is no whole number, or a lower one.
    """
    if type(value) is not int:
        try:
            if isinstance(value, bool):
                raise TypeError
            value = operator.index(value)  # type: ignore[arg-type] # whatever has __index__
        except (TypeError, ValueError, RuntimeError):
            raise Misuse(f"{where} was given {said(value)}; {_whole_fix(value, least)}") from None
    if value < least:
        raise Misuse(f"{where} was given {value}; give a whole number from {least} on")
    return value


def passes(value: object) -> float:
    """Return an epoch as a float, fractions allowed.

    Raises:
        Misuse: It is no finite number, or below 0.
    """
    if type(value) is not float and type(value) is not int:
        value = math.nan if isinstance(value, bool) or not _is_one_number(value) else _read(value)
    if not 0 <= value < math.inf:
        given = said(value) if value == value else "no number"
        raise Misuse(f"run.progress(epoch=...) was given {given}; give a number from 0 on, such as 2.5")
    return float(value)


def check_number(name: str, value: object) -> None:
    """Refuse a loss or a metric that can be no number; a tensor is not read, and None says that there is none now.

    Raises:
        Misuse: It is no number and no tensor or array of one element.
    """
    kind = type(value)
    if kind is float or kind is int or value is None or _is_one_number(value):
        return
    raise Misuse(
        f"run.progress({name}=...) was given {said(value)}; give a number or a tensor of one element, "
        "such as loss.mean()"
    )


def said(value: object) -> str:
    """Return the value as a message shows it, with its type: "the string 'x'", "a list", "1.6 (float)"."""
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
    """Elements of a tensor or an array; None of anything else."""
    count = getattr(value, "numel", None)
    count = count() if callable(count) else getattr(value, "size", None)
    return count if isinstance(count, int) else None


def _read(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type] # it has __float__
    except (TypeError, ValueError, RuntimeError):
        return math.nan
