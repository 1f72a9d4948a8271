"""Runs move for a gang on a simulated cluster, through the real loop, from the stop notice to the last step."""

import pytest

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.faults import LoseNode
from fairlead.cluster.simulated.programs import OnTerm, SimulatedProgram, by_command
from fairlead.control.loop import run_pass
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training
from fairlead.state.scheduling_policy import DEFAULT, POLICIES, SchedulingPolicy
from fairlead.state.snapshot import Phase, Workload
from tests.builders import node, training

NODES = tuple(node(f"node-{number}", gpus=4, cpu_milli=64_000) for number in range(3))
PROGRAMS = {
    "filler": SimulatedProgram(duration_s=100.0),
    "saving": SimulatedProgram(duration_s=3000.0, step_s=1.0, checkpoint_s=10.0, on_term=OnTerm.CHECKPOINT, save_s=5.0),
    "wide": SimulatedProgram(duration_s=500.0),
}
BEHAVIOUR = by_command(PROGRAMS)


def run(name: str, program: str, gpus: int, nodes: int = 1) -> Training:
    return training(name, run=program, nodes=nodes, resources=Resources(gpu=GpuRequest(milli=1000 * gpus)))


def play(cluster: SimulatedCluster, seconds: float) -> None:
    """Passes of the loop until so much time has gone by."""
    end = cluster.clock.now() + seconds
    while cluster.clock.now() < end:
        while run_pass(cluster, cluster.clock.now()):
            assert_nothing_is_held_twice(cluster)
        cluster.wait(min(60.0, end - cluster.clock.now()))


def assert_nothing_is_held_twice(cluster: SimulatedCluster) -> None:
    live = [pod for pod in cluster.snapshot().pods if not pod.phase.is_final]
    held = [uuid for pod in live for uuid in pod.grant.gpu_uuids]
    assert len(held) == len(set(held))


def in_pieces(rules: SchedulingPolicy = DEFAULT) -> SimulatedCluster:
    """Two devices of each node are held by one that saves, and two are free."""
    cluster = SimulatedCluster(NODES, BEHAVIOUR, rules=rules)
    for number in range(3):
        cluster.submit(run(f"saving-{number}", "saving", 2))
        cluster.submit(run(f"filler-{number}", "filler", 2))
        play(cluster, 1.0)
    play(cluster, 120.0)
    assert {pod.node for pod in cluster.snapshot().pods} == {"node-0", "node-1", "node-2"}
    return cluster


def named(cluster: SimulatedCluster, name: str) -> Workload:
    return next(workload for workload in cluster.workloads() if workload.spec.name == name)


def moved(cluster: SimulatedCluster) -> list[Workload]:
    return [each for each in cluster.workloads() if each.status.migration.decided_at is not None]


def test_a_gang_gets_its_whole_node_and_whoever_moved_for_it_loses_no_step() -> None:
    cluster = in_pieces()
    cluster.submit(run("wide", "wide", 4))
    play(cluster, 20.0)
    assert named(cluster, "wide").status.phase is Phase.RUNNING
    (one,) = moved(cluster)
    assert one.status.phase is Phase.RUNNING
    began = one.status.migration.decided_at
    assert began is not None
    play(cluster, 5000.0)
    assert {each.status.phase for each in cluster.workloads()} == {Phase.SUCCEEDED}
    finished = named(cluster, one.spec.name).status.finished_at
    assert finished is not None
    # 3000 s of work from its first start, and the five in which it saved.
    assert finished - one.created_at == pytest.approx(3005.0, abs=1.0)
    types = [event.type for event in cluster.events(one.uid)]
    assert types == ["Submitted", "Starting", "Running", "Stopping", "Pending", "Starting", "Running", "Succeeded"]


def test_without_moves_it_waits_for_somebody_to_end() -> None:
    cluster = in_pieces(POLICIES["backfill"])
    cluster.submit(run("wide", "wide", 4))
    play(cluster, 1000.0)
    assert named(cluster, "wide").status.phase is Phase.PENDING
    assert moved(cluster) == []


def test_a_crash_in_the_middle_of_a_move_changes_nothing() -> None:
    cluster = in_pieces()
    cluster.submit(run("wide", "wide", 4))
    while run_pass(cluster, cluster.clock.now()):
        cluster = SimulatedCluster.load(cluster.save(), BEHAVIOUR)
    seats = moved(cluster)[0].status.migration.seats
    cluster.submit(run("beside", "wide", 2))
    cluster.submit(run("rival", "wide", 2))
    for _ in range(8):
        cluster = SimulatedCluster.load(cluster.save(), BEHAVIOUR)
        play(cluster, 1.0)
    (one,) = moved(cluster)
    assert one.status.phase is Phase.RUNNING
    assert [pod.node for pod in cluster.snapshot().pods if pod.workload_uid == one.uid] == [seats[0].node]
    assert named(cluster, "wide").status.phase is Phase.RUNNING
    assert named(cluster, "beside").status.phase is Phase.RUNNING
    assert named(cluster, "rival").status.phase is Phase.PENDING


def test_a_run_whose_new_place_dies_meanwhile_goes_on_where_there_is_room() -> None:
    cluster = in_pieces()
    cluster.submit(run("wide", "wide", 4))
    play(cluster, 1.0)
    (one,) = moved(cluster)
    cluster.inject(LoseNode(node=one.status.migration.seats[0].node))
    play(cluster, 5000.0)
    assert named(cluster, one.spec.name).status.phase is Phase.SUCCEEDED


def test_a_gang_of_two_nodes_has_two_freed_and_they_move_once() -> None:
    nodes = (*NODES, node("node-3", gpus=4, cpu_milli=64_000))
    cluster = SimulatedCluster(nodes, BEHAVIOUR)
    for number in range(4):
        cluster.submit(run(f"saving-{number}", "saving", 2))
        cluster.submit(run(f"filler-{number}", "filler", 2))
        play(cluster, 1.0)
    play(cluster, 120.0)
    cluster.submit(run("wide", "wide", 4, nodes=2))
    play(cluster, 20.0)
    assert named(cluster, "wide").status.phase is Phase.RUNNING
    assert len(moved(cluster)) == 2
    play(cluster, 600.0)
    cluster.submit(run("next", "wide", 4, nodes=2))
    play(cluster, 60.0)
    assert len(moved(cluster)) == 2
