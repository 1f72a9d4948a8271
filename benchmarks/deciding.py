"""The cost of one decision pass when nothing is to be done: `python -m benchmarks.deciding [RUNS [WAITING]]`.

So many runs of one pod each are running on a simulated cluster, and the decision is repeated on the same snapshot; then
with other runs pending, half of them with a `max_duration`. CPU time of this thread, the least of 50 and of 5 passes,
so that other load does not count.
"""

import sys
import time

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.programs import SimulatedProgram
from fairlead.control.loop import run_pass
from fairlead.policy.decide import decide
from fairlead.specs.resources import Resources
from fairlead.specs.training import Training
from fairlead.state.snapshot import Node, Phase

REPEATS = 50
ON_A_NODE = 8


def main() -> None:
    num_runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    num_waiting = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    cluster = _running(num_runs)
    quiet_s = _least_s(cluster, REPEATS)
    print(f"{num_runs} quiet running runs: {quiet_s * 1e3:.3f} ms a pass")
    for number in range(num_waiting):
        limit_s = 3600.0 * (1 + number % 7) if number % 2 else None
        cluster.submit(_spec(f"waiting-{number}", 1000 * (1 + number % 5), limit_s))
    while run_pass(cluster, cluster.clock.now()):
        cluster.advance(1.0)
    waiting_s = _least_s(cluster, REPEATS // 10)
    print(f"{num_runs} running runs and {num_waiting} that wait: {waiting_s * 1e3:.1f} ms a pass")


def _least_s(cluster: SimulatedCluster, repeats: int) -> float:
    """CPU seconds of a decision that changes nothing."""
    snapshot, now = cluster.snapshot(), cluster.clock.now()
    times_s = []
    for _ in range(repeats):
        began = time.thread_time()
        plan = decide(snapshot, now)
        times_s.append(time.thread_time() - began)
        assert not plan.changes
    return min(times_s)


def _running(num_runs: int) -> SimulatedCluster:
    """A cluster that is full of running runs."""
    nodes = [
        Node(name=f"node-{number}", cpu_milli=ON_A_NODE * 1000, memory_bytes=2**36)
        for number in range(-(-num_runs // ON_A_NODE))
    ]
    cluster = SimulatedCluster(nodes, lambda spec, attempt: SimulatedProgram(duration_s=1e6))
    for number in range(num_runs):
        cluster.submit(_spec(f"run-{number}", 1000, None))
    while run_pass(cluster, cluster.clock.now()):
        cluster.advance(1.0)
    assert {workload.status.phase for workload in cluster.snapshot().workloads} == {Phase.RUNNING}
    return cluster


def _spec(name: str, cpu_milli: int, limit_s: float | None) -> Training:
    resources = Resources(cpu_milli=cpu_milli)
    return Training(name=name, run="work", ranks_per_node=1, resources=resources, max_duration_s=limit_s)


if __name__ == "__main__":
    main()
