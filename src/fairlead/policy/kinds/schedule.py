"""Decides when an applied pipeline is due: by its schedule, or because data has changed."""

from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from fairlead.frozen import dataclass
from fairlead.specs.cron import Cron, parse_cron
from fairlead.specs.pipeline import CatchUp, Overlap, Schedule

# A time at most this long ago does not count as missed.
LATE_S = 90.0
# Missed times are counted up to this number.
MOST_MISSED = 1_000
# Within this many days a 29th of February falls on each day of the week.
MOST_DAYS = 366 * 41


def zone_of(name: str) -> tzinfo:
    """Return the time zone of a name.

    Raises:
        KeyError: It does not exist, or is unknown on this machine.
    """
    return UTC if name == "UTC" else ZoneInfo(name)


def next_time(schedule: Schedule, after: float, zone: tzinfo) -> float:
    """Return the first time of a schedule after a moment, both in Unix seconds.

    A time of day that the clock skips comes right after the skip; one that occurs twice counts the first time.

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
    """Return the newest time within a span, and their number, counted up to MOST_MISSED.

    Days are walked from the newest to the oldest, so that years cost no more than the counted days.
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


# A supervisor needs the same two days each second.
@lru_cache(maxsize=64)
def _moments(cron: Cron, day: date, zone: tzinfo) -> tuple[float, ...]:
    """Return the times of a day, in order."""
    return tuple(
        sorted(
            datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone).timestamp()
            for hour, minute in cron.times()
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The decision on a schedule.

    Attributes:
        handled_until: Times up to this one are settled, in Unix seconds.
        due: The time for which to run; None for none.
        said: What was skipped and why; None for nothing.
    """

    handled_until: float
    due: float | None = None
    said: str | None = None


def turn(schedule: Schedule, handled_until: float, now: float, *, is_going: bool, zone: tzinfo) -> Turn:
    """Decide on the times of a schedule since the last look.

    Args:
        handled_until: Times up to this one are decided, in Unix seconds.
        is_going: Whether an earlier run is not over.
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
        return Turn(handled_until=newest, said=f"{counted} of its times passed while no supervisor ran")
    return Turn(handled_until=newest, due=newest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The last observation of watched data.

    Attributes:
        signature: Of names, sizes and times at the last look.
        content: The hash of the content last acted on.
    """

    signature: str
    content: str


def has_settled(seen: Seen, signature: str) -> bool:
    """Return whether data is unchanged since the last look, so that it is not being written and worth reading."""
    return seen.signature == signature
