"""Replicas for several services: the budget holds, nothing flaps, and room goes where it brings most in time."""

from itertools import accumulate, pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.policy.serving.joint_scaling import (
    EndpointState,
    _greedy,
    _knapsack,
    allocate,
    attainment,
    enough,
    forecast,
    queue_limit,
)


def service(rate: float = 5.0, replicas: int = 1, **more: Any) -> EndpointState:
    given = {"rates": [rate] * 30, "service_s": 0.15, "service_cv2": 0.05, "slo_s": 0.72, **more}
    return EndpointState(replicas=replicas, **given)


services = st.builds(
    EndpointState,
    rates=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=100),
    service_s=st.floats(0.01, 0.3),
    service_cv2=st.floats(0.0, 4.0),
    slo_s=st.floats(0.31, 3.0),
    replicas=st.integers(1, 6),
    idle=st.integers(0, 2),
    locked=st.booleans(),
    gate=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(services, min_size=1, max_size=5), st.integers(0, 12))
def test_each_service_has_a_replica_and_the_budget_holds(held: list[EndpointState], spare: int) -> None:
    budget = sum(each.replicas for each in held) + spare
    chosen = allocate(held, budget)
    assert min(chosen) >= 1
    assert sum(chosen) <= budget
    assert [count for count, each in zip(chosen, held, strict=True) if each.locked] == [
        each.replicas for each in held if each.locked
    ]


@settings(max_examples=60, deadline=None)
@given(services)
def test_a_replica_more_or_a_request_less_never_makes_more_late(each: EndpointState) -> None:
    loads = [step / 5.0 for step in range(60)]
    shares = [[attainment(load, count, each) for count in range(1, 12)] for load in loads]
    assert all(0.0 <= share <= 1.0 for row in shares for share in row)
    assert all(more >= less - 1e-6 for row in shares for less, more in pairwise(row))
    assert all(more <= less + 1e-6 for column in zip(*shares, strict=True) for less, more in pairwise(column))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(0, 8))
def test_the_split_is_the_best_of_all(worths: list[list[float]], spare: int) -> None:
    chosen = _knapsack(worths, spare)
    assert sum(chosen) <= spare
    best = max(
        sum(each[more] for each, more in zip(worths, mores, strict=True))
        for mores in product(*(range(len(each)) for each in worths))
        if sum(mores) <= spare
    )
    assert sum(each[more] for each, more in zip(worths, chosen, strict=True)) == pytest.approx(best)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=5), min_size=1, max_size=5), st.integers(0, 10))
def test_the_greedy_split_is_the_best_of_worths_that_grow_ever_less(gains: list[list[float]], spare: int) -> None:
    worths = [list(accumulate(sorted(each, reverse=True))) for each in gains]
    greedy, exact = _greedy(worths, spare), _knapsack(worths, spare)
    assert sum(greedy) <= spare
    totals = [sum(each[more] for each, more in zip(worths, mores, strict=True)) for mores in (greedy, exact)]
    assert totals[0] == pytest.approx(totals[1])


@pytest.mark.parametrize("gate", [False, True])
def test_a_steady_load_moves_nothing_once_it_is_served(gate: bool) -> None:
    held = [service(rate, gate=gate) for rate in (2.0, 10.0, 25.0)]
    first = allocate(held, 12)
    again = [service(rate, count, gate=gate) for rate, count in zip((2.0, 10.0, 25.0), first, strict=True)]
    assert allocate(again, 12) == first
    assert first == sorted(first)


def test_a_replica_goes_to_the_service_that_its_rate_overloads() -> None:
    assert allocate([service(1.0, 2, gate=True), service(9.0, 1, gate=True)], 3) == [1, 2]


def test_an_idle_service_gives_its_replicas_to_one_that_needs_them_and_to_nobody_else() -> None:
    assert allocate([service(0.0, 4, gate=True), service(0.0, 1, gate=True)], 5) == [4, 1]
    assert allocate([service(0.0, 4, gate=True), service(30.0, 1, gate=True)], 5) == [1, 4]


def test_bounds_of_a_service_hold() -> None:
    assert allocate([service(0.0, 4, least=2), service(30.0, 1, most=2, gate=True)], 5) == [3, 2]


def test_a_budget_below_what_is_held_is_an_error() -> None:
    with pytest.raises(ValueError, match="a budget of 3 is below the 4 replicas"):
        allocate([service(replicas=3, locked=True), service()], 3)


def test_places_of_a_replica_count_like_replicas_that_serve_one_at_a_time() -> None:
    assert attainment(3.0, 4.0, service()) == attainment(3.0, 4.0, service(places=4.0))
    assert enough(service(20.0, 1, places=4.0)) < enough(service(20.0, 1))


def test_enough_is_what_brings_nearly_all_in_time_and_more_goes_only_with_something_to_spare() -> None:
    few, many = enough(service(10.0, 1)), enough(service(10.0, 12))
    assert 2 <= few <= many < 12
    assert enough(service(10.0, many)) == many
    assert enough(service(10.0, few)) == few
    assert enough(service(0.0, 3)) == 1


@pytest.mark.parametrize(("load", "places", "share"), [(1.0, 1.0, 1 / 2), (2.0, 2.0, 3 / 5), (3.2, 4.0, 0.77186)])
def test_where_no_request_may_wait_those_are_in_time_that_find_a_free_place(
    load: float, places: float, share: float
) -> None:
    slow = service(gate=True, service_s=0.4)
    assert attainment(load, places, slow) == pytest.approx(share, abs=1e-4)
    assert enough(service(3.0, gate=True, service_s=0.4)) in (5, 6)


def test_the_gate_holds_what_ends_in_time() -> None:
    assert queue_limit(0.154, 0.72) == 4
    assert queue_limit(0.5, 0.6) == 1


def test_samples_spread_more_the_further_ahead_around_a_level_that_follows() -> None:
    samples = forecast([1.0] * 60 + [5.0] * 30, 10.0)
    assert (len(samples), {len(row) for row in samples}) == (20, {5})
    minutes = list(zip(*samples[:10], strict=True))
    spreads = [max(rates) - min(rates) for rates in minutes]
    assert spreads == sorted(spreads)
    assert 4.5 < sum(map(sum, minutes)) / 50 < 5.0
    assert min(map(min, samples[10:])) == pytest.approx(1.0)
