"""Parses the five fields of cron: minute, hour, day of the month, month, day of the week."""

from collections.abc import Iterator
from datetime import date

from fairlead.frozen import dataclass
from fairlead.specs.constraints import Text

TIMEZONE = Text(
    max_length=64, pattern=r"[A-Za-z][-+A-Za-z0-9_/]*", what="a time zone; give one such as `Europe/Berlin`"
)
"""Syntax of names of time zones."""
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """A cron schedule.

    Attributes:
        days: Days of the month; if both kinds of days are given, a day matches either.
        weekdays: Days of the week, with Sunday as 0.
        any_day: The day of the month is unrestricted.
        any_weekday: The day of the week is unrestricted.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def is_on(self, day: date) -> bool:
        """Return whether a day has times. As in cron, if both kinds of days are given, either matches."""
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return in_month or in_week if not (self.any_day or self.any_weekday) else in_month and in_week

    def times(self) -> Iterator[tuple[int, int]]:
        """Yield the hour and minute of each time of a day, in order."""
        return ((hour, minute) for hour in self.hours for minute in self.minutes)


def parse_cron(text: str) -> Cron:
    """Parse five fields with ``*``, numbers, names, lists, ranges and steps.

    Raises:
        ValueError: The text is invalid; the message completes a sentence about it.
    """
    words = text.split()
    if len(words) != len(_FIELDS):
        raise ValueError(
            f"has {len(words)} fields; give five, minute, hour, day of the month, month and day of the week, "
            "such as `0 3 * * *`"
        )
    read = [_field(word, *field) for word, field in zip(words, _FIELDS, strict=True)]
    cron = Cron(
        minutes=tuple(sorted(read[0])),
        hours=tuple(sorted(read[1])),
        days=frozenset(read[2]),
        months=frozenset(read[3]),
        weekdays=frozenset(day % 7 for day in read[4]),
        any_day=words[2].startswith("*"),
        any_weekday=words[4].startswith("*"),
    )
    # Each month's longest length, in a leap year, decides whether a day ever occurs.
    if cron.any_weekday and not any(day <= _LONGEST[month - 1] for month in cron.months for day in cron.days):
        raise ValueError("never comes: no such month has such a day")
    return cron


_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def _field(text: str, what: str, low: int, high: int, names: tuple[str, ...]) -> set[int]:
    found: set[int] = set()
    for part in text.lower().split(","):
        span, slash, step_text = part.partition("/")
        step = _number(step_text, f"step of the {what}", 1, high, ()) if slash else 1
        if span == "*":
            first, last = low, high
        else:
            begin, dash, end = span.partition("-")
            first = _number(begin, what, low, high, names)
            last = _number(end, what, low, high, names) if dash else (high if slash else first)
        if last < first:
            raise ValueError(f"has {_article(what)} {what} of `{part}`, which ends before it begins")
        found |= set(range(first, last + 1, step))
    return found


def _number(text: str, what: str, low: int, high: int, names: tuple[str, ...]) -> int:
    if text in names:
        return names.index(text) + (low if names is _MONTHS else 0)
    if not text.isascii() or not text.isdigit() or len(text) > 2 or not low <= int(text) <= high:
        raise ValueError(f"has {_article(what)} {what} of `{text}`; give {low} to {high}")
    return int(text)


def _article(what: str) -> str:
    return "an" if what == "hour" else "a"


def is_timezone(name: str) -> bool:
    """Return whether this machine knows a time zone."""
    if name == "UTC":
        return True
    from zoneinfo import available_timezones  # here, since every command reads specs and few of them name a zone

    return name in available_timezones()
