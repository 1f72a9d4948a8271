"""Rules of values, defined once: frozen values enforce them, the parser reports them, the schema contains them."""

import re
from collections.abc import Callable, Iterable, Mapping

from fairlead.frozen import dataclass


class BrokenRules(ValueError):
    """A value violates rules of its type; ``problems`` has pairs of attribute and sentence."""

    def __init__(self, problems: tuple[tuple[str, str], ...]) -> None:
        super().__init__("; ".join(f"{attribute}: {sentence}" for attribute, sentence in problems))
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A number between two inclusive bounds.

    Attributes:
        whole: Allow integers only.
        zero: Allow 0 although it is below ``low``.
    """

    low: float
    high: float
    whole: bool = False
    zero: bool = False

    def problem(self, value: object, show: Callable[[float], str] = str) -> str | None:
        """Return the problem of a value, with bounds formatted by ``show``; None if it is valid."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return f"{value!r} is not a {'whole ' if self.whole else ''}number"
        if self.low <= value <= self.high or (self.zero and value == 0):
            return None
        zero = "0, or " if self.zero else ""
        return f"{show(value)} is out of bounds; give {zero}{show(self.low)} to {show(self.high)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Text that is not blank.

    Attributes:
        max_length: Maximum number of characters.
        pattern: Regular expression for a full match, also valid in JavaScript; None for any text.
        what: Noun for messages, as in "X is not ...".
        lines: Allow several lines.
        blank: Allow blank text.
    """

    max_length: int
    pattern: str | None = None
    what: str = "text"
    lines: bool = False
    blank: bool = False

    def problem(self, value: object) -> str | None:
        """Return the problem of a value; None if it is valid."""
        if not isinstance(value, str):
            return f"{value!r} is not text"
        if len(value) > self.max_length:
            return f"{quote(value)} has {len(value)} characters; give at most {self.max_length}"
        if not self.blank and not value.strip():
            return "it is blank; give some text, or remove the key"
        if self.pattern is not None and re.fullmatch(self.pattern, value) is None:
            return f"{quote(value)} is not {self.what}"
        if _UNSTORABLE.search(value) is not None:
            return f"{quote(value)} holds a NUL or half a surrogate pair, which no program can be given"
        if not self.lines and _CONTROL.search(value) is not None:
            return f"{quote(value)} holds a line break or another control character; write it on one line"
        return None


Constraints = Mapping[str, Limit | Text]

NAME = Text(
    max_length=50,
    pattern=r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?",
    what="a name; use lower-case letters, digits and dashes, the dashes inside, such as `train-llama`",
)
PATH = Text(max_length=4096)
_ONE_MODEL = r"[A-Za-z](?:[-A-Za-z0-9._+/ ]*[A-Za-z0-9])?"
MODEL = Text(
    max_length=63,
    pattern=_ONE_MODEL,
    what="a GPU model; use letters, digits and `-._+/`, starting with a letter, such as `A100`",
)

MODELS = Text(
    max_length=255,
    pattern=rf"{_ONE_MODEL}(?:\|{_ONE_MODEL})*",
    what="a GPU model, or several with `|`; use letters, digits and `-._+/`, starting with a letter, such as `A100`",
)


def enforce(problems: Iterable[tuple[str, str]]) -> None:
    """Raise BrokenRules if there are problems."""
    broken_rules = tuple(problems)
    if broken_rules:
        raise BrokenRules(broken_rules)


def broken(value: object, rules: Constraints) -> Iterable[tuple[str, str]]:
    """Yield the attribute and a sentence for each rule that ``value`` violates; skip attributes that are None."""
    for attribute, rule in rules.items():
        content = getattr(value, attribute)
        if content is not None and (sentence := rule.problem(content)) is not None:
            yield attribute, sentence


def quote(text: str) -> str:
    """Quote a text on one line, truncated so that a message stays readable."""
    short = text if len(text) <= 60 else text[:57] + "..."
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in short.replace('"', '\\"'))
    return f'"{"".join(escaped)}"'


def one_line(text: str) -> str:
    """Format a text without quotes on one line, truncated, as part of a message."""
    return text if len(text) <= 60 and text.isprintable() else quote(text)[1:-1].replace('\\"', '"')


_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
