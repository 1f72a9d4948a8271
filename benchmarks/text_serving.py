"""Waits and paces of a text server: simulated with coefficients from half of a run, beside what was measured.

    python -m benchmarks.text_serving --data DIR [--json] [--max-tokens 2048] [--max-seqs 128] [--evaluations 240]

DIR holds vllm/*.requests.jsonl (input_toks, output_toks, queued_ts, scheduled_ts, first_token_ts, last_token_ts of each
request, seconds). The first half of the requests says what a step takes; all are simulated. The time to the first token
counts from `queued_ts`. Where so many ran at once as may (`--max-seqs`), memory is taken not to bound them.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.candidates.text_serving import BLOCK, Engine, Request, Served, fit, simulate
from benchmarks.data import folder_of


def main(given: Sequence[str] | None = None) -> None:
    """Parse, fit, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=folder_of("vllm"), default=Path("../shared/traces/vllm"), help="folder of the runs"
    )
    parser.add_argument("--max-tokens", type=int, default=2048, help="tokens a step, as configured (default 2048)")
    parser.add_argument("--max-seqs", type=int, default=128, help="requests at once, as configured (default 128)")
    parser.add_argument("--evaluations", type=int, default=240, help="simulations of the search (default 240)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    arguments = parser.parse_args(given)
    files = sorted(arguments.data.glob("*.requests.jsonl"))
    if not files:
        parser.error(f"no runs (*.requests.jsonl) in {arguments.data}")
    for path in files:
        run = path.name.removesuffix(".requests.jsonl")
        requests, measured, scheduled = read_run(path)
        limits = Engine(max_tokens=arguments.max_tokens, max_seqs=arguments.max_seqs)
        limits = engine_of(requests, measured, scheduled, limits)
        half = len(requests) // 2
        coefficients, engine = fit(requests, measured, half, limits, evaluations=arguments.evaluations)
        simulated = simulate(requests, coefficients, engine)
        ours = metrics(requests, simulated)
        for metric, value in metrics(requests, measured).items():
            if arguments.json:
                row = {
                    "run": run,
                    "metric": metric,
                    "measured_ms": round(value, 3),
                    "simulated_ms": round(ours[metric], 3),
                }
                print(json.dumps(row), flush=True)
                continue
            difference = 100.0 * (ours[metric] / value - 1.0)
            print(f"{run:<28}{metric:<20}{value:>12.1f}{ours[metric]:>12.1f}{difference:>+8.1f} %", flush=True)


def read_run(path: Path) -> tuple[list[Request], Served, np.ndarray]:
    """The requests of a run in the order in which they came, their tokens, and when they were taken in."""
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    rows.sort(key=lambda row: float(row["queued_ts"]))
    begin = float(rows[0]["queued_ts"])
    requests = [
        Request(arrived_s=row["queued_ts"] - begin, prompt=int(row["input_toks"]), output=int(row["output_toks"]))
        for row in rows
    ]
    first, last, scheduled = (
        np.array([float(row[name]) - begin for row in rows])
        for name in ("first_token_ts", "last_token_ts", "scheduled_ts")
    )
    return requests, Served(first_s=first, last_s=last), scheduled


def engine_of(requests: Sequence[Request], measured: Served, scheduled: np.ndarray, limits: Engine) -> Engine:
    """The limits, with blocks to begin the search from where memory bounds what runs, by the first half of the run."""
    half = len(requests) // 2
    begins, ends = scheduled[:half], measured.last_s[:half]
    running = [int(np.sum((begins <= at) & (at < ends))) for at in begins]
    if max(running) >= limits.max_seqs - 1:
        return limits
    tokens = np.array([each.prompt + 0.5 * each.output for each in requests[:half]])
    most = max(float(np.sum(tokens[(begins <= at) & (at < ends)])) for at in begins)
    return Engine(max_tokens=limits.max_tokens, max_seqs=limits.max_seqs, blocks=round(0.9 * most / BLOCK))


def metrics(requests: Sequence[Request], served: Served) -> dict[str, float]:
    """Milliseconds: to the first token, for each further one, and in all."""
    arrived = np.array([each.arrived_s for each in requests])
    outputs = np.array([each.output for each in requests])
    several = outputs > 1
    first, whole = served.first_s - arrived, served.last_s - arrived
    pace = (served.last_s - served.first_s)[several] / (outputs[several] - 1)
    return {
        "ttft_mean": 1e3 * float(np.mean(first)),
        "ttft_median": 1e3 * float(np.median(first)),
        "tpot_mean": 1e3 * float(np.mean(pace)),
        "tpot_median": 1e3 * float(np.median(pace)),
        "latency_mean": 1e3 * float(np.mean(whole)),
        "latency_median": 1e3 * float(np.median(whole)),
        "latency_p99": 1e3 * float(np.percentile(whole, 99)),
    }


if __name__ == "__main__":
    main()
