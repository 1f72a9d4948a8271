"""When a pipeline that was applied is due."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.policy.kinds.schedule import LATE_S, Turn, _moments, next_time, turn
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.cron import parse_cron
from fairlead.specs.pipeline import CatchUp, Overlap, Schedule

NOW = datetime(2026, 11, 23, 6, 30, tzinfo=UTC)


def at(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> float:
    return datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("cron", "then"),
    [
        ("0 3 * * *", (2026, 11, 24, 3, 0)),
        ("*/15 * * * *", (2026, 11, 23, 6, 45)),
        ("31 6 * * *", (2026, 11, 23, 6, 31)),
        ("0 9-17/4 * * mon-fri", (2026, 11, 23, 9, 0)),
        ("0 0 1 jan *", (2027, 1, 1, 0, 0)),
        ("0 0 29 2 *", (2028, 2, 29, 0, 0)),
        # Either kind of day, as in cron: the 1st, or a Friday.
        ("0 3 1 * fri", (2026, 11, 27, 3, 0)),
        ("0 3 * * 7", (2026, 11, 29, 3, 0)),
    ],
)
def test_the_next_time_is_the_first_that_cron_means(cron: str, then: tuple[int, ...]) -> None:
    assert next_time(Schedule(cron=cron), NOW.timestamp(), UTC) == at(*then)


def spans(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    some = st.lists(number.map(str), min_size=1, max_size=3).map(",".join)
    pairs = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    return st.just("*") | some | pairs | st.integers(1, high).map(lambda step: f"*/{step}")


@given(
    st.tuples(spans(0, 59), spans(0, 23), spans(1, 28), spans(1, 12), spans(0, 7)).map(" ".join),
    st.integers(0, 525_600),
)
@settings(max_examples=60, deadline=None)
def test_no_time_is_missed_and_none_comes_too_early(cron: str, minutes: int) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    parsed = parse_cron(cron)
    found = datetime.fromtimestamp(next_time(Schedule(cron=cron), begin.timestamp(), UTC), UTC)
    assert found > begin
    assert is_meant(parsed, found)
    moment = begin + timedelta(minutes=1)
    for _ in range(2_000):
        if moment >= found:
            break
        assert not is_meant(parsed, moment)
        moment += timedelta(minutes=1)


def is_meant(cron: Any, moment: datetime) -> bool:
    return cron.is_on(moment.date()) and moment.hour in cron.hours and moment.minute in cron.minutes


def test_times_are_of_the_time_zone() -> None:
    east = timezone(timedelta(hours=5, minutes=30))
    assert next_time(Schedule(cron="0 3 * * *"), at(2026, 11, 23), east) == at(2026, 11, 23, 21, 30)


@pytest.mark.parametrize(
    ("cron", "told"),
    [
        ("0 3 * *", "has 4 fields"),
        ("60 3 * * *", "a minute of `60`; give 0 to 59"),
        ("0 3 * * noday", "day of the week of `noday`"),
        ("9-5 * * * *", "ends before it begins"),
        ("*/0 * * * *", "step of the minute"),
        ("0 0 30 2 *", "never comes"),
    ],
)
def test_what_is_no_schedule_is_refused(cron: str, told: str) -> None:
    with pytest.raises(BrokenRules) as refused:
        Schedule(cron=cron)
    assert told in str(refused.value)


THREE = at(2026, 11, 24, 3, 0)


@pytest.mark.parametrize(
    ("schedule", "now", "is_going", "decided"),
    [
        (Schedule(cron="0 3 * * *"), THREE - 1, False, Turn(handled_until=NOW.timestamp())),
        (Schedule(cron="0 3 * * *"), THREE + 1, False, Turn(handled_until=THREE, due=THREE)),
        # Three days later the newest of the times is run for, once.
        (
            Schedule(cron="0 3 * * *"),
            THREE + 2 * 86_400 + 7_200,
            False,
            Turn(handled_until=THREE + 2 * 86_400, due=THREE + 2 * 86_400),
        ),
        (
            Schedule(cron="0 3 * * *", catch_up=CatchUp.NONE),
            THREE + LATE_S + 1,
            False,
            Turn(handled_until=THREE, said="1 of its times passed while no supervisor ran"),
        ),
        (
            Schedule(cron="0 3 * * *", catch_up=CatchUp.NONE),
            THREE + 1,
            False,
            Turn(handled_until=THREE, due=THREE),
        ),
        (
            Schedule(cron="0 3 * * *"),
            THREE + 1,
            True,
            Turn(handled_until=THREE, said="its time came while an earlier run was not over"),
        ),
        (Schedule(cron="0 3 * * *", overlap=Overlap.WAIT), THREE + 1, True, Turn(handled_until=NOW.timestamp())),
    ],
)
def test_a_time_is_run_for_left_out_or_waited_with(
    schedule: Schedule, now: float, is_going: bool, decided: Turn
) -> None:
    assert turn(schedule, NOW.timestamp(), now, is_going=is_going, zone=UTC) == decided


def test_years_of_missed_minutes_are_one_run() -> None:
    now = NOW.timestamp() + 5 * 365 * 86_400
    decided = turn(Schedule(cron="* * * * *"), NOW.timestamp(), now, is_going=False, zone=UTC)
    assert decided.due == now


def test_the_newest_time_is_run_for_however_many_were_missed_before_it() -> None:
    # Sixty times a day, of which a month has more than are counted.
    now = at(2026, 12, 25, 12)
    decided = turn(Schedule(cron="* 3 * * *"), NOW.timestamp(), now, is_going=False, zone=UTC)
    assert decided == Turn(handled_until=at(2026, 12, 25, 3, 59), due=at(2026, 12, 25, 3, 59))


def test_no_more_missed_times_are_counted_than_a_message_needs() -> None:
    schedule = Schedule(cron="* * * * *", catch_up=CatchUp.NONE)
    decided = turn(schedule, NOW.timestamp(), NOW.timestamp() + 86_410, is_going=False, zone=UTC)
    assert decided.said is None, "a minute of which the newest time is seconds ago was not missed"
    yearly = turn(
        Schedule(cron="* 3 * * *", catch_up=CatchUp.NONE), NOW.timestamp(), at(2027, 11, 23), is_going=False, zone=UTC
    )
    assert yearly.said == "1000 or more of its times passed while no supervisor ran"


def test_a_day_of_minutes_makes_the_times_of_its_days_once() -> None:
    _moments.cache_clear()
    decided = turn(Schedule(cron="* * * * *"), NOW.timestamp(), NOW.timestamp() + 86_400, is_going=False, zone=UTC)
    assert decided.due == NOW.timestamp() + 86_400
    next_time(Schedule(cron="* * * * *"), NOW.timestamp() + 86_400, UTC)
    assert _moments.cache_info().misses <= 4
