"""Checks the five fields of cron: minute, hour, day of the month, month, day of the week; and names of time zones."""

from fairlead.specs.constraints import Text, quote

TIMEZONE = Text(
    max_length=64, pattern=r"[A-Za-z][-+A-Za-z0-9_/]*", what="a time zone; give one such as `Europe/Berlin`"
)
"""Syntax of names of time zones."""
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)


def parse_cron(text: str) -> str:
    """Check five fields with ``*``, numbers, names, lists, ranges and steps, or a name such as ``@daily``.

    Returns the five fields.

    Raises:
        ValueError: The text is invalid; the message completes a sentence about it.
    """
    text = _NAMED.get(text.strip().lower(), text)
    words = text.split()
    if len(words) != len(_FIELDS):
        named = f", or one of {', '.join(_NAMED)}" if text.lstrip().startswith("@") else ""
        raise ValueError(
            f"has {len(words)} field{'s' * (len(words) != 1)}; give five, minute, hour, day of the month, month and "
            f"day of the week, such as `0 3 * * *`{named}"
        )
    _, _, days, months, _ = (_field(word, *field) for word, field in zip(words, _FIELDS, strict=True))
    # Each month's longest length, in a leap year, decides whether a day ever occurs.
    if words[4].startswith("*") and not any(day <= _LONGEST[month - 1] for month in months for day in days):
        raise ValueError("never comes: no such month has such a day")
    return text


_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def _field(text: str, what: str, low: int, high: int, names: tuple[str, ...]) -> set[int]:
    numbers: set[int] = set()
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
        numbers |= set(range(first, last + 1, step))
    return numbers


def _number(text: str, what: str, low: int, high: int, names: tuple[str, ...]) -> int:
    if text in names:
        return names.index(text) + (low if names is _MONTHS else 0)
    if not text.isascii() or not text.isdigit() or len(text) > 2 or not low <= int(text) <= high:
        raise ValueError(f"has {_article(what)} {what} of `{text}`; give {low} to {high}")
    return int(text)


def _article(what: str) -> str:
    return "an" if what == "hour" else "a"


def timezone_problem(name: str) -> str | None:
    """Return why a name is no time zone; None for one, or where this machine knows none at all."""
    if name == "UTC":
        return None
    from zoneinfo import available_timezones  # here, since every command reads specs and few of them name a zone

    known = available_timezones()
    if name in known or not known:
        return None
    # No name that is only similar: `GMT+2` is neither `GMT+0` nor, as its sign is the other way round, `Etc/GMT+2`.
    near = [zone for zone in sorted(known) if name.lower() == zone.lower()]
    near += [zone for zone in sorted(known) if zone.lower().endswith(f"/{name.lower()}") and "Etc/" not in zone]
    meant = f"did you mean `{near[0]}`?" if near else "give one such as `Europe/Berlin`"
    return f"{quote(name)} is not a time zone; {meant}"
