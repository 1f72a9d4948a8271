"""What is kept from pass to pass: it changes no plan, whatever has changed in between."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.policy.decide import decide
from fairlead.policy.placement.memo import cached_last
from fairlead.policy.placement.packed_capacity import PackedRooms
from fairlead.policy.placement.packing import Packing
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.placement.task_mix import TaskMix
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.state.plan import Plan
from fairlead.state.snapshot import Completed, Grant, Intent, Node, Snapshot, Workload
from tests.builders import node, status, training
from tests.policy import fleets
from tests.policy.scenarios import SCENARIOS
from tests.policy.world import Scenario, play

NOW = 1_000_000_100.0
Passes = Sequence[tuple[Snapshot, float]]


def waiting(name: str, gpus: int) -> Workload:
    spec = training(name, resources=Resources(gpu=GpuRequest(milli=1000 * gpus)))
    return Workload(uid=name, spec=spec, intent=Intent.RUN, status=status(), version=1, created_at=1_000_000_000.0)


ELSEWHERE = Snapshot(
    nodes=(node("elsewhere-0", gpus=8), node("elsewhere-1", gpus=8)),
    workloads=(waiting("wide", 8), waiting("narrow", 1), waiting("too-wide", 9)),
    pods=(),
    completed=tuple(Completed(team="default", name="elsewhere", took_s=took_s) for took_s in (1.0, 2.0, 3.0)),
)


def in_a_row(passes: Passes) -> list[Plan]:
    return [decide(snapshot, now) for snapshot, now in passes]


def each_anew(passes: Passes) -> list[Plan]:
    """The same with another cluster looked at in between, so that nothing is kept of the pass before."""
    plans = []
    for snapshot, now in passes:
        decide(ELSEWHERE, NOW)
        plans.append(decide(snapshot, now))
    return plans


def test_nothing_is_worked_out_again_for_what_equals_the_last_value() -> None:
    asked: list[tuple[int, ...]] = []

    @cached_last
    def total(numbers: tuple[int, ...]) -> int:
        asked.append(numbers)
        return sum(numbers)

    assert [total((1, 2)), total((1, 2)), total((3,)), total((1, 2))] == [3, 3, 3, 3]
    assert asked == [(1, 2), (3,), (1, 2)]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenario=SCENARIOS)
def test_what_is_kept_from_pass_to_pass_changes_no_plan(scenario: Scenario) -> None:
    decided = [decision for decision in play(scenario).decisions if decision.whole]
    passes = [(decision.before, decision.now) for decision in decided]
    assert each_anew(passes) == in_a_row(passes)


def test_that_property_catches_who_takes_nodes_of_one_name_for_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = (node("a", gpus=2), node("b", gpus=2))
    here = Snapshot(nodes=nodes, workloads=(waiting("run", 1),), pods=())
    broken = replace(here, nodes=tuple(replace(each, ready=False) for each in nodes))
    passes = [(here, NOW), (broken, NOW)]
    assert each_anew(passes) == in_a_row(passes)
    monkeypatch.setattr(Node, "__eq__", lambda one, other: one.name == other.name)
    assert each_anew(passes) != in_a_row(passes)


Requests = Sequence[tuple[Shape, int, bool]]
REQUESTS = st.lists(st.tuples(fleets.shapes(), st.integers(1, 3), st.booleans()), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(machines=fleets.nodes(), requests=REQUESTS)
def test_what_is_learnt_later_is_what_would_have_been_learnt_at_once(
    machines: tuple[Node, ...], requests: Requests
) -> None:
    later = learnt(machines, requests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Packing, "learn_later", Packing.learn)
        assert learnt(machines, requests) == later


def test_that_property_catches_who_never_learns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = (fleets.node("a", gpus=8, cores=64), fleets.node("b", gpus=8, cores=64))
    idler, large = fleets.shape(cores=40), fleets.shape(cores=1000)
    # Once a device is held it is time to learn, and nothing fits then but after the idler has left.
    requests = [(idler, 1, False), (fleets.shape(gpus=1), 1, False), (large, 1, False), (fleets.shape(), 1, True)]
    later = learnt(machines, requests)
    monkeypatch.setattr(Packing, "learn_later", lambda packing: None)
    assert learnt(machines, requests) != later


def learnt(machines: tuple[Node, ...], requests: Requests) -> tuple[object, ...]:
    """Where each goes, and what is learnt in the end; before some of them the first that is there leaves."""
    rooms = PackedRooms.of(machines, (), TaskMix.settled([(wanted, count) for wanted, count, _ in requests]))
    found, held = [], list[tuple[str, Grant]]()
    for wanted, count, first_leaves in requests:
        if first_leaves and held:
            rooms.hold(*held.pop(0), -1)
        found.append(rooms.place(wanted, count))
        held += found[-1] or ()
    rooms._packing.learn()
    return found, rooms._packing._cores_each
