"""Slowdown by stragglers in published production traces, beside the published results, and its cause from few steps.

    python -m benchmarks.stragglers [--data DIR] [--json]

DIR holds `trace-X.parquet`, `result-X.json`, `mw-X.json` and `ms-X.json` of ByteDance-Seed/StragglerAnalysis
(Apache-2.0; Lin et al., OSDI 2025). ``worst_error_pct`` is the largest difference from any published slowdown: of the
job, a kind of operation, a data rank or a stage, and of M_W and M_S where they are above .1. ``named_right_of_100``
counts draws of three random steps whose cause is the published one: unequal data if forward and backward of
micro-batches correlate by .9 or more, a slow worker or the last stage if it explains half of the lost time (the paper's
section 5), else the larger. ``cpu_s`` includes all of that but the import of modules.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet  # noqa: F401

from benchmarks.data import TRACES, folder_of, step_traces
from fairlead.policy.health.step_replay import BACKWARD, FORWARD, StepGraph, step_graph, step_times
from fairlead.policy.health.what_if import (
    CAUSES,
    WhatIf,
    analyse,
    cause_shares,
    computations,
    ideal_times,
    own_of_workers,
)
from fairlead.traces.step_trace import read_operations

DRAWS, STEPS = 100, 3
MICRO_BATCH_DRAWS = 8
DATA_CORRELATION, MOST_EXPLAINED, LEAST_COMPARED = 0.9, 0.5, 0.1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=folder_of("straggler"), default=Path("../shared/traces/straggler"), help=TRACES)
    parser.add_argument("--json", action="store_true", help="one JSON object a trace")
    arguments = parser.parse_args()
    paths = step_traces(parser, arguments.data)
    rows = [measure(path) for path in paths]
    if arguments.json:
        for row in rows:
            print(json.dumps(row))
        return 0
    print("  ".join(rows[0]))
    for row in rows:
        print("  ".join(f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()))
    return 0


def measure(path: Path) -> dict[str, Any]:
    """Return the row of one trace."""
    name = path.stem.removeprefix("trace-")
    published, m_w, m_s = (
        json.loads(path.with_name(f"{kind}-{name}.json").read_text()) for kind in ("result", "mw", "ms")
    )
    began = time.process_time()
    graph = step_graph(read_operations(path))
    result = analyse(graph)
    two_numbers = two_number_slowdown(graph)
    rng = np.random.default_rng(1)
    draws = np.stack([rng.choice(len(graph.steps), STEPS, replace=False) for _ in range(DRAWS)])
    causes = cause_shares(graph, graph.own_s[:, draws]).argmax(axis=1)
    cpu_s = time.process_time() - began
    cause = published_cause(graph, m_w["Mw"], m_s["Ms"])
    slowdown = published["blocking_slowdown"]
    return {
        "trace": name,
        "S": round(result.slowdown, 5),
        "S_published": round(slowdown, 5),
        "worst_error_pct": round(worst_error_pct(result, published, m_w["Mw"], m_s["Ms"]), 4),
        "M_W": round(result.worst_workers, 4),
        "M_S": round(result.last_stage, 4),
        "cause": result.cause,
        "worker": f"{result.worst[0]}.{result.worst[1]}",
        "S_two_numbers": round(two_numbers, 5),
        "two_numbers_error_pct": round(100 * abs(two_numbers / slowdown - 1), 3),
        "named_right_of_100": sum(CAUSES[index] == cause for index in causes.tolist()),
        "steps": len(graph.steps),
        "cpu_s": round(cpu_s, 2),
    }


def two_number_slowdown(graph: StepGraph, seed: int = 0) -> float:
    """Return S as it follows from two numbers of a rank and step, instead of from a trace.

    The numbers are the rank's computation and the coefficient of variation of its micro-batches, which all stages of a
    data rank share. Micro-batches are drawn with them; communication has its ideal duration.
    """
    rng = np.random.default_rng(seed)
    own, rows = graph.own_s, computations(graph)
    total = own_of_workers(graph, own)
    ideal = ideal_times(graph, own)
    kinds = [kind for kind, name in enumerate(graph.kinds) if name in (FORWARD, BACKWARD)]
    numbers = int(graph.number[rows].max()) + 1
    batches = np.zeros((*total.shape[:2], numbers, total.shape[2]))
    np.add.at(batches, (graph.data_rank[rows], graph.stage[rows], graph.number[rows]), own[rows])
    spread = batches.std(axis=2) / batches.mean(axis=2)
    weight = {kind: float(own[graph.kind == kind].sum() / own[rows].sum()) for kind in kinds}
    simulated = np.repeat(ideal[:, None], MICRO_BATCH_DRAWS, axis=1)
    drawn = rng.standard_normal((total.shape[0], numbers, MICRO_BATCH_DRAWS, total.shape[2]))
    drawn -= drawn.mean(axis=1, keepdims=True)
    drawn /= drawn.std(axis=1, keepdims=True) + 1e-12
    for kind in kinds:
        of_kind = graph.kind == kind
        d, s, n = graph.data_rank[of_kind], graph.stage[of_kind], graph.number[of_kind]
        share = (total[d, s] * weight[kind] / numbers)[:, None]
        simulated[of_kind] = share * np.maximum(1 + spread[d, s][:, None] * drawn[d, n], 0.05)
    return float(step_times(graph, simulated).mean() / step_times(graph, ideal).mean())


def worst_error_pct(result: WhatIf, published: dict[str, Any], m_w: float, m_s: float) -> float:
    """Return the largest difference from a published figure, in percent of it."""
    pairs = [(result.slowdown, published["blocking_slowdown"])]
    pairs += [(ours, theirs) for ours, theirs in ((result.worst_workers, m_w), (result.last_stage, m_s))
              if abs(theirs) >= LEAST_COMPARED]  # fmt: skip
    for ours, name in ((result.by_kind, "optype"), (result.by_data_rank, "dp_rank"), (result.by_stage, "stage")):
        values = {str(key): value for key, value in ours.items()}
        pairs += [
            (values[key], theirs)
            for key, theirs in dict(published[f"blocking_decompose_by_{name}"]).items()
            if key in values
        ]
    return 100.0 * max(abs(float(ours) / float(theirs) - 1.0) for ours, theirs in pairs)


def published_cause(graph: StepGraph, m_w: float, m_s: float) -> str:
    """Return the cause by the thresholds of the paper."""
    sides = []
    for name in (FORWARD, BACKWARD):
        rows = np.flatnonzero(graph.kind == graph.kinds.index(name))
        rows = rows[np.lexsort((graph.number[rows], graph.data_rank[rows], graph.stage[rows]))]
        first = graph.stage[rows] == 0  # the last stage has the loss layer
        sides.append(graph.own_s[rows[first]].ravel())
    if np.corrcoef(sides[0], sides[1])[0, 1] >= DATA_CORRELATION:
        return "data"
    if m_w >= MOST_EXPLAINED:
        return "worker"
    return "stage" if m_s >= MOST_EXPLAINED or m_s > m_w else "worker"


if __name__ == "__main__":
    sys.exit(main())
