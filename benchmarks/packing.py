"""GPUs allocated when pods for 130 % of a real cluster's GPUs have arrived: ours beside FGD and best fit.

    python -m benchmarks.packing [--data DIR] [--workloads default,cpu250] [--seeds 42-46]
                                 [--policies fairlead,fgd,best-fit] [--departures] [--loads 0.85,0.95,1]
                                 [--jobs N] [--json]

The lists are those of Weng et al., "Beware of Fragmentation", USENIX ATC 2023 (Alibaba's cluster-trace-gpu-v2023: 1,213
nodes, 6,212 GPUs). Pods arrive in the published orders, none departs, and what fits nowhere is dropped. The peers are
replayed in this process by the same code on the same fleet; `published` is what their authors' scheduler reached, and
`ceiling` a linear relaxation with knowledge of all arrivals, computed once for seed 42 (it is printed, not computed).

`--departures` draws pods from the same lists as a Poisson stream instead, with exponential lifetimes, and prints the
GPU hours that found no room.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.openb import SEEDS, WORKLOADS, read_nodes, read_published, read_workload
from benchmarks.replaying import POLICIES, churn, fill, make_policy
from fairlead.policy.fleet import Fleet

DATA = Path("../shared/traces")
# Linear relaxation by class of node with exact patterns of shares; every pod that arrives before the cluster is as full
# as FGD leaves it is accepted. Seed 42.
CEILINGS = {
    "default": 96.47, "cpu050": 96.50, "cpu100": 96.48, "cpu200": 96.43, "cpu250": 96.47, "gpushare40": 95.12,
    "gpushare60": 92.74, "gpushare80": 90.87, "gpushare100": 88.65, "gpuspec10": 96.9, "gpuspec20": 97.2,
    "gpuspec25": 97.4, "gpuspec33": 97.7, "multigpu20": 96.96, "multigpu30": 97.33, "multigpu40": 97.82,
    "multigpu50": 98.05,
}  # fmt: skip
LOADS = (0.85, 0.95, 1.0)
NUM_PODS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One replay; ``load`` is None for one without departures."""

    workload: str
    seed: int
    policy: str
    load: float | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help=f"folder that holds openb/ (default {DATA})")
    parser.add_argument("--workloads", type=_words, default=None, help="lists, with commas (default all 17)")
    parser.add_argument(
        "--seeds", type=_numbers, default=SEEDS, help="arrival orders, as 42-46 or 42,44 (default 42-46)"
    )
    parser.add_argument("--policies", type=_words, default=POLICIES, help=f"default {','.join(POLICIES)}")
    parser.add_argument("--departures", action="store_true", help="pods leave; print the GPU hours that found no room")
    parser.add_argument(
        "--loads", type=_shares, default=LOADS, help="GPUs asked for with --departures (default 0.85,0.95,1)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line for each run")
    arguments = parser.parse_args()
    names = arguments.workloads or (("default",) if arguments.departures else WORKLOADS)
    problem = _problem(arguments.data, names, arguments.policies)
    if problem is not None:
        print(problem, file=sys.stderr)
        return 2
    loads: Sequence[float | None] = arguments.loads if arguments.departures else (None,)
    runs = [
        Run(workload=name, seed=seed, policy=policy, load=load)
        for name in names
        for load in loads
        for policy in arguments.policies
        for seed in arguments.seeds
    ]
    results: dict[Run, float] = {}
    for run, value in _carry_out(runs, arguments.data, arguments.jobs):
        results[run] = value
        if arguments.json:
            print(json.dumps(_line(run, value)), flush=True)
    if not arguments.json:
        _print_departures(results) if arguments.departures else _print_table(results, read_published(arguments.data))
    return 0


def measure(data: Path, run: Run) -> float:
    """GPUs allocated as a percentage; with departures, GPU hours refused as a percentage."""
    workload = read_workload(data, run.workload)
    fleet = Fleet(read_nodes(data))
    policy = make_policy(run.policy, fleet, workload, run.seed)
    if run.load is None:
        return fill(workload.arrivals(run.seed), fleet, policy)
    return churn(workload, run.load, NUM_PODS, run.seed, fleet, policy).refused_percent


def _carry_out(runs: Sequence[Run], data: Path, jobs: int) -> Iterable[tuple[Run, float]]:
    if jobs == 1:
        yield from ((run, measure(data, run)) for run in runs)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from zip(runs, pool.map(partial(measure, data), runs), strict=True)


def _line(run: Run, value: float) -> dict[str, str | int | float]:
    line: dict[str, str | int | float] = {"workload": run.workload, "seed": run.seed, "policy": run.policy}
    if run.load is None:
        return {**line, "allocated_percent": round(value, 4)}
    return {**line, "load": run.load, "refused_percent": round(value, 4)}


def _print_table(results: dict[Run, float], published: dict[tuple[str, str, int], float]) -> None:
    policies = list(dict.fromkeys(run.policy for run in results))
    names = list(dict.fromkeys(run.workload for run in results))
    seeds = sorted({run.seed for run in results})
    print(f"GPUs allocated at 130 % arrival, in %: mean and spread (lowest to highest) of {len(seeds)} arrival orders")
    head = "".join(f"{policy:>20}" for policy in policies)
    print(f"{'':<12}{head}{'FGD published':>15}{'FGD off by':>12}{'ceiling':>9}{'gap closed':>12}")
    means: dict[str, list[float]] = {policy: [] for policy in policies}
    for name in names:
        row = f"{name:<12}"
        mean: dict[str, float] = {}
        for policy in policies:
            values = [results[Run(workload=name, seed=seed, policy=policy)] for seed in seeds]
            mean[policy] = statistics.mean(values)
            means[policy].append(mean[policy])
            row += f"{mean[policy]:>7.2f} ({min(values):.2f}-{max(values):.2f})".rjust(20)
        known = [published[name, "fgd", seed] for seed in seeds if (name, "fgd", seed) in published]
        peer = statistics.mean(known) if known else None
        row += f"{peer:>15.2f}" if peer is not None else f"{'-':>15}"
        row += f"{mean['fgd'] - peer:>+12.2f}" if peer is not None and "fgd" in mean else f"{'-':>12}"
        row += f"{CEILINGS[name]:>9.2f}" if name in CEILINGS else f"{'-':>9}"
        if {"fairlead", "fgd"} <= mean.keys() and name in CEILINGS:
            row += f"{100 * (mean['fairlead'] - mean['fgd']) / (CEILINGS[name] - mean['fgd']):>10.0f} %"
        print(row)
    print(f"{'mean':<12}" + "".join(f"{statistics.mean(values):>20.2f}" for values in means.values()))


def _print_departures(results: dict[Run, float]) -> None:
    policies = list(dict.fromkeys(run.policy for run in results))
    print("GPU hours that found no room on arrival, in % of those asked for: mean over seeds")
    print(f"{'':<12}{'load':>6}" + "".join(f"{policy:>12}" for policy in policies))
    for name, load in dict.fromkeys((run.workload, run.load) for run in results):
        row = f"{name:<12}{load:>6}"
        for policy in policies:
            own = (v for run, v in results.items() if (run.workload, run.load, run.policy) == (name, load, policy))
            row += f"{statistics.mean(own):>12.3f}"
        print(row)


def _problem(data: Path, names: Sequence[str], policies: Sequence[str]) -> str | None:
    unknown = [policy for policy in policies if policy not in POLICIES]
    if unknown:
        return f"There is no policy {unknown[0]}; there are {', '.join(POLICIES)}."
    needed = [data / "openb" / "openb_node_list_gpu_node.csv"]
    needed += [data / "openb" / "pods" / f"{name}.csv" for name in names]
    needed += [data / "openb" / "arrival_orders" / f"{name}.csv.gz" for name in names]
    missing = [path for path in needed if not path.exists()]
    if not missing:
        return None
    return (
        f"{missing[0]} is not there; give --data the folder whose openb/ holds the lists of Alibaba's "
        "cluster-trace-gpu-v2023 and the arrival orders (github.com/alibaba/clusterdata)."
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def _shares(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in _words(text))


def _numbers(text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for word in _words(text):
        first, _, last = word.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


if __name__ == "__main__":
    sys.exit(main())
