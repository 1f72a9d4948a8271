"""The ledger equals a recount of simulated months by brute force, to the micro-dollar."""

import sqlite3
from collections import defaultdict

import pytest

from fairlead.cluster.ledger_tables import CostGrouping, LedgerTables, Payer, Price, holder_of, intervals_of
from fairlead.ledger.activity import activity, ended_ms
from fairlead.ledger.bills import Statement, statement
from fairlead.ledger.usage import DAY_MS, HOUR_MS, Use, share_of
from tests.ledger.months import MONTH_MS, START_MS, Month, month, recount
from tests.rounds import rounds

# The whole month; from within a day to within a day; within one day; exactly one day.
WINDOWS = (
    (START_MS, START_MS + MONTH_MS),
    (START_MS + 5 * HOUR_MS + 1, START_MS + 11 * DAY_MS + 7 * HOUR_MS),
    (START_MS + 3 * DAY_MS + HOUR_MS, START_MS + 3 * DAY_MS + 2 * HOUR_MS),
    (START_MS + 6 * DAY_MS, START_MS + 7 * DAY_MS),
)


def ledger_of(world: Month) -> LedgerTables:
    """The tables after that month."""
    ledger = LedgerTables(sqlite3.connect(":memory:"))
    ledger.create()
    nodes = {node.name: node for node in world.nodes}
    for life in world.lives:
        ended = ended_ms(life.pod, life.ended_ms / 1000)
        share = share_of(life.pod.grant, nodes[life.pod.node])
        holder = holder_of(life.pod.workload_uid, life.spec)
        ledger.add(intervals_of(life.pod, holder, life.progress, ended, share))
    for node, changes in world.prices.items():
        for at, rate in changes:
            ledger.set_price(Price(node=node, from_ms=at, rate=rate, source="test"))
    return ledger


def bill(ledger: LedgerTables, by: CostGrouping, window: tuple[int, int], *, daily: bool = False) -> Statement[Payer]:
    return statement(ledger.stretches(by, *window, [], daily=daily))


@pytest.mark.parametrize("seed", rounds(few=25, many=500))
def test_every_row_of_a_month_is_that_of_the_recount(seed: int) -> None:
    world = month(seed)
    ledger = ledger_of(world)
    for window in WINDOWS:
        found = bill(ledger, CostGrouping.RUN, window)
        rows = {(line.node, line.key[0] if line.key else None, line.use): line.microusd for line in found.lines}
        exact = recount(world, *window)
        # Of equal remainders either may be rounded up.
        assert sum(rows.values()) == sum(exact.values()) == found.billed_microusd
        assert all(abs(rows.get(key, 0) - exact.get(key, 0)) <= 1 for key in {*rows, *exact})
        assert {key for key, amount in rows.items() if amount > 1} <= set(exact)
        for by in CostGrouping:
            for daily in (False, True):
                again = bill(ledger, by, window, daily=daily)
                assert again.billed == found.billed
                assert sum(line.microusd for line in again.lines) == found.billed_microusd
                assert _uses(again) == _uses(found)


def _uses(found: Statement[Payer]) -> dict[Use, int]:
    amounts: defaultdict[Use, int] = defaultdict(int)
    for line in found.lines:
        amounts[line.use] += line.unit_ms
    return {use: amount for use, amount in amounts.items() if amount}


@pytest.mark.parametrize("seed", rounds(few=5, many=100))
def test_a_life_is_divided_as_it_was(seed: int) -> None:
    for life in month(seed).lives:
        marks, since = [], round(life.pod.created_at * 1000)
        for use, end in life.marks:
            if end > since:
                marks.append((use, since, end))
                since = end
        assert list(activity(life.pod, life.progress, life.ended_ms)) == marks


def test_a_recount_that_forgets_a_pod_is_another() -> None:
    world = month(1)
    found = bill(ledger_of(world), CostGrouping.RUN, WINDOWS[0])
    priciest = max((line for line in found.lines if line.key is not None), key=lambda line: line.microusd)
    assert priciest.key is not None
    lives = tuple(life for life in world.lives if life.spec.name != priciest.key[0])
    less = recount(Month(nodes=world.nodes, prices=world.prices, lives=lives), *WINDOWS[0])
    assert (priciest.node, priciest.key[0], priciest.use) not in less
