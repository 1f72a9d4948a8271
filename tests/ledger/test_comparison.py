"""Cloud or own: the mix is the cheapest of all, and a load is divided into levels."""

from itertools import product, zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.ledger.comparison import (
    Payment,
    break_even,
    busy_levels,
    cheapest_mix,
    cost_of,
    level_times,
    load_of,
    pool_loads,
)
from fairlead.ledger.usage import HOUR_MS, WHOLE, Holder, UsageInterval, Use

LENGTH_MS = 100 * HOUR_MS
rates = st.integers(0, 20_000_000)


@given(
    st.lists(st.integers(0, LENGTH_MS), max_size=5).map(lambda busy: sorted(busy, reverse=True)),
    st.dictionaries(st.sampled_from([Payment.OWNED, Payment.RESERVED, Payment.SPOT]), rates),
    rates,
    st.dictionaries(st.sampled_from([Payment.OWNED, Payment.RESERVED, Payment.SPOT]), st.integers(0, 5)),
    rates,
)
def test_no_other_mix_costs_less(
    busy: list[int], others: dict[Payment, int], on_demand: int, most: dict[Payment, int], egress: int
) -> None:
    prices = {**others, Payment.ON_DEMAND: on_demand}
    mix = cheapest_mix(busy, LENGTH_MS, prices, egress=egress, most=most)

    def cost(way: Payment, busy_ms: int) -> float:
        leaving = 0 if way is Payment.OWNED else egress * busy_ms
        return (prices[way] * (LENGTH_MS if way.is_fixed else busy_ms) + leaving) / HOUR_MS

    allowed = (
        ways for ways in product(prices, repeat=len(busy)) if all(ways.count(way) <= most.get(way, 5) for way in others)
    )
    least = min(sum(cost(way, level) for way, level in zip(ways, busy, strict=True)) for ways in allowed)
    assert abs(mix.microusd - least) <= len(busy)
    assert all(mix.count(way) <= most.get(way, 5) for way in others)
    assert sum(mix.count(way) for way in Payment) == len(busy)


def test_a_load_is_divided_into_levels_that_are_nested() -> None:
    changes = load_of([(0, 10, 8), (2, 4, 4), (3, 8, 8)], size=8)
    assert changes == [(0, 1), (2, 2), (3, 3), (4, 2), (8, 1), (10, 0)]
    assert level_times(changes) == [10, 6, 1]
    assert level_times([]) == []
    with pytest.raises(ValueError, match="times rise"):
        level_times([(5, 1), (4, 0)])


spans = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(1, 10)).map(
        lambda each: (each[0], each[1], each[1] + each[2])
    ),
    max_size=12,
)


@given(spans)
def test_levels_are_how_long_so_many_nodes_were_busy_at_once(found: list[tuple[str, int, int]]) -> None:
    counts = [len({node for node, start, end in found if start <= at < end}) for at in range(40)]
    most = max(counts)
    assert busy_levels(found) == [sum(count > level for count in counts) for level in range(most)]


@given(spans)
def test_levels_of_two_days_are_those_of_both(found: list[tuple[str, int, int]]) -> None:
    days = [
        [(node, max(s, low), min(e, low + 20)) for node, s, e in found if s < low + 20 and e > low] for low in (0, 20)
    ]
    summed = [sum(both) for both in zip_longest(*map(busy_levels, days), fillvalue=0)]
    assert summed == busy_levels(found)


def test_the_load_of_a_pool_counts_what_runs_held_of_its_nodes_within_the_window() -> None:
    def held(node: str, team: str | None, start: int, end: int, share: int = WHOLE) -> UsageInterval:
        holder = None if team is None else Holder(uid="u", run="r", team=team, model="r")
        return UsageInterval(node=node, holder=holder, use=Use.PRODUCTIVE, start_ms=start, end_ms=end, share=share)

    intervals = [
        held("a", "vision", 0, 50),
        held("a", "nlp", 20, 40, WHOLE // 2),
        held("b", "nlp", 30, 60),
        held("b", None, 0, 100),  # an agent of the node
        held("b", "nlp", 0, 100, 0),  # a run without GPUs
        held("c", "nlp", 90, 200),
        held("a", "nlp", 200, 300),
    ]
    assert pool_loads(intervals, {"a": "gpu", "b": "gpu"}, 10, 110) == {
        None: {"gpu": (50, 20), "": (20,)},
        "vision": {"gpu": (40,)},
        "nlp": {"gpu": (40, 10), "": (20,)},
    }
    assert pool_loads(intervals, {}, 300, 400) == {}


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="on-demand"):
        cheapest_mix([1], 1, {Payment.SPOT: 1})
    with pytest.raises(ValueError, match="longer than there was time"):
        cheapest_mix([2], 1, {Payment.ON_DEMAND: 1})


@pytest.mark.parametrize(("fixed", "hourly", "even"), [(5, 10, 0.5), (10, 10, 1.0), (11, 10, None), (0, 0, 0.0)])
def test_owning_pays_off_from_the_share_of_the_price_by_the_hour_on(
    fixed: int, hourly: int, even: float | None
) -> None:
    assert break_even(Payment.OWNED, {Payment.OWNED: fixed, Payment.ON_DEMAND: hourly}) == even


def test_egress_makes_owning_pay_off_earlier_and_does_not_matter_among_nodes_of_a_cloud() -> None:
    prices = {Payment.OWNED: 6, Payment.RESERVED: 6, Payment.ON_DEMAND: 10}
    assert break_even(Payment.OWNED, prices, egress=2) == 0.5
    assert break_even(Payment.RESERVED, prices, egress=2) == 0.6
    assert cost_of(Payment.RESERVED, HOUR_MS, 2 * HOUR_MS, 6, egress=2) == 14
    assert cost_of(Payment.OWNED, HOUR_MS, 2 * HOUR_MS, 6, egress=2) == 12
    # Owned and reserved cost the same without egress; with it the busier node is the owned one.
    mix = cheapest_mix([HOUR_MS, HOUR_MS // 2], HOUR_MS, prices, egress=2, most={Payment.OWNED: 1})
    assert [level.payment for level in mix.levels] == [Payment.OWNED, Payment.ON_DEMAND]
