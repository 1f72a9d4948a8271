"""Share of time spent training when `checkpoint.every: auto` chooses the interval, beside the best fixed one.

    python -m benchmarks.checkpoint_interval [--days 54] [--ranks 16384] [--failures 419] [--restart-s 60]
                                             [--seeds 3] [--risk] [--json]

A simulation: failures come at random (exponentially distributed) at the rate that Llama 3 had, 419 in 54 days on 16,384
GPUs. Each costs a restart and the training since the last complete checkpoint. Fixed intervals from 20 s to 3 h, six
for each doubling, see the same failures; `auto` knows neither the failures nor what a save costs beforehand, which
differs from save to save by up to a fifth. All that is simulated is `SaveInterval`, as the runtime uses it.
With `--risk` runs of a day on 128 nodes of 8 GPUs have 0, 1, 4 or 8 unreliable nodes among them, which failed as often
as such nodes do in 30 days before. `ranks` assumes the failures of so many ranks, `risk` those that follow from the
histories of these nodes, as the product does, and `true` knows the rate.
Beside it is what Llama 3 reports of that training: more than 90 % effective training time (arXiv 2407.21783, 3.3.4).
"""

import argparse
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fairlead.policy.health.node_risk import HEALTHY_PER_DAY, LEMON_PER_DAY, charged, gang_failures_per_day
from fairlead.runtime.save_interval import SaveInterval, continued
from fairlead.state.node_health import FailureCause, Incident, NodeHistory
from fairlead.state.snapshot import Snapshot

DAY_S = 86_400.0
RISK_NODES, SERVICE_DAYS = 128, 30
COSTS = ((0.1, 5.0), (1.0, 20.0), (5.0, 60.0), (20.0, 60.0))
"""Seconds that the training stands still for a save, and seconds until it is complete after that."""
JITTER = 0.2
PUBLISHED = 0.9
"""The effective training time that Llama 3 exceeded."""
FIXED = tuple(20.0 * 2 ** (index / 6) for index in range(58))


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What happens to a run.

    Attributes:
        total_s: Length of the simulation.
        between_failures_s: Mean time between failures, while it runs.
        restart_s: From a failure to the first step after it.
        blocked_s: Mean time that the training stands still for a save.
        written_s: Mean time from then until the checkpoint is complete.
        ranks: Processes of the run.
        node_failures_per_day: What is known of its nodes; None for nothing.
    """

    total_s: float
    between_failures_s: float
    restart_s: float
    blocked_s: float
    written_s: float
    ranks: int
    node_failures_per_day: float | None = None


def useful(world: World, seed: int, fixed_s: float | None) -> float:
    """Return the share of the time that was training and was not lost; the interval is chosen where none is given."""
    failures, costs = random.Random(seed), random.Random(seed + 1)
    now, trained_s, starts = 0.0, 0.0, 0
    kept: dict[str, object] = {}

    def clock() -> float:
        return now

    while now < world.total_s:
        fails_at = min(now + failures.expovariate(1 / world.between_failures_s), world.total_s)
        interval = continued(
            kept, ranks=world.ranks, starts=min(starts, 1), clock=clock,
            node_failures_per_day=world.node_failures_per_day,
        )  # fmt: skip
        for saved in _start(world, interval, costs, fixed_s):
            end = now + saved.period_s + saved.blocked_s
            if end + saved.written_s > fails_at:
                # What a save in the middle did for nothing is in the time that passes.
                break
            now, trained_s = end, trained_s + saved.period_s
            kept = interval.measurements()
            interval.saved(blocked_s=saved.blocked_s, seconds=saved.blocked_s + saved.written_s)
        now, starts = fails_at + world.restart_s, starts + 1
    return trained_s / world.total_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    period_s: float
    blocked_s: float
    written_s: float


def _start(world: World, interval: SaveInterval, costs: random.Random, fixed_s: float | None) -> Iterator[_Saved]:
    """The saves of one start, for as long as it lasts."""
    while True:
        factor = costs.uniform(1 - JITTER, 1 + JITTER)
        yield _Saved(
            period_s=interval.seconds if fixed_s is None else max(fixed_s, world.written_s),
            blocked_s=world.blocked_s * factor,
            written_s=world.written_s * factor,
        )


def compare(world: World, seeds: int, *, fixed: tuple[float, ...] = FIXED) -> dict[str, float]:
    """Return the useful shares of `auto` and of the best fixed interval, means over the seeds."""

    def mean(measure: Callable[[int], float]) -> float:
        return sum(measure(seed) for seed in range(seeds)) / seeds

    shares = {each_s: mean(lambda seed, each_s=each_s: useful(world, seed, each_s)) for each_s in fixed}  # type: ignore[misc]
    best_s = max(shares, key=lambda each_s: shares[each_s])
    return {
        "blocked_s": world.blocked_s,
        "written_s": world.written_s,
        "auto": mean(lambda seed: useful(world, seed, None)),
        "best": shares[best_s],
        "best_interval_s": best_s,
        "published": PUBLISHED,
    }


def by_risk(lemons: int, seeds: int) -> dict[str, float]:
    """Return the useful shares of a run by what it assumes of its nodes, means over the seeds."""
    shares = {"ranks": 0.0, "risk": 0.0, "true": 0.0}
    for seed in range(seeds):
        rng = random.Random(f"{lemons}/{seed}")
        now = SERVICE_DAYS * DAY_S
        histories: dict[str, NodeHistory] = {}
        rate = 1.0 + (RISK_NODES - lemons) * HEALTHY_PER_DAY  # one a day for everything else, as `SaveInterval` has it
        for number in range(RISK_NODES):
            own = rng.expovariate(1 / LEMON_PER_DAY) if number < lemons else HEALTHY_PER_DAY
            rate += own if number < lemons else 0.0
            at = rng.expovariate(own / DAY_S)
            while at < now:
                failure = Incident(at=at, cause=FailureCause.UNREADY, nodes=(f"n{number}",))
                histories = charged(histories, failure, {f"n{number}": 0.0})
                at += rng.expovariate(own / DAY_S)
        nodes = [f"n{number}" for number in range(RISK_NODES)]
        known = gang_failures_per_day(Snapshot(nodes=(), workloads=(), pods=(), node_health=histories), nodes, now)
        for name, assumed in (("ranks", None), ("risk", known), ("true", rate - 1.0)):
            world = World(
                total_s=DAY_S, between_failures_s=DAY_S / rate, restart_s=600.0, blocked_s=20.0, written_s=60.0,
                ranks=8 * RISK_NODES, node_failures_per_day=assumed,
            )  # fmt: skip
            shares[name] += useful(world, seed, None) / seeds
    return {"lemons": lemons, **shares}


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=54.0)
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--failures", type=float, default=419.0)
    parser.add_argument("--restart-s", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--risk", action="store_true", help="compare what may be assumed of the nodes instead")
    given = parser.parse_args()
    if given.risk:
        for row in (by_risk(lemons, given.seeds) for lemons in (0, 1, 4, 8)):
            text = "  ".join(f"{name} {value:.5g}" for name, value in row.items())
            print(json.dumps(row) if given.json else text)
        return
    rows = []
    for blocked_s, written_s in COSTS:
        world = World(
            total_s=given.days * DAY_S,
            between_failures_s=given.days * DAY_S / given.failures,
            restart_s=given.restart_s,
            blocked_s=blocked_s,
            written_s=written_s,
            ranks=given.ranks,
        )
        rows.append(compare(world, given.seeds))
    if given.json:
        print(json.dumps(rows))
        return
    print("stands still  complete after    auto    best  fixed at  auto - best  Llama 3")
    for row in rows:
        print(
            f"{row['blocked_s']:10.1f} s {row['written_s']:13.0f} s  {row['auto']:6.2%}  {row['best']:6.2%} "
            f"{row['best_interval_s']:7.0f} s  {100 * (row['auto'] - row['best']):+9.2f} %  > {row['published']:.0%}"
        )


if __name__ == "__main__":
    main()
