"""Reads numbers as programs print them: with separators of thousands, at the end of a sentence, in colour, not finite.

Text that could be meant as two numbers is read as none. A decimal comma, a list, a range, a date, a time of day, a
fraction or a unit would each become another number than the one that was printed.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple

    Pairs = List[Tuple[str, str, str]]

# Separators of thousands: comma, underscore, apostrophes, no-break space, thin space and narrow no-break space.
_SEPARATORS = ",_'\u2019\u00a0\u2009\u202f"
_SIGN = "[-+\u2212]"
_WORD = rf"{_SIGN}?(?:nan|infinity|inf)"
_NAME = r"[^\W\d][\w./@-]*"
# Digits and all that joins them, also where that is no number in the end. Spaces join groups of three digits up to a
# fraction, the end of the line or the next name; in `epoch=1 250 samples` they do not.
_DIGITS = (
    rf"(?:(?<![\w.]){_SIGN})?"
    rf"(?:[0-9]{{1,3}}(?: [0-9]{{3}})+(?:[.,][0-9]+|(?=[.,;]?(?:\s*$|\s+{_NAME}\s*=)))"
    rf"|\.?[0-9](?:[{_SEPARATORS}.]*[0-9]|[eE]{_SIGN}?[0-9])*)"
)
_TOKEN = re.compile(_DIGITS)
_GOES_ON = re.compile(rf"[{_SEPARATORS}. ]*[0-9]|[eE]{_SIGN}?[0-9]")
_BEGAN = re.compile(rf"(?:[0-9][{_SEPARATORS}. ]?|{_SIGN}|[0-9]?\.)$")
# A lookahead with a reference is an atomic group, which Python has from 3.11 on: no part of a number is taken for it.
_PAIR = re.compile(
    rf"(?<![\w./@?&-])({_NAME})[ \t]*=[ \t]*[\"']?(?=({_WORD}|{_DIGITS}))\2(?![\w*^\u00d7]|[.,:*^-]+[0-9])(/[0-9])?",
    re.IGNORECASE,
)
_EXPONENT = rf"(?:e{_SIGN}?[0-9]+)?"
_NUMBER = re.compile(
    rf"{_WORD}|{_SIGN}?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+){_EXPONENT}"
    rf"|[1-9][0-9]{{0,2}}(?P<separator>[{_SEPARATORS}])[0-9]{{3}}(?:(?P=separator)[0-9]{{3}})*(?:\.[0-9]*)?{_EXPONENT})",
    re.IGNORECASE,
)
_TO_FLOAT = {ord("\u2212"): "-", **dict.fromkeys(map(ord, _SEPARATORS))}
_AROUND = " \t,;:!?%()[]'\""
# Colours and moves of the cursor, titles of windows, and steps back.
_CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]|[\x00\x08]")


def without_controls(line: str) -> str:
    """Return a line without the codes that colour it or move the cursor."""
    return _CONTROLS.sub("", line) if "\x1b" in line or "\x08" in line or "\x00" in line else line


def pairs(line: str) -> Pairs:
    """Return name, value and, where the value is the first part of `10/100`, the rest, of every `name=value`."""
    return _PAIR.findall(line)


def number(text: str) -> float | None:
    """Return the number that a text is, with punctuation and quotes around it; None if it is no single number."""
    stripped = text.strip(_AROUND).rstrip(f".{_AROUND}")
    if not _NUMBER.fullmatch(stripped):
        return None
    return float(stripped.translate(_TO_FLOAT))


def widened(line: str, start: int, end: int) -> tuple[int, int]:
    """Return the bounds of the number of which ``line[start:end]`` is only a part; the same bounds if it is whole."""
    if _GOES_ON.match(line, end) or _BEGAN.search(line, max(0, start - 2), start):
        for token in _TOKEN.finditer(line):
            if token.start() <= start and end <= token.end():
                return token.span()
    return start, end
