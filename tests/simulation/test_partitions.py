"""Nodes of a simulated cluster that are partitioned anew: nobody's work is lost, and everybody gets a turn."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.faults import PartitionNode
from fairlead.control import simulation
from fairlead.control.simulation import World, simulate
from fairlead.specs.pool import GpuLayout, Hardware, Partitions, Pool, PoolGpu
from fairlead.specs.sharing import Sharing
from fairlead.specs.simulation import Failures, Programs
from fairlead.state.partitions import PartitionAction, PartitionStep
from fairlead.state.snapshot import Phase
from fairlead.traces.arrivals import Arrival
from tests.simulation.test_incremental_passes import compared
from tests.simulation.worlds import run, world

LAYOUTS = {
    "all-1g.5gb": GpuLayout(instances={"1g.5gb": "7"}),
    "all-3g.20gb": GpuLayout(instances={"3g.20gb": "2"}),
    "all-disabled": GpuLayout(),
}
A100 = PoolGpu(model="A100", memory_bytes=40 * 10**9)
SAVES = World(simulations=world(programs=Programs(step_s=5.0, checkpoint_every_s=120.0)).simulations)


def a_pool(nodes: int, gpu: PoolGpu = A100) -> Pool:
    hardware = Hardware(cpu_milli=64_000, memory_bytes=2**38, gpu=gpu)
    return Pool(name="p", nodes=nodes, hardware=hardware, partitions=Partitions(layouts=LAYOUTS, reconfigure_s=120.0))


def part(name: str, at_s: float, duration_s: float, gpus: float = 0.14) -> Arrival:
    made = run(name, at_s, duration_s, gpus=gpus)
    return replace(made, spec=replace(made.spec, resources=replace(made.spec.resources, sharing=(Sharing.MIG,))))


@contextmanager
def watched(*faults: tuple[float, PartitionNode]) -> Iterator[list[SimulatedCluster]]:
    """The clusters of simulations, in which these faults happen."""
    made: list[SimulatedCluster] = []

    class Watched(SimulatedCluster):
        def partition(self, pool_of: dict[str, Pool]) -> None:  # type: ignore[override]
            super().partition(pool_of)
            made.append(self)
            for at_s, fault in faults:
                self.inject(fault, at=self.clock.now() + at_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "SimulatedCluster", Watched)
        yield made


def steps_of(cluster: SimulatedCluster) -> list[tuple[str, PartitionAction, str]]:
    return [(step.node, step.action, step.to) for _, step in cluster.partition_steps]


def there_and_back(steps: list[tuple[float, PartitionStep]], node: str) -> list[PartitionAction]:
    return [step.action for _, step in steps if step.node == node]


def test_a_run_saves_leaves_its_part_for_a_whole_gpu_and_goes_on_from_its_checkpoint() -> None:
    arrivals = [part("small", 0.0, 4000.0), run("large", 400.0, 3000.0, gpus=1)]
    with watched() as made:
        outcome = simulate(arrivals, [a_pool(1)], SAVES)
    (cluster,) = made
    forth = [("p-0", action, "all-1g.5gb") for action in ("Cordon", "Relabel", "Uncordon")]
    assert steps_of(cluster)[:3] == forth
    assert ("p-0", PartitionAction.CORDON, "all-disabled") in steps_of(cluster)
    assert {each.phase for each in outcome.runs} == {Phase.SUCCEEDED}
    small = next(each for each in outcome.runs if each.name == "small")
    assert len(small.held) == 2  # it was stopped once
    assert sum(until - since for since, until in small.held) < 4000.0 + 60.0
    assert sum(pod.redone_s for pod in outcome.pods) == 0.0


def test_a_layout_that_fails_is_given_up_for_the_one_before() -> None:
    with watched((200.0, PartitionNode(node="p-0", layout="all-1g.5gb", works=False))) as made:
        outcome = simulate([part("small", 0.0, 600.0)], [a_pool(1)], SAVES)
    actions = there_and_back(list(made[0].partition_steps), "p-0")
    assert actions[:4] == [
        PartitionAction.CORDON, PartitionAction.RELABEL, PartitionAction.REVERT, PartitionAction.UNCORDON,
    ]  # fmt: skip
    # Its other layouts do for it too.
    assert [each.phase for each in outcome.runs] == [Phase.SUCCEEDED]


def test_shares_by_the_device_plugin_are_changed_in_the_same_way() -> None:
    layouts = {"shared": GpuLayout(replicas=4), "whole": GpuLayout()}
    pool = replace(a_pool(1), partitions=Partitions(layouts=layouts, reconfigure_s=60.0))
    arrivals = [run(f"r{n}", 0.0, 600.0, gpus=0.25) for n in range(4)] + [run("large", 3000.0, 600.0, gpus=1)]
    arrivals = [
        replace(each, spec=replace(each.spec, resources=replace(each.spec.resources, sharing=(Sharing.TIME_SLICING,))))
        if each.spec.name != "large"
        else each
        for each in arrivals
    ]
    with watched() as made:
        outcome = simulate(arrivals, [pool], SAVES)
    assert {each.phase for each in outcome.runs} == {Phase.SUCCEEDED}
    assert [to for _, action, to in steps_of(made[0]) if action is PartitionAction.UNCORDON] == ["shared", "whole"]


@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1000), breaks=st.booleans())
def test_whoever_asks_for_whatever_part_ends_and_each_pass_is_the_one_from_scratch(seed: int, breaks: bool) -> None:
    """Nobody starves; no node takes a step out of its order; and no run is on a device that its node has not."""
    chance = random.Random(seed)
    arrivals = [
        part(f"r{n}", chance.randrange(6000), chance.choice((300.0, 1800.0)), chance.choice((0.14, 0.4)))
        if chance.random() < 0.7
        else run(f"r{n}", chance.randrange(6000), chance.choice((600.0, 3600.0)), gpus=1)
        for n in range(10)
    ]
    failures = Failures(mtbf_s=10_000.0, repair_s=600.0) if breaks else None
    assumed = world(failures=failures, programs=Programs(step_s=5.0, checkpoint_every_s=120.0), seed=seed)
    with compared(), watched() as made:
        outcome = simulate(arrivals, [a_pool(2)], assumed)
    assert {each.phase for each in outcome.runs} == {Phase.SUCCEEDED}
    following = {
        None: {PartitionAction.CORDON},
        PartitionAction.CORDON: {PartitionAction.RELABEL, PartitionAction.GIVE_UP},
        PartitionAction.RELABEL: {PartitionAction.UNCORDON, PartitionAction.REVERT},
        PartitionAction.REVERT: {PartitionAction.UNCORDON},
        PartitionAction.UNCORDON: {PartitionAction.CORDON},
        PartitionAction.GIVE_UP: {PartitionAction.CORDON},
    }
    for node in ("p-0", "p-1"):
        actions = there_and_back(list(made[0].partition_steps), node)
        pairs = zip([None, *actions], actions, strict=False)
        assert all(after in following[before] for before, after in pairs), actions
