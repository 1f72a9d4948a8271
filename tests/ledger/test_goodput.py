"""Goodput: what was useful of what a run held, what the rest was, and how long it held nothing."""

import sqlite3

import pytest

from fairlead.cluster.ledger_tables import CostGrouping, LedgerTables, holder_of, intervals_of
from fairlead.ledger.activity import ended_ms
from fairlead.ledger.bills import BillLine, statement
from fairlead.ledger.goodput import Goodput, goodput
from fairlead.ledger.usage import WHOLE, Holder, UsageInterval, Use, share_of
from tests.ledger.months import MONTH_MS, START_MS, month

HOLDER = Holder(uid="a", run="a", team="team", model="a")


def interval(use: Use, start_s: float, end_s: float, *, share: int = WHOLE) -> UsageInterval:
    return UsageInterval(
        node="node-0", holder=HOLDER, use=use, start_ms=round(start_s * 1000), end_ms=round(end_s * 1000), share=share
    )


def test_losses_are_itemised_and_sum_to_what_was_held() -> None:
    held = [
        interval(Use.STARTING, 10, 20),
        interval(Use.PRODUCTIVE, 20, 60),
        interval(Use.REDONE, 60, 90),
        interval(Use.STARTING, 100, 110),
        interval(Use.PRODUCTIVE, 110, 200),
        interval(Use.SAVING, 200, 210),
    ]
    assert goodput(held, created_at=0, until=215) == Goodput(
        ratio=130 / 190,
        seconds={"productive": 130.0, "starting": 20.0, "saving": 10.0, "redone": 30.0},
        waiting_s=25.0,
    )


def test_pods_beside_each_other_are_waited_for_once() -> None:
    held = [interval(Use.PRODUCTIVE, 10, 20), interval(Use.PRODUCTIVE, 15, 30), interval(Use.PRODUCTIVE, 12, 14)]
    found = goodput(held, created_at=0, until=40)
    assert (found.waiting_s, found.seconds) == (20.0, {"productive": 27.0})


def test_a_larger_part_of_a_node_counts_for_more_as_on_the_bill() -> None:
    held = [interval(Use.PRODUCTIVE, 0, 10, share=WHOLE), interval(Use.REDONE, 10, 20, share=WHOLE // 4)]
    assert goodput(held, created_at=0, until=20).ratio == pytest.approx(0.8)


def test_a_run_that_pays_for_no_part_goes_by_time_and_one_that_held_nothing_has_no_ratio() -> None:
    held = [interval(Use.PRODUCTIVE, 0, 10, share=0), interval(Use.REDONE, 10, 20, share=0)]
    assert goodput(held, created_at=0, until=20).ratio == 0.5
    assert goodput([], created_at=5, until=20) == Goodput(ratio=None, seconds={}, waiting_s=15.0)


def test_the_ratio_is_that_of_the_rows_of_the_bill() -> None:
    world = month(3)
    ledger = LedgerTables(sqlite3.connect(":memory:"))
    ledger.create()
    nodes = {node.name: node for node in world.nodes}
    for life in world.lives:
        ended = ended_ms(life.pod, life.ended_ms / 1000)
        share = share_of(life.pod.grant, nodes[life.pod.node])
        holder = holder_of(life.pod.workload_uid, life.spec)
        ledger.add(intervals_of(life.pod, holder, life.progress, ended, share))
    changes = {name: [(0, 1_000_000)] for name in nodes}
    for name, each in changes.items():
        ledger._db.execute("INSERT INTO prices VALUES (?, ?, ?, 'test')", (name, *each[0]))
    bill = statement(ledger.stretches(CostGrouping.RUN, 0, START_MS + 2 * MONTH_MS, []))
    lines: dict[str, list[BillLine[tuple[str, ...] | None]]] = {}
    for line in bill.lines:
        if line.key is not None:
            lines.setdefault(line.key[1], []).append(line)
    assert lines
    for uid, own in lines.items():
        if whole := sum(line.unit_ms for line in own):
            useful = sum(line.unit_ms for line in own if line.use is Use.PRODUCTIVE)
            found = goodput(ledger.of_run(uid), created_at=0, until=0)
            assert found.ratio == pytest.approx(useful / whole)
