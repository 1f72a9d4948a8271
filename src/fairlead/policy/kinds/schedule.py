"""Decides when an applied pipeline is due: by its schedule, or because data has changed."""

from datetime import tzinfo
from functools import lru_cache
from itertools import islice, takewhile

from fairlead.frozen import dataclass
from fairlead.specs.pipeline import CatchUp, Overlap, Schedule
from fairlead.state.cron_times import times_after, times_until

# A time at most this long ago does not count as missed.
LATE_S = 90.0
# Missed times are counted up to this number.
MOST_MISSED = 1_000


# A supervisor asks for the same two each second.
@lru_cache(maxsize=64)
def _next(cron: str, after: float, zone: tzinfo) -> float | None:
    return next(times_after(cron, after, zone), None)


def next_time(schedule: Schedule, after: float, zone: tzinfo) -> float:
    """Return the first time of a schedule after a moment, both in Unix seconds.

    Raises:
        ValueError: There is none within fifty years.
    """
    time = _next(schedule.cron, after, zone)
    if time is None:
        raise ValueError(f"`{schedule.cron}` does not come within fifty years")
    return time


def _missed(schedule: Schedule, after: float, until: float, zone: tzinfo) -> tuple[float | None, int]:
    """Return the newest time within a span, and their number, counted up to MOST_MISSED."""
    first = _next(schedule.cron, after, zone)
    if first is None or first > until:
        return None, 0
    within = takewhile(lambda time: time > after, times_until(schedule.cron, until, zone))
    times = list(islice(within, MOST_MISSED))
    return times[0], len(times)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDecision:
    """The decision on a schedule.

    Attributes:
        handled_until: Times up to this one are settled, in Unix seconds.
        due: The time for which to run; None for none.
        skip_message: What was skipped and why; None for nothing.
    """

    handled_until: float
    due: float | None = None
    skip_message: str | None = None


def turn(schedule: Schedule, handled_until: float, now: float, *, is_going: bool, zone: tzinfo) -> ScheduleDecision:
    """Decide on the times of a schedule since the last look.

    Args:
        handled_until: Times up to this one are decided, in Unix seconds.
        is_going: Whether an earlier run is not over.
    """
    newest, number = _missed(schedule, handled_until, now, zone)
    if newest is None:
        return ScheduleDecision(handled_until=handled_until)
    if is_going:
        if schedule.overlap is Overlap.WAIT:
            return ScheduleDecision(handled_until=handled_until)
        return ScheduleDecision(handled_until=newest, skip_message="its time came while an earlier run was not over")
    if now - newest > LATE_S and schedule.catch_up is CatchUp.NONE:
        counted = f"{number} or more" if number == MOST_MISSED else str(number)
        return ScheduleDecision(
            handled_until=newest, skip_message=f"{counted} of its times passed while no supervisor ran"
        )
    return ScheduleDecision(handled_until=newest, due=newest)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedData:
    """The last observation of watched data.

    Attributes:
        signature: Of names, sizes and times at the last look.
        content: The hash of the content last acted on.
    """

    signature: str
    content: str


def has_settled(seen: WatchedData, signature: str) -> bool:
    """Return whether data is unchanged since the last look, so that it is not being written and worth reading."""
    return seen.signature == signature
