"""When a pipeline that was applied is due."""

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.policy.kinds.schedule import LATE_S, ScheduleDecision, _next, next_time, turn
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.pipeline import CatchUp, Overlap, Schedule
from fairlead.state.cron_times import times_after, times_until

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
    found = datetime.fromtimestamp(next_time(Schedule(cron=cron), begin.timestamp(), UTC), UTC)
    assert found > begin
    assert is_meant(cron, found)
    moment = begin + timedelta(minutes=1)
    for _ in range(2_000):
        if moment >= found:
            break
        assert not is_meant(cron, moment)
        moment += timedelta(minutes=1)


def has(field: str, value: int, low: int) -> bool:
    """Whether a field of ``spans`` has a value."""
    if field.startswith("*"):
        return (value - low) % int(field[2:] or "1") == 0
    if "-" in field:
        first, last = map(int, field.split("-"))
        return first <= value <= last
    return value in map(int, field.split(","))


def is_meant(cron: str, moment: datetime) -> bool:
    minute, hour, day, month, weekday = cron.split()
    on_day = has(day, moment.day, 1)
    on_weekday = has(weekday, moment.isoweekday() % 7, 0) or (moment.isoweekday() == 7 and has(weekday, 7, 0))
    is_either = not day.startswith("*") and not weekday.startswith("*")
    is_on = on_day or on_weekday if is_either else on_day and on_weekday
    return is_on and has(month, moment.month, 1) and has(hour, moment.hour, 0) and has(minute, moment.minute, 0)


BERLIN, NEW_YORK, LORD_HOWE = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York"), ZoneInfo("Australia/Lord_Howe")


@pytest.mark.parametrize(
    ("cron", "zone", "after", "then"),
    [
        # Clocks go back at 03:00, in UTC at 01:00: no pause.
        ("*/10 * * * *", BERLIN, (2026, 10, 25, 0, 50), [(2026, 10, 25, 1, 0), (2026, 10, 25, 1, 10)]),
        ("0 * * * *", BERLIN, (2026, 10, 25, 0, 0), [(2026, 10, 25, 1, 0), (2026, 10, 25, 2, 0)]),
        # A fixed time that occurs twice counts the first time.
        ("30 2 * * *", BERLIN, (2026, 10, 24, 12, 0), [(2026, 10, 25, 0, 30), (2026, 10, 26, 1, 30)]),
        ("30 2 * * *", BERLIN, (2026, 10, 25, 1, 15), [(2026, 10, 26, 1, 30)]),
        # Clocks go forward at 02:00, in UTC at 01:00: a skipped time comes right after, and nothing twice.
        ("30 2 28 3 *", BERLIN, (2027, 1, 1, 0, 0), [(2027, 3, 28, 1, 0)]),
        ("0,30 2,3 * * *", BERLIN, (2027, 3, 28, 0, 0), [(2027, 3, 28, 1, 0), (2027, 3, 28, 1, 30)]),
        ("*/10 * * * *", BERLIN, (2027, 3, 28, 0, 50), [(2027, 3, 28, 1, 0), (2027, 3, 28, 1, 10)]),
        ("30 2 14 3 *", NEW_YORK, (2027, 1, 1, 0, 0), [(2027, 3, 14, 7, 0)]),
        ("45 1 * * *", LORD_HOWE, (2027, 4, 3, 12, 0), [(2027, 4, 3, 14, 45), (2027, 4, 4, 15, 15)]),
        ("@daily", UTC, (2026, 1, 1, 0, 0), [(2026, 1, 2, 0, 0)]),
        ("5/15 * * * *", UTC, (2026, 1, 1, 0, 0), [(2026, 1, 1, 0, 5), (2026, 1, 1, 0, 20)]),
        ("0 0 29 2 */7", UTC, (2026, 1, 1, 0, 0), [(2032, 2, 29, 0, 0)]),
    ],
)
def test_the_times_around_a_change_of_clocks(
    cron: str, zone: tzinfo, after: tuple[int, ...], then: list[tuple[int, ...]]
) -> None:
    found = islice(times_after(cron, at(*after), zone), len(then))
    assert list(found) == [at(*each) for each in then]


@given(
    st.sampled_from(["*/10 * * * *", "30 2 * * *", "0,30 1-3 * * *", "15 * * * *", "30 2 28 3 *", "0 3 * * sun"]),
    st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, UTC]),
    st.sampled_from([at(2026, 10, 25, 1), at(2027, 3, 28, 1), at(2026, 11, 1, 6), at(2027, 4, 3, 15), at(2027, 6, 1)]),
    st.integers(-6 * 60, 6 * 60),
    st.integers(1, 12 * 60),
)
@settings(max_examples=100, deadline=None)
def test_the_times_of_a_span_are_the_same_from_both_ends(
    cron: str, zone: tzinfo, change: float, minutes: int, length: int
) -> None:
    begin = change + minutes * 60
    end = begin + length * 60
    forward = list(takewhile(lambda time: time <= end, times_after(cron, begin, zone)))
    backward = list(takewhile(lambda time: time > begin, times_until(cron, end, zone)))
    assert forward == backward[::-1]
    assert forward == sorted(set(forward))


def test_ten_minutes_are_ten_minutes_all_year() -> None:
    times = list(takewhile(lambda time: time < at(2027, 1, 1), times_after("*/10 * * * *", at(2026, 1, 1), BERLIN)))
    assert {later - earlier for earlier, later in pairwise(times)} == {600.0}


def test_times_are_of_the_time_zone() -> None:
    east = timezone(timedelta(hours=5, minutes=30))
    assert next_time(Schedule(cron="0 3 * * *"), at(2026, 11, 23), east) == at(2026, 11, 23, 21, 30)


@pytest.mark.parametrize(
    ("cron", "told"),
    [
        ("0 3 * *", "has 4 fields"),
        ("", "has 0 fields"),
        (
            "@reboot",
            "has 1 field; give five, minute, hour, day of the month, month and day of the week, such as "
            "`0 3 * * *`, or one of @hourly, @daily",
        ),
        ("0 3 L * *", "a day of the month of `l`"),
        ("0 3 * * 5#2", "a day of the week of `5#2`"),
        ("0 0 3 * * *", "has 6 fields"),
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
        (Schedule(cron="0 3 * * *"), THREE - 1, False, ScheduleDecision(handled_until=NOW.timestamp())),
        (Schedule(cron="0 3 * * *"), THREE + 1, False, ScheduleDecision(handled_until=THREE, due=THREE)),
        # Three days later the newest of the times is run for, once.
        (
            Schedule(cron="0 3 * * *"),
            THREE + 2 * 86_400 + 7_200,
            False,
            ScheduleDecision(handled_until=THREE + 2 * 86_400, due=THREE + 2 * 86_400),
        ),
        (
            Schedule(cron="0 3 * * *", catch_up=CatchUp.NONE),
            THREE + LATE_S + 1,
            False,
            ScheduleDecision(handled_until=THREE, skip_message="1 of its times passed while no supervisor ran"),
        ),
        (
            Schedule(cron="0 3 * * *", catch_up=CatchUp.NONE),
            THREE + 1,
            False,
            ScheduleDecision(handled_until=THREE, due=THREE),
        ),
        (
            Schedule(cron="0 3 * * *"),
            THREE + 1,
            True,
            ScheduleDecision(handled_until=THREE, skip_message="its time came while an earlier run was not over"),
        ),
        (
            Schedule(cron="0 3 * * *", overlap=Overlap.WAIT),
            THREE + 1,
            True,
            ScheduleDecision(handled_until=NOW.timestamp()),
        ),
    ],
)
def test_a_time_is_run_for_left_out_or_waited_with(
    schedule: Schedule, now: float, is_going: bool, decided: ScheduleDecision
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
    assert decided == ScheduleDecision(handled_until=at(2026, 12, 25, 3, 59), due=at(2026, 12, 25, 3, 59))


def test_no_more_missed_times_are_counted_than_a_message_needs() -> None:
    schedule = Schedule(cron="* * * * *", catch_up=CatchUp.NONE)
    decided = turn(schedule, NOW.timestamp(), NOW.timestamp() + 86_410, is_going=False, zone=UTC)
    assert decided.skip_message is None, "a minute of which the newest time is seconds ago was not missed"
    yearly = turn(
        Schedule(cron="* 3 * * *", catch_up=CatchUp.NONE), NOW.timestamp(), at(2027, 11, 23), is_going=False, zone=UTC
    )
    assert yearly.skip_message == "1000 or more of its times passed while no supervisor ran"


def test_a_pass_in_which_nothing_is_due_searches_no_times() -> None:
    _next.cache_clear()
    for second in range(100):
        turn(Schedule(cron="0 0 29 2 *"), NOW.timestamp(), NOW.timestamp() + second, is_going=False, zone=UTC)
    assert _next.cache_info().misses == 1


@pytest.mark.parametrize(
    ("zone", "told"),
    [
        ("utc", "did you mean `UTC`?"),
        ("europe/berlin", "did you mean `Europe/Berlin`?"),
        ("Berlin", "did you mean `Europe/Berlin`?"),
        ("GMT+2", "give one such as `Europe/Berlin`"),
        ("Nowhere/Atlantis", "give one such as `Europe/Berlin`"),
    ],
)
def test_what_is_no_time_zone_is_refused_where_it_is_written(zone: str, told: str) -> None:
    with pytest.raises(BrokenRules) as refused:
        Schedule(cron="0 3 * * *", timezone=zone)
    assert told in str(refused.value)
