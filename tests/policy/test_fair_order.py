"""Whose turn it is: guarantees, priority, age, shares, scavengers."""

from collections.abc import Mapping
from typing import Any

import pytest

from fairlead.policy.queue.ageing import AGEING_S
from fairlead.policy.queue.dominant_shares import Amounts, ClusterCapacity, dominant_share
from fairlead.policy.queue.fair_order import MOST_SAVED_S, OVERDUE_S, fairly, first_come
from fairlead.policy.queue.queue_score import Standing
from fairlead.policy.queue.quotas import Ledger, protected
from fairlead.policy.queue.remaining_work import Remaining
from fairlead.specs.resources import Resources
from fairlead.specs.team import Quota, Team
from fairlead.state.scheduling_policy import Order
from fairlead.state.snapshot import Completed, Intent, Workload
from tests.builders import status, training

BEGAN = 1_000_000_000.0
WHOLE = ClusterCapacity(cpu_milli=10_000, memory_bytes=100)


def run(name: str, *, cpu: int = 1000, waited_s: float = 0.0, age_s: float | None = None, **spec: Any) -> Workload:
    """A run that has waited so long, and was handed in then unless ``age_s`` says otherwise."""
    return Workload(
        uid=name,
        spec=training(name, resources=Resources(cpu_milli=cpu), **spec),
        intent=Intent.RUN,
        status=status(since=BEGAN - waited_s),
        version=1,
        created_at=BEGAN - (waited_s if age_s is None else age_s),
    )


def ledger(*holders: Workload, teams: tuple[Team, ...] = ()) -> Ledger:
    return Ledger.of(teams, WHOLE, holders)


def standing(order: Order = Order.FIRST_COME, completed: tuple[Completed, ...] = ()) -> Standing:
    return Standing(order=order, remaining=Remaining(completed), whole=WHOLE, now=BEGAN)


def order(*waiting: Workload, held: Ledger | None = None, debts: Mapping[str, float] | None = None) -> list[str]:
    return [each.uid for each in fairly(waiting, held or ledger(), standing(), debts=debts)[0]]


def test_priority_goes_first_then_age() -> None:
    runs = run("late", age_s=1), run("early", age_s=2), run("urgent", priority=3)
    assert order(*runs) == [each.uid for each in first_come(runs, ledger())] == ["urgent", "early", "late"]


def test_ten_minutes_of_waiting_are_worth_a_point_of_priority() -> None:
    urgent = run("urgent", priority=2)
    assert order(urgent, run("patient", waited_s=3 * AGEING_S)) == ["patient", "urgent"]
    assert order(urgent, run("hasty", waited_s=2 * AGEING_S - 1)) == ["urgent", "hasty"]


def test_among_teams_the_one_with_the_smallest_weighted_dominant_share_goes_first() -> None:
    held = ledger(run("held", cpu=4000, team="rich"), run("own", cpu=3000, team="poor"))
    rich, poor = run("a", team="rich", age_s=60), run("b", team="poor")
    assert order(rich, poor, held=held) == ["b", "a"]
    held = ledger(
        run("held", cpu=4000, team="rich"), run("own", cpu=3000, team="poor"), teams=(Team(name="rich", weight=2),)
    )
    assert order(rich, poor, held=held) == ["a", "b"]


def test_turns_alternate_as_shares_grow() -> None:
    runs = [run(f"{team}{n}", team=team, age_s=10 - n) for team in "ab" for n in range(3)]
    assert order(*runs) == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_priority_and_waiting_order_runs_of_a_team_and_never_teams() -> None:
    held = ledger(run("held", cpu=2000, team="rich"))
    rich = [run(f"rich{n}", team="rich", priority=1000 - n, waited_s=30 * OVERDUE_S) for n in range(3)]
    assert order(*reversed(rich), run("new", team="poor"), held=held) == ["new", "rich0", "rich1", "rich2"]


def test_a_priority_counts_among_teams_as_far_as_an_administrator_lets_it() -> None:
    held = ledger(run("held", cpu=2000, team="rich"), teams=(Team(name="rich", max_priority=10),))
    assert order(run("new", team="poor"), run("urgent", team="rich", priority=1000), held=held) == ["urgent", "new"]
    held = ledger(
        run("held", cpu=2000, team="rich"),
        teams=(Team(name="rich", max_priority=10), Team(name="poor", max_priority=11)),
    )
    new = run("new", team="poor", priority=11)
    assert order(run("urgent", team="rich", priority=1000), new, held=held) == ["new", "urgent"]


def test_who_asks_for_no_more_than_its_share_goes_before_who_asks_for_more() -> None:
    held = ledger(run("held", cpu=2000, team="a"))
    wide, within = run("wide", cpu=6000, team="b", age_s=60), run("within", cpu=3000, team="a")
    assert order(wide, within, held=held) == ["within", "wide"]
    assert order(wide, run("over", cpu=4000, team="a"), held=held) == ["wide", "over"]


def test_a_run_that_is_wider_than_its_teams_share_is_overdue_after_a_day() -> None:
    held, debts = ledger(run("held", cpu=100, team="a")), {"a": -OVERDUE_S}
    within = run("within", cpu=1000, team="b")
    early, late = (run("wide", cpu=9000, team="a", waited_s=OVERDUE_S - spared) for spared in (1, 0))
    assert order(early, within, held=held, debts=debts) == ["within", "wide"]
    assert order(late, within, held=held, debts=debts) == ["wide", "within"]


@pytest.mark.parametrize(
    ("limit_s", "saved_s"), [(None, 0.45 * OVERDUE_S), (9 * OVERDUE_S, 0.45 * OVERDUE_S), (3600.0, 0.45 * 3600.0)]
)
def test_no_run_is_overdue_before_its_team_has_saved_what_it_takes_from_the_others(
    limit_s: float | None, saved_s: float
) -> None:
    # Of nine tenths of the cluster, half is the other team's.
    wide = run("wide", cpu=9000, team="a", waited_s=99 * OVERDUE_S, max_duration_s=limit_s)
    within = run("within", cpu=1000, team="b")
    assert order(wide, within, debts={"a": -saved_s - 1.0}) == ["wide", "within"]
    assert order(wide, within, debts={"a": -saved_s + 1.0}) == ["within", "wide"]
    assert order(wide, within) == ["within", "wide"]
    held = ledger(run("held", cpu=5500, team="a"))
    assert order(wide, within, held=held, debts={"a": -saved_s - 1.0}) == ["within", "wide"]


def test_a_team_among_many_saves_no_more_than_two_weeks_of_its_share() -> None:
    others = [run(f"within-{number}", cpu=10, team=f"team-{number}") for number in range(49)]
    wide = run("wide", cpu=10_000, team="a", waited_s=99 * OVERDUE_S)
    assert order(wide, *others, debts={"a": -MOST_SAVED_S / 50 - 1.0})[0] == "wide"
    assert order(wide, *others, debts={"a": -MOST_SAVED_S / 50 + 1.0})[-1] == "wide"


def test_a_run_that_is_no_wider_than_its_teams_share_is_never_overdue() -> None:
    held = ledger(run("held", cpu=3000, team="a"))
    narrow, within = run("narrow", cpu=3000, team="a", waited_s=9 * OVERDUE_S), run("within", cpu=1000, team="b")
    assert order(narrow, within, held=held, debts={"a": -9e5}) == ["within", "narrow"]


def test_beyond_their_shares_the_team_with_the_smaller_debt_for_its_weight_goes_first() -> None:
    held = ledger(run("some", cpu=2000, team="a"), run("more", cpu=4000, team="b"))
    two = run("a", cpu=4000, team="a"), run("b", cpu=4000, team="b")
    assert order(*two, held=held) == ["a", "b"]
    assert order(*two, held=held, debts={"a": 60.0, "b": -60.0}) == ["b", "a"]
    heavy = ledger(run("some", cpu=5000, team="a"), run("more", cpu=5000, team="b"), teams=(Team(name="a", weight=3),))
    two = run("a", cpu=4000, team="a"), run("b", cpu=1000, team="b")
    assert order(*two, held=heavy, debts={"a": 60.0, "b": 30.0}) == ["a", "b"]
    assert order(*two, held=heavy, debts={"a": 60.0, "b": 10.0}) == ["b", "a"]


def test_a_debt_keeps_no_team_from_what_is_within_its_share() -> None:
    held = ledger(run("held", cpu=2000, team="b"))
    within, over = run("within", cpu=4000, team="a"), run("over", cpu=4000, team="b")
    assert order(over, within, held=held, debts={"a": 6e5, "b": -6e5}) == ["within", "over"]


def test_guaranteed_runs_and_scavengers_of_teams_alternate_too() -> None:
    teams = tuple(Team(name=name, guaranteed=Quota(cpu_milli=3000)) for name in "ab")
    runs = [run(f"{team}{n}", team=team, priority=1000 if team == "a" else 0, age_s=9 - n) for team in "ab"
            for n in range(2)]  # fmt: skip
    assert order(*runs, held=ledger(teams=teams)) == ["a0", "b0", "a1", "b1"]
    scavengers = [run(f"{team}{n}", team=team, priority=-1, age_s=9 - n) for team in "ab" for n in range(2)]
    assert order(*scavengers) == ["a0", "b0", "a1", "b1"]


def test_first_come_orders_teams_by_arrival_and_runs_of_a_team_by_priority() -> None:
    runs = [
        run("a-early", team="a", age_s=3),
        run("b", team="b", age_s=2),
        run("a-urgent", team="a", priority=9, age_s=1),
        run("c", team="c", priority=1000),
    ]
    assert [each.uid for each in first_come(runs, ledger())] == ["a-urgent", "b", "a-early", "c"]
    allowed = ledger(teams=(Team(name="c", max_priority=1),))
    assert [each.uid for each in first_come(runs, allowed)] == ["c", "a-urgent", "b", "a-early"]


def test_what_is_guaranteed_goes_before_any_priority_and_scavengers_last() -> None:
    teams = (Team(name="vision", guaranteed=Quota(cpu_milli=2000)),)
    runs = (
        run("scavenger", priority=-1, age_s=OVERDUE_S),
        run("urgent", priority=1000),
        run("owed", team="vision"),
        run("borrows", team="vision", cpu=1500, age_s=-1),
    )
    found, owed = fairly(runs, ledger(teams=teams), standing())
    assert [each.uid for each in found] == ["owed", "urgent", "borrows", "scavenger"]
    assert owed == {"owed"}


def test_a_guarantee_of_one_resource_is_no_claim_to_another() -> None:
    held = ledger(teams=(Team(name="vision", guaranteed=Quota(gpu_milli=8000)),))
    assert not held.is_owed(run("cores", cpu=1000, team="vision").spec)


def test_of_what_a_team_holds_the_oldest_within_its_guarantee_is_protected() -> None:
    teams = (Team(name="vision", guaranteed=Quota(cpu_milli=3000)),)
    runs = [run("old", cpu=2000, team="vision", age_s=9), run("new", cpu=2000, team="vision"), run("other")]
    assert protected(runs, teams, WHOLE, BEGAN) == {"old": 1}


def test_a_dominant_share_is_of_the_scarcest_resource() -> None:
    assert dominant_share(Amounts(cpu_milli=1000, memory_bytes=30), WHOLE) == 0.3
    assert dominant_share(Amounts(cpu_milli=1000, memory_bytes=30), WHOLE, 3) == pytest.approx(0.1)
    assert dominant_share(Amounts(gpu_milli=1000), WHOLE) == 0.0


def test_a_scavenger_counts_for_the_quota_and_not_for_the_share() -> None:
    teams = (Team(name="vision", quota=Quota(cpu_milli=2500)),)
    held = ledger(run("s", cpu=2000, team="vision", priority=-1), teams=teams)
    assert held.share("vision") == 0.0
    assert held.exceeds(run("more", cpu=1000, team="vision").spec) == "cpu_milli"
    assert held.exceeds(run("less", cpu=500, team="vision").spec) is None
