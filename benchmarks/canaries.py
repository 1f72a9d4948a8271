"""Rates at which canaries of several qualities are promoted or rolled back, and the requests that it takes.

    python -m benchmarks.canaries [--seeds 200] [--json]

The old version fails one request in 200, one in 20 is slower than the target, and one in ten has a bad score. Margins:
failures 1 %, slow requests 5 %, bad scores 5 % of all requests. Each case is simulated with that many seeds; the load
rises and falls, and the share of slow requests with it. Requests are paired as by the gateway and judged as for an
endpoint, after every tenth.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.gateway.canaries import Pairs
from fairlead.gateway.messages import ResponseHead
from fairlead.gateway.routes import CANARY, CONTROL, CanaryRoute
from fairlead.policy.serving.canary import CanaryVerdict, judge_canary
from fairlead.specs.serving import Canary, CanaryMetric
from fairlead.state.endpoint_detail import Comparison

RULES = Canary(latency_s=0.25, metric=CanaryMetric(header="X-Score", below=0.5))
OLD = (0.005, 0.05, 0.1)
CASES = {
    "broken": (0.5, 0.05, 0.1),
    "slow": (0.005, 0.30, 0.1),
    "slightly worse": (0.02, 0.05, 0.1),
    "slightly slower": (0.005, 0.12, 0.1),
    "worse scores": (0.005, 0.05, 0.18),
    "worse by a margin": (0.015, 0.05, 0.1),
    "equal": OLD,
    "better": (0.001, 0.02, 0.05),
}
ROUTE = CanaryRoute("trial", RULES.latency_s, b"x-score", None, 0.5)
GOOD, BAD = (
    ResponseHead(200, b"OK", [(b"x-score", b"X-Score", score)], frozenset(), 0, True) for score in (b"0.9", b"0.1")
)
LOOK_PAIRS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of all simulations of a case: parts that ended in each way, and the median number of pairs until then."""

    promoted: float
    rolled_back: float
    undecided: float
    pairs: float


def main(given: Sequence[str] | None = None) -> None:
    """Parse, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200, help="simulations of each case (default 200)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    arguments = parser.parse_args(given)
    if not arguments.json:
        print(
            f"rolled back though no worse, promoted though worse by a margin: at most {1 - RULES.confidence:.0%} each"
        )
    for case in CASES:
        found = simulated(case, arguments.seeds)
        if arguments.json:
            row = {
                "case": case,
                "promoted": found.promoted,
                "rolled_back": found.rolled_back,
                "undecided": found.undecided,
                "median_pairs": found.pairs,
            }
            print(json.dumps(row), flush=True)
            continue
        print(
            f"{case:<18}promoted {found.promoted:>6.1%}   rolled back {found.rolled_back:>6.1%}   "
            f"undecided {found.undecided:>6.1%}   after {found.pairs:>6.0f} pairs",
            flush=True,
        )


def simulated(case: str, seeds: int) -> Outcome:
    """All simulations of a case."""
    found = [judged(CASES[case], seed) for seed in range(seeds)]
    parts = {verdict: sum(each is verdict for each, _ in found) / seeds for verdict in CanaryVerdict}
    return Outcome(
        promoted=parts[CanaryVerdict.PROMOTE],
        rolled_back=parts[CanaryVerdict.ROLL_BACK],
        undecided=parts[CanaryVerdict.UNDECIDED],
        pairs=float(np.median([pairs for _, pairs in found])),
    )


def judged(new: tuple[float, float, float], seed: int) -> tuple[CanaryVerdict, int]:
    """The verdict on a version with these probabilities to fail, be slow, score badly; and after how many pairs."""
    rng = np.random.default_rng(seed)
    pairs = Pairs(ROUTE)
    while True:
        drawn = rng.random((LOOK_PAIRS, 6)).tolist()
        for number, dice in enumerate(drawn, pairs.num_pairs):
            load = 1.0 + 0.5 * math.sin(number / 300.0)
            _add(pairs, CANARY, new, dice[:3], load)
            _add(pairs, CONTROL, OLD, dice[3:], load)
        seen = {
            name: Comparison(name=name, pairs=pairs.num_pairs, worse=pairs.worse[name], better=pairs.better[name])
            for name in RULES.margins
        }
        verdict = judge_canary(seen, RULES.margins, RULES.confidence).verdict
        if verdict is not CanaryVerdict.GO_ON:
            return verdict, pairs.num_pairs


def _add(pairs: Pairs, arm: str, rates: tuple[float, float, float], dice: Sequence[float], load: float) -> None:
    pairs.add(
        arm,
        failed=dice[0] < rates[0],
        duration_s=0.3 if dice[1] < rates[1] * load else 0.1,
        response=BAD if dice[2] < rates[2] else GOOD,
    )


if __name__ == "__main__":
    main()
