"""Parses parameters of a sweep, each given as one text with its values, its scale and its condition.

0.0..0.5                     any number in the inclusive range
1..8                         a whole number, since both bounds are
log 1e-5..1e-1               on a logarithmic scale
sgd | adam                   one of these words or numbers
0.1..0.9 when opt=sgd|lion   only if another parameter, given above it, has one of these values
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import prod

from fairlead.frozen import dataclass
from fairlead.specs.constraints import one_line, quote

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
# Not three points in a row: 1...5 would be 1 to .5, or 1. to 5.
_RANGE = re.compile(rf"(?P<log>log\s+)?(?P<low>{_NUMBER})(?<!\.)\s*\.\.(?!\.)\s*(?P<high>{_NUMBER})")
# What other tools write for a range or a list, and would be one word here: 0.1-0.5, 0.1 to 0.5, "0.1, 0.5", 0.1 0.5 or
# np.logspace(-5, -1, 5). Also a list of numbers that was put in quotation marks.
_LISTED = rf"{_NUMBER}(?:(?:\s*[,;]\s*|\s+){_NUMBER})+"
_FOREIGN = re.compile(
    rf"{_NUMBER}\s*(?:-|\bto\b)\s*{_NUMBER}|{_LISTED}|[\[({{]\s*{_LISTED}\s*,?\s*[\])}}]|[\w.]+\(.*\)"
)
_MOST_SHOWN = 8
_WHOLE = re.compile(r"[-+]?\d+")
_ZEROS = re.compile(r"[-+]?0\d")
_WHEN = re.compile(r"(?P<values>.*\S)\s+when\s+(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<wanted>\S.*)", re.DOTALL)

Value = int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a sweep.

    Attributes:
        choices: Listed values; empty for a range.
        texts: The listed values as they were written, such as 1.10 and 1e5, in the order of `choices`.
        low: Lower bound of a range.
        high: Upper bound of a range.
        is_whole: The range has whole numbers only.
        is_log: The range is searched on a logarithmic scale.
        when: Parameter on which it depends, and the values of that for which it is active; None for always.
    """

    name: str
    choices: tuple[Value, ...] = ()
    texts: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    is_whole: bool = False
    is_log: bool = False
    when: tuple[str, tuple[Value, ...]] | None = None

    def is_active(self, values: Mapping[str, Value]) -> bool:
        """Return whether it is active, given the values of those above it."""
        return self.when is None or values.get(self.when[0]) in self.when[1]

    def at(self, part: float) -> Value:
        """Return the value at a fraction of its range, from 0 up to but excluding 1."""
        if self.choices:
            return self.choices[min(int(part * len(self.choices)), len(self.choices) - 1)]
        if self.is_whole:
            # Makes the first and the last as likely as any other.
            low, high = self._warp(self.low - 0.5), self._warp(self.high + 0.5)
            return int(min(max(round(self._unwarp(low + part * (high - low))), self.low), self.high))
        low, high = self._warp(self.low), self._warp(self.high)
        return float(f"{min(max(self._unwarp(low + part * (high - low)), self.low), self.high):.6g}")

    def part(self, value: Value) -> float:
        """Return the position of a value in the range, from 0 to 1; for listed values its place among them."""
        if self.choices:
            return self.choices.index(value) / max(1, len(self.choices)) if value in self.choices else 0.0
        low, high = self._warp(self.low), self._warp(self.high)
        return (self._warp(float(value)) - low) / (high - low) if high > low else 0.5

    def nearest(self, part: float) -> Value:
        """Return the value at a position in the range, the inverse of ``part``."""
        if not self.is_whole:
            return self.at(min(max(part, 0.0), 1.0))
        low, high = self._warp(self.low), self._warp(self.high)
        return int(min(max(round(self._unwarp(low + part * (high - low))), self.low), self.high))

    def text_of(self, value: Value) -> str:
        """Return a value as a program gets it: one that was listed as it was written, digit by digit."""
        texts = dict(zip(self.choices, self.texts, strict=True))
        return texts.get(value, show_value(value))

    def describe(self) -> str:
        """Describe its values in words, as they were understood."""
        if self.choices:
            more = ("...",) if len(self.texts) > _MOST_SHOWN else ()
            shown = ", ".join((*map(one_line, self.texts[:_MOST_SHOWN]), *more))
            values = f"{len(self.choices)} {'value' if len(self.choices) == 1 else 'values'}: {shown}"
        else:
            kind = "whole numbers" if self.is_whole else "any number"
            scale = " on a logarithmic scale" if self.is_log else ""
            values = f"{kind} from {show_value(self._bound(self.low))} to {show_value(self._bound(self.high))}{scale}"
        if self.when is None:
            return values
        other, wanted = self.when
        return f"{values}; only if {other} is {' or '.join(one_line(show_value(value)) for value in wanted)}"

    def _bound(self, value: float) -> Value:
        return int(value) if self.is_whole else value

    @property
    def listed(self) -> Sequence[Value] | None:
        """Return all of its values, in order; None if they are infinitely many."""
        if self.choices:
            return self.choices
        return range(int(self.low), int(self.high) + 1) if self.is_whole else None

    def _warp(self, value: float) -> float:
        return math.log(value) if self.is_log else value

    def _unwarp(self, value: float) -> float:
        return math.exp(value) if self.is_log else value


def parse_value(text: str) -> Value:
    """Parse a whole number, a number or a word; one with leading zeros, such as 007, is a word."""
    if _ZEROS.match(text):
        return text
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if re.fullmatch(_NUMBER, text) else text


def show_value(value: Value) -> str:
    """Format a value with all of its digits; ``Parameter.text_of`` has one as it was written."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:.6g}"
    return short if float(short) == value else repr(value)


def texts_of(space: Sequence[Parameter], values: Mapping[str, Value]) -> dict[str, str]:
    """Return the values of parameters as a program gets them, by name."""
    known = {parameter.name: parameter for parameter in space}
    return {name: known[name].text_of(value) if name in known else show_value(value) for name, value in values.items()}


EXACT = 2**53
"""The first whole number that a double does not tell from its neighbour."""


def read_parameter(name: str, text: str) -> Parameter:
    """Parse a parameter.

    Raises:
        ValueError: The text is invalid; the message continues a sentence that begins with the text.
    """
    when = None
    values = text.strip()
    if (match := _WHEN.fullmatch(values)) is not None:
        values = match["values"]
        when = match["name"], _listed(match["wanted"])
    ranged = _RANGE.fullmatch(values)
    if ranged is None:
        if ".." in values:
            raise ValueError("is not a range; give two numbers, such as `0.1..0.9`, `1..8` or `log 1e-5..1e-1`")
        if _FOREIGN.fullmatch(values):
            raise ValueError(
                "is a single word here; give a range, such as `0.1..0.5` or `log 1e-5..1e-1`, "
                "or values, such as `0.1 | 0.5`"
            )
        return Parameter(name=name, choices=_listed(values), texts=_words(values), when=when)
    low, high, is_log = float(ranged["low"]), float(ranged["high"]), ranged["log"] is not None
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("has no end; give two finite numbers")
    if low > high:
        raise ValueError("ends below its beginning; give the smaller number first")
    if is_log and low <= 0:
        raise ValueError("is in equal ratios, which needs numbers above 0")
    is_whole = _WHOLE.fullmatch(ranged["low"]) is not None and _WHOLE.fullmatch(ranged["high"]) is not None
    if is_whole and max(abs(low), abs(high)) >= EXACT:
        raise ValueError(
            f"goes beyond {EXACT}, from where on whole numbers are not exact; "
            "give a smaller range, such as `0..4294967295`"
        )
    return Parameter(name=name, low=low, high=high, is_whole=is_whole, is_log=is_log, when=when)


def read_parameters(texts: Mapping[str, str]) -> tuple[tuple[Parameter, ...], tuple[str, ...]]:
    """Parse parameters in their order; return them and the problems, one sentence each."""
    parameters: list[Parameter] = []
    problems = []
    for name, text in texts.items():
        try:
            parameter = read_parameter(name, text)
        except ValueError as error:
            problems.append(f"{name}: {quote(text)} {error}")
            continue
        problem = _condition_problem(parameter, {known.name: known for known in parameters})
        if problem is not None:
            problems.append(f"{name}: {problem}")
        parameters.append(parameter)
    return tuple(parameters), tuple(problems)


def grid(space: Sequence[Parameter]) -> Iterator[dict[str, Value]]:
    """Yield all combinations of values of parameters with listed values, each once, the last parameter fastest."""
    if not space:
        yield {}
        return
    yield from _combinations(space, {})


def _combinations(space: Sequence[Parameter], above: dict[str, Value]) -> Iterator[dict[str, Value]]:
    if not space:
        yield above
        return
    first, rest = space[0], space[1:]
    if not first.is_active(above):
        yield from _combinations(rest, above)
        return
    for value in first.listed or ():
        yield from _combinations(rest, {**above, first.name: value})


def count_combinations(space: Sequence[Parameter], most: int) -> int | None:
    """Count the combinations of values up to ``most`` + 1; return None if they are infinitely many."""
    listed = [parameter.listed for parameter in space]
    if any(values is None for values in listed):
        return None
    if all(parameter.when is None for parameter in space):
        return min(prod(len(values) for values in listed if values is not None), most + 1)
    return sum(1 for _ in islice(grid(space), most + 1))


def _condition_problem(parameter: Parameter, above: Mapping[str, Parameter]) -> str | None:
    if parameter.when is None:
        return None
    other, wanted = parameter.when
    if other not in above:
        names = ", ".join(above) or "none"
        return f"its condition names {quote(other)}, which is not a parameter above it; those are: {names}"
    listed = above[other].listed
    if listed is None:
        return f"its condition is on {other}, whose values are not listed; a condition needs words or whole numbers"
    strange = [show_value(value) for value in wanted if value not in listed]
    if strange:
        return f"its condition wants {other}={one_line(strange[0])}, which {other} never is"
    return None


def _listed(text: str) -> tuple[Value, ...]:
    values = tuple(parse_value(word) for word in _words(text))
    if len(set(values)) < len(values):
        raise ValueError("lists a value twice")
    return values


def _words(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split("|"))
    if not all(words):
        raise ValueError("has nothing between two `|`; give a value there")
    return words
