"""Safety properties of the decisions, held against random runs, wishes, faults, crashes and clock jumps."""

from hypothesis import HealthCheck, given, settings

from tests.policy.properties import PROPERTIES
from tests.policy.scenarios import SCENARIOS
from tests.policy.world import Scenario, play


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenario=SCENARIOS)
def test_every_property_holds_whatever_happens(scenario: Scenario) -> None:
    # One play for all of them: playing takes most of the time.
    world = play(scenario)
    broken = {holds.__name__: list(holds(world)) for holds in PROPERTIES}
    assert broken == {holds.__name__: [] for holds in PROPERTIES}
