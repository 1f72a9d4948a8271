"""Spot under a deadline: the cost of a job on recorded spot availability, and whether it meets its deadline.

    python -m benchmarks.spot --data DIR [--json] [--policies fairlead,uniform-progress,greedy,optimum] [--prices]

DIR holds spot/*.json of SkyPilot's spot-traces ({"metadata": {"gap_seconds": 600}, "data": [...]}; more than 0 in a
tick is available). After "Can't Be Late" (Wu et al., NSDI 2024): 48 hours of work, due after 52 or 70 hours, a
change-over of 0.05 or 0.20 hours at every start, on-demand $3.06 and spot $0.9731 an hour, ticks charged whole, spot
lost between ticks, 30 starts spread evenly over each zone's trace. A score of 0 is the cost of on-demand alone, 100
that of spot alone, each with one change-over.

Zones `low` and `high` are the means over the halves of the zones that have less and more spot, `mixed` over all: with
the four variants these are the twelve. `A+B` is a job that may use either zone of a pair. `--prices` adds on-demand at
2, 3 and 6 times spot, `--changeovers` change-overs of 1, 24 and 48 minutes and deadlines of 50 and 60 hours.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from benchmarks.data import folder_of
from fairlead.policy.capacity.spot_schedule import CapacityUse, SpotProblem, solve

WORK_H = 48.0
STARTS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A job: hours until its deadline and of a change-over, dollars an hour."""

    deadline_h: float
    changeover_h: float
    on_demand_price: float = 3.06
    spot_price: float = 0.9731

    @property
    def name(self) -> str:
        """As in a row."""
        ratio = self.on_demand_price / self.spot_price
        price = "" if abs(ratio - 3.06 / 0.9731) < 1e-9 else f" {ratio:.0f}x"
        return f"{self.deadline_h:g}h/{self.changeover_h:.2f}h{price}"


VARIANTS = tuple(Variant(deadline_h=hours, changeover_h=change) for hours in (52.0, 70.0) for change in (0.05, 0.20))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a policy knows before a tick; minutes.

    Attributes:
        left: Time left, this tick included.
        work: Work left.
        use: What the job is on, and its zone; nothing where its spot has just gone.
        pending: What is left of its change-over.
        up: Which zones have spot in this tick.
        ages: For how many ticks that has been so, this one included.
    """

    left: float
    work: float
    use: CapacityUse
    zone: int
    pending: float
    up: tuple[bool, ...]
    ages: tuple[int, ...]


Policy = Callable[[Moment], tuple[CapacityUse, int]]
Prepared = Callable[[Variant, float, np.ndarray], Policy]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Mean score of some jobs and how many were late."""

    score: float
    missed: int


def main(given: Sequence[str] | None = None) -> None:
    """Parse, replay, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=folder_of("spot"), default=Path("../shared/traces/spot"), help="folder of the traces"
    )
    parser.add_argument("--policies", default="fairlead,uniform-progress,greedy", help="comma-separated; also optimum")
    parser.add_argument("--prices", action="store_true", help="also at other prices")
    parser.add_argument("--changeovers", action="store_true", help="also with other change-overs and deadlines")
    parser.add_argument("--no-pairs", action="store_true", help="one zone at a time only")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    arguments = parser.parse_args(given)
    zones = {path.stem: read_trace(path) for path in sorted(arguments.data.glob("*.json"))}
    if not zones:
        parser.error(f"no traces (*.json) in {arguments.data}")
    variants = list(VARIANTS)
    if arguments.prices:
        variants += [replace(each, on_demand_price=each.spot_price * n) for n in (2, 3, 6) for each in VARIANTS]
    if arguments.changeovers:
        variants += [Variant(deadline_h=h, changeover_h=m / 60) for h in (52.0, 70.0) for m in (1, 24, 48)]
        variants += [Variant(deadline_h=h, changeover_h=c) for h in (50.0, 60.0) for c in (0.05, 0.20)]
    for name in arguments.policies.split(","):
        if name not in POLICIES:
            parser.error(f"no policy is named {name}; there are {', '.join(POLICIES)}")
        for variant in variants:
            pairs = not arguments.no_pairs and variant in VARIANTS and name != "optimum"
            for zone, score in replayed(zones, variant, POLICIES[name], pairs=pairs):
                _print(name, zone, variant, score, as_json=arguments.json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Whether a zone had spot in each tick of so many minutes."""

    tick: float
    up: np.ndarray


def read_trace(path: Path) -> Trace:
    """One file of spot-traces."""
    found = json.loads(path.read_text())
    return Trace(tick=found["metadata"]["gap_seconds"] / 60.0, up=np.array(found["data"]) > 0)


def replayed(
    zones: dict[str, Trace], variant: Variant, prepare: Prepared, *, pairs: bool
) -> Iterator[tuple[str, Score]]:
    """Score of each zone, of the halves, of all, and of pairs of zones."""
    alone = {name: _score([trace], variant, prepare) for name, trace in zones.items()}
    yield from alone.items()
    order = sorted(zones, key=lambda name: float(zones[name].up.mean()))
    groups = {"low": order[: len(order) // 2], "high": order[len(order) // 2 :], "mixed": order}
    yield from ((group, _mean([alone[name] for name in names])) for group, names in groups.items() if names)
    if not pairs:
        return
    found = {
        f"{a}+{b}": _score([zones[a], zones[b]], variant, prepare)
        for a, b in combinations(zones, 2)
        if zones[a].tick == zones[b].tick
    }
    yield from found.items()
    if found:
        yield "two zones", _mean(list(found.values()))


def _mean(scores: Sequence[Score]) -> Score:
    return Score(score=float(np.mean([each.score for each in scores])), missed=sum(each.missed for each in scores))


def _score(traces: Sequence[Trace], variant: Variant, prepare: Prepared) -> Score:
    tick = traces[0].tick
    length = min(len(trace.up) for trace in traces)
    up = np.stack([trace.up[:length] for trace in traces])
    ticks = round(variant.deadline_h * 60.0 / tick)
    starts = np.linspace(0, max(0, length - ticks), STARTS).astype(int)
    whole = WORK_H + variant.changeover_h
    dear, cheap = whole * variant.on_demand_price, whole * variant.spot_price
    scores, missed = [], 0
    for start in starts:
        window = up[:, int(start) : int(start) + ticks]
        cost, late = run(window, tick, variant, prepare(variant, tick, window))
        scores.append(100.0 * (dear - cost) / (dear - cheap))
        missed += late
    return Score(score=float(np.mean(scores)), missed=missed)


def run(up: np.ndarray, tick: float, variant: Variant, policy: Policy) -> tuple[float, bool]:
    """Dollars that a job costs, and whether it is late; a late one goes on on on-demand until it is done."""
    num_zones, ticks = up.shape
    left, work, changeover = variant.deadline_h * 60.0, WORK_H * 60.0, variant.changeover_h * 60.0
    use, zone, pending, cost = CapacityUse.NOTHING, 0, 0.0, 0.0
    ages = [0] * num_zones
    for t in range(ticks):
        if work <= 1e-9:
            return cost, False
        now = tuple(bool(each) for each in up[:, t])
        ages = [ages[z] + 1 if t and now[z] == up[z, t - 1] else 1 for z in range(num_zones)]
        if use is CapacityUse.SPOT and not now[zone]:
            use, pending = CapacityUse.NOTHING, 0.0
        wanted, at = policy(
            Moment(left=left, work=work, use=use, zone=zone, pending=pending, up=now, ages=tuple(ages))
        )  # fmt: skip
        if wanted is CapacityUse.SPOT and not now[at]:
            raise ValueError("spot was asked for where there is none")
        if wanted is not use or (wanted is CapacityUse.SPOT and at != zone):
            pending = changeover
        use, zone = wanted, at
        if use is CapacityUse.NOTHING:
            pending = 0.0
        else:
            served = min(pending, tick)
            pending -= served
            work -= tick - served
            cost += (variant.spot_price if use is CapacityUse.SPOT else variant.on_demand_price) * tick / 60.0
        left -= tick
    if work <= 1e-9:
        return cost, False
    return cost + (work + changeover) / 60.0 * variant.on_demand_price, True


def ours(variant: Variant, tick: float, window: np.ndarray) -> Policy:
    """The product's own schedule; in several zones that which has spot for longest."""
    problem = problem_of(variant, tick)
    schedule = solve(problem)

    def choose(now: Moment) -> tuple[CapacityUse, int]:
        zone = _zone(now)
        spot = now.up[zone]
        use = schedule.use(
            ticks_left=round(now.left / tick),
            slack_s=(now.left - now.work) * 60.0,
            now=now.use,
            pending_s=now.pending * 60.0,
            spot=spot,
            age=now.ages[zone] if spot else min(now.ages),
        )
        return use, zone

    return choose


def problem_of(variant: Variant, tick: float) -> SpotProblem:
    """What is solved for a job; slack in steps of 1 to 2 minutes that divide both tick and change-over, if any do."""
    changeover_s = variant.changeover_h * 3600.0
    steps = [step for step in (120.0, 100.0, 60.0) if (tick * 60.0) % step < 1e-6 and changeover_s % step < 1e-6]
    slack_s = (variant.deadline_h - WORK_H) * 3600.0
    return SpotProblem(
        tick_s=tick * 60.0,
        step_s=steps[0] if steps else 60.0,
        changeover_s=changeover_s,
        spot_price=variant.spot_price,
        on_demand_price=variant.on_demand_price,
        num_ticks=round(variant.deadline_h * 60.0 / tick),
        slack_s=slack_s,
    )


def greedy(variant: Variant, tick: float, window: np.ndarray) -> Policy:
    """Spot whenever there is any, nothing until the slack is used up, then on-demand to the end."""
    changeover = variant.changeover_h * 60.0

    def choose(now: Moment) -> tuple[CapacityUse, int]:
        zone = _zone(now)
        if _must_hurry(now, changeover, tick):
            return CapacityUse.ON_DEMAND, zone
        return (CapacityUse.SPOT if now.up[zone] else CapacityUse.NOTHING), zone

    return choose


def uniform_progress(variant: Variant, tick: float, window: np.ndarray) -> Policy:
    """Uniform Progress of "Can't Be Late": never behind the straight line from nothing to the whole work in time."""
    changeover = variant.changeover_h * 60.0
    whole, work = variant.deadline_h * 60.0, WORK_H * 60.0

    def choose(now: Moment) -> tuple[CapacityUse, int]:
        zone = _zone(now)
        if _must_hurry(now, changeover, tick):
            return CapacityUse.ON_DEMAND, zone
        passed, done = whole - now.left, work - now.work
        if now.up[zone] and now.use is not CapacityUse.ON_DEMAND:
            return CapacityUse.SPOT, zone
        behind = done < (passed + (0.0 if now.use is CapacityUse.ON_DEMAND else tick)) * work / whole
        if now.up[zone]:
            # From on-demand only with so much done ahead that two change-overs leave it on the line.
            ahead = done - (passed + 2 * changeover) * work / whole
            return (CapacityUse.SPOT if ahead >= 0 else CapacityUse.ON_DEMAND), zone
        return (
            CapacityUse.ON_DEMAND
            if behind or (now.use is CapacityUse.ON_DEMAND and done < work)
            else CapacityUse.NOTHING
        ), zone

    return choose


def optimum(variant: Variant, tick: float, window: np.ndarray) -> Policy:
    """What one would do who knew the availability of the one zone beforehand, by steps of a minute."""
    ticks, step = window.shape[1], round(tick)
    change = round(variant.changeover_h * 60.0)
    levels = [0, *range(change - step, 0, -step)]
    slacks = round((variant.deadline_h - WORK_H) * 60.0) + 1
    machines = [
        (CapacityUse.NOTHING, 0),
        *((use, left) for use in (CapacityUse.SPOT, CapacityUse.ON_DEMAND) for left in levels),
    ]
    index = {machine: i for i, machine in enumerate(machines)}
    price = {
        CapacityUse.SPOT: variant.spot_price * tick / 60.0,
        CapacityUse.ON_DEMAND: variant.on_demand_price * tick / 60.0,
    }
    costs = np.zeros((len(machines), slacks))
    choices = np.zeros((ticks, len(machines), slacks), dtype=np.uint8)
    for t in reversed(range(ticks)):
        found = np.full((3, len(machines), slacks), np.inf)
        for m, (use, left) in enumerate(machines):
            found[0, m, step:] = costs[0, : slacks - step]
            for wanted in (CapacityUse.SPOT, CapacityUse.ON_DEMAND):
                if wanted is CapacityUse.SPOT and not window[0, t]:
                    continue
                lost = use is CapacityUse.SPOT and not window[0, t]
                pending = left if wanted is use and not lost else change
                served = min(pending, step)
                if served < slacks:
                    after = costs[index[(wanted, pending - served)]]
                    found[wanted, m, served:] = after[: slacks - served] + price[wanted]
        costs = found.min(axis=0)
        choices[t] = found.argmin(axis=0)
        done = (ticks - t) * step
        costs[:, done:] = 0.0

    def choose(now: Moment) -> tuple[CapacityUse, int]:
        t = ticks - round(now.left / tick)
        slack = min(slacks - 1, round(now.left - now.work))
        return CapacityUse(int(choices[t, index[(now.use, round(now.pending))], slack])), 0

    return choose


def _zone(now: Moment) -> int:
    """That in use while it has spot, else that which has had spot for longest."""
    if now.use is CapacityUse.SPOT:
        return now.zone
    up = [zone for zone, there in enumerate(now.up) if there]
    return max(up, key=lambda zone: now.ages[zone]) if up else 0


def _must_hurry(now: Moment, changeover: float, tick: float) -> bool:
    """Whether a tick more without on-demand could make it late."""
    pending = now.pending if now.use is CapacityUse.ON_DEMAND else changeover
    return now.left - now.work < tick + 2 * changeover and now.left - now.work - pending < tick + changeover


def _print(policy: str, zone: str, variant: Variant, score: Score, *, as_json: bool) -> None:
    if as_json:
        row = {
            "policy": policy, "zone": zone, "variant": variant.name, "score": round(score.score, 2),
            "missed": score.missed,
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        return
    print(f"{policy:<18}{zone:<36}{variant.name:<18}{score.score:>8.1f}{score.missed:>8}", flush=True)


POLICIES: dict[str, Prepared] = {
    "fairlead": ours,
    "uniform-progress": uniform_progress,
    "greedy": greedy,
    "optimum": optimum,
}

if __name__ == "__main__":
    main()
