"""Finish-time fairness, average completion time and makespan on Shockwave's 120 jobs and 32 GPUs.

    python -m benchmarks.fairness --data DIR [--policies finish-time] [--start-up 0] [--seeds 3] [--json]

DIR holds 120_jobs_32_gpus.trace and published.csv, from the Shockwave artifact (uw-mad-dash/shockwave, MIT). Ours
are what the loop of production does with the policies that a cluster can choose, on the simulated cluster
(benchmarks/production.py), a quarter to half a minute of processor time each. Others are replayed. The rules of the
replay, and how they differ from those of the published figures, are in benchmarks/baselines/shockwave.py.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.baselines.shockwave import TRACE, Choose, Figures, read_published, read_trace, replay
from benchmarks.production import fair_in_production
from fairlead.policy.selection.finish_time import JobShare, rank
from fairlead.state.scheduling_policy import POLICIES as CHOOSABLE


def main() -> None:
    """Parse, replay, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=_folder, default=Path("../shared/traces/shockwave"), help="folder of the trace")
    parser.add_argument(
        "--seeds", type=int, default=3, help="draws of durations wrong by up to 2 either way (default 3)"
    )
    parser.add_argument("--policies", type=_policies, default=["finish-time"], help="ours (default finish-time)")
    parser.add_argument("--start-up", type=float, default=0.0, help="seconds that each start costs (default 0)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    arguments = parser.parse_args()
    if not (arguments.data / TRACE).exists():
        parser.error(f"there is no {TRACE} in {arguments.data}")
    trace = read_trace(arguments.data)
    rows = [(name, "replayed", replay(trace, choose)) for name, choose in POLICIES.items()]
    for policy in arguments.policies:
        for seed in (None, *range(arguments.seeds)):
            name = policy if seed is None else f"{policy}, noisy {seed}"
            found = fair_in_production(trace, policy, start_up_s=arguments.start_up, seed=seed)
            rows.append((name, "decide", found))
    rows += [(name, "published", figures) for name, figures in read_published(arguments.data).items()]
    if not arguments.json:
        print(f"{'policy':<32}{'figures':<11}{'worst FTF':>10}{'% > 1.05':>10}{'average s':>11}{'makespan s':>12}")
    for name, source, figures in rows:
        _print(name, source, figures, as_json=arguments.json)


def choose_fairly(claims: Sequence[JobShare], num_gpus: int, now: float, contention: float) -> tuple[JobShare, ...]:
    """Choose who holds devices until the next round; ``contention`` is how many jobs share one device, at least 1.

    Sorts once: n log n.
    """
    drain_s = sum(claim.job.num_gpus * claim.job.remaining_s for claim in claims) / num_gpus
    chosen = []
    free = num_gpus
    for claim in sorted(claims, key=lambda claim: rank(claim, now, contention, drain_s)):
        if claim.job.num_gpus <= free:
            free -= claim.job.num_gpus
            chosen.append(claim)
    return tuple(chosen)


def in_order(key: Callable[[JobShare], float]) -> Choose:
    """A policy that goes greedily down one order."""

    def choose(claims: Sequence[JobShare], num_gpus: int, now: float, contention: float) -> Sequence[JobShare]:
        chosen, free = [], num_gpus
        for claim in sorted(claims, key=key):
            if claim.job.num_gpus <= free:
                free -= claim.job.num_gpus
                chosen.append(claim)
        return chosen

    return choose


POLICIES: dict[str, Choose] = {
    "fair finish times": choose_fairly,
    "srsf": in_order(lambda claim: claim.job.remaining_s * claim.job.num_gpus),
    "srtf": in_order(lambda claim: claim.job.remaining_s),
    "longest first": in_order(lambda claim: -claim.job.remaining_s),
    "first come": in_order(lambda claim: claim.submitted_s),
}


def _policies(text: str) -> list[str]:
    for name in text.split(","):
        if name not in CHOOSABLE:
            raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(CHOOSABLE)}")
    return text.split(",")


def _folder(text: str) -> Path:
    folder = Path(text)
    return folder if (folder / TRACE).exists() else folder / "shockwave"


def _print(name: str, source: str, figures: Figures, *, as_json: bool) -> None:
    if as_json:
        row = {
            "policy": name,
            "figures": source,
            "worst_ftf": round(figures.worst_ftf, 4),
            "unfair_percent": round(figures.unfair_percent, 2),
            "average_jct_s": round(figures.average_jct_s, 1),
            "makespan_s": round(figures.makespan_s, 1),
        }
        print(json.dumps(row))
        return
    print(
        f"{name:<32}{source:<11}{figures.worst_ftf:>10.3f}{figures.unfair_percent:>10.1f}"
        f"{figures.average_jct_s:>11,.0f}{figures.makespan_s:>12,.0f}"
    )


if __name__ == "__main__":
    main()
