"""Safety properties of the decisions, held against random runs, wishes, faults, crashes and clock jumps."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from fairlead.cluster.simulated.programs import OnTerm, SimulatedProgram
from fairlead.policy import decide as deciding
from fairlead.specs.resources import Resources
from fairlead.specs.training import Retry
from fairlead.state.snapshot import Intent
from tests.builders import GIB, node
from tests.builders import training as training_of
from tests.policy.properties import PROPERTIES, a_stop_is_obeyed_within_its_grace, retries_are_bounded
from tests.policy.queue_properties import nobody_delays_the_first, preemption_pays
from tests.policy.scenarios import IN_PLACE_SCENARIOS, SCENARIOS, STEADY_SCENARIOS
from tests.policy.world import Harm, Job, Jump, Move, Scenario, Sleep, Submit, Suffer, Wait, Want, World, play


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


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenario=IN_PLACE_SCENARIOS)
def test_every_property_holds_of_gangs_that_go_on_in_place(scenario: Scenario) -> None:
    world = play(scenario)
    broken = {holds.__name__: list(holds(world)) for holds in PROPERTIES}
    assert broken == {holds.__name__: [] for holds in PROPERTIES}


def test_what_is_left_of_a_failed_gang_is_gone_within_a_grace_that_is_shorter_than_a_second() -> None:
    spec = training_of("train", nodes=2, resources=Resources(cpu_milli=500), grace_s=0.0, retry=Retry(infrastructure=0))
    program = SimulatedProgram(duration_s=900.0, checkpoint_s=5.0, on_term=OnTerm.CHECKPOINT, save_s=0.5)
    begun = Submit(0), Wait(0.0), Wait(0.0), Wait(0.0)
    moves = (*begun, Suffer(Harm.KILL_RANK, 0), Wait(0.0), Want(0, Intent.SUSPEND))
    scenario = Scenario(nodes=(node(),), jobs=(Job(spec=spec, programs=(program,)),), moves=moves)
    assert list(a_stop_is_obeyed_within_its_grace(play(scenario))) == []


def test_a_restarting_gang_whose_pod_is_told_to_be_unconfirmed_has_not_restarted_again() -> None:
    spec = training_of("train", stall_timeout_s=15.0, retry=Retry(infrastructure=1, max_backoff_s=4.0))
    program = SimulatedProgram(on_term=OnTerm.IGNORE)
    # By the loop's clock the run hangs, and its pod is overdue; then the clock is right again.
    moves = (Submit(0), Wait(0.0), Sleep(1.0), Jump(100.0), Wait(0.0), Wait(0.0), Jump(0.0), Sleep(30.0), Wait(0.0))
    world = play(Scenario(nodes=(node(),), jobs=(Job(spec=spec, programs=(program,)),), moves=moves))
    assert "EndUnconfirmed" in told(world)
    assert list(retries_are_bounded(world)) == []


def test_a_preempted_run_whose_pod_is_told_to_be_unconfirmed_is_not_preempted_again() -> None:
    scavenger = training_of("scavenger", run="scavenger", priority=-1, resources=Resources(cpu_milli=3000))
    urgent = training_of("urgent", run="urgent", resources=Resources(cpu_milli=3000))
    jobs = tuple(Job(spec=spec, programs=(SimulatedProgram(on_term=OnTerm.IGNORE),)) for spec in (scavenger, urgent))
    moves = (Submit(0), Wait(0.0), Sleep(1.0), Wait(0.0), Submit(1), Wait(0.0), Jump(100.0), Wait(0.0))
    world = play(Scenario(nodes=(node(),), jobs=jobs, moves=moves))
    assert {"Stopping", "EndUnconfirmed"} <= told(world)
    assert list(preemption_pays(world)) == []


def test_a_gang_that_shrank_takes_its_own_place_again_and_is_stopped_there_if_a_node_is_lost() -> None:
    def job(name: str, **changes: Any) -> Job:
        values = {"resources": Resources(cpu_milli=500), "grace_s": 0.0, "retry": Retry(infrastructure=0), **changes}
        return Job(spec=training_of(name, run=name, **values), programs=(SimulatedProgram(duration_s=60.0),))

    urgent = job("urgent", nodes=3, resources=Resources(cpu_milli=500, memory_bytes=GIB), priority=5)
    gang = job("gang", most_nodes=2, resources=Resources(cpu_milli=500, memory_bytes=3 * GIB))
    begun: tuple[Move, ...] = (Submit(1), Submit(2), Wait(0.0), Submit(0), Wait(0.0))
    scenario = Scenario(
        nodes=tuple(node(f"node-{number}", memory_bytes=4 * GIB) for number in range(2)),
        jobs=(urgent, job("other"), gang),
        moves=(*begun, Suffer(Harm.LOSE_NODE, 0), Sleep(0.0), *[Wait(0.0)] * 5),
    )
    world = play(scenario)
    assert list(nobody_delays_the_first(world)) == []
    starts = [
        (workload.spec.name, [order.node for order in change.create])
        for decision in world.decisions
        for workload, change in decision.done()
        if change.create and workload.spec.name != "other"
    ]
    assert starts[:3] == [("gang", ["node-1", "node-0"]), ("gang", ["node-1"]), ("urgent", ["node-1"] * 3)]


def told(world: World) -> set[str]:
    done = (change for decision in world.decisions for _, change in decision.done())
    return {change.event.type for change in done if change.event is not None}


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenario=SCENARIOS)
def test_passing_over_quiet_runs_and_those_that_only_wait_changes_no_plan(scenario: Scenario) -> None:
    world = play(scenario)
    whole = [decision for decision in world.decisions if decision.whole]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deciding, "_is_quiet", lambda workload, pods, now: False)
        patch.setattr(deciding, "only_waits", lambda workload: False)
        judged = [deciding.decide(decision.before, decision.now) for decision in whole]
    assert judged == [decision.plan for decision in whole]
