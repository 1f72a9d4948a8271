"""Replays of the openb lists by name, as chosen on the command line, in one process or several."""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.openb import read_nodes, read_workload
from benchmarks.replaying import POLICIES, churn, fill, make_policy
from fairlead.policy.placement.fleet_arrays import FleetArrays

DATA = Path("../shared/traces")
NUM_PODS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One replay; ``load`` is None for one without departures."""

    workload: str
    seed: int
    policy: str
    load: float | None = None


def parser_of(description: str | None, seeds: Sequence[int]) -> argparse.ArgumentParser:
    """The options that all replays have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help=f"folder that holds openb/ (default {DATA})")
    parser.add_argument("--workloads", type=words, default=None, help="lists, with commas")
    parser.add_argument("--seeds", type=_numbers, default=seeds, help="as 42-46 or 42,44")
    parser.add_argument("--policies", type=words, default=POLICIES, help=f"default {','.join(POLICIES)}")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line for each run")
    return parser


def carry_out(
    runs: Sequence[Run], arguments: argparse.Namespace, line: Callable[[Run, float], object]
) -> dict[Run, float]:
    """Each run with its figure; where JSON is asked for, a line as soon as one is known, in the order of the runs."""
    results: dict[Run, float] = {}
    for run, value in _figures(runs, arguments.data, arguments.jobs):
        results[run] = value
        if arguments.json:
            print(json.dumps(line(run, value)), flush=True)
    return results


def _figures(runs: Sequence[Run], data: Path, jobs: int) -> Iterable[tuple[Run, float]]:
    if jobs == 1:
        yield from ((run, measure(data, run)) for run in runs)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from zip(runs, pool.map(partial(measure, data), runs), strict=True)


def measure(data: Path, run: Run) -> float:
    """GPUs allocated as a percentage; with departures, GPU hours refused as a percentage."""
    workload = read_workload(data, run.workload)
    fleet = FleetArrays(read_nodes(data))
    policy = make_policy(run.policy, fleet, workload, run.seed)
    if run.load is None:
        return fill(workload.arrivals(run.seed), fleet, policy)
    return churn(workload, run.load, NUM_PODS, run.seed, fleet, policy).refused_percent


def problem(data: Path, names: Sequence[str], policies: Sequence[str]) -> str | None:
    """Why this cannot be replayed; None when it can."""
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


def words(text: str) -> tuple[str, ...]:
    """What is between commas."""
    return tuple(word for word in text.split(",") if word)


def _numbers(text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for word in words(text):
        first, _, last = word.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)
