"""Policies beside the optimum of small instances: `python -m benchmarks.exact [--problems P,Q] [--json]`.

Random instances by seed; OR-tools' CP-SAT solves each from a separate model, which shares no code with the policy, to
proven optimality, or to a bound above it. For each problem: the mean of Fairlead's value over the optimum, the worst,
how many are optimal, and the time of either. With `--json` one object an instance a line: problem, seed, ours, optimum,
ours_s, exact_s.

mig: the layouts that serve the most weight, less the cost of moving pods (`candidates/mig/layouts.py`).
packing: how much of a list of gangs and pods can be placed (`policy/placement/packing.py`), the most valuable first;
arrivals: the same in order of arrival, where the optimum knows the future and may leave out any.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from benchmarks import exact_mig, exact_packing


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One instance: what ours is worth and what the best possible answer is worth, and seconds for either."""

    problem: str
    seed: int
    ours: float
    optimum: float
    ours_s: float
    exact_s: float

    @property
    def ratio(self) -> float:
        """Ours over the optimum; 1 where nothing can be had."""
        return self.ours / self.optimum if self.optimum > 0 else 1.0


Solve = Callable[[int], tuple[Callable[[], float], Callable[[], float]]]
PROBLEMS: Mapping[str, Solve] = {
    "mig": exact_mig.instance,
    "packing": exact_packing.instance,
    "arrivals": exact_packing.in_order,
}
"""From a seed: what solves the instance by the policy, and what solves it exactly; both give what that is worth."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default=",".join(PROBLEMS), help="comma-separated; all when left out")
    parser.add_argument("--instances", type=int, default=200, help="of each problem, with seeds 0, 1, ...")
    parser.add_argument("--json", action="store_true", help="one object an instance a line")
    options = parser.parse_args()
    for problem in options.problems.split(","):
        if problem not in PROBLEMS:
            parser.error(f"{problem} is none of {', '.join(PROBLEMS)}")
        found = [compare(problem, seed) for seed in range(options.instances)]
        if options.json:
            for each in found:
                print(json.dumps(asdict(each)))
        else:
            print(say(found))


def compare(problem: str, seed: int) -> Compared:
    """Solve one instance both ways."""
    by_policy, exactly = PROBLEMS[problem](seed)
    began = time.perf_counter()
    ours = by_policy()
    between = time.perf_counter()
    optimum = exactly()
    ended = time.perf_counter()
    return Compared(
        problem=problem, seed=seed, ours=ours, optimum=optimum, ours_s=between - began, exact_s=ended - between
    )  # fmt: skip


def say(found: list[Compared]) -> str:
    """All instances of one problem in a line."""
    ratios = [each.ratio for each in found]
    optimal = sum(ratio > 1 - 1e-9 for ratio in ratios)
    return (
        f"{found[0].problem}: {100 * sum(ratios) / len(ratios):.2f} % of the optimum on average of {len(found)}, "
        f"{100 * min(ratios):.1f} % at worst, {optimal} optimal; "
        f"{1e3 * sum(each.ours_s for each in found) / len(found):.1f} ms each, "
        f"exactly {1e3 * sum(each.exact_s for each in found) / len(found):.1f} ms"
    )


if __name__ == "__main__":
    main()
