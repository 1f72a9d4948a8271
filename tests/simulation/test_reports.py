"""Reports that are kept for the web page: few, small, and as the simulation found them."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.local.home import Home
from fairlead.control.outcomes import averaged, summary, thinned
from fairlead.control.simulation import simulate
from fairlead.control.simulation_figures import Result
from fairlead.control.simulation_reports import (
    MOST_POINTS,
    MOST_POOLS,
    MOST_REPORTS,
    MOST_TEAMS,
    keep_report,
    read_report,
    report_names,
    report_of,
)
from fairlead.errors import ClusterError, NotFound
from fairlead.state.scheduling_policy import POLICIES
from fairlead.traces.arrivals import Arrival
from tests.simulation.worlds import pool, run


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(tmp_path / "home")


def results(arrivals: Sequence[Arrival], *policies: str, num_pools: int = 1) -> list[Result]:
    pools = [pool(f"p{number}") for number in range(num_pools)]
    found = [(name, simulate(arrivals, pools, rules=POLICIES[name])) for name in policies]
    return [(name, outcome, summary(outcome)) for name, outcome in found]


FEW = [run("first", 0, 3600), run("second", 0, 7200, team="u"), run("third", 60, 60)]


def test_a_report_is_read_as_it_was_kept(home: Home) -> None:
    found = results(FEW, "fifo", "default")
    report = report_of("a trace", ["--declare 2"], found, time.time())
    assert read_report(home, keep_report(home, report)) == report
    (first, _) = report.policies
    assert first.summary == found[0][2]
    # Eight GPUs for an hour and the minute of the third, which is two thirds of a stretch, and four for the other hour.
    assert [round(level, 3) for _, level in first.gpus_held] == [8.0] * 40 + [6.667] + [4.0] * 39
    assert first.waits[-1] == (3540.0, 1.0)


def test_the_newest_reports_are_kept_and_no_other_file_is_removed(home: Home) -> None:
    home.simulations.mkdir()
    (home.simulations / "mine.json").write_text("{}")
    found = results(FEW, "fifo")
    names = [
        keep_report(home, report_of(f"{number}", [], found, 1000.0 + number)) for number in range(MOST_REPORTS + 3)
    ]
    assert report_names(home) == names[:2:-1]
    assert (home.simulations / "mine.json").exists()
    # The clock went back: the report is older than all others, and kept all the same.
    latest = keep_report(home, report_of("earlier", [], found, 1.0))
    assert report_names(home) == [*names[:3:-1], latest]
    assert (home.simulations / f"{latest}.json").stat().st_mode & 0o077 == 0


def test_drafts_of_those_that_were_killed_do_not_stay(home: Home) -> None:
    found = results(FEW, "fifo")
    home.simulations.mkdir()
    for name, at in (("old", 1000.0), ("new", 9000.0)):
        draft = home.simulations / f"{name}.json.1.tmp"
        draft.write_text("{")
        os.utime(draft, (at, at))
    keep_report(home, report_of("a", [], found, 10_000.0))
    assert [each.name for each in home.simulations.glob("*.tmp")] == ["new.json.1.tmp"]


def test_a_report_of_many_runs_teams_and_pools_is_small(home: Home) -> None:
    arrivals = [run(f"r{number}", 60.0 * number, 600, team=f"t{number % 100}") for number in range(800)]
    report = report_of("many", [], results(arrivals, "fifo", num_pools=50), time.time())
    (only,) = report.policies
    assert (only.num_teams, len(only.summary.teams)) == (100, MOST_TEAMS)
    assert (only.num_pools, len(only.summary.pools)) == (50, MOST_POOLS)
    assert max(map(len, (only.gpus_held, only.runs_waiting, only.waits))) <= MOST_POINTS
    assert (home.simulations / f"{keep_report(home, report)}.json").stat().st_size < 64 * 1024


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=20), st.integers(1, 9))
def test_averages_have_the_same_sum_and_no_stretch_more_than_its_highest_level(
    changes: list[tuple[int, int]], num: int
) -> None:
    levels = dict(sorted(changes))
    steps = [(float(at), float(level)) for at, level in levels.items()]
    span = 60.0
    found = averaged(steps, span, num)
    exact = [max((at, level) for at, level in [(-1, 0), *levels.items()] if at <= second)[1] for second in range(60)]
    assert len(found) == num
    assert sum(level for _, level in found) * span / num == pytest.approx(sum(exact))
    assert all(level <= max(exact) + 1e-9 for _, level in found)
    if 60 % num == 0:
        width = 60 // num
        means = [sum(exact[place * width : (place + 1) * width]) / width for place in range(num)]
        assert [level for _, level in found] == pytest.approx(means)


def test_no_time_has_no_level() -> None:
    assert averaged([(0.0, 3.0)], 0.0, 2) == [(0.0, 0.0), (0.0, 0.0)]


def test_fewer_steps_keep_the_highest_level_and_how_it_ends() -> None:
    steps = [(float(at), 9.0 if at == 777 else at % 3.0) for at in range(1000)]
    fewer = thinned(steps, 10)
    assert len(fewer) == 10
    assert [each for each in fewer if each[1] > 2.0] == [(777.0, 9.0)]
    assert fewer[-1] == steps[-1]
    assert thinned(steps, 1000) == steps


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"version": 2}', '{"version": 1, "policies": 3}'])
def test_a_damaged_report_is_named_with_a_remedy(home: Home, content: str) -> None:
    name = keep_report(home, report_of("a", [], results(FEW, "fifo"), time.time()))
    (home.simulations / f"{name}.json").write_text(content)
    with pytest.raises(ClusterError, match=r"\.json cannot be read: .*Remove the file"):
        read_report(home, name)


@pytest.mark.parametrize("name", ["1700000000000-abcdef", "../secret", "", "mine"])
def test_a_report_that_is_not_there_is_not_found(home: Home, name: str) -> None:
    home.simulations.mkdir()
    (home.path / "secret.json").write_text("{}")
    with pytest.raises(NotFound, match="There is no report"):
        read_report(home, name)
