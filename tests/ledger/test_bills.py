"""Bills of nodes: parts that sum to the whole, prices that change, and nodes that are overbooked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.ledger.apportionment import apportion
from fairlead.ledger.bills import PriceChange, Stretch, cost_of, priced_spans, statement, stretches_of
from fairlead.ledger.usage import HOUR_MS, WHOLE, Holder, UsageInterval, Use, share_of
from fairlead.state.snapshot import Gpu, Grant, Node
from tests.builders import node

RATE = 2_500_000


def interval(run: str, share: int, *, start: int = 0, end: int = HOUR_MS, use: Use = Use.PRODUCTIVE) -> UsageInterval:
    holder = Holder(uid=run, run=run, team="team", model=run)
    return UsageInterval(node="node-0", holder=holder, use=use, start_ms=start, end_ms=end, share=share)


def bill(
    *intervals: UsageInterval, prices: tuple[PriceChange, ...] = (PriceChange(0, RATE),), end: int = HOUR_MS
) -> dict[str, int]:
    """Micro-dollars by run, what nobody held as ``idle``."""
    found = statement(
        stretches_of(
            {"node-0": prices}, intervals, 0, end,
            key=lambda each: "" if each.holder is None else each.holder.run, rest=lambda _: "idle",
        )
    )  # fmt: skip
    assert sum(line.microusd for line in found.lines) == found.billed_microusd
    amounts: dict[str, int] = {}
    for line in found.lines:
        amounts[line.key] = amounts.get(line.key, 0) + line.microusd
    return amounts


@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**30), min_size=1, max_size=30))
def test_parts_sum_to_the_amount_and_none_is_off_by_one(amount: int, weights: list[int]) -> None:
    parts, total = apportion(amount, weights), sum(weights)
    assert sum(parts) == (amount if total else 0)
    for part, weight in zip(parts, weights, strict=True):
        assert part * total - total < amount * weight < part * total + total or part * total == amount * weight


def test_negative_amounts_are_refused() -> None:
    with pytest.raises(ValueError, match="not negative"):
        apportion(-1, [1])
    with pytest.raises(ValueError, match="not negative"):
        apportion(1, [-1])


def test_four_quarters_of_a_gpu_make_one() -> None:
    one = node(gpus=1)
    quarter = share_of(Grant(cpu_milli=1000, gpu_uuids=("node-0-gpu-0",), gpu_milli=250), one)
    whole = share_of(Grant(cpu_milli=1000, gpu_uuids=("node-0-gpu-0",), gpu_milli=1000), one)
    assert 4 * quarter == whole == WHOLE
    parts = bill(*(interval(name, quarter) for name in "abcd"))
    assert parts == dict.fromkeys("abcd", RATE // 4)
    assert bill(interval("a", whole)) == {"a": RATE}


def test_instances_count_as_the_part_of_the_device_that_they_are() -> None:
    gpus = tuple(
        Gpu(uuid=f"mig-{i}", model="A100", memory_bytes=1, milli=m, divisible=False) for i, m in enumerate([571, 429])
    )
    split = Node(name="node-0", cpu_milli=4000, memory_bytes=1, gpus=gpus)
    held = share_of(Grant(gpu_uuids=("mig-0",), gpu_milli=1000), split)
    assert held == 571 * WHOLE // 1000
    assert bill(interval("a", held))["a"] == RATE * 571 // 1000


def test_a_run_without_gpus_pays_for_cores_only_where_there_are_no_gpus() -> None:
    grant = Grant(cpu_milli=1000)
    assert share_of(grant, node(cpu_milli=4000)) == WHOLE // 4
    assert share_of(grant, node(gpus=2)) == 0
    assert share_of(Grant(cpu_milli=9000), node(cpu_milli=4000)) == WHOLE


def test_what_nobody_held_is_idle() -> None:
    assert bill() == {"idle": RATE}
    assert bill(interval("a", WHOLE, end=HOUR_MS // 4)) == {"a": RATE // 4, "idle": 3 * RATE // 4}


def test_each_part_costs_what_the_node_cost_at_the_time() -> None:
    half = HOUR_MS // 2
    prices = (PriceChange(0, RATE), PriceChange(half, 2 * RATE))
    early, late = interval("early", WHOLE, end=half), interval("late", WHOLE, start=half)
    assert bill(early, late, prices=prices) == {"early": RATE // 2, "late": RATE}
    assert cost_of([early, late], {"node-0": prices}) == 3 * RATE // 2


def test_a_time_without_a_price_is_not_billed() -> None:
    prices = (PriceChange(HOUR_MS, RATE), PriceChange(2 * HOUR_MS, None))
    assert priced_spans(prices, 0, 3 * HOUR_MS) == [(HOUR_MS, 2 * HOUR_MS, RATE)]
    assert bill(interval("a", WHOLE, end=3 * HOUR_MS), prices=prices, end=3 * HOUR_MS) == {"a": RATE}
    assert cost_of([interval("a", WHOLE)], {"node-0": prices}) is None
    assert bill(interval("a", WHOLE), prices=(PriceChange(0, 0),)) == {"a": 0}


def test_an_overbooked_node_costs_no_more_than_its_price() -> None:
    assert bill(interval("a", WHOLE), interval("b", WHOLE)) == {"a": RATE // 2, "b": RATE // 2}


def test_a_bill_is_rounded_once_for_each_node() -> None:
    stretches = [Stretch(node="n", start_ms=i, end_ms=i + 1, rate=HOUR_MS // 2, rest="idle") for i in range(3)]
    assert statement(stretches).billed_microusd == 2


def test_an_interval_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="no interval"):
        interval("a", WHOLE + 1)
    with pytest.raises(ValueError, match="no interval"):
        interval("a", WHOLE, start=2, end=1)
