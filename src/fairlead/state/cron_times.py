"""The times of cron schedules, by cronsim, which does as Debian's cron where clocks change.

A schedule with a fixed minute and hour has each day's times once: one that the clock skips comes right after the skip,
and of one that it repeats the first counts. Any other, such as `*/10 * * * *`, goes on through the change. A day that
matches either of two restricted kinds of days counts.

See decision 168.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from fairlead.specs.cron import parse_cron

# A search begins so much earlier, as around a change of clocks the time of day says too little.
_MARGIN_S = 3 * 3600.0


def zone_of(name: str) -> tzinfo:
    """Return the time zone of a name.

    Raises:
        KeyError: It does not exist, or is unknown on this machine.
    """
    return UTC if name == "UTC" else ZoneInfo(name)


def times_after(cron: str, after: float, zone: tzinfo) -> Iterator[float]:
    """Yield the times after a moment, in order, in Unix seconds; none beyond fifty years without one."""
    return _times(cron, after, zone, is_reverse=False)


def times_until(cron: str, until: float, zone: tzinfo) -> Iterator[float]:
    """Yield the times up to a moment and including it, the newest first."""
    return _times(cron, until, zone, is_reverse=True)


def _times(cron: str, moment: float, zone: tzinfo, *, is_reverse: bool) -> Iterator[float]:
    from cronsim import CronSim  # here, since few commands meet a schedule

    begin = moment + (_MARGIN_S if is_reverse else -_MARGIN_S)
    last: float | None = None
    for time in CronSim(parse_cron(cron), datetime.fromtimestamp(begin, zone), reverse=is_reverse):
        timestamp = time.timestamp()
        if is_reverse:
            is_next = timestamp <= moment and (last is None or timestamp < last)
        else:
            is_next = timestamp > moment and (last is None or timestamp > last)
        if is_next:
            last = timestamp
            yield timestamp
