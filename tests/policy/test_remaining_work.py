"""How much is left of a run: by its spec, its own steps, or what others of its name took."""

from typing import Any

import pytest

from fairlead.policy.queue.remaining_work import Remaining
from fairlead.state.snapshot import Completed, Intent, Phase, Progress, Status, Workload
from tests.builders import status, training

NOW = 1_000_000_000.0


def run(state: Status | None = None, progress: Progress | None = None, **spec: Any) -> Workload:
    return Workload(
        uid="a",
        spec=training("train-7", **spec),
        intent=Intent.RUN,
        status=state or status(),
        version=1,
        created_at=NOW,
        progress=progress,
    )


def since(seconds: float, **changes: Any) -> Status:
    return status(Phase.RUNNING, since=NOW - seconds, **changes)


def took(*seconds: float, name: str = "train-1") -> tuple[Completed, ...]:
    return tuple(Completed(team="default", name=name, took_s=each) for each in seconds)


def left_s(workload: Workload, *completed: Completed) -> float | None:
    return Remaining(completed).left_s(workload, NOW)


def test_of_a_run_that_waits_all_of_what_was_declared_is_left() -> None:
    assert left_s(run(expected_duration_s=3600.0)) == 3600.0


def test_what_it_has_run_is_not_left_whether_before_its_last_stop_or_since() -> None:
    assert left_s(run(since(600.0, ran_s=1000.0), expected_duration_s=3600.0)) == 2000.0


def test_steps_tell_better_than_the_time_that_it_has_run() -> None:
    half = Progress(step=50, total_steps=100)
    assert left_s(run(since(600.0), half, expected_duration_s=3600.0)) == 1800.0


def test_a_run_that_takes_longer_than_declared_has_something_left() -> None:
    found = left_s(run(since(4000.0), expected_duration_s=3600.0))
    assert found is not None
    assert 0.0 < found < 3600.0


def test_without_a_declaration_the_pace_of_its_steps_tells() -> None:
    assert left_s(run(since(600.0), Progress(step=25, total_steps=100))) == pytest.approx(1800.0)


def test_its_first_steps_tell_nothing() -> None:
    assert left_s(run(since(600.0), Progress(step=1, total_steps=100))) is None


def test_others_of_its_name_tell_when_three_have_succeeded() -> None:
    assert left_s(run(), *took(100.0, 100.0)) is None
    found = left_s(run(), *took(100.0, 100.0, 100.0))
    assert found is not None
    assert found == pytest.approx(100.0, rel=0.5)


def test_runs_of_other_names_tell_nothing_of_how_long_it_takes() -> None:
    assert left_s(run(), *took(100.0, 100.0, 100.0, name="eval")) is None


def test_a_limit_says_nothing_of_how_long_it_takes() -> None:
    assert left_s(run(max_duration_s=60.0)) is None


def test_an_elastic_gang_has_done_more_on_more_nodes() -> None:
    wide = run(since(600.0, nodes=4), nodes=2, most_nodes=4, expected_duration_s=3600.0)
    assert left_s(wide) == 2400.0
