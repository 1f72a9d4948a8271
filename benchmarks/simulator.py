"""The cost of a simulation: `python -m benchmarks.simulator [--data DIR] [--runs N] [--gpus N] [--load X] [--json]`.

`--backlog N` stands for `--runs N --gpus 8`, which leaves a queue of hundreds of runs throughout.

That many runs, with run times drawn from Microsoft's Philly cluster (philly_runtime.csv in DIR, seconds, one a line),
arrive at random on nodes of 8 GPUs, through the loop and the decisions of every cluster. Three quarters request one
GPU, the others up to 16. Load is the requested share of the capacity, in GPU seconds; at 1 and above a queue forms. CPU
time of this process.
"""

import argparse
import json
import math
import random
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fairlead.control.outcomes import summary
from fairlead.control.simulation import World, declared, simulate
from fairlead.specs.pool import Hardware, Pool, PoolGpu
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training
from fairlead.state.scheduling_policy import POLICIES
from fairlead.traces.arrivals import Arrival

GPUS_PER_NODE = 8
# GPUs of a run, and how many of 100 runs ask for them.
SIZES = ((1, 75), (2, 8), (4, 9), (8, 6), (16, 2))
TEAMS = 10


def main(given: Sequence[str] | None = None) -> None:
    """Parse, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/traces"), help="folder with philly_runtime.csv")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--gpus", type=int, default=2_500)
    parser.add_argument("--backlog", type=int, help="so many runs on a single node of 8 GPUs")
    parser.add_argument("--load", type=float, default=0.95)
    parser.add_argument("--longest", type=float, help="leave out run times of more hours than these")
    parser.add_argument("--declare", type=float, help="max_duration of each run, by its duration times this")
    parser.add_argument("--policy", choices=tuple(POLICIES), default="default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of words")
    arguments = parser.parse_args(given)
    if arguments.backlog is not None:
        arguments.runs, arguments.gpus = arguments.backlog, GPUS_PER_NODE
    path = arguments.data / "philly_runtime.csv"
    if not path.exists():
        parser.error(f"there is no {path}; give the folder of the public traces with --data")
    longest_s = math.inf if arguments.longest is None else 3600.0 * arguments.longest
    run_times_s = [each for each in read_run_times(path) if each <= longest_s]
    arrivals, pools = trace(run_times_s, arguments.runs, arguments.gpus, arguments.load, arguments.seed)
    if arguments.declare is not None:
        arrivals = declared(arrivals, arguments.declare, World())
    last = time.monotonic()
    began = time.process_time()

    def report(ended: int, seconds: float) -> None:
        nonlocal last
        if time.monotonic() - last > 10 and sys.stderr.isatty():
            last = time.monotonic()
            print(f"{ended} ended, day {seconds / 86400:.1f}, {time.process_time() - began:.0f} s", file=sys.stderr)

    outcome = simulate(arrivals, pools, World(), rules=POLICIES[arguments.policy], report=report)
    cpu_s = time.process_time() - began
    figures = summary(outcome)
    row = {
        "runs": arguments.runs,
        "gpus": sum(pool.nodes * GPUS_PER_NODE for pool in pools),
        "load": arguments.load,
        "policy": arguments.policy,
        "cpu_s": round(cpu_s, 1),
        "ms_a_run": round(1000 * cpu_s / arguments.runs, 3),
        "decisions": outcome.num_decisions,
        "days": round(outcome.ended_s / 86_400, 2),
        "average_wait_s": round(figures.whole.average_wait_s or 0.0, 1),
        "p99_wait_s": round(figures.whole.p99_wait_s or 0.0, 1),
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(row) if arguments.json else row, flush=True)


def read_run_times(path: Path) -> list[float]:
    """Seconds, of which lines that say nothing and runs that took no time are left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(float(line))
        except ValueError:
            continue
    return [each for each in found if each >= 1.0]


def trace(
    run_times_s: Sequence[float], num_runs: int, num_gpus: int, load: float, seed: int
) -> tuple[tuple[Arrival, ...], tuple[Pool, ...]]:
    """Runs in the order of their arrival, and the nodes."""
    chance = random.Random(seed)
    nodes = -(-num_gpus // GPUS_PER_NODE)
    took = [chance.choice(run_times_s) for _ in range(num_runs)]
    sizes = chance.choices([size for size, _ in SIZES], [weight for _, weight in SIZES], k=num_runs)
    work = sum(s * t for s, t in zip(sizes, took, strict=True))
    rate = num_runs / (work / (nodes * GPUS_PER_NODE * load))
    arrivals, at = [], 0.0
    for number, (took_s, size) in enumerate(zip(took, sizes, strict=True)):
        at += chance.expovariate(rate)
        members = max(1, size // GPUS_PER_NODE)
        spec = Training(
            name=f"run-{number}",
            team=f"team-{chance.randrange(TEAMS)}",
            run="replayed",
            nodes=members,
            resources=Resources(gpu=GpuRequest(milli=1000 * (size // members)), cpu_milli=4000 * (size // members)),
        )
        arrivals.append(Arrival(at_s=at, duration_s=took_s, spec=spec))
    pool = Pool(
        name="gpus",
        nodes=nodes,
        hardware=Hardware(cpu_milli=64_000, memory_bytes=2**39, gpu=PoolGpu(model="V100", count=GPUS_PER_NODE)),
    )
    return tuple(arrivals), (pool,)


if __name__ == "__main__":
    main()
