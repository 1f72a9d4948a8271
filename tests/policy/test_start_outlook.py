"""The queue as people see it: turns, expected starts, and why nothing is known of one."""

import pytest

from fairlead.policy import start_outlook
from fairlead.policy.decide import decide
from fairlead.policy.start_outlook import outlook
from fairlead.specs.team import Quota, Team
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Phase, Snapshot
from tests.builders import node
from tests.policy.test_scheduling import NOW, look, running, waiting


def queued(snapshot: Snapshot) -> list[tuple[str, float | None, str]]:
    return [
        (each.run.uid, None if each.start is None else each.start - NOW, each.unknown)
        for each in outlook(snapshot, NOW).queue
    ]


def test_runs_are_in_their_turns_with_the_starts_that_are_known() -> None:
    held = (running("half", "n0", range(4), max_duration_s=1600.0),)
    snapshot = look(
        held,
        waiting("late", 4, age_s=1, max_duration_s=100.0),
        waiting("early", 4, age_s=9, max_duration_s=100.0),
        waiting("urgent", 4, priority=10, max_duration_s=100.0),
        nodes=(node("n0", gpus=4, cpu_milli=64_000),),
    )
    assert queued(snapshot) == [("urgent", 631.0, ""), ("early", 762.0, ""), ("late", 893.0, "")]


def test_what_starts_at_the_next_pass_starts_now() -> None:
    (free,) = queued(look((), waiting("free", 4)))
    assert free == ("free", 0.0, "")
    assert outlook(look((), waiting("free", 4)), NOW).statuses["free"].phase is Phase.STARTING


def test_who_holds_room_for_nobody_knows_how_long_is_named() -> None:
    held = (
        running("x1", "n0", range(4), max_duration_s=None),
        running("x2", "n1", range(2)),
        running("short", "n1", range(2, 4), max_duration_s=2000.0),
    )
    snapshot = look(held, waiting("first", 4, age_s=9), waiting("next", 1))
    assert queued(snapshot) == [
        ("first", None, "x1, x2 have no max_duration"),
        ("next", None, "the start of first, which is before it, is not known"),
    ]


def test_what_fits_no_node_that_is_there_says_so() -> None:
    (there,) = queued(look((), waiting("wide", 4), nodes=(node("n0", gpus=4, cpu_milli=64_000, ready=False),)))
    assert there == ("wide", None, "no node accepts such a pod now")


def test_runs_of_a_team_that_holds_all_it_may_come_last() -> None:
    teams = (Team(name="full", quota=Quota(gpu_milli=1000)),)
    held = (running("its", "n0", range(1), team="full"),)
    snapshot = look(held, waiting("more", 1, age_s=99, team="full"), waiting("other", 2), teams=teams)
    assert outlook(snapshot, NOW).statuses["more"].reason.code is Code.OVER_QUOTA
    assert queued(snapshot) == [("other", 0.0, ""), ("more", None, "its team is at its quota")]


def test_who_waits_behind_another_is_told_its_name_when_somebody_asks() -> None:
    held = (running("half", "n0", range(4), max_duration_s=1600.0),)
    snapshot = look(
        held,
        waiting("late", 4, age_s=1),
        waiting("urgent", 4, priority=10),
        nodes=(node("n0", gpus=4, cpu_milli=64_000),),
    )
    (kept,) = [each for each in decide(snapshot, NOW).changes if each.workload_uid == "late"]
    assert kept.status is not None
    assert "behind runs that come before it" in kept.status.reason.message
    told = outlook(snapshot, NOW).statuses["late"].reason
    assert told.message == "waits its turn behind urgent, which has a higher priority and does not fit yet"
    assert told.remedy is not None
    assert told.remedy.startswith("A higher `priority` than 10 would put it first.")


def test_a_forecast_at_which_fairlead_fails_leaves_the_decisions_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    held = (running("half", "n0", range(4), max_duration_s=1600.0),)
    snapshot = look(held, waiting("late", 4), nodes=(node("n0", gpus=4, cpu_milli=64_000),))
    expected = outlook(snapshot, NOW)
    monkeypatch.setattr(start_outlook, "queue", failing)
    shown = outlook(snapshot, NOW)
    assert (shown.statuses, shown.held) == (expected.statuses, expected.held)
    problem = "Fairlead failed while it forecast starts, an error to report: TypeError: poison"
    assert (shown.problem, queued(snapshot)) == (problem, [("late", None, problem)])


def test_a_pass_at_which_fairlead_fails_costs_its_statuses_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = look((), waiting("free", 4))
    monkeypatch.setattr(start_outlook, "decide", failing)
    shown = outlook(snapshot, NOW)
    assert shown.statuses == {}
    assert shown.problem == "Fairlead failed while it simulated the next pass, an error to report: TypeError: poison"
    assert [expected.run.uid for expected in shown.queue] == ["free"]


def failing(*_: object) -> None:
    raise TypeError("poison")
