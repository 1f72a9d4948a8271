"""Waits and token rates of a text server: simulated with coefficients from half of a run, beside the measured ones.

    python -m benchmarks.text_serving --data DIR [--json] [--max-tokens 2048] [--max-seqs 128] [--simulations 400]

DIR holds vllm/*.requests.jsonl (input_toks, output_toks, queued_ts, scheduled_ts, first_token_ts, last_token_ts of each
request, seconds). The time of a step is fitted to the first half of the requests; all are simulated. The time to the
first token counts from `queued_ts`. RUN.engine.json beside a run, if there is one, says how many `engines` there are,
the `blocks` of 16 tokens in the memory of each, and of a mixture the `experts` of a layer and the `experts_per_token`;
what it does not say is inferred from the requests (decision 200). `benchmarks.text_reference` makes such runs. The peer
is LLMServingSim, by its published results for the public ones.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.data import folder_of
from fairlead.control.served_requests import read_served
from fairlead.policy.serving.text_calibration import BLOCKS_WIDTH, calibrate, predict
from fairlead.policy.serving.text_engine import EngineLimits, EngineRequest, Served


def main(given: Sequence[str] | None = None) -> None:
    """Parse, fit, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=folder_of("vllm"), default=Path("../shared/traces/vllm"), help="folder of the runs"
    )
    parser.add_argument("--max-tokens", type=int, default=2048, help="tokens a step, as configured (default 2048)")
    parser.add_argument("--max-seqs", type=int, default=128, help="requests at once, as configured (default 128)")
    parser.add_argument("--simulations", type=int, default=400, help="of each of four searches (default 400)")
    parser.add_argument("--only", default="", help="only runs whose name has this text")
    parser.add_argument("--unknown", action="store_true", help="do not read RUN.engine.json")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    arguments = parser.parse_args(given)
    files = [path for path in sorted(arguments.data.glob("*.requests.jsonl")) if arguments.only in path.name]
    if not files:
        parser.error(f"no runs (*.requests.jsonl) in {arguments.data}")
    for path in files:
        run = path.name.removesuffix(".requests.jsonl")
        whole = read_served(path)
        requests, measured = whole.requests, whole.served
        seen = whole.first(len(requests) // 2)
        facts = {} if arguments.unknown else read_facts(arguments.data / f"{run}.engine.json")
        share = facts.get("experts_per_token", 0) / facts.get("experts", 1)
        limits = EngineLimits(
            max_tokens=arguments.max_tokens,
            max_seqs=arguments.max_seqs,
            blocks=facts.get("blocks"),
            expert_share=share,
        )
        engines = seen.engines(limits, num_ranks=facts.get("engines"), is_mixture=share > 0.0 if facts else None)
        found = calibrate(
            requests,
            seen.served,
            engines,
            simulations=arguments.simulations,
            blocks_width=0.0 if "blocks" in facts else BLOCKS_WIDTH,
        )
        simulated = [metrics(requests, served) for served in predict(requests, found)]
        for metric, value in metrics(requests, measured).items():
            ours = [each[metric] for each in simulated]
            mean = sum(ours) / len(ours)
            if arguments.json:
                row = {
                    "run": run,
                    "metric": metric,
                    "measured_ms": round(value, 3),
                    "simulated_ms": round(mean, 3),
                    "lowest_ms": round(min(ours), 3),
                    "highest_ms": round(max(ours), 3),
                }
                print(json.dumps(row), flush=True)
                continue
            off = [f"{100.0 * (each / value - 1.0):+.1f} %" for each in (mean, min(ours), max(ours))]
            print(f"{run:<24}{metric:<16}{value:>12.1f}{mean:>12.1f}{off[0]:>10} ({off[1]} to {off[2]})", flush=True)


def read_facts(path: Path) -> dict[str, int]:
    """Return the facts about a run's server: `engines`, `blocks` of each, `experts` of a layer, `experts_per_token`."""
    if not path.exists():
        return {}
    facts = json.loads(path.read_text(encoding="utf-8"))
    return {str(name): int(value) for name, value in facts.items()}


def metrics(requests: Sequence[EngineRequest], served: Served) -> dict[str, float]:
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
