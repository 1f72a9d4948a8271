"""Slow ranks in steps of production traces: how soon and how surely a rule names one, beside the rules of peers.

    python -m benchmarks.slow_ranks [--data DIR] [--cases 100] [--steps 20000] [--factors 1.05,1.10] [--json]

DIR holds `trace-X.parquet` of ByteDance-Seed/StragglerAnalysis (Apache-2.0; Lin et al., OSDI 2025). Real steps are
drawn with replacement, and data ranks are shuffled in each, so that no worker is slow by itself; after 60 such steps
one random worker computes slower by the factor. `recall` is the part of the cases in which that one is named within 60
steps, after `delay_p50` and `delay_p95` steps; `wrong` counts cases in which another is. `false_alarms` are those in
`steps` steps without a slow worker. Rows of a single stage use the fastest micro-batch of a step, others its sum.

Rules: `fairlead` is the function of the product. `score` is the default of NVIDIA's resiliency extension: the fastest
worker's median time over the own one, of ten steps, below .75. `median` is the comparison of Greyhound (ATC 2025): the
own mean of ten steps more than 10 % over the median worker's. Both compare within a stage.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import TRACES, folder_of, step_traces
from fairlead.policy.health.slow_ranks import SlowRankDetector
from fairlead.policy.health.step_replay import BACKWARD, FORWARD, StepGraph, step_graph
from fairlead.policy.health.what_if import own_of_workers
from fairlead.traces.step_trace import read_operations

WARM_UP, MOST_STEPS, PERIOD = 60, 60, 10
Own = NDArray[np.float64]
Rule = Callable[[Own], int | None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=folder_of("straggler"), default=Path("../shared/traces/straggler"), help=TRACES)
    parser.add_argument("--cases", type=int, default=100, help="slow workers of each row (default 100)")
    parser.add_argument("--steps", type=int, default=20_000, help="steps without a slow worker (default 20000)")
    parser.add_argument("--factors", default="1.05,1.10", help="factors of the slow worker, separated by commas")
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws (default 0)")
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    arguments = parser.parse_args()
    paths = step_traces(parser, arguments.data)
    factors = [float(factor) for factor in arguments.factors.split(",")]
    is_first = True
    for row in rows_of(paths, factors, arguments.cases, arguments.steps, arguments.seed):
        if arguments.json:
            print(json.dumps(row), flush=True)
            continue
        if is_first:
            print("  ".join(row))
            is_first = False
        print("  ".join(str(value) for value in row.values()), flush=True)
    return 0


def rows_of(paths: list[Path], factors: list[float], cases: int, steps: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each trace, rule and factor."""
    for path in paths:
        graph = step_graph(read_operations(path))
        name = path.stem.removeprefix("trace-")
        own = np.moveaxis(own_of_workers(graph, graph.own_s), 2, 0)
        fastest = np.moveaxis(fastest_micro_batches(graph), 2, 0)
        views = {name: own, **{f"{name} stage {s}": fastest[:, :, s : s + 1] for s in range(own.shape[2])}}
        for view, times in views.items():
            for rule in RULES if view == name else ("fairlead",):
                alarms = false_alarms(times, RULES[rule], steps, np.random.default_rng(seed))
                for factor in factors:
                    delays, wrong = detections(times, RULES[rule], factor, cases, np.random.default_rng(seed + 1))
                    yield {
                        "trace": view,
                        "rule": rule,
                        "factor": factor,
                        "recall": round(len(delays) / cases, 3),
                        "delay_p50": float(np.percentile(delays, 50)) if delays else None,
                        "delay_p95": float(np.percentile(delays, 95)) if delays else None,
                        "wrong": wrong,
                        "false_alarms": alarms,
                        "steps": steps,
                    }


def fastest_micro_batches(graph: StepGraph) -> Own:
    """Return the fastest micro-batch of each worker and step, forward and backward: data ranks x stages x steps."""
    rows = np.isin(graph.kind, [graph.kinds.index(FORWARD), graph.kinds.index(BACKWARD)])
    sizes = (graph.data_rank.max() + 1, graph.stage.max() + 1, graph.number[rows].max() + 1, graph.own_s.shape[1])
    total = np.zeros(sizes)
    np.add.at(total, (graph.data_rank[rows], graph.stage[rows], graph.number[rows]), graph.own_s[rows])
    result: Own = total.min(axis=2)
    return result


def draw(own: Own, rng: np.random.Generator) -> Own:
    """Return a random step with its data ranks shuffled: data ranks x stages."""
    step: Own = own[rng.integers(len(own))][rng.permutation(own.shape[1])].copy()
    return step


def detections(
    own: Own, make: Callable[[int, int], Rule], factor: float, cases: int, rng: np.random.Generator
) -> tuple[list[int], int]:
    """Return the delays with which the slow worker is named, and how often another one is."""
    delays, wrong = [], 0
    num_data, num_stages = own.shape[1:]
    for _ in range(cases):
        rule = make(num_data, num_stages)
        slow = int(rng.integers(num_data)), int(rng.integers(num_stages))
        for step in range(WARM_UP + MOST_STEPS):
            times = draw(own, rng)
            if step >= WARM_UP:
                times[slow] *= factor
            named = rule(times)
            if named is None or step < WARM_UP:
                continue
            if named == slow[0] * num_stages + slow[1]:
                delays.append(step - WARM_UP + 1)
            else:
                wrong += 1
            break
    return delays, wrong


def false_alarms(own: Own, make: Callable[[int, int], Rule], steps: int, rng: np.random.Generator) -> int:
    """Return how often a rule begins to name a worker though none is slow."""
    rule, alarms, before = make(*own.shape[1:]), 0, None
    for _ in range(steps):
        named = rule(draw(own, rng))
        if named is not None and before is None:
            alarms += 1
        before = named
    return alarms


def fairlead_rule(num_data: int, num_stages: int) -> Rule:
    """Return the rule of the product."""
    detector = SlowRankDetector(num_data, num_stages)

    def rule(times: Own) -> int | None:
        slow = detector.observe(times.ravel().tolist())
        return None if slow is None else slow.rank

    return rule


def _periodic(judge: Callable[[Own], Own]) -> Callable[[int, int], Rule]:
    """Return a rule that judges ten steps at a time; ``judge`` returns how far each worker is over the limit."""

    def make(num_data: int, num_stages: int) -> Rule:
        window: list[Own] = []

        def rule(times: Own) -> int | None:
            window.append(times)
            if len(window) < PERIOD:
                return None
            over = judge(np.stack(window))
            window.clear()
            return int(over.argmax()) if over.max() > 0 else None

        return rule

    return make


def _score(window: Own) -> Own:
    typical = np.median(window, axis=0)
    result: Own = 0.75 - typical.min(axis=0) / typical
    return result


def _over_median(window: Own) -> Own:
    mean = window.mean(axis=0)
    result: Own = mean / np.median(mean, axis=0) - 1.1
    return result


RULES: dict[str, Callable[[int, int], Rule]] = {
    "fairlead": fairlead_rule,
    "score": _periodic(_score),
    "median": _periodic(_over_median),
}

if __name__ == "__main__":
    sys.exit(main())
