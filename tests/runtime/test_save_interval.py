"""An interval that the run chooses: Daly's formula, corrected by the saves and failures that are seen."""

import math

import pytest

from benchmarks.checkpoint_interval import World, useful
from fairlead.runtime.checkpoint.cadence import Cadence
from fairlead.runtime.save_interval import FIRST_S, LEAST_S, OTHER_FAILURE_S, SaveInterval, best_interval_s, continued


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("cost_s", "between_s"), [(1.0, 1e3), (10.0, 1e4), (60.0, 86_400.0), (30.0, 300.0)])
def test_the_formula_gives_the_least_of_the_exact_cost(cost_s: float, between_s: float) -> None:
    def total(interval_s: float) -> float:
        """Wall time for one second of training with failures at random, Daly's equation 20 without restarts."""
        return math.expm1((interval_s + cost_s) / between_s) * between_s / interval_s

    least = min(total(best_interval_s(cost_s, between_s) * 1.01**index) for index in range(-200, 200))
    assert total(best_interval_s(cost_s, between_s)) <= least * 1.001


def test_a_save_that_costs_more_than_failures_leave_is_made_once_between_two() -> None:
    assert best_interval_s(500.0, 200.0) == 200.0


def test_the_first_save_measures_what_one_costs() -> None:
    clock = Clock()
    interval = SaveInterval(ranks=1, clock=clock)
    cadence = Cadence(every_s=None, every_steps=None, step=0, interval=interval, clock=clock)
    clock.now = FIRST_S - 1
    assert not cadence.due(5)
    clock.now = FIRST_S
    assert cadence.due(6)
    assert not cadence.exceeds_interval(6)
    cadence.begin(6)
    interval.saved(blocked_s=2.0, seconds=12.0)
    cadence.end(seconds=12.0, blocked_s=2.0)
    assert interval.seconds == pytest.approx(best_interval_s(2.0, interval.between_failures_s))
    clock.now = FIRST_S + interval.seconds * 0.99
    assert not cadence.due(50)
    clock.now = FIRST_S + interval.seconds * 1.01
    assert cadence.due(51)
    assert not cadence.exceeds_interval(51), "a save in the background needs no waiting"


def test_the_training_waits_for_a_save_that_takes_twice_the_interval() -> None:
    clock = Clock()
    interval = SaveInterval(ranks=1, blocked_s=0.1, written_s=1.0, clock=clock)
    cadence = Cadence(every_s=None, every_steps=None, step=0, interval=interval, clock=clock)
    clock.now = interval.seconds
    cadence.begin(1000)
    clock.now = 2 * interval.seconds
    assert not cadence.exceeds_interval(2000)
    clock.now = 2 * interval.seconds + 3.0
    assert cadence.exceeds_interval(2003)


def test_saving_stays_cheap_and_seldom() -> None:
    assert SaveInterval(ranks=1, blocked_s=0.0).seconds == LEAST_S
    assert SaveInterval(ranks=100_000, failures=1000, ran_s=3600.0, blocked_s=10.0).seconds == pytest.approx(200.0)
    assert SaveInterval(ranks=1, blocked_s=0.01, written_s=600.0).seconds == 1200.0


def test_failures_shorten_the_interval_and_quiet_lengthens_it() -> None:
    clock = Clock()
    interval = SaveInterval(ranks=8, blocked_s=5.0, clock=clock)
    assert interval.between_failures_s == pytest.approx(OTHER_FAILURE_S, rel=0.01)
    before = interval.seconds
    clock.now = 3600.0
    after = continued(interval.measurements(), ranks=8, starts=1, clock=clock)
    assert after.between_failures_s == pytest.approx((OTHER_FAILURE_S + 3600.0) / 2, rel=0.01)
    assert after.seconds < before
    clock.now += 30 * 86_400.0
    assert after.seconds > before


def test_a_start_after_a_stop_notice_is_no_failure() -> None:
    clock = Clock()
    measurements = SaveInterval(ranks=1, failures=2, blocked_s=1.0, clock=clock).measurements
    assert continued(measurements(stopped=True), ranks=1, starts=1).measurements()["failures"] == 2
    assert continued(measurements(), ranks=1, starts=1).measurements()["failures"] == 3
    assert continued(measurements(), ranks=1, starts=0).measurements()["failures"] == 2
    assert continued({}, ranks=1, starts=2).measurements()["failures"] == 2


def test_at_the_failure_rate_of_llama_3_nearly_all_of_the_time_is_training() -> None:
    total_s = 54 * 86_400.0
    world = World(
        total_s=total_s, between_failures_s=total_s / 419, restart_s=60.0, blocked_s=1.0, written_s=20.0, ranks=16_384
    )
    chosen = useful(world, 7, None)
    assert chosen > 0.97
    assert chosen > max(useful(world, 7, fixed_s) for fixed_s in (75.0, 105.0, 150.0, 210.0, 300.0)) - 0.005


def test_what_is_known_of_the_nodes_replaces_the_failures_of_any_ranks() -> None:
    any_nodes = SaveInterval(ranks=1024, blocked_s=20.0)
    unreliable = SaveInterval(ranks=1024, blocked_s=20.0, node_failures_per_day=3.0)
    assert unreliable.between_failures_s == pytest.approx(86_400.0 / 4, abs=1.0), "three, and one of other causes"
    assert unreliable.seconds < any_nodes.seconds
    later = continued({"blocked_s": 20.0}, ranks=1024, starts=0, node_failures_per_day=3.0)
    assert later.seconds == pytest.approx(unreliable.seconds, rel=1e-3)
