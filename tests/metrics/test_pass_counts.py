"""Counts of what the loop decided: over a simulated run's life, and on their way to another process."""

import pytest

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.faults import LoseNode, ReturnNode
from fairlead.cluster.simulated.programs import SimulatedProgram
from fairlead.control.loop import run_pass
from fairlead.control.pass_counts import PassCounts
from tests.builders import node, training


def settle(cluster: SimulatedCluster, counts: PassCounts) -> None:
    while run_pass(cluster, cluster.clock.now(), counts):
        pass


def test_a_life_is_counted_and_what_was_dropped_is_not() -> None:
    cluster, counts = SimulatedCluster([node()], lambda spec, attempt: SimulatedProgram(duration_s=600.0)), PassCounts()
    cluster.submit(training("a", resources=training().resources))
    cluster.advance(30.0)
    settle(cluster, counts)
    assert (counts.placements, sum(counts.waits.counts), counts.waits.total) == (1, 1, 30.0)
    cluster.advance(60.0)
    settle(cluster, counts)
    cluster.inject(LoseNode(node="node-0"))
    settle(cluster, counts)
    cluster.inject(ReturnNode(node="node-0"))
    for _ in range(20):
        cluster.advance(120.0)
        settle(cluster, counts)
    assert sum(counts.restarts.values()) == 1
    assert counts.placements == 2
    assert dict(counts.finished) == {("Succeeded", "Completed"): 1}
    assert sum(counts.decisions.counts) > 5


def test_they_arrive_as_they_were() -> None:
    counts = PassCounts(placements=3)
    counts.waits.add(5.0)
    counts.decisions.add(0.02)
    counts.restarts["NodeLost"] += 2
    counts.finished["Failed", "OutOfMemory"] += 1
    assert PassCounts.loads(counts.dumps()) == counts
    with pytest.raises((ValueError, KeyError)):
        PassCounts.loads(b"{}")
