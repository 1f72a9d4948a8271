"""Debts of teams over time: who competes, what counts, what is bounded."""

import math
from typing import Any

import pytest

from fairlead.policy.decide import decide
from fairlead.policy.queue.team_debts import (
    DAY_S,
    FADING_S,
    LEAST_S,
    MOST_RESERVED_S,
    MOST_S,
    DebtRecord,
    Reserved,
    TeamDebts,
)
from fairlead.specs.resources import Resources
from fairlead.specs.team import Team
from fairlead.state.plan import HeldRoom, Plan
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Snapshot, Status, Workload
from tests.builders import node, status, training

NODES = tuple(node(f"node-{number}", cpu_milli=1000) for number in range(4))


def workload(uid: str, at: Status, *, nodes: int = 1, **spec: Any) -> Workload:
    asks = training(uid, nodes=nodes, resources=Resources(cpu_milli=1000), **spec)
    return Workload(uid=uid, spec=asks, intent=Intent.RUN, status=at, version=1, created_at=0.0)


def running(team: str, *, nodes: int) -> tuple[Workload, tuple[Pod, ...]]:
    run = workload(f"{team}-run", status(Phase.RUNNING), team=team, nodes=nodes)
    pods = tuple(
        Pod(
            uid=f"{team}-{index}", workload_uid=run.uid, attempt=0, index=index, node=f"node-{index}",
            grant=Grant(cpu_milli=1000), phase=PodPhase.RUNNING, created_at=0.0,
        )
        for index in range(nodes)
    )  # fmt: skip
    return run, pods


def seen(*, teams: tuple[Team, ...] = (), **held: int) -> Snapshot:
    """Teams that each hold so many of four nodes."""
    runs = [running(team, nodes=nodes) for team, nodes in held.items()]
    pods = tuple(pod for _, of_run in runs for pod in of_run)
    return Snapshot(nodes=NODES, workloads=tuple(run for run, _ in runs), pods=pods, teams=teams)


def room(team: str, *, nodes: int, uid: str = "wide") -> HeldRoom:
    return HeldRoom(uid=uid, team=team, name="wide", gpu_milli=0, cpu_milli=1000 * nodes, start=None)


def after(
    snapshot: Snapshot, *contending: str, held: tuple[HeldRoom, ...] = (), elapsed_s: float = 100.0,
    debts: TeamDebts | None = None,
) -> TeamDebts:  # fmt: skip
    """The debts when what a pass saw and decided has lasted so long."""
    debts = TeamDebts(DebtRecord(at=0.0)) if debts is None else debts
    now = debts.record.at
    debts.observe(debts.known_to(snapshot, now), Plan(contending=frozenset(contending), held=held), None)
    debts.known_to(snapshot, now + elapsed_s)
    return debts


def rounded(debts: TeamDebts) -> dict[str, int]:
    return {team: round(debt_s) for team, debt_s in debts.record.debts_s.items()}


def test_who_holds_everything_owes_those_who_wait_their_shares() -> None:
    assert rounded(after(seen(a=4), "b", "c")) == {"a": 67, "b": -33, "c": -33}


def test_weights_divide_what_those_who_compete_hold() -> None:
    assert rounded(after(seen(a=4, teams=(Team(name="b", weight=3),)), "b")) == {"a": 75, "b": -75}


def test_nobody_owes_anything_while_nobody_waits() -> None:
    assert rounded(after(seen(a=4))) == {}


def test_a_team_that_asks_for_less_than_its_share_is_neither_debtor_nor_creditor() -> None:
    # A third each: only the second waits, and only the first holds more. They are to have the same of three quarters.
    assert rounded(after(seen(a=2, b=1, c=1), "b", elapsed_s=80.0)) == {"a": 10, "b": -10}


def test_what_is_held_free_for_a_run_is_its_teams() -> None:
    debts = after(seen(b=1), "a", "b", held=(room("a", nodes=3),))
    assert rounded(debts) == {"a": 25, "b": -25}


def test_room_held_for_a_run_counts_only_once_it_has_started_or_lost_its_place() -> None:
    debts = after(seen(b=1), "a", "b", held=(room("a", nodes=3),))
    # Without the three quarters of which half would be the other team's.
    assert {team: round(debt_s, 1) for team, debt_s in debts.record.counted().items()} == {"a": -12.5, "b": -25.0}
    after(seen(a=3, b=1), "b", debts=debts, elapsed_s=0.0)
    assert {team: round(debt_s) for team, debt_s in debts.record.counted().items()} == {"a": 25, "b": -25}


def test_room_that_stays_held_is_overlooked_for_a_day_of_the_cluster_at_most() -> None:
    debts = after(seen(), "a", "b", held=(room("a", nodes=4),), elapsed_s=4 * DAY_S)
    assert debts.record.counted()["a"] == pytest.approx(debts.record.debts_s["a"] - MOST_RESERVED_S)


def test_debts_add_up_to_nothing() -> None:
    debts = after(seen(a=2, b=1), "b", "c", held=(room("c", nodes=1),))
    after(seen(c=4), "a", "b", debts=debts, elapsed_s=5000.0)
    assert sum(debts.record.debts_s.values()) == pytest.approx(0.0, abs=1e-6)
    assert rounded(debts)["c"] > 3000


def test_debts_of_many_short_passes_are_those_of_a_long_one() -> None:
    debts = after(seen(a=4), "b", "c", elapsed_s=0.1)
    for _ in range(999):
        after(seen(a=4), "b", "c", debts=debts, elapsed_s=0.1)
    assert rounded(debts) == {"a": 67, "b": -33, "c": -33}


def test_a_debt_fades_within_months_and_is_forgotten_when_it_is_small() -> None:
    debts = TeamDebts(DebtRecord(at=0.0, debts_s={"a": 1000.0}))
    debts.known_to(seen(), FADING_S)
    assert debts.record.debts_s["a"] == pytest.approx(1000.0 / math.e)
    debts.known_to(seen(), 10 * FADING_S)
    assert 1000.0 * math.exp(-10) < LEAST_S
    assert debts.record.debts_s == {}


def test_no_debt_exceeds_a_week_of_the_cluster() -> None:
    debts = after(seen(a=4), "b", elapsed_s=90 * DAY_S)
    assert debts.record.debts_s == {"a": MOST_S, "b": -MOST_S}


def test_the_next_process_goes_on_from_a_record_and_counts_nothing_of_the_time_between() -> None:
    before = DebtRecord(at=0.0, debts_s={"a": 500.0}, reserved={"wide": Reserved(team="a", debt_s=200.0)})
    debts = TeamDebts(before)
    found = debts.known_to(seen(a=4), 10.0)
    assert found.debts["a"] == pytest.approx(300.0, rel=1e-3)
    # The run waits on, and its room is still held.
    debts.observe(found, Plan(contending=frozenset("a"), held=(room("a", nodes=2),)), None)
    assert debts.record.reserved.keys() == {"wide"}


def test_a_record_of_a_clock_that_was_ahead_begins_now() -> None:
    debts = TeamDebts(DebtRecord(at=1e9, debts_s={"a": 500.0}))
    assert debts.known_to(seen(), 100.0).debts == {"a": 500.0}
    assert rounded(after(seen(a=4), "b", debts=debts)) == {"a": 550, "b": -50}


def test_a_plan_names_the_teams_of_which_a_run_finds_no_room() -> None:
    full = seen(a=4)
    waits, idle = workload("waits", status(), team="b"), workload("idle", status(), team="c", priority=-1)
    plan = decide(Snapshot(nodes=full.nodes, workloads=(*full.workloads, waits, idle), pods=full.pods), 100.0)
    assert plan.contending == {"b"}
