"""Safety properties of the decisions, held against random runs, wishes, faults, crashes and clock jumps."""

import pytest
from hypothesis import HealthCheck, given, settings

from fairlead.policy import training
from tests.policy.properties import PROPERTIES
from tests.policy.scenarios import SCENARIOS, STEADY_SCENARIOS
from tests.policy.world import Scenario, play


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenario=SCENARIOS)
def test_every_property_holds_whatever_happens(scenario: Scenario) -> None:
    # One play for all of them: playing takes most of the time.
    world = play(scenario)
    broken = {holds.__name__: list(holds(world)) for holds in PROPERTIES}
    assert broken == {holds.__name__: [] for holds in PROPERTIES}


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenario=STEADY_SCENARIOS)
def test_every_property_holds_of_long_runs(scenario: Scenario) -> None:
    world = play(scenario)
    broken = {holds.__name__: list(holds(world)) for holds in PROPERTIES}
    assert broken == {holds.__name__: [] for holds in PROPERTIES}


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenario=SCENARIOS)
def test_passing_over_quiet_runs_and_those_that_only_wait_changes_no_plan(scenario: Scenario) -> None:
    world = play(scenario)
    whole = [decision for decision in world.decisions if decision.whole]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_is_quiet", lambda workload, pods: False)
        patch.setattr(training, "_only_waits", lambda workload: False)
        judged = [training.decide(decision.before, decision.now) for decision in whole]
    assert judged == [decision.plan for decision in whole]
