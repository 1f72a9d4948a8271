"""Parses and formats quantities: memory, cores, GPUs, durations. Parsing is exact; sizes never pass through floats.

Each ``parse_*`` raises ValueError with a message that continues the given text, such as "is not a duration; ...".
Each ``format_*`` returns the shortest usual spelling, which parses to the same value.
"""

import re
from decimal import Decimal
from fractions import Fraction

# Patterns are for full matches, and use only syntax common to JavaScript and Python.
DECIMAL = r"[0-9]{1,20}(?:\.[0-9]{1,30})?"
NUMBER = r"\+?(?:[0-9]{1,20}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,2})?"
SIZE = rf"{DECIMAL} ?(?:k|[KMGTPE]i?)?B?"
CPU = rf"{DECIMAL}m?"
DURATION = "(?=[0-9])" + "".join(rf"(?:{DECIMAL}{unit})?" for unit in ("d", "h", "m", "s", "ms"))
STEPS = r"[0-9]{1,15} ?steps?"
EVERY_AUTO = "auto"
SHARE = rf"{DECIMAL} ?%"
SPAN = r"[0-9]{1,9}\.\.[0-9]{1,9}"

_UNITS = {
    "": 1,
    **{letter: 1000**power for power, letter in enumerate("KMGTPE", 1)},
    **{f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", 1)},
    "k": 1000,
}
_SECONDS = {
    "d": Fraction(86_400),
    "h": Fraction(3_600),
    "m": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 1000),
}


def parse_number(text: str) -> Fraction:
    """Parse a number exactly; bounds are checked by the value that contains it."""
    if re.fullmatch(f"-?{NUMBER}", text) is None:
        raise ValueError("is not a number")
    return Fraction(text)


def parse_whole(text: str) -> int:
    """Parse a whole number; bounds are checked by the value that contains it."""
    if re.fullmatch(r"0x[0-9a-fA-F]{1,16}|0o[0-7]{1,20}", text):
        return int(text, 0)
    try:
        number = parse_number(text)
    except ValueError:
        number = Fraction(1, 2)
    if number.denominator != 1:
        raise ValueError("is not a whole number")
    return int(number)


def parse_span(text: str) -> tuple[int, int | None]:
    """Parse the minimum and maximum of a span such as ``2..8``; a single number and ``4..4`` give it and None."""
    if re.fullmatch(SPAN, text) is None:
        return parse_whole(text), None
    least, most = map(int, text.split(".."))
    if most < least:
        raise ValueError(f"ends before it begins; did you mean `{most}..{least}`?")
    return least, most if most > least else None


def format_span(span: tuple[int | None, int | None]) -> str | int:
    """Format a span for ``parse_span``; a single bound as a number."""
    least, most = span
    if least is None or most is None:
        return least or most or 0
    return f"{least}..{most}"


def parse_size(text: str) -> int:
    """Parse bytes from ``1Gi``, ``500M``, ``24GB`` or a plain number of bytes."""
    match = re.fullmatch(rf"({DECIMAL}) ?(k|[KMGTPE]i?)?B?", text)
    if match is not None:
        size = Fraction(match[1]) * _UNITS[match[2] or ""]
    elif re.fullmatch(NUMBER, text):
        size = Fraction(text)
    else:
        raise ValueError("is not a size in bytes" + like_size(text))
    if size.denominator != 1:
        raise ValueError(f"is not a whole number of bytes; the next one is `{-(-size.numerator // size.denominator)}`")
    return int(size.numerator)


def format_size(size: int) -> str | int:
    """Format bytes as ``1Gi`` or ``500M`` if that is exact, otherwise as the number of bytes."""
    for units in (("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"), ("E", "P", "T", "G", "M")):
        for unit in units:
            if size and size % _UNITS[unit] == 0:
                return f"{size // _UNITS[unit]}{unit}"
    return size


def parse_cpu(text: str) -> int:
    """Parse thousandths of a core from ``500m``, ``2`` or ``0.5``."""
    match = re.fullmatch(rf"({DECIMAL})(m?)", text)
    if match is not None:
        milli = Fraction(match[1]) * (1 if match[2] else 1000)
    elif re.fullmatch(NUMBER, text):
        milli = Fraction(text) * 1000
    else:
        raise ValueError("is not a number of cores")
    return _thousandths(milli, "core")


def format_cpu(milli: int) -> str | int:
    """Format whole cores as a number, otherwise as thousandths of a core."""
    return f"{milli}m" if milli % 1000 else milli // 1000


def parse_gpu_count(text: str) -> int:
    """Parse thousandths of a GPU from a number of GPUs."""
    return _thousandths(parse_number(text) * 1000, "GPU")


def format_gpu_count(milli: int) -> str | int:
    """Format a number of GPUs."""
    return format(Decimal(milli) / 1000, "f") if milli % 1000 else milli // 1000


def parse_duration(text: str) -> float:
    """Parse seconds from ``1h30m``, ``15s``, ``500ms`` or a plain number of seconds."""
    if re.fullmatch(NUMBER, text):
        return float(Fraction(text))
    if re.fullmatch(DURATION, text) is None:
        raise ValueError("is not a duration" + _like_duration(text))
    parts = re.findall(rf"({DECIMAL})(ms|d|h|m|s)", text)
    return float(sum(Fraction(number) * _SECONDS[unit] for number, unit in parts))


def format_duration(seconds: float) -> str:
    """Format seconds in the shortest spelling with d, h, m, s and ms."""
    exact = Decimal(repr(float(seconds)))
    if exact < 1 and exact * 1000 == int(exact * 1000):
        return f"{int(exact * 1000)}ms" if exact else "0s"
    if exact != int(exact):
        return f"{exact:f}s"
    rest, spelled = int(exact), ""
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, int(_SECONDS[unit]))
        spelled += f"{count}{unit}" if count else ""
    return spelled


def parse_every(text: str) -> tuple[float | None, int | None, bool | None]:
    """Parse seconds, steps, or the automatic choice of seconds: ``10m``, ``200 steps`` or ``auto``."""
    if text == EVERY_AUTO:
        return None, None, True
    if re.fullmatch(STEPS, text):
        return None, int(text.partition("step")[0]), None
    try:
        return parse_duration(text), None, None
    except ValueError:
        raise ValueError("is neither a duration nor a number of steps nor `auto`" + _like_duration(text)) from None


def parse_steps(text: str) -> int:
    """Parse a number of steps: ``3 steps`` or ``3``."""
    if re.fullmatch(f"{STEPS}|[0-9]{{1,15}}", text) is None:
        raise ValueError("is not a number of steps")
    return int(text.partition("step")[0])


def format_steps(steps: int) -> str:
    """Format a value for ``parse_steps``."""
    return f"{steps} steps"


def parse_duration_or_steps(text: str) -> tuple[float | None, int | None]:
    """Parse seconds or steps: ``30s`` or ``20 steps``."""
    if text == EVERY_AUTO:
        raise ValueError("is neither a duration nor a number of steps")
    try:
        seconds, steps, _ = parse_every(text)
    except ValueError:
        raise ValueError("is neither a duration nor a number of steps" + _like_duration(text)) from None
    return seconds, steps


def format_duration_or_steps(every: tuple[float | None, int | None]) -> str:
    """Format a value for ``parse_duration_or_steps``."""
    return format_every((*every, None))


def format_every(every: tuple[float | None, int | None, bool | None]) -> str:
    """Format a value for ``parse_every``."""
    seconds, steps, is_auto = every
    if is_auto:
        return EVERY_AUTO
    return format_duration(seconds) if seconds is not None else f"{steps} steps"


def parse_share(text: str) -> float:
    """Parse a share as a number or percentage; bounds are checked by the value that contains it."""
    if re.fullmatch(SHARE, text) is not None:
        return float(Fraction(text.rstrip("% ")) / 100)
    try:
        return float(parse_number(text))
    except ValueError:
        raise ValueError("is not a share") from None


def format_number(number: float) -> float | int:
    """Return whole numbers as int."""
    return int(number) if number == int(number) else number


def _thousandths(milli: Fraction, unit: str) -> int:
    if milli.denominator != 1:
        raise ValueError(f"is finer than a thousandth of a {unit}")
    return milli.numerator


def like_size(text: str) -> str:
    """Return a suggestion for a size with common mistakes: lower case, milli-bytes, bits."""
    match = re.fullmatch(rf"({DECIMAL})\s*([kmgtpe])(i?)b?", text, re.IGNORECASE)
    return "" if match is None else f"; did you mean `{match[1]}{match[2].upper()}{match[3].lower()}`?"


def _like_duration(text: str) -> str:
    words = {"min": "m", "mins": "m", "minute": "m", "minutes": "m", "hr": "h", "hrs": "h", "hour": "h", "hours": "h"}
    words |= {"sec": "s", "secs": "s", "second": "s", "seconds": "s", "day": "d", "days": "d", "step": " steps"}
    match = re.fullmatch(rf"({DECIMAL})\s*([A-Za-z]+)", text)
    if match is not None and (unit := words.get(match[2].lower(), match[2].lower())) in (*_SECONDS, " steps"):
        return f"; did you mean `{match[1]}{unit}`?"
    return ""
