"""A model is retrained when its losses beyond those of a fresh one have cost as much as a training."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.policy.kinds.staleness import staleness


def test_a_model_that_stays_as_it_was_costs_nothing() -> None:
    seen = staleness([0.1] * 1_000, fresh=None, window=300, is_new=True)
    assert seen.excess == pytest.approx(0.0, abs=1e-9)
    assert seen.fresh == pytest.approx(0.1)


def test_nothing_is_told_before_as_many_predictions_as_tell_the_loss_of_a_fresh_model() -> None:
    seen = staleness([1.0] * 299, fresh=None, window=300, is_new=True)
    assert (seen.excess, seen.fresh) == (0.0, None)
    assert staleness([1.0] * 300, fresh=None, window=300, is_new=True).fresh == 1.0


def test_losses_that_have_grown_cost_what_they_are_above_those_of_a_fresh_model() -> None:
    assert staleness([0.1] * 300 + [0.6] * 100, fresh=None, window=300, is_new=True).excess == pytest.approx(50.0)


def test_a_training_that_makes_no_better_model_halves_what_is_hoped_for_each_time() -> None:
    fresh: float | None = 0.1
    hoped = []
    for _ in range(3):
        fresh = staleness([0.5] * 300, fresh=fresh, window=300, is_new=True).fresh
        hoped.append(fresh)
    assert hoped == pytest.approx([0.3, 0.4, 0.45])


def test_a_model_that_no_training_has_replaced_tells_nothing_of_a_fresh_one() -> None:
    seen = staleness([0.5] * 300, fresh=0.1, window=300, is_new=False)
    assert seen.fresh == 0.1
    assert seen.excess == pytest.approx(120.0)


def test_losses_that_grow_evenly_have_cost_a_training_when_training_is_cheapest() -> None:
    growth, cost = 1e-5, 5.0
    best = math.sqrt(2.0 * cost / growth)
    losses = [growth * number for number in range(int(best) + 1)]
    assert staleness(losses, fresh=0.0, window=10, is_new=False).excess == pytest.approx(cost, rel=0.01)


@given(losses=st.lists(st.floats(0.0, 1.0), max_size=60), fresh=st.none() | st.floats(0.0, 1.0))
def test_the_loss_of_a_fresh_model_is_never_above_what_was_hoped_for_and_seen(
    losses: list[float], fresh: float | None
) -> None:
    seen = staleness(losses, fresh=fresh, window=10, is_new=True)
    if seen.fresh is not None:
        assert 0.0 <= seen.fresh <= max([*losses, 0.0 if fresh is None else fresh]) + 1e-9
