"""Waits for nodes and node hours, with nodes requested in advance beside nodes requested only by pending runs.

    python -m benchmarks.prewarming --data DIR [--traces azure-code,azure-conv,mooncake,faro] [--json]

DIR holds llm/ and faro/: Azure's LLM inference traces of 2023, Mooncake's conversations, and Faro's requests by minute.
Requests become work, for an LLM by its tokens (an eighth for one of a prompt), and work becomes runs of one node, of
two minutes (LLM, an hour each) or four (Faro, four times six hours), so that `--nodes` of them are busy on average.
They go through `simulate` on a pool of any size whose nodes take `--lead` seconds in the median, and twice as long once
in ten times. Waits and node hours count from a third of an LLM trace on, and from Faro's second six hours on: earlier
there is no history.

Reactive: a node is requested when a run waits, and kept idle for a while; the longer, the fewer waits. Ahead: the same
with an idle time of a minute, and `prewarm` with several values of confidence. A row has the mean wait and node hours,
and those of reactive at the same node hours (`wait_reactive_s`) and at the same wait (`hours_reactive`),
interpolated between its rows; none where it has no such rows.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from fairlead.control.simulation import World, simulate
from fairlead.specs.pool import Hardware, Pool, PoolGpu, Prewarm
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.simulation import Provisioning, Simulation
from fairlead.specs.training import Training
from fairlead.traces.arrivals import Arrival

IDLE_S = (30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0)
AHEAD_IDLE_S = 60.0
CONFIDENCE = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
PROMPT_PART = 1 / 8
AZURE = {"azure-code": "AzureLLMInferenceTrace_code.csv", "azure-conv": "AzureLLMInferenceTrace_conv.csv"}
FARO = (
    "arrivals_10jobs.jsonl",
    "arrivals_10jobs_day6.jsonl",
    "arrivals_10jobs_day8.jsonl",
    "arrivals_10jobs_day10.jsonl",
)
TRACES = (*AZURE, "mooncake", "faro")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One simulation.

    Attributes:
        setting: Seconds that an idle node is kept, or the share of confidence.
        wait_s: Mean of all runs, from their arrival to their placement.
        late: Share of runs that waited at all.
    """

    trace: str
    way: str
    setting: float
    runs: int
    wait_s: float
    wait_p95_s: float
    late: float
    node_hours: float
    wait_reactive_s: float | None = None
    hours_reactive: float | None = None


def work_of(trace: str, folder: Path) -> list[tuple[float, float]]:
    """Seconds since the beginning, and work in some unit, of each arrival."""
    if trace in AZURE:
        lines = (folder / "llm" / AZURE[trace]).read_text().splitlines()[1:]
        cells = [line.split(",") for line in lines if line]
        times = [datetime.fromisoformat(each[0][:26]).timestamp() for each in cells]
        return [
            (at - times[0], PROMPT_PART * int(each[1]) + int(each[2])) for at, each in zip(times, cells, strict=True)
        ]
    if trace == "mooncake":
        found = [json.loads(line) for line in (folder / "llm" / "mooncake_conversation.jsonl").open()]
        return [
            (each["timestamp"] / 1000, PROMPT_PART * each["input_length"] + each["output_length"]) for each in found
        ]
    work, offset = [], 0.0
    for name in FARO:
        for line in (folder / "faro" / name).open():
            each = json.loads(line)
            total = sum(count for service in each["counts"].values() for count in service.values())
            # In tenths of a minute, as a minute's requests do not come together.
            work += [(offset + each["ts"] * 60.0 + 6.0 * part, total / 10) for part in range(10)]
        offset = work[-1][0] + 6.0
    return work


def runs_of(work: Sequence[tuple[float, float]], *, run_s: float, num_nodes: float) -> Iterator[Arrival]:
    """A run whenever enough work has come together."""
    span_s, total = work[-1][0], sum(amount for _, amount in work)
    of_one = total * run_s / (num_nodes * span_s)
    held, number = 0.0, 0
    for at_s, amount in work:
        held += amount
        while held >= of_one:
            held -= of_one
            number += 1
            spec = Training(
                name=f"w-{number}", run="work", ranks_per_node=1,
                resources=Resources(gpu=GpuRequest(milli=1000), cpu_milli=1000),
            )  # fmt: skip
            yield Arrival(at_s=at_s, duration_s=run_s, spec=spec)


def play(trace: str, arrivals: Sequence[Arrival], way: str, setting: float, lead_s: float) -> Row:
    """Simulate one setting."""
    counts_from = 0.25 if trace == "faro" else 1 / 3
    pool = Pool(name="p", nodes=200, hardware=Hardware(cpu_milli=8000, memory_bytes=2**36, gpu=PoolGpu(model="A100")))
    idle_s = setting
    if way == "ahead":
        pool, idle_s = replace(pool, prewarm=Prewarm(confidence=setting)), AHEAD_IDLE_S
    comes = Provisioning(delay_s=lead_s, delay_p90_s=2 * lead_s, idle_s=idle_s)
    outcome = simulate(arrivals, [pool], World(simulations=(Simulation(name="s", provisioning=comes),), seed=1))
    begins_s, ends_s = counts_from * arrivals[-1].at_s, arrivals[-1].at_s
    waits = sorted(run.held[0][0] - run.arrived_s for run in outcome.runs if run.arrived_s >= begins_s)
    there = (min(node.until, ends_s) - max(node.since, begins_s) for node in outcome.nodes)
    hours = sum(span for span in there if span > 0) / 3600
    return Row(
        trace=trace, way=way, setting=setting, runs=len(waits), wait_s=round(sum(waits) / len(waits), 2),
        wait_p95_s=round(waits[int(0.95 * len(waits))], 1), late=round(sum(w > 0 for w in waits) / len(waits), 4),
        node_hours=round(hours, 2),
    )  # fmt: skip


def at(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """The curve through points at x; None beyond its ends."""
    ordered = sorted(points)
    for (x0, y0), (x1, y1) in pairwise(ordered):
        if x0 <= x <= x1:
            return round(y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0), 2)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--traces", default=",".join(TRACES))
    parser.add_argument("--lead", type=float, default=120.0, help="median seconds until a node is there")
    parser.add_argument("--nodes", type=float, default=12.0, help="nodes that are busy on average")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for trace in given.traces.split(","):
        if trace not in TRACES:
            parser.error(f"{trace} is no trace; give some of {', '.join(TRACES)}")
        work = work_of(trace, given.data)
        arrivals = list(runs_of(work, run_s=240.0 if trace == "faro" else 120.0, num_nodes=given.nodes))
        reactive = [play(trace, arrivals, "reactive", idle_s, given.lead) for idle_s in IDLE_S]
        ahead = [play(trace, arrivals, "ahead", share, given.lead) for share in CONFIDENCE]
        by_hours = [(row.node_hours, row.wait_s) for row in reactive]
        by_wait = [(row.wait_s, row.node_hours) for row in reactive]
        ahead = [
            replace(row, wait_reactive_s=at(by_hours, row.node_hours), hours_reactive=at(by_wait, row.wait_s))
            for row in ahead
        ]
        for row in (*reactive, *ahead):
            told = {name: value for name, value in asdict(row).items() if value is not None}
            print(json.dumps(told) if given.json else "  ".join(f"{k}={v}" for k, v in told.items()), flush=True)


if __name__ == "__main__":
    main()
