"""Accuracy of the simulation: the same runs on this machine and on the simulated one, side by side.

    python -m benchmarks.truth [--runs 30] [--seed 0] [--json]

The programs sleep for a second or two and request a part or all of this machine's cores, so that most have to wait. One
earlier run measures how long a start and the notice of an end take here; nothing else is fitted. The bars: the same
order of starts, and a makespan within 5 %.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control.simulation import World, simulate
from fairlead.policy.kinds.defaults import complete
from fairlead.specs.pool import Hardware, Pool
from fairlead.specs.resources import Resources
from fairlead.specs.simulation import Programs, Simulation
from fairlead.specs.training import Training
from fairlead.state.snapshot import Node, Phase
from fairlead.traces.arrivals import Arrival

TIMEOUT_S = 300.0
BAR = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One way through the list.

    Attributes:
        order: Names in the order of their starts.
        makespan_s: From the first arrival to the last end.
    """

    order: tuple[str, ...]
    makespan_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30, help="how many runs (default 30)")
    parser.add_argument("--seed", type=int, default=0, help="of their lengths, sizes and arrivals (default 0)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of sentences")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlead-benchmark-", ignore_cleanup_errors=True) as home:
        cluster = LocalCluster.open(Path(home))
        try:
            node = cluster.node()
            arrivals = make(arguments.runs, arguments.seed, node, Path(home))
            overhead_s = probe(cluster, Path(home))
            real = play(cluster, arrivals)
        finally:
            pid = cluster.supervisor_pid()
            cluster.close()
            if pid is not None:
                os.kill(pid, signal.SIGTERM)
    simulated = replay(arrivals, node, overhead_s)
    error = simulated.makespan_s / real.makespan_s - 1
    same = simulated.order == real.order
    if arguments.json:
        figures = {"real_s": real.makespan_s, "simulated_s": simulated.makespan_s, "error": error, "same_order": same}
        print(json.dumps({**figures, "overhead_s": overhead_s, "runs": arguments.runs, "seed": arguments.seed}))
        return
    print(f"start and end take {overhead_s * 1000:.0f} ms beside the program")
    print(f"makespan of {arguments.runs} runs: real {real.makespan_s:.2f} s, simulated {simulated.makespan_s:.2f} s")
    print(f"error {error:+.1%} (bar: {BAR:.0%}); order of starts {'the same' if same else 'DIFFERS'}")


def make(num_runs: int, seed: int, node: Node, workdir: Path) -> list[Arrival]:
    """Runs of 0.5 to 2.5 s on a quarter, half or all of the machine, arriving over the first seconds."""
    draw = random.Random(seed)
    arrivals = []
    for index in range(num_runs):
        duration_s = round(draw.uniform(0.5, 2.5), 2)
        cpu_milli = node.cpu_milli // draw.choice((1, 2, 4))
        resources = Resources(cpu_milli=cpu_milli)
        spec = Training(name=f"run-{index}", run=f"sleep {duration_s}", workdir=str(workdir), resources=resources)
        arrivals.append(Arrival(at_s=0.1 * index, duration_s=duration_s, spec=complete(spec, (node,)).spec))
    return arrivals


def probe(cluster: LocalCluster, workdir: Path) -> float:
    """Seconds that a run takes here beside its program."""
    spec = Training(name="probe", run="sleep 1", workdir=str(workdir), resources=Resources(cpu_milli=100))
    wait = cluster.submit(spec).uid
    cluster.nudge()
    until_final(cluster, [wait])
    # The first also started the supervisor; the second is like all that follow.
    second = cluster.submit(Training(name="probe-2", run="sleep 1", workdir=str(workdir), resources=spec.resources))
    cluster.nudge()
    until_final(cluster, [second.uid])
    at = {event.type: event.at for event in cluster.events(second.uid)}
    return at["Succeeded"] - at["Starting"] - 1.0


def play(cluster: LocalCluster, arrivals: list[Arrival]) -> Played:
    """For real."""
    began = time.time()
    uids = []
    for arrival in arrivals:
        time.sleep(max(0.0, began + arrival.at_s - time.time()))
        uids.append(cluster.submit(arrival.spec).uid)
        cluster.nudge()
    until_final(cluster, uids)
    starts = {event.run: event.at for event in reversed(cluster.events()) if event.type == Phase.STARTING}
    names = [arrival.spec.name for arrival in arrivals]
    ends = [cluster.store.get(uid).status.finished_at or 0.0 for uid in uids]
    return Played(order=tuple(sorted(names, key=starts.__getitem__)), makespan_s=max(ends) - began)


def replay(arrivals: list[Arrival], node: Node, overhead_s: float) -> Played:
    """The same on a node like this machine."""
    pool = Pool(name="here", hardware=Hardware(cpu_milli=node.cpu_milli, memory_bytes=node.memory_bytes))
    beside = Simulation(name="here", programs=Programs(start_up_s=overhead_s))
    outcome = simulate(arrivals, [pool], World(simulations=(beside,)))
    started = sorted(outcome.runs, key=lambda run: run.held[0][0])
    return Played(order=tuple(run.name for run in started), makespan_s=outcome.ended_s)


def until_final(cluster: LocalCluster, uids: list[str]) -> None:
    """Wait until all runs have ended."""
    deadline = time.monotonic() + TIMEOUT_S
    while not all(cluster.store.get(uid).status.phase.is_final for uid in uids):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the runs did not end within {TIMEOUT_S:.0f} s")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
