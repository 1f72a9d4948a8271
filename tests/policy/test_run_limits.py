"""Limits of a team on the duration of its runs: a default, a maximum, and a refusal that says what is allowed."""

from dataclasses import replace

import pytest

from fairlead.policy.queue.run_limits import LimitedRuns, limited, refusal
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.engines import Engine
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.serving import Replica
from fairlead.specs.team import DurationLimits, Team
from fairlead.specs.workload import PIPELINE_VARIABLE
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Phase
from tests.builders import training
from tests.policy.test_scheduling import decided, look, told, waiting

DAY_S = 86_400.0
VISION = Team(name="vision", max_duration=DurationLimits(default_s=DAY_S, max_s=7 * DAY_S))


@pytest.mark.parametrize(
    ("limits", "own_s", "becomes_s"),
    [
        (DurationLimits(), None, None),
        (DurationLimits(default_s=60.0), None, 60.0),
        (DurationLimits(default_s=60.0, max_s=90.0), None, 60.0),
        (DurationLimits(max_s=90.0), None, 90.0),
        (DurationLimits(default_s=60.0, max_s=90.0), 80.0, 80.0),
    ],
)
def test_a_run_without_a_limit_gets_the_default_of_its_team_or_else_the_maximum(
    limits: DurationLimits, own_s: float | None, becomes_s: float | None
) -> None:
    spec = training("r", max_duration_s=own_s)
    assert limited(spec, Team(name="default", max_duration=limits)).max_duration_s == becomes_s
    assert limited(spec, None) is spec


def test_what_has_no_end_gets_no_limit() -> None:
    for spec in (
        Replica(name="a", service="a", run="serve"),
        replace(training("e"), engine=next(iter(Engine))),
    ):
        assert limited(spec, VISION) is spec


@pytest.mark.parametrize(
    ("limits", "becomes_s"),
    [
        (DurationLimits(), None),
        (DurationLimits(default_s=60.0), 600.0),
        (DurationLimits(default_s=60.0, max_s=90.0), 900.0),
    ],
)
def test_the_driver_of_a_pipeline_outlasts_ten_of_the_longest_runs_and_then_ends(
    limits: DurationLimits, becomes_s: float | None
) -> None:
    spec = training("driver", env={PIPELINE_VARIABLE: "x"})
    assert limited(spec, Team(name="default", max_duration=limits)).max_duration_s == becomes_s


def test_what_calls_itself_a_pipeline_and_holds_gpus_has_the_limit_of_its_team() -> None:
    spec = training("driver", env={PIPELINE_VARIABLE: "x"}, resources=Resources(gpu=GpuRequest(milli=8000)))
    assert limited(spec, VISION).max_duration_s == DAY_S


def test_a_run_that_asks_for_more_than_its_team_allows_is_refused_with_what_it_may_have() -> None:
    assert refusal(training("r", max_duration_s=7 * DAY_S), VISION) is None
    assert refusal(training("r"), VISION) is None
    long = waiting("long", 1, team="vision", max_duration_s=8 * DAY_S)
    new = replace(long.status, reason=Reason(code=Code.SUBMITTED, message="submitted"))
    snapshot = look((), replace(long, status=new), teams=(VISION,))
    reason = told(snapshot, "long")
    assert (reason.phase, reason.reason.code) == (Phase.FAILED, Code.CANNOT_FIT)
    assert reason.reason.message.startswith(
        "max_duration: 8d is more than team vision allows, which is 7d. Give at most `max_duration: 7d`"
    )
    assert decided(look((), waiting("short", 1, team="vision"), teams=(VISION,))) == {"short": "starts"}


def test_runs_keep_their_identity_until_they_or_their_team_change() -> None:
    runs, known = (waiting("a", 1, team="vision"), waiting("b", 1)), LimitedRuns()
    first = known.of(runs, (VISION,))
    assert [each.spec.max_duration_s for each in first] == [DAY_S, None]
    assert first[1] is runs[1]
    assert all(a is b for a, b in zip(first, known.of(runs, (VISION,)), strict=True))
    later = replace(VISION, max_duration=DurationLimits(default_s=60.0))
    assert [each.spec.max_duration_s for each in known.of(runs, (later,))] == [60.0, None]
    assert known.of(runs, ()) == runs


def test_a_default_above_the_maximum_is_refused() -> None:
    with pytest.raises(BrokenRules, match="longer than `max`"):
        DurationLimits(default_s=90.0, max_s=60.0)
