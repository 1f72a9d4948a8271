"""Unplaced GPU hours where pods come and go: Fairlead beside FGD and best fit.

    python -m benchmarks.departures [--data DIR] [--workloads default,cpu250] [--loads 0.85,0.9,0.95,1]
                                    [--seeds 42-44] [--policies fairlead,fgd,best-fit] [--jobs N] [--json]

Pods are drawn from the openb lists as a Poisson stream with exponential lifetimes, so that the GPUs requested at any
time equal the load on average; a pod that fits nowhere on arrival is refused. All policies see the same pods. The
stream varies: at 95 % it exceeds the capacity for a part of the time, so compare policies on one seed.
"""

import statistics
import sys
from collections.abc import Sequence

from benchmarks.openb_runs import Run, carry_out, parser_of, problem, words

SEEDS = (42, 43, 44)
LOADS = (0.85, 0.9, 0.95, 1.0)


def main() -> int:
    parser = parser_of(__doc__, SEEDS)
    parser.add_argument("--loads", type=_shares, default=LOADS, help="GPUs asked for (default 0.85,0.9,0.95,1)")
    arguments = parser.parse_args()
    names = arguments.workloads or ("default",)
    wrong = problem(arguments.data, names, arguments.policies)
    if wrong is not None:
        print(wrong, file=sys.stderr)
        return 2
    runs = [
        Run(workload=name, seed=seed, policy=policy, load=load)
        for name in names
        for load in arguments.loads
        for seed in arguments.seeds
        for policy in arguments.policies
    ]
    results = carry_out(runs, arguments, _line)
    if not arguments.json:
        _print_table(results, arguments.policies)
    return 0


def _line(run: Run, value: float) -> dict[str, str | int | float | None]:
    return {
        "workload": run.workload,
        "seed": run.seed,
        "policy": run.policy,
        "load": run.load,
        "refused_percent": round(value, 4),
    }


def _print_table(results: dict[Run, float], policies: Sequence[str]) -> None:
    print("GPU hours that found no room on arrival, in % of those asked for: mean and spread over seeds")
    print(f"{'':<12}{'load':>6}" + "".join(f"{policy:>24}" for policy in policies))
    for name, load in dict.fromkeys((run.workload, run.load) for run in results):
        row = f"{name:<12}{load:>6}"
        for policy in policies:
            own = [v for run, v in results.items() if (run.workload, run.load, run.policy) == (name, load, policy)]
            row += f"{statistics.mean(own):.3f} ({min(own):.2f}-{max(own):.2f})".rjust(24)
        print(row)


def _shares(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in words(text))


if __name__ == "__main__":
    sys.exit(main())
