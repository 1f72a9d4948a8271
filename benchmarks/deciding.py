"""What one pass of the decision costs when nothing is to be done: `python -m benchmarks.deciding [RUNS]`.

So many runs of one pod each are running on a simulated cluster, and the decision looks at the same snapshot again and
again. CPU time of this thread, least of 50, so that a busy machine does not count.
"""

import sys
import time

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.programs import Program
from fairlead.control.loop import run_pass
from fairlead.policy.training import decide
from fairlead.specs.resources import Resources
from fairlead.specs.training import Training
from fairlead.state.snapshot import Node, Phase, Snapshot

REPEATS = 50
ON_A_NODE = 8


def main() -> None:
    num_runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    snapshot, now = _running(num_runs)
    times_s = []
    for _ in range(REPEATS):
        began = time.thread_time()
        plan = decide(snapshot, now)
        times_s.append(time.thread_time() - began)
        assert not plan.changes
    print(f"{num_runs} quiet running runs: {min(times_s) * 1e3:.3f} ms a pass")


def _running(num_runs: int) -> tuple[Snapshot, float]:
    """The snapshot of a cluster that is full of running runs, and its time."""
    nodes = [
        Node(name=f"node-{number}", cpu_milli=ON_A_NODE * 1000, memory_bytes=2**36)
        for number in range(-(-num_runs // ON_A_NODE))
    ]
    cluster = SimulatedCluster(nodes, lambda spec, attempt: Program(duration_s=1e6))
    for number in range(num_runs):
        cluster.submit(
            Training(name=f"run-{number}", run="work", ranks_per_node=1, resources=Resources(cpu_milli=1000))
        )
    while run_pass(cluster, cluster.clock.now()):
        cluster.advance(1.0)
    snapshot = cluster.snapshot()
    assert {workload.status.phase for workload in snapshot.workloads} == {Phase.RUNNING}
    return snapshot, cluster.clock.now()


if __name__ == "__main__":
    main()
