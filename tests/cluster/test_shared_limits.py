"""Limits of a process that teams share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.prometheus import AT_ONCE, AT_ONCE_A_TEAM, PrometheusReader
from fairlead.control.metrics.readings import shown_runs
from fairlead.state.shared_limits import by_turns, fair_parts
from fairlead.state.snapshot import Intent, Snapshot, Workload
from tests.builders import status, training


def test_a_limit_is_taken_by_turns() -> None:
    items = ["a1", "a2", "a3", "b1", "a4", "c1", "b2"]
    assert by_turns(items, lambda item: item[0], 5) == ["a1", "b1", "c1", "a2", "b2"]
    assert sorted(by_turns(items, lambda item: item[0], 100)) == sorted(items)
    assert by_turns(items, lambda item: item[0], 0) == []


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(0.0, 1e6)), st.floats(0.0, 1e6))
def test_nobody_gets_more_than_it_wants_and_who_gets_less_has_no_less_than_any_other(
    wanted: dict[str, float], whole: float
) -> None:
    parts = fair_parts(wanted, whole)
    assert sum(parts.values()) == pytest.approx(min(whole, sum(wanted.values())), abs=1e-6)
    for team, part in parts.items():
        assert part <= wanted[team]
        assert part == wanted[team] or part >= max(parts.values()) * (1 - 1e-9)


def waiting(name: str, team: str, created_at: float) -> Workload:
    return Workload(
        uid=name, spec=training(name, team=team), intent=Intent.RUN, status=status(), version=1, created_at=created_at
    )


def test_many_runs_of_one_team_leave_the_others_their_metrics() -> None:
    runs = [waiting(f"r{number}", "many", float(number)) for number in range(20)]
    runs.append(waiting("late", "few", 100.0))
    shown, left_out = shown_runs(Snapshot(nodes=(), pods=(), workloads=tuple(runs)), 10)
    assert (len(shown), left_out) == (10, 11)
    assert "late" in [run.spec.name for run in shown]


def test_servers_of_one_team_that_do_not_answer_leave_the_others_their_queries() -> None:
    reader = PrometheusReader(lambda query: 1.0)
    places = [reader._take_place("hostile") for _ in range(AT_ONCE)]
    assert [bool(place) for place in places] == [True] * AT_ONCE_A_TEAM + [False] * (AT_ONCE - AT_ONCE_A_TEAM)
    assert reader._take_place("other")
    for place in places[0]:
        place.release()
    assert reader._take_place("hostile")
