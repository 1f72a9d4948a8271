"""What a batch takes is learned, and rows are held back only while that pays."""

import math

import pytest

from fairlead.runtime.serving.batch_times import Arrivals, BatchTimes, hold_until


def learned(fixed_s: float, per_row_s: float) -> BatchTimes:
    times = BatchTimes()
    for rows in (1, 8, 32):
        for _ in range(3):
            times.learn(rows, fixed_s + per_row_s * rows)
    return times


def arrivals(*moments: float) -> Arrivals:
    found = Arrivals()
    for moment in moments:
        found.add(moment, 1)
    return found


def test_times_of_two_sizes_give_the_fixed_part_and_that_of_each_row() -> None:
    times = learned(0.010, 0.001)
    assert [times.fixed_s, times.per_row_s] == pytest.approx([0.010, 0.001])
    assert times.of(16) == pytest.approx(0.026)


def test_times_of_one_size_say_nothing_of_a_fixed_part() -> None:
    times = BatchTimes()
    times.learn(4, 0.040)
    assert [times.fixed_s, times.per_row_s] == pytest.approx([0.0, 0.010])


def test_a_predictor_that_gets_slower_is_learned_anew() -> None:
    times = learned(0.010, 0.001)
    for _ in range(60):
        for rows in (1, 8, 32):
            times.learn(rows, 0.020 + 0.002 * rows)
    assert times.of(32) == pytest.approx(0.084, rel=0.02)


def test_larger_batches_that_take_less_are_taken_for_chance() -> None:
    times = BatchTimes()
    times.learn(1, 0.020)
    times.learn(32, 0.010)
    assert times.per_row_s == 0.0
    assert times.fixed_s > 0.0


def test_a_batch_is_no_larger_than_its_latency_allows() -> None:
    times = learned(0.010, 0.001)
    assert times.rows_within(0.100, 32) == 32
    assert times.rows_within(0.0205, 32) == 10
    assert times.rows_within(0.0115, 32) == 1


def test_where_not_even_one_row_is_in_time_or_nothing_is_known_batches_are_as_large_as_may_be() -> None:
    assert learned(0.010, 0.001).rows_within(0.005, 32) == 32
    slow = BatchTimes()
    slow.learn(1, 1.0)
    assert slow.rows_within(0.050, 32) == 32


def held_s(
    times: BatchTimes, came: Arrivals, *, rows: int = 1, max_latency_s: float = 1.0, oldest: float = 0.0
) -> float:
    until = hold_until(rows=rows, most=32, oldest=oldest, max_latency_s=max_latency_s, arrivals=came, times=times)
    return max(0.0, until - (came.newest or 0.0))


def test_rows_are_held_back_until_a_further_pause_would_cost_more_than_it_saves() -> None:
    # (a - n*b) / (n + 1) = (0.010 - 0.001) / 2
    assert held_s(learned(0.010, 0.001), arrivals(0.0, 0.002, 0.004)) == pytest.approx(0.0045)
    assert held_s(learned(0.010, 0.001), arrivals(0.0, 0.002, 0.004), rows=4) == 0.0


@pytest.mark.parametrize(
    ("times", "came"),
    [
        (learned(0.010, 0.001), arrivals(0.0, 0.006)),  # the next one is too far away
        (learned(0.010, 0.001), arrivals(0.0)),  # nothing is known of the next one
        (learned(0.001, 0.001), arrivals(0.0, 0.0001)),  # there is nothing to share
        (BatchTimes(), arrivals(0.0, 0.0001)),  # nothing is known of batches
    ],
)
def test_where_waiting_does_not_pay_nothing_is_held_back(times: BatchTimes, came: Arrivals) -> None:
    assert held_s(times, came) == 0.0


def test_a_full_batch_is_not_held_back() -> None:
    assert held_s(learned(1.0, 0.0), arrivals(0.0, 0.0001), rows=32) == 0.0


def test_nothing_is_held_back_beyond_its_latency() -> None:
    times, came = learned(0.010, 0.0), arrivals(0.0, 0.001, 0.002)
    until = hold_until(rows=1, most=32, oldest=0.0, max_latency_s=0.013, arrivals=came, times=times)
    assert until == pytest.approx(0.003)


def test_the_rule_holds_the_sum_of_latencies_down() -> None:
    """Against both ways of serving n rows and one that comes g later, worked out by hand."""
    for fixed, per_row, rows, gap in ((0.010, 0.001, 1, 0.004), (0.010, 0.001, 1, 0.005), (0.020, 0.0, 3, 0.004)):
        times = learned(fixed, per_row)
        at_once = rows * times.of(rows) + times.of(rows) - gap + times.of(1)
        held = rows * (gap + times.of(rows + 1)) + times.of(rows + 1)
        pays = held_s(times, arrivals(0.0, gap), rows=rows) > 0.0
        assert pays == (held < at_once), (fixed, per_row, rows, gap)
    assert math.isinf(Arrivals().gap_s)
