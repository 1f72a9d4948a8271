"""Whose turn it is: guarantees, priority, age, shares, scavengers."""

from typing import Any

import pytest

from fairlead.policy.queue.ageing import AGEING_S
from fairlead.policy.queue.dominant_shares import Amounts, Capacity, dominant_share
from fairlead.policy.queue.fair_order import FAIR_S, fairly, first_come
from fairlead.policy.queue.queue_score import Standing
from fairlead.policy.queue.quotas import Ledger, protected
from fairlead.policy.queue.remaining_work import Remaining
from fairlead.specs.resources import Resources
from fairlead.specs.team import Quota, Team
from fairlead.state.scheduling_policy import Order
from fairlead.state.snapshot import Completed, Intent, Workload
from tests.builders import status, training

BEGAN = 1_000_000_000.0
WHOLE = Capacity(cpu_milli=10_000, memory_bytes=100)


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


def order(*waiting: Workload, held: Ledger | None = None) -> list[str]:
    return [each.uid for each in fairly(waiting, held or ledger(), standing())[0]]


def test_priority_goes_first_then_age() -> None:
    runs = run("late", age_s=1), run("early", age_s=2), run("urgent", priority=3)
    assert order(*runs) == [each.uid for each in first_come(runs)] == ["urgent", "early", "late"]


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


def test_a_team_that_holds_everything_waits_no_more_than_a_day_longer() -> None:
    held = ledger(run("held", cpu=10_000, team="rich"))
    newcomer = run("new", team="poor")
    assert order(run("old", team="rich", waited_s=FAIR_S - AGEING_S), newcomer, held=held) == ["new", "old"]
    assert order(run("old", team="rich", waited_s=FAIR_S + AGEING_S), newcomer, held=held) == ["old", "new"]


def test_what_is_guaranteed_goes_before_any_priority_and_scavengers_last() -> None:
    teams = (Team(name="vision", guaranteed=Quota(cpu_milli=2000)),)
    runs = (
        run("scavenger", priority=-1, age_s=FAIR_S),
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
