"""How often a new version is promoted or rolled back, and after how many requests, by what it is like.

    python -m benchmarks.canaries [--seeds 200] [--json]

The old version fails one request in 200, and one in 20 is slower than the target. Margins: failures 1 %, slow ones 5 %
of all requests. Each case is simulated with that many seeds; the load, and with it how many are slow, rises and falls.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.candidates.canary_test import ALPHA, BETA, MOST, CanaryTest, Verdict

MARGINS = {"failed": 0.01, "slow": 0.05}
OLD = (0.005, 0.05)
CASES = {
    "broken": (0.5, 0.05),
    "slow": (0.005, 0.30),
    "slightly worse": (0.02, 0.05),
    "slightly slower": (0.005, 0.12),
    "equal": OLD,
    "better": (0.001, 0.02),
}


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
            f"rolled back though no worse: at most {ALPHA:.0%}; promoted though worse by a margin: at most {BETA:.0%}"
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
    parts = {verdict: sum(each is verdict for each, _ in found) / seeds for verdict in Verdict}
    return Outcome(
        promoted=parts[Verdict.PROMOTE],
        rolled_back=parts[Verdict.ROLL_BACK],
        undecided=parts[Verdict.UNDECIDED],
        pairs=float(np.median([pairs for _, pairs in found])),
    )


def judged(new: tuple[float, float], seed: int) -> tuple[Verdict, int]:
    """The verdict on a version that fails and is slow with these probabilities, and after how many pairs."""
    rng = np.random.default_rng(seed)
    test = CanaryTest(MARGINS)
    while True:
        drawn = rng.random((500, 4)).tolist()
        for number, (a, b, c, d) in enumerate(drawn, test.num_pairs):
            load = 1.0 + 0.5 * math.sin(number / 300.0)
            verdict = test.add(
                {"failed": a < new[0], "slow": b < new[1] * load}, {"failed": c < OLD[0], "slow": d < OLD[1] * load}
            )
            if verdict is not Verdict.GO_ON:
                return verdict, test.num_pairs


assert MOST % 500 == 0

if __name__ == "__main__":
    main()
