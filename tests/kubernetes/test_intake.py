"""New workloads of a team are taken in by turns, so that no number of them makes a pass long."""

from dataclasses import replace
from typing import Any

from fairlead.cluster.kubernetes.operator.intake import MOST_NEW, take_in
from fairlead.state.reasons import JUST_SUBMITTED, Code, Reason
from fairlead.state.snapshot import Snapshot, Workload
from tests.policy.test_scheduling import look, waiting


def new(name: str, number: int, team: str, **changes: Any) -> Workload:
    run = waiting(name, 1, team=team, **changes)
    return replace(run, created_at=float(number), status=replace(run.status, reason=JUST_SUBMITTED))


def shown(snapshot: Snapshot) -> list[str]:
    return [run.spec.name for run in snapshot.workloads]


def test_a_team_that_submits_thousands_has_so_many_taken_in_and_another_team_all() -> None:
    hostile = [new(f"h{number}", number, "hostile") for number in range(1_000)]
    snapshot, behind = take_in(look((), *hostile, new("other", 2_000, "other")))
    assert shown(snapshot) == [*(f"h{number}" for number in range(MOST_NEW)), "other"]
    assert behind == {"hostile"}


def test_a_high_priority_has_its_turn_first() -> None:
    runs = [new(f"h{number}", number, "a") for number in range(MOST_NEW)]
    snapshot, _ = take_in(look((), *runs, new("urgent", 2_000, "a", priority=5)))
    assert "urgent" in shown(snapshot)
    assert f"h{MOST_NEW - 1}" not in shown(snapshot)


def test_what_was_decided_once_stays_and_so_do_children() -> None:
    known = [
        replace(run, status=replace(run.status, reason=Reason(code=Code.WAITING_FOR_RESOURCES, message="full")))
        for run in (new(f"k{number}", number, "a") for number in range(500))
    ]
    children = [replace(new(f"c{number}", number, "a"), parent="sweep") for number in range(500)]
    snapshot = look((), *known, *children)
    assert take_in(snapshot) == (snapshot, frozenset())
