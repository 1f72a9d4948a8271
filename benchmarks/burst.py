"""Own machines first, the rest in the cloud: the cost of the cloud at the allowed average wait.

    python -m benchmarks.burst --data DIR [--json]

DIR holds load*.csv (job, arrival_h, runtime_h, gpus) and published.csv (load, policy, cloud_cost_usd, average_wait_h)
of Starburst's setting (Luo et al., USENIX ATC 2024): 4 nodes of 8 GPUs, $2.50 per GPU hour in the cloud, where a job
starts at once. The allowed average wait is that of the published policies at that load. `no-wait` sends every job that
cannot start at once to the cloud. `within 2x` knows run times within a random factor of two; its row is the mean of
five runs.
"""

import argparse
import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.data import folder_of
from fairlead.policy.fleet.bursting import Held, WaitingJob, Waits, book, choose_leaving

SIZES = (8, 8, 8, 8)
DOLLARS = 2.5
DRAWS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job as it is, and how long it is expected to run."""

    job: WaitingJob
    hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Cost of the cloud and average wait of all jobs."""

    cloud_cost_usd: float
    average_wait_h: float


def main(given: Sequence[str] | None = None) -> None:
    """Parse, replay, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=folder_of("starburst"), default=Path("../shared/traces/starburst"), help="folder of the traces"
    )
    parser.add_argument("--allowed", type=float, help="hours a job may wait on average (default: as published)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    arguments = parser.parse_args(given)
    published = read_published(arguments.data)
    files = sorted(arguments.data.glob("load*.csv"))
    if not files:
        parser.error(f"no traces (load*.csv) in {arguments.data}")
    for path in files:
        load = float(path.stem.removeprefix("load").split("_")[0].split("-")[0])
        known = published.get(load, {})
        if arguments.allowed is None and not known:
            parser.error(f"{path.name}: published.csv has no wait for a load of {load:g}; give --allowed")
        allowed = arguments.allowed or max(each.average_wait_h for each in known.values())
        arrivals = read_trace(path)
        _print(path.name, "fairlead", replay(arrivals, allowed), as_json=arguments.json)
        drawn = [replay(expected(arrivals, seed), allowed) for seed in range(DRAWS)]
        mean = Figures(
            cloud_cost_usd=float(np.mean([each.cloud_cost_usd for each in drawn])),
            average_wait_h=float(np.mean([each.average_wait_h for each in drawn])),
        )
        _print(path.name, "fairlead, within 2x", mean, as_json=arguments.json)
        _print(path.name, "no-wait", replay(arrivals, None), as_json=arguments.json)
        for policy, figures in known.items():
            _print(path.name, f"{policy} (published)", figures, as_json=arguments.json)


def read_trace(path: Path) -> list[Arrival]:
    """Jobs in the order in which they come, whose run times are known."""
    with path.open(newline="") as file:
        jobs = [
            WaitingJob(
                name=index,
                arrived_h=float(row["arrival_h"]),
                hours=float(row["runtime_h"]),
                units=int(row["gpus"]),
            )
            for index, row in enumerate(csv.DictReader(file))
        ]
    return [Arrival(job=job, hours=job.hours) for job in sorted(jobs, key=lambda job: (job.arrived_h, job.name))]


def read_published(data: Path) -> dict[float, dict[str, Figures]]:
    """The published policies by load."""
    found: dict[float, dict[str, Figures]] = {}
    if (data / "published.csv").exists():
        with (data / "published.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                figures = Figures(
                    cloud_cost_usd=float(row["cloud_cost_usd"]), average_wait_h=float(row["average_wait_h"])
                )  # fmt: skip
                found.setdefault(float(row["load"]), {})[row["policy"]] = figures
    return found


def expected(arrivals: Sequence[Arrival], seed: int) -> list[Arrival]:
    """The same jobs, whose run times are expected within a factor of two either way."""
    factors = np.exp(np.random.default_rng(seed).uniform(-math.log(2), math.log(2), len(arrivals)))
    return [
        replace(each, job=replace(each.job, hours=each.hours * float(factor)))
        for each, factor in zip(arrivals, factors, strict=True)
    ]


def replay(arrivals: Sequence[Arrival], allowed_h: float | None) -> Figures:
    """All jobs until the last has started; with no wait allowed what does not start at once goes away."""
    hours = {each.job.name: each.hours for each in arrivals}
    coming = list(reversed(arrivals))
    waiting: list[WaitingJob] = []
    running: list[tuple[float, Held]] = []  # real ends
    cost = waited_h = now = 0.0
    num_jobs = 0
    while coming or waiting:
        now = min([each.job.arrived_h for each in coming[-1:]] + [end for end, _ in running], default=now)
        running = [(end, held) for end, held in running if end > now + 1e-9]
        while coming and coming[-1].job.arrived_h <= now + 1e-9:
            waiting.append(coming.pop().job)
            num_jobs += 1
        held = [each for _, each in running]
        if allowed_h is None:
            gone = [each.job for each in book(waiting, held, now, sizes=SIZES) if each.start_h > now]
        else:
            waits = Waits(allowed_h=allowed_h, num_jobs=num_jobs, waited_h=waited_h)
            gone = choose_leaving(waiting, held, now, waits, sizes=SIZES)
        for job in gone:
            cost += DOLLARS * job.units * hours[job.name]
            waited_h += now - job.arrived_h
            waiting.remove(job)
        for each in book(waiting, held, now, sizes=SIZES):
            if each.start_h <= now:
                taken = Held(node=each.nodes[0], until_h=now + each.job.hours, units=each.job.units)
                running.append((now + hours[each.job.name], taken))
                waited_h += now - each.job.arrived_h
                waiting.remove(each.job)
    return Figures(cloud_cost_usd=cost, average_wait_h=waited_h / max(1, len(arrivals)))


def _print(file: str, policy: str, figures: Figures, *, as_json: bool) -> None:
    if as_json:
        row = {
            "file": file,
            "policy": policy,
            "cloud_cost_usd": round(figures.cloud_cost_usd, 2),
            "average_wait_h": round(figures.average_wait_h, 6),
        }
        print(json.dumps(row), flush=True)
        return
    print(f"{file:<16}{policy:<28}{figures.cloud_cost_usd:>10.2f}{figures.average_wait_h:>10.4f}", flush=True)


if __name__ == "__main__":
    main()
