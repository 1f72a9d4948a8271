"""Forecasts of when runs end, on public traces: how often their bounds hold, and the error of the median.

    python -m benchmarks.forecasts [--data DIR] [--traces trace1,trace3,...] [--runs N] [--json]

Each run of a trace is asked about as `fairlead status` does it, by the same function: at its start, and while it runs
after ten minutes, an hour and six hours. What is known then are the 500 runs that were over last, as a cluster tells
them, and how long others run already; no run says how long it takes, and none waits. Runs are of the kind of their
model where the trace names one. Where too little is known nothing is said. The error is that of the middle, in percent
of the run's whole length: the mean is ruled by a few that last minutes where others last days, so the median stands
beside it.
"""

import argparse
import csv
import json
import statistics
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.data import folder_of
from fairlead.policy.queue.run_forecast import forecast
from fairlead.specs.training import Training
from fairlead.state.reasons import JUST_SUBMITTED
from fairlead.state.snapshot import Completed, Intent, Phase, Snapshot, Status, Workload
from fairlead.traces.reading import read_trace

MOST_COMPLETED = 500
AGES_S = (0.0, 600.0, 3600.0, 21_600.0)
MURI = ("trace1", "trace1_pr", "trace3", "trace3_pr")
STARBURST = ("load0.75", "load1", "load1.5")


@dataclass(frozen=True, slots=True)
class Job:
    """A run of a trace, in seconds."""

    at_s: float
    took_s: float
    run: Workload
    over: Completed


@dataclass(frozen=True, slots=True)
class Figures:
    """Forecasts of runs of one age; ``said`` of ``asked`` were answered, and ``held`` of these held."""

    trace: str
    age_s: float
    asked: int
    said: int
    held: int
    error_percent: float
    median_error_percent: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/traces"), help="where the public traces are")
    parser.add_argument("--traces", default=",".join((*MURI, *STARBURST)), help="which of them, by commas")
    parser.add_argument("--runs", type=int, default=1500, help="at most so many of each (default 1500)")
    parser.add_argument("--json", action="store_true", help="a line for each trace and age")
    arguments = parser.parse_args()
    found: list[Figures] = []
    for name in arguments.traces.split(","):
        try:
            jobs = read(arguments.data, name)[: arguments.runs]
        except FileNotFoundError as error:
            print(f"{error.filename} is not there: name the folder of the traces by --data", file=sys.stderr)
            return 2
        for age_s in AGES_S:
            found.append(measure(name, jobs, age_s))
            if arguments.json:
                print(json.dumps({field: getattr(found[-1], field) for field in Figures.__slots__}), flush=True)
    if not arguments.json:
        print(f"{'trace':<12}{'age':>8}{'asked':>8}{'said':>8}{'held':>8}{'mean error':>12}{'median':>9}")
        for each in found:
            print(row(each.trace, f"{each.age_s / 60:.0f} min", (each,)))
        print(row("all", "", found))
    return 0


def read(data: Path, name: str) -> list[Job]:
    """The runs of a trace, as they were submitted."""
    if name in STARBURST:
        path = folder_of("starburst")(str(data)) / f"{name}.csv"
        with path.open() as file:
            rows = [(float(row["arrival_h"]) * 3600, float(row["runtime_h"]) * 3600) for row in csv.DictReader(file)]
        return sorted((_job(at_s, took_s, "job") for at_s, took_s in rows), key=lambda job: job.at_s)
    path = folder_of("muri")(str(data)) / f"{name}.csv"
    with path.open() as file:
        models = [row["model_name"] for row in csv.DictReader(file)]
    arrivals = read_trace(path)
    jobs = [_job(each.at_s, each.duration_s, model) for each, model in zip(arrivals, models, strict=True)]
    return sorted(jobs, key=lambda job: job.at_s)


def _job(at_s: float, took_s: float, kind: str) -> Job:
    name = kind.replace("_", "-").lower()
    status = Status(phase=Phase.RUNNING, reason=JUST_SUBMITTED, since=at_s, started_at=at_s)
    spec = Training(name=name, run="work", ranks_per_node=1)
    uid = f"{name}-{at_s}-{took_s}"
    run = Workload(uid=uid, spec=spec, intent=Intent.RUN, status=status, version=1, created_at=at_s)
    return Job(at_s, took_s, run, Completed(team=spec.team, name=name, took_s=took_s))


def measure(trace: str, jobs: Sequence[Job], age_s: float) -> Figures:
    """Ask about every run that becomes so old."""
    by_end = sorted(jobs, key=lambda job: job.at_s + job.took_s)
    ends, starts = [job.at_s + job.took_s for job in by_end], [job.at_s for job in jobs]
    asked = said = held = 0
    errors: list[float] = []
    for job in jobs:
        if job.took_s <= age_s:
            continue
        now, asked = job.at_s + age_s, asked + 1
        num_over = bisect_left(ends, now)
        completed = tuple(each.over for each in by_end[max(0, num_over - MOST_COMPLETED) : num_over])
        begun = jobs[: bisect_right(starts, now)]
        going = tuple(each.run for each in begun if each.at_s + each.took_s > now)
        seen = Snapshot(nodes=(), workloads=going, pods=(), completed=completed)
        found = forecast(job.run, seen, now)
        if found is None:
            continue
        left_s = job.took_s - age_s
        said += 1
        held += found.low_s <= left_s + 1e-6 and left_s <= found.high_s + 1e-6
        errors.append(100 * abs(found.likely_s - left_s) / job.took_s)
    return Figures(
        trace=trace, age_s=age_s, asked=asked, said=said, held=held,
        error_percent=statistics.fmean(errors) if errors else 0.0,
        median_error_percent=statistics.median(errors) if errors else 0.0,
    )  # fmt: skip


def row(trace: str, age: str, found: Sequence[Figures]) -> str:
    """One line of the table, of one trace or of several."""
    asked, said, held = (sum(getattr(each, name) for each in found) for name in ("asked", "said", "held"))
    if not said:
        return f"{trace:<12}{age:>8}{asked:>8}{said:>8}{'-':>8}{'-':>12}{'-':>9}"
    error = sum(each.error_percent * each.said for each in found) / said
    middle = sum(each.median_error_percent * each.said for each in found) / said
    return f"{trace:<12}{age:>8}{asked:>8}{said:>8}{held / said:>8.1%}{error:>11.0f}%{middle:>8.0f}%"


if __name__ == "__main__":
    sys.exit(main())
