"""Decides when a pipeline that was applied is due: by its schedule, or because data has changed."""

from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from fairlead.frozen import dataclass
from fairlead.specs.cron import Cron, parse_cron
from fairlead.specs.pipeline import CatchUp, Overlap, Schedule

# A time that is at most this long ago is not one that was missed.
LATE_S = 90.0
# Missed times are counted up to this many.
MOST_MISSED = 1_000
# Within these some 29th of February is on each day of the week.
MOST_DAYS = 366 * 41


def zone_of(name: str) -> tzinfo:
    """The time zone of a name.

    Raises:
        KeyError: There is none, or this machine does not know it.
    """
    return UTC if name == "UTC" else ZoneInfo(name)


def next_time(schedule: Schedule, after: float, zone: tzinfo) -> float:
    """The first time of a schedule after a moment, both in Unix seconds.

    A time of day that the clock jumps over comes when it has jumped; one that comes twice comes the first time.

    Raises:
        ValueError: There is none within forty years.
    """
    cron = parse_cron(schedule.cron)
    begin = datetime.fromtimestamp(after, zone).date() - timedelta(days=1)
    for offset in range(MOST_DAYS):
        day = begin + timedelta(days=offset)
        if cron.is_on(day):
            moments = _moments(cron, day, zone)
            if moments[-1] > after:
                return moments[bisect_right(moments, after)]
    raise ValueError(f"`{schedule.cron}` does not come within forty years")


def _missed(schedule: Schedule, after: float, until: float, zone: tzinfo) -> tuple[float | None, int]:
    """The newest time after a moment and up to another, and how many there are; no more than MOST_MISSED are counted.

    Days are walked from the newest to the oldest, so that years cost no more than the days that are counted.
    """
    cron = parse_cron(schedule.cron)
    begin = datetime.fromtimestamp(after, zone).date() - timedelta(days=1)
    day = datetime.fromtimestamp(until, zone).date() + timedelta(days=1)
    newest, number = None, 0
    while day >= begin and number < MOST_MISSED:
        if cron.is_on(day):
            moments = _moments(cron, day, zone)
            low, high = bisect_right(moments, after), bisect_right(moments, until)
            if high > low:
                newest = moments[high - 1] if newest is None else newest
                number += high - low
        day -= timedelta(days=1)
    return newest, min(number, MOST_MISSED)


# A supervisor asks for the same two days each second.
@lru_cache(maxsize=64)
def _moments(cron: Cron, day: date, zone: tzinfo) -> tuple[float, ...]:
    """The times of a day, in order."""
    return tuple(
        sorted(
            datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone).timestamp()
            for hour, minute in cron.times()
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The next thing to do about a schedule.

    Attributes:
        handled_until: Times up to this one need nothing any more, in Unix seconds.
        due: The time for which to run; None for none.
        said: What was left out and why; None for nothing.
    """

    handled_until: float
    due: float | None = None
    said: str | None = None


def turn(schedule: Schedule, handled_until: float, now: float, *, is_going: bool, zone: tzinfo) -> Turn:
    """Decide on the times of a schedule that have come since the last look.

    Args:
        handled_until: Up to which time all is decided, in Unix seconds.
        is_going: An earlier run is not over.
    """
    newest, number = _missed(schedule, handled_until, now, zone)
    if newest is None:
        return Turn(handled_until=handled_until)
    if is_going:
        if schedule.overlap is Overlap.WAIT:
            return Turn(handled_until=handled_until)
        return Turn(handled_until=newest, said="its time came while an earlier run was not over")
    if now - newest > LATE_S and schedule.catch_up is CatchUp.NONE:
        counted = f"{number} or more" if number == MOST_MISSED else str(number)
        return Turn(handled_until=newest, said=f"{counted} of its times came while nobody looked after this machine")
    return Turn(handled_until=newest, due=newest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The knowledge of watched data.

    Attributes:
        signature: Of names, sizes and times at the last look.
        content: The hash of what it held when it was last acted on.
    """

    signature: str
    content: str


def has_settled(seen: Seen, signature: str) -> bool:
    """Return whether data is as at the last look, so that nobody is writing it and its content is worth reading."""
    return seen.signature == signature
