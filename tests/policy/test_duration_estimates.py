"""How much longer a job is reckoned to run."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.policy.queue.duration_estimates import FIRST_BIN_S, History, declared_remaining_s

RATIO = 10 ** (1 / 8)


def after(*times_s: float, kind: str = "bert on 8") -> History:
    history = History()
    for time_s in times_s:
        history = history.with_completed(kind, time_s)
    return history


def test_a_declaration_that_cannot_be_wrong_is_counted_down() -> None:
    assert declared_remaining_s(100.0, 1.0, 40.0) == pytest.approx(60.0)


def test_a_declaration_is_taken_as_the_mean_of_what_it_may_mean() -> None:
    assert declared_remaining_s(100.0, 2.0, 0.0) == pytest.approx((200.0 - 50.0) / math.log(4.0))


def test_a_job_past_the_most_that_it_can_take_is_as_good_as_done() -> None:
    assert declared_remaining_s(100.0, 2.0, 250.0) == 0.0


@given(st.floats(1.0, 1e6), st.floats(1.0, 8.0), st.floats(0.0, 1e7))
def test_what_is_left_is_never_negative_and_never_more_than_declared_at_worst(
    declared_s: float, wrong_by: float, done_s: float
) -> None:
    left_s = declared_remaining_s(declared_s, wrong_by, done_s)
    assert -1e-6 * (declared_s + done_s) <= left_s
    assert left_s <= declared_s * wrong_by * (1 + 1e-9)


def test_many_jobs_of_one_length_make_it_known() -> None:
    history = after(*[10_000.0] * 200)
    assert history.remaining_s("bert on 8", 0.0) == pytest.approx(10_000.0, rel=0.1)
    assert history.remaining_s("bert on 8", 5_623.0) == pytest.approx(4_377.0, rel=0.25)


def test_a_job_that_outlives_all_others_is_reckoned_to_be_long() -> None:
    history = after(*[1_000.0] * 50)
    before, past = history.remaining_s("bert on 8", 500.0), history.remaining_s("bert on 8", 3_000.0)
    assert past > 3 * before


def test_two_jobs_that_outlived_all_others_are_equal_within_a_decade_of_what_they_ran() -> None:
    history = after(*[100.0] * 50)
    first, second = history.remaining_s("bert on 8", 12_000.0), history.remaining_s("bert on 8", 60_000.0)
    assert first == second
    assert history.remaining_s("bert on 8", 120_000.0) > first


def test_within_a_decade_a_job_still_comes_nearer_to_its_end() -> None:
    history = after(*[9_000.0] * 200)
    assert history.remaining_s("bert on 8", 7_500.0) < 0.4 * history.remaining_s("bert on 8", 1_000.0)


def test_short_and_long_jobs_of_a_kind_are_told_apart_by_trying() -> None:
    """The index of a mixture is that of its short jobs until one of them would have ended."""
    history = after(*[100.0] * 50, *[100_000.0] * 50)
    assert history.remaining_s("bert on 8", 0.0) < 1_000.0
    assert history.remaining_s("bert on 8", 1_000.0) > 10_000.0


def test_a_kind_is_judged_by_its_own_history_first() -> None:
    history = after(*[100.0] * 20).with_completed("vgg16 on 1", 1e5)
    for _ in range(20):
        history = history.with_completed("vgg16 on 1", 1e5)
    assert history.remaining_s("vgg16 on 1", 0.0) > 10 * history.remaining_s("bert on 8", 0.0)


@given(st.lists(st.floats(0.0, 1e9), max_size=12), st.floats(0.0, 1e9))
def test_every_history_gives_a_positive_and_finite_rest(times_s: list[float], done_s: float) -> None:
    left_s = after(*times_s).remaining_s("bert on 8", done_s)
    assert 0.0 < left_s < math.inf


@given(st.lists(st.floats(10.0, 1e7), min_size=1, max_size=12))
def test_the_order_of_completion_does_not_matter(times_s: list[float]) -> None:
    assert after(*times_s) == after(*reversed(times_s))


def test_a_history_is_not_changed_by_what_follows_it() -> None:
    first = after(100.0)
    second = first.with_completed("bert on 8", 1e6)
    assert first == after(100.0)
    assert second != first
    assert FIRST_BIN_S < 100.0 / RATIO
