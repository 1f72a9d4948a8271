"""Foretelling how many nodes a pool will need at most until those that are asked for now have come."""

import random

from fairlead.policy.capacity.demand_forecast import DAY_SLOTS, WEEK_SLOTS, forecast
from fairlead.policy.capacity.demand_history import MOST_SLOTS, DemandHistory


def test_a_steady_need_is_foreseen_without_a_margin() -> None:
    found = forecast((5,) * 100, 5, 0.9)
    assert found is not None
    assert found.nodes == 5


def test_too_little_of_a_past_foretells_nothing() -> None:
    assert forecast((5,) * 14, 5, 0.9) is None
    assert forecast((5,) * 15, 5, 0.9) is not None


def test_a_quantile_of_few_errors_is_the_greatest_of_them() -> None:
    found = forecast((2, 2, 2, 2, 9, *(2,) * 10), 5, 0.95)
    assert found is not None
    assert found.nodes == 9


def test_a_steady_rise_is_foreseen() -> None:
    found = forecast(tuple(minute // 2 for minute in range(100)), 10, 0.9)
    assert found is not None
    assert 54 <= found.nodes <= 55


def test_a_burst_each_few_minutes_is_covered_with_confidence_and_not_without() -> None:
    past = ([2] * 19 + [8]) * 10 + [2] * 5
    sure, unsure = forecast(tuple(past), 5, 0.95), forecast(tuple(past), 5, 0.5)
    assert sure is not None
    assert unsure is not None
    assert (sure.nodes, unsure.nodes) == (8, 2)


def test_a_rise_at_the_same_time_of_each_day_is_foreseen_before_it_comes() -> None:
    day = [2] * 480 + [9] * 480 + [2] * (DAY_SLOTS - 960)
    now = (*day, *day, *day, *day[:476])
    found = forecast(now, 5, 0.8)
    assert found is not None
    assert (found.nodes, found.by) == (9, "the same time of other days")
    earlier = forecast(now[:-10], 5, 0.8)
    assert earlier is not None
    assert earlier.nodes == 2


def test_the_rise_of_a_monday_is_foreseen_after_a_quiet_weekend_and_that_of_a_saturday_is_not() -> None:
    rng = random.Random(5)
    workday = [2] * 480 + [9] * 480 + [2] * (DAY_SLOTS - 960)
    hours = [rng.choice((-1, 0, 0, 1)) for _ in range(4 * 7 * 24)]
    weeks = [need + hours[at // 60] for at, need in enumerate((workday * 5 + [2] * (2 * DAY_SLOTS)) * 4)]
    told = []
    for day in (14, 15, 19, 20, 21):  # Monday, Tuesday, Saturday, Sunday, Monday
        at = day * DAY_SLOTS + 476
        found = forecast(tuple(weeks[at - MOST_SLOTS if at > MOST_SLOTS else 0 : at]), 5, 0.8)
        assert found is not None
        told.append(found.nodes)
    monday, tuesday, saturday, sunday, next_monday = told
    assert max(saturday, sunday) <= 4
    assert min(monday, tuesday, next_monday) >= 9
    assert max(monday, tuesday, next_monday) <= 11


def test_need_that_only_repeats_by_the_day_is_left_to_the_days() -> None:
    day = [2] * 480 + [9] * 480 + [2] * (DAY_SLOTS - 960)
    found = forecast(tuple((day * 15)[: 2 * WEEK_SLOTS + 476]), 5, 0.8)
    assert found is not None
    assert (found.nodes, found.by) == (9, "the same time of other days")


def test_as_often_as_was_asked_it_is_enough() -> None:
    rng = random.Random(3)
    level, past = 10.0, []
    for _ in range(900):
        level = max(0.0, level + rng.gauss(0, 1) + 0.05 * (10 - level))
        past.append(round(level))
    for confidence in (0.5, 0.8, 0.95):
        enough = []
        for at in range(400, 890, 7):
            found = forecast(tuple(past[:at]), 5, confidence)
            assert found is not None
            enough.append(found.nodes >= max(past[at : at + 5]))
        assert sum(enough) / len(enough) > confidence - 0.08


def test_a_minute_counts_with_its_greatest_need_and_one_without_a_look_as_it_was_last() -> None:
    history = DemandHistory()
    for at, needed in ((0.0, 1), (10.0, 4), (50.0, 2), (185.0, 3), (245.0, 0)):
        history = history.noted(needed, at)
    assert history.needed == (4, 2, 2, 3)


def test_a_past_has_an_end_and_a_lead_time_is_what_most_nodes_took() -> None:
    history = DemandHistory(needed=(1,) * MOST_SLOTS, minute=0).noted(2, 90.0)
    assert len(history.needed) == MOST_SLOTS
    for lead_s in (100.0, 120.0, 110.0, 400.0, 130.0):
        history = history.came(lead_s)
    assert (DemandHistory().lead_s, history.lead_s) == (300.0, 400.0)
