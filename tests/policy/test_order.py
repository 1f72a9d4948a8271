"""The order by what is left to do: shorter first, nobody starves, and giving way costs less than it gains.

Every property is held against random runs, and catches a decision with one mistake.
"""

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster.simulated.programs import OnTerm, SimulatedProgram
from fairlead.policy.disruption import eviction as making_room
from fairlead.policy.disruption import remaining_work_preemption as replacing
from fairlead.policy.queue import queue_score as standing
from fairlead.policy.queue.ageing import AGEING_S
from fairlead.policy.queue.dominant_shares import ClusterCapacity
from fairlead.policy.queue.fair_order import fairly
from fairlead.policy.queue.queue_score import PATIENCE, Standing
from fairlead.policy.queue.quotas import Ledger
from fairlead.policy.queue.remaining_work import Remaining
from fairlead.specs.training import Training
from fairlead.state.scheduling_policy import POLICIES, Order
from fairlead.state.snapshot import Intent, Phase, Workload
from tests.builders import status
from tests.policy import order_world
from tests.policy.order_world import LINES, ORDER_PROPERTIES, Decided, Line, declared_s, play, spec_of

NOW = 1_000_000_000.0
WHOLE = ClusterCapacity(gpu_milli=4000)
# Points are whole: each of two may be off by one.
ROUNDING_S = 2 * AGEING_S


@settings(max_examples=40, deadline=None)
@given(lines=LINES)
def test_every_property_holds_whatever_comes(lines: list[Line]) -> None:
    for rules in ("shortest", "preempting"):
        decided = play(lines, POLICIES[rules])
        broken = {holds.__name__: list(holds(decided)) for holds in ORDER_PROPERTIES}
        assert broken == {holds.__name__: [] for holds in ORDER_PROPERTIES}


@settings(max_examples=20, deadline=None)
@given(lines=LINES)
def test_the_same_runs_give_the_same_plans(lines: list[Line]) -> None:
    assert [each.plan for each in play(lines)] == [each.plan for each in play(lines)]


WAITING = st.lists(
    st.tuples(st.integers(0, 500_000), st.integers(1, 50_000), st.sampled_from((1, 2, 4)), st.sampled_from((0, 2, 40))),
    min_size=2,
    max_size=8,
)


def in_turn(waiting: Sequence[tuple[int, int, int, int]]) -> list[Workload]:
    """Runs that have waited so long, are so long, with so many GPUs and such a priority, in their turn."""
    runs = [
        Workload(
            uid=f"{number}",
            spec=spec_of(Line(0.0, float(length), num_gpus, priority), f"job-{chr(97 + number)}"),
            intent=Intent.RUN,
            status=status(since=NOW - waited),
            version=1,
            created_at=NOW - waited,
        )
        for number, (waited, length, num_gpus, priority) in enumerate(waiting)
    ]
    order = Standing(order=Order.SHORTEST, remaining=Remaining(()), whole=WHOLE, now=NOW)
    return fairly(runs, Ledger.of((), WHOLE, ()), order)[0]


def passed_by_the_late(runs: Sequence[Workload]) -> list[str]:
    """Those before which somebody goes who came later than the bound allows."""
    found = []
    for index, late in enumerate(runs):
        for early in runs[index + 1 :]:
            gpu = early.spec.resources.gpu
            assert gpu is not None
            bound_s = PATIENCE * declared_s(early) * gpu.num_devices / 4
            bound_s += AGEING_S * (late.spec.priority - early.spec.priority) + ROUNDING_S
            if late.created_at - early.created_at > bound_s:
                found.append(f"{late.spec.name} goes before {early.spec.name}")
    return found


@settings(max_examples=200, deadline=None)
@given(waiting=WAITING)
def test_nobody_is_passed_by_those_that_come_too_late(waiting: list[tuple[int, int, int, int]]) -> None:
    assert not passed_by_the_late(in_turn(waiting))


def test_that_property_catches_an_order_without_ageing(monkeypatch: pytest.MonkeyPatch) -> None:
    old_and_long, new_and_short = (200_000, 500, 4, 0), (0, 10, 1, 0)
    assert not passed_by_the_late(in_turn([old_and_long, new_and_short]))
    monkeypatch.setattr(standing, "effective_priority", lambda workload, now: workload.spec.priority)
    assert passed_by_the_late(in_turn([old_and_long, new_and_short]))


def last_come(self: Standing, workload: Workload) -> tuple[int, float, float, str]:
    return 0, -self.work_s(workload), workload.created_at, workload.uid


def always(chosen: Any, standing: Any) -> bool:
    return True


def trusted(workload: Any) -> bool:
    return True


def never_thrown_back(*_: Any) -> float:
    return -math.inf


TWO_THAT_WAIT = (Line(0.0, 500.0, 4), Line(100.0, 900.0, 4), Line(100.0, 300.0, 4))
GIVES_WAY = (Line(0.0, 100_000.0, 4), Line(1000.0, 60.0, 4))
# Two that hold a half each and have saved nothing, and one that needs all.
ALL_AT_ONCE = (Line(0.0, 10_000.0, 2), Line(0.0, 10_000.0, 2), Line(4000.0, 1500.0, 4))
TWICE = (*GIVES_WAY, Line(5000.0, 60.0, 4))
NARROW = (Line(0.0, 900.0, 4), Line(400.0, 50.0, 1))
HALF_IS_NEARLY_DONE = (Line(0.0, 500.0, 2), Line(0.0, 20_000.0, 2), Line(460.0, 100.0, 2))


def forget_what_was_done(spec: Training, attempt: int) -> SimulatedProgram:
    return SimulatedProgram(duration_s=float(spec.run), on_term=OnTerm.EXIT)


MUTANTS = (
    (order_world.all_come_to_their_end, order_world, "_behave", forget_what_was_done, GIVES_WAY),
    (order_world.the_shorter_starts_first, Standing, "precedence", last_come, TWO_THAT_WAIT),
    (order_world.less_is_waited_in_all, replacing, "pays", always, ALL_AT_ONCE),
    (order_world.nobody_is_put_back_by_more_than_is_left, replacing, "restart_s", never_thrown_back, NARROW),
    (order_world.who_saves_nothing_is_stopped_once, replacing, "can_resume", trusted, TWICE),
    (order_world.nobody_is_stopped_for_what_comes_soon, replacing, "RESTART_S", -math.inf, HALF_IS_NEARLY_DONE),
)


@pytest.mark.parametrize(("holds", "where", "what", "by", "lines"), MUTANTS)
def test_a_property_catches_its_mutant(
    holds: Any, where: Any, what: str, by: Any, lines: tuple[Line, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not list(holds(play(lines)))
    monkeypatch.setattr(where, what, by)
    assert list(holds(play(lines)))


def test_plans_differ_when_chance_decides_whose_turn_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(0)

    def by_chance(self: Standing, workload: Workload) -> tuple[int, float, float, str]:
        return 0, chance.random(), 0.0, ""

    lines = (Line(0.0, 500.0, 4), *(Line(100.0, 300.0, 4) for _ in range(6)))
    assert [each.plan for each in play(lines)] == [each.plan for each in play(lines)]
    monkeypatch.setattr(Standing, "precedence", by_chance)
    assert [each.plan for each in play(lines)] != [each.plan for each in play(lines)]


def test_a_long_run_gives_way_to_a_much_shorter_one_and_goes_on_where_it_was() -> None:
    decided = play(GIVES_WAY)
    ended = [
        (change.workload_uid, round(each.now - decided[0].now))
        for each in decided
        for change in each.plan.changes
        if change.status is not None and change.status.phase.is_final
    ]
    assert ended == [("00000002", 1060), ("00000001", 100_060)]


def wide_among_many() -> list[Decided]:
    """A gang for which nobody is worth stopping, while narrow runs come that always hold some of its room."""
    narrow = [Line(25.0 * number, 100.0, 1) for number in range(300)]
    return play([Line(30.0, 10.0, 4), *narrow])


def started_s(decided: Sequence[Decided], uid: str) -> float:
    """How long after the first decision it was placed."""
    placed = next(
        each.now for each in decided for change in each.plan.changes if change.workload_uid == uid and change.create
    )
    return placed - decided[0].now


def test_a_gang_for_which_nobody_is_worth_stopping_is_promised_room_when_its_waiting_makes_up_for_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decided = wide_among_many()
    wide = next(run.uid for each in decided for run in each.snapshot.workloads if run.spec.name == "job-a")
    patience_s = PATIENCE * 10.0
    assert patience_s < started_s(decided, wide) <= patience_s + ROUNDING_S
    monkeypatch.setattr(making_room.EvictionPass, "needs_no_promise", lambda self, workload: True)
    assert started_s(wide_among_many(), wide) > 1.5 * patience_s


def test_a_run_is_left_alone_that_would_lose_more_work_than_another_is_spared() -> None:
    lines = (Line(0.0, 8000.0, 4), Line(4000.0, 100.0, 4))
    phases = [change.status.phase for each in play(lines) for change in each.plan.changes if change.status is not None]
    assert Phase.STOPPING not in phases
