"""Suspension for idleness over simulated days of work."""

import random

from benchmarks.workspaces import Busy, live, results, trace


def test_days_of_work_have_no_false_suspension_and_little_idle_time() -> None:
    for row in results(days=10, seed=0):
        assert row["stops"] > 0
        assert (row["false_stops"], row["unannounced"]) == (0, 0)
        assert row["over_ideal"] <= 0.1


def test_a_training_over_night_is_one_session() -> None:
    outcome = live([Busy(0.0, 14 * 3600.0)], 900.0, random.Random(0))
    assert (outcome.stops, outcome.false_stops) == (1, 0)
    assert outcome.idle_s < 900.0 * 1.1


def test_traces_are_the_same_for_a_seed() -> None:
    assert trace(3, random.Random(1)) == trace(3, random.Random(1))
