"""GPUs allocated when pods for 130 % of a real cluster's GPUs have arrived: Fairlead beside FGD and best fit.

    python -m benchmarks.packing [--data DIR] [--workloads default,cpu250] [--seeds 42-46]
                                 [--policies fairlead,fgd,best-fit] [--jobs N] [--json]

The lists are those of Weng et al., "Beware of Fragmentation", USENIX ATC 2023 (Alibaba's cluster-trace-gpu-v2023: 1,213
nodes, 6,212 GPUs). Pods arrive in the published orders, or for other seeds in orders that are drawn likewise, none
departs, and a pod that fits nowhere is dropped. The peers are replayed in this process by the same code on the same
fleet; `off by` is the distance of a replay from the result of its authors' scheduler.

`ceiling` is a linear relaxation with knowledge of all arrivals, computed once for seed 42 (it is printed, not
computed). It assumes that all pods can be placed until the cluster is nearly as full as FGD leaves it. Where wide
shares cannot be placed earlier, as on the lists that are nearly all shares, a policy can exceed it.
"""

import statistics
import sys

from benchmarks.openb import SEEDS, WORKLOADS, read_published
from benchmarks.openb_runs import Run, carry_out, parser_of, problem

CEILINGS = {
    "default": 96.47, "cpu050": 96.50, "cpu100": 96.48, "cpu200": 96.43, "cpu250": 96.47, "gpushare40": 95.12,
    "gpushare60": 92.74, "gpushare80": 90.87, "gpushare100": 88.65, "gpuspec10": 96.9, "gpuspec20": 97.2,
    "gpuspec25": 97.4, "gpuspec33": 97.7, "multigpu20": 96.96, "multigpu30": 97.33, "multigpu40": 97.82,
    "multigpu50": 98.05,
}  # fmt: skip
PEERS = ("fgd", "best-fit")


def main() -> int:
    arguments = parser_of(__doc__, SEEDS).parse_args()
    names = arguments.workloads or WORKLOADS
    wrong = problem(arguments.data, names, arguments.policies)
    if wrong is not None:
        print(wrong, file=sys.stderr)
        return 2
    runs = [
        Run(workload=name, seed=seed, policy=policy)
        for name in names
        for policy in arguments.policies
        for seed in arguments.seeds
    ]
    results = carry_out(runs, arguments, _line)
    if not arguments.json:
        _print_table(results, read_published(arguments.data))
    return 0


def _line(run: Run, value: float) -> dict[str, str | int | float]:
    return {
        "workload": run.workload,
        "seed": run.seed,
        "policy": run.policy,
        "allocated_percent": round(value, 4),
    }


def _print_table(results: dict[Run, float], published: dict[tuple[str, str, int], float]) -> None:
    policies = list(dict.fromkeys(run.policy for run in results))
    peers = [policy for policy in policies if policy in PEERS]
    names = list(dict.fromkeys(run.workload for run in results))
    seeds = sorted({run.seed for run in results})
    print(f"GPUs allocated at 130 % arrival, in %: mean and spread (lowest to highest) of {len(seeds)} arrival orders")
    head = "".join(f"{policy:>20}" for policy in policies)
    head += "".join(f"{peer + ' published':>20}{'off by':>8}" for peer in peers)
    print(f"{'':<12}{head}{'ceiling':>9}{'gap closed':>12}")
    means: dict[str, list[float]] = {policy: [] for policy in policies}
    for name in names:
        row = f"{name:<12}"
        mean: dict[str, float] = {}
        for policy in policies:
            values = [results[Run(workload=name, seed=seed, policy=policy)] for seed in seeds]
            mean[policy] = statistics.mean(values)
            means[policy].append(mean[policy])
            row += f"{mean[policy]:>7.2f} ({min(values):.2f}-{max(values):.2f})".rjust(20)
        for peer in peers:
            row += _beside(mean[peer], [published.get((name, peer, seed)) for seed in seeds])
        row += f"{CEILINGS[name]:>9.2f}" if name in CEILINGS else f"{'-':>9}"
        if {"fairlead", "fgd"} <= mean.keys() and name in CEILINGS:
            row += f"{100 * (mean['fairlead'] - mean['fgd']) / (CEILINGS[name] - mean['fgd']):>10.0f} %"
        print(row)
    print(f"{'mean':<12}" + "".join(f"{statistics.mean(values):>20.2f}" for values in means.values()))
    if {"fairlead", "fgd"} <= means.keys():
        below = [name for name, ours, fgd in zip(names, means["fairlead"], means["fgd"], strict=True) if ours < fgd]
        print(f"below FGD's mean: {', '.join(below) or 'none'}")


def _beside(mean: float, known: list[float | None]) -> str:
    """The published mean, and how far a replay is from it; neither when a seed was not published."""
    figures = [figure for figure in known if figure is not None]
    if len(figures) < len(known):
        return f"{'-':>20}{'-':>8}"
    return f"{statistics.mean(figures):>20.2f}{mean - statistics.mean(figures):>+8.2f}"


if __name__ == "__main__":
    sys.exit(main())
