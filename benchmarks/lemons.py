"""Jobs on a cluster of which a few nodes fail again and again: what is lost, and which nodes are taken out.

    python -m benchmarks.lemons [--seeds 0-3] [--policies none,default,...] [--known 70,30] [--days 120] [--json]

The cluster, its failures and its jobs have the published figures of Kokolis et al., "Revisiting Reliability in
Large-Scale Machine Learning Research Clusters" (HPCA 2025): 6.5 failures in 1,000 node days, 1.2 % of the nodes cause
most of them (here: one failure in 2.5 days, of another node one in 560), others become such; large jobs have 64 nodes
or more and run 5.6 hours on average. A job needs 10 minutes to restart and saves every hour; a node that is taken out
is away for 5 days, and nine of ten are healthy then. Of `--known` percent of the failures the node is known. The jobs
are placed by `decide`, in the simulation of `fairlead simulate`.

Policies: `none` knows no risk; `placement` only places by it; `strikes` only takes out nodes with three known failures
in 28 days; `oracle` takes out every unreliable node at once, by what only the simulation knows; `default` is the
product's. `strikes` and `oracle` replace `withdrawals` of `decide` here.

Columns: the share of large jobs that failed at least once, the useful share of their time and of all jobs' time, how
many nodes were taken out, how many of these were not unreliable, and the share of the cluster's time for which nodes
were out.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import product
from unittest.mock import patch

from fairlead.cluster.simulated.node_failures import Weather
from fairlead.control.outcomes import Outcome
from fairlead.control.simulation import World, simulate
from fairlead.specs.pool import Hardware, Pool, PoolGpu
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.simulation import Failures, Lemons, Programs, Simulation
from fairlead.specs.training import Retry, Training
from fairlead.state.node_health import NodeHistory, NodeWithdrawal
from fairlead.state.scheduling_policy import SchedulingPolicy
from fairlead.state.snapshot import Snapshot
from fairlead.traces.arrivals import Arrival

DAY_S = 86400.0
NODES, LARGE = 1176, 64
POLICIES = {
    "none": SchedulingPolicy(places_by_risk=False, withdraws_nodes=False),
    "strikes": SchedulingPolicy(places_by_risk=False),
    "placement": SchedulingPolicy(withdraws_nodes=False),
    "oracle": SchedulingPolicy(places_by_risk=False),
    "default": SchedulingPolicy(),
}
MOST_STRIKES, STRIKES_DAYS = 3, 28.0
SIZES = ((64, 0.30), (128, 0.25), (256, 0.10), (16, 0.15), (8, 0.10), (4, 0.10))
"""Nodes of a job, and the part of the work that such jobs are."""
LARGE_S, SMALL_S = 5.6 * 3600.0, 12 * 3600.0
"""Mean seconds of work of a job."""
LOAD = 0.85
"""The work of all jobs as a part of what the nodes could do."""


def main(given: Sequence[str] | None = None) -> None:
    """Parse, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=_seeds, default=[0], help="one seed, or a range A-B (default 0)")
    parser.add_argument("--policies", default="none,strikes,placement,oracle,default", help=", ".join(POLICIES))
    parser.add_argument("--known", default="70", help="percent of failures of which the node is known; several: 70,30")
    parser.add_argument("--days", type=float, default=120.0, help="days of arrivals (default 120)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    arguments = parser.parse_args(given)
    if not arguments.json:
        print("policy     seed known failed %   ETTR goodput  out wrong away %     s")
    policies = arguments.policies.split(",")
    for policy in policies:
        if policy not in POLICIES:
            parser.error(f"no policy is named {policy}; there are {', '.join(POLICIES)}")
    for known, policy in product(map(float, arguments.known.split(",")), policies):
        for seed in arguments.seeds:
            began = time.process_time()
            row = measured(policy, seed, known=known / 100, days=arguments.days)
            row["cpu_s"] = round(time.process_time() - began, 1)
            if arguments.json:
                print(json.dumps(row), flush=True)
            else:
                print(
                    f"{policy:<10} {seed:>4} {known:>4.0f}% {row['failed_large_pct']:>8} {row['large_ettr']:>6} "
                    f"{row['goodput']:>7} {row['taken_out']:>4} {row['wrongly']:>5} {row['capacity_out_pct']:>6} "
                    f"{row['cpu_s']:>5}",
                    flush=True,
                )


def measured(policy: str, seed: int, *, known: float = 0.7, days: float = 120.0) -> dict[str, object]:
    """Simulate one policy with one seed, and return the row."""
    hardware = Hardware(cpu_milli=96_000, memory_bytes=1 << 40, gpu=PoolGpu(model="H100", count=8))
    pool = Pool(name="gpus", nodes=NODES, hardware=hardware)
    failures = Failures(
        mtbf_s=560 * DAY_S, repair_s=600.0, known=known, lemons=Lemons(mtbf_s=2.5 * DAY_S, share=0.012, yearly=0.036)
    )
    programs = Programs(start_up_s=600.0, checkpoint_every_s=3600.0, checkpoint_s=10.0)
    world = World(simulations=(Simulation(name="lemons", failures=failures, programs=programs),), seed=seed)
    with ExitStack() as stack:
        if policy == "strikes":
            stack.enter_context(patch("fairlead.policy.decide.withdrawals", _by_strikes))
        elif policy == "oracle":
            nodes: list[Weather] = []
            stack.enter_context(patch("fairlead.cluster.simulated.environment.Weather", _remembering(nodes)))
            stack.enter_context(patch("fairlead.policy.decide.withdrawals", _knowing(nodes)))
        outcome = simulate(tuple(jobs(seed, days)), (pool,), world, rules=POLICIES[policy])
    return {"policy": policy, "seed": seed, "known_pct": round(100 * known), **figures(outcome)}


def _by_strikes(snapshot: Snapshot, now: float) -> tuple[NodeWithdrawal, ...]:
    """Return the nodes with so many known failures in a window, whatever they cost."""
    return tuple(
        NodeWithdrawal(node=history.node, why="strikes")
        for history in snapshot.node_health.values()
        if history.out is None and _num_known(history, now) >= MOST_STRIKES
    )


def _num_known(history: NodeHistory, now: float) -> int:
    earliest = max(history.since, now - STRIKES_DAYS * DAY_S)
    return sum(failure.share == 1.0 and failure.at >= earliest for failure in history.recent)


def _remembering(nodes: list[Weather]) -> Callable[..., Weather]:
    def create(*parts: object, **named: object) -> Weather:
        nodes.append(Weather(*parts, **named))  # type: ignore[arg-type]
        return nodes[-1]

    return create


def _knowing(nodes: list[Weather]) -> Callable[[Snapshot, float], tuple[NodeWithdrawal, ...]]:
    def withdrawn(snapshot: Snapshot, now: float) -> tuple[NodeWithdrawal, ...]:
        health = snapshot.node_health
        return tuple(
            NodeWithdrawal(node=name, why="unreliable")
            for name in sorted(nodes[-1].lemons)
            if (history := health.get(name)) is None or history.out is None
        )

    return withdrawn


def figures(outcome: Outcome) -> dict[str, object]:
    """Return the figures of a row."""
    large = [run for run in outcome.runs if run.num_gpus >= 8 * LARGE]
    useful, held = (sum(getattr(run.spent, what) for run in large) for what in ("useful", "allocated"))
    all_useful, all_held = (sum(getattr(run.spent, what) for run in outcome.runs) for what in ("useful", "allocated"))
    ends = [(out.since, outcome.ended_s if out.until is None else out.until) for out in outcome.taken_out]
    return {
        "failed_large_pct": round(100 * sum(run.num_failures > 0 for run in large) / len(large), 2),
        "large_ettr": round(useful / held, 4),
        "goodput": round(all_useful / all_held, 4),
        "taken_out": len(outcome.taken_out),
        "wrongly": sum(not out.is_lemon for out in outcome.taken_out),
        "capacity_out_pct": round(100 * sum(b - a for a, b in ends) / (outcome.num_nodes * outcome.ended_s), 3),
    }


def jobs(seed: int, days: float) -> Iterator[Arrival]:
    """Yield jobs of all sizes, each size at exponentially distributed times, with lognormal durations."""
    for num_nodes, part in SIZES:
        mean_s = LARGE_S if num_nodes >= LARGE else SMALL_S
        every_s = num_nodes * mean_s / (part * LOAD * NODES)
        draw = random.Random(f"{seed}/{num_nodes}")
        at_s, number = draw.expovariate(1 / every_s), 0
        while at_s < days * DAY_S:
            spec = Training(
                name=f"job-{num_nodes}-{number}",
                run="train",
                nodes=num_nodes,
                resources=Resources(gpu=GpuRequest(milli=8000)),
                retry=Retry(infrastructure=100, backoff_s=1.0),
            )
            yield Arrival(at_s=at_s, duration_s=mean_s * draw.lognormvariate(-0.5, 1.0), spec=spec)
            at_s, number = at_s + draw.expovariate(1 / every_s), number + 1


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


if __name__ == "__main__":
    main()
