"""Replicas by the calendar: there before people come, and gone again by themselves."""

from datetime import UTC, datetime, timedelta

import pytest

from fairlead.policy.kinds.parents import families_of
from fairlead.policy.kinds.serving import next_at
from fairlead.policy.serving.replica_count import wanted_replicas
from fairlead.policy.serving.scheduled_replicas import next_change, scheduled_replicas
from fairlead.specs.serving import Scale, Serving, Window
from fairlead.state.demand import Demand, Second
from tests.policy.test_serving import World, spec

OFFICE = Window(cron="0 8 * * mon-fri", duration_s=10 * 3600.0, replicas=4)
NIGHT = Window(cron="30 23 * * *", duration_s=2 * 3600.0, replicas=2)
BOTH = {"office": OFFICE, "night": NIGHT}


def at(day: int, hour: int, minute: int = 0) -> float:
    """A moment of a week of March 2026, whose 2nd is a Monday."""
    return datetime(2026, 3, day, hour, minute, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("now", "replicas"),
    [
        (at(2, 7, 59), 0),
        (at(2, 8), 4),
        (at(2, 17, 59), 4),
        (at(2, 18), 0),
        (at(7, 12), 0),
        (at(7, 23, 30), 2),
        (at(8, 1, 29), 2),
        (at(8, 1, 30), 0),
    ],
)
def test_a_window_is_on_from_its_time_for_its_duration(now: float, replicas: int) -> None:
    assert scheduled_replicas(BOTH, now) == replicas
    assert scheduled_replicas({}, now) == 0


def test_every_change_is_foretold() -> None:
    now, end = at(1, 0), at(9, 0)
    changes = []
    while (change := next_change(BOTH, now)) is not None and change < end:
        assert change > now
        before = scheduled_replicas(BOTH, now)
        step = now
        while step < change:
            assert scheduled_replicas(BOTH, step) == before, "nothing changes in between"
            step += 1_800
        changes.append(change)
        now = change
    assert len(changes) == 5 * 2 + 8 * 2
    assert next_change({}, now) is None


def test_windows_that_overlap_ask_for_the_most() -> None:
    twice = {"a": Window(cron="0 * * * *", duration_s=2 * 3600.0, replicas=2), "b": OFFICE}
    assert scheduled_replicas(twice, at(2, 9)) == 4
    assert scheduled_replicas(twice, at(2, 20, 30)) == 2


@pytest.mark.parametrize("demand", [None, Demand(since=0.0)])
def test_there_are_as_many_as_the_calendar_says_whatever_is_asked(demand: Demand | None) -> None:
    serving = Serving(name="a", run="serve", replicas=0, most_replicas=8, scale=Scale(schedule=BOTH))
    assert wanted_replicas(serving, demand, 0.0, 0, at(2, 9)) == 4
    assert wanted_replicas(serving, demand, 0.0, 0, at(2, 20)) == 0


def test_what_is_asked_counts_beyond_the_calendar() -> None:
    serving = Serving(name="a", run="serve", replicas=0, most_replicas=8, scale=Scale(schedule=BOTH))
    now = at(2, 9)
    seconds = tuple(Second(at=int(now) - ago, arrivals=24, in_flight=24) for ago in range(10))
    busy = Demand(since=0.0, in_flight=24, last_request=now, seconds=seconds)
    assert wanted_replicas(serving, busy, 0.0, 4, now) == 6
    queued = Serving(
        name="a", run="serve", replicas=0, most_replicas=8, max_concurrency=2, scale=Scale(queue=4, schedule=BOTH)
    )
    assert wanted_replicas(queued, busy, 0.0, 4, now) == 4


def test_an_endpoint_at_zero_wakes_by_the_clock_and_sleeps_again() -> None:
    begins = datetime.fromtimestamp(World(spec()).now, UTC).replace(second=0, microsecond=0) + timedelta(minutes=2)
    window = f"{{cron: '{begins.minute} {begins.hour} * * *', duration: 2m, replicas: 2}}"
    given = spec(replicas="0..4", scale=f"{{idle: 5s, window: 5s, schedule: {{day: {window}}}}}")
    world = World(given, in_flight=lambda _: 0)
    world.run(60)
    assert world.ready == []
    found = next_at(world.serving, families_of(world.snapshot())["parent"], world.now)
    assert found == begins.timestamp()
    world.run(begins.timestamp() - world.now + 10)
    assert len(world.ready) == 2
    world.run(130)
    assert world.ready == []
