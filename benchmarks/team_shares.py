"""The share of three equal teams in a simulated month, of which one uses every number that it may choose.

    python -m benchmarks.team_shares [--days 30] [--choices all,plain] [--max-duration 24] [--seed 1] [--json]

64 GPUs on 8 nodes. Each team submits, at random times, half of what all GPUs could do: runs of 1 to 16 GPUs and 20
minutes to 20 hours (log-uniform), which save no more often than the default. The third team does the same, or one
thing in addition; `all` is everything together, `gangs` is nothing but runs of the whole cluster, submitted on the
first day. The loop, the policy and its account of debts are those of production. A line shows the GPU time that each
team held, divided by what its runs could have held at most on a third of the GPUs of its own, if these were divisible
and nothing of them ever stood free: so 1.00 is its share, or what it asks for if that is less. One to three minutes of
processor time a line.
"""

import argparse
import json
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from fairlead.control.outcomes import Outcome
from fairlead.control.simulation import simulate
from fairlead.specs.pool import Hardware, Pool, PoolGpu
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training
from fairlead.state.scheduling_policy import POLICIES
from fairlead.traces.arrivals import Arrival

NUM_NODES, GPUS_A_NODE = 8, 8
NUM_GPUS = NUM_NODES * GPUS_A_NODE
TEAMS = ("chooses", "honest-1", "honest-2")
HOUR_S, DAY_S = 3600.0, 86_400.0
SHORTEST_S, LONGEST_S = 1200.0, 20 * HOUR_S
# Of all GPUs, what each team asks for.
LOAD = 0.5
# GPU seconds that rounding leaves of a run.
LEAST_S = 1e-6
HARDWARE = Hardware(cpu_milli=96_000, memory_bytes=2**40, gpu=PoolGpu(model="A100", count=GPUS_A_NODE))

Choice = Callable[[Arrival], Arrival]


def main() -> None:
    """Parse, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=30.0, help="length of the simulation (default 30)")
    parser.add_argument("--choices", type=_choices, default=["plain", "all", "gangs"], help=f"of {', '.join(CHOICES)}")
    parser.add_argument("--max-duration", type=float, default=24.0, help="hours, of every run; 0 for none (default 24)")
    parser.add_argument("--policy", choices=sorted(POLICIES), default="default", help="the cluster's policy")
    parser.add_argument("--seed", type=int, default=1, help="seed of the runs (default 1)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    arguments = parser.parse_args()
    if not arguments.json:
        print(f"{'choice':<14}" + "".join(f"{team:>12}" for team in TEAMS) + f"{'GPUs in use':>14}")
    for choice in arguments.choices:
        shares, used = measure(
            choice, days=arguments.days, seed=arguments.seed, limit_h=arguments.max_duration, policy=arguments.policy
        )
        if arguments.json:
            print(json.dumps({"choice": choice, "shares": shares, "in_use": round(used, 4)}), flush=True)
        else:
            print(f"{choice:<14}" + "".join(f"{shares[team]:>12.3f}" for team in TEAMS) + f"{used:>13.1%}", flush=True)


def measure(
    choice: str, *, days: float, seed: int, limit_h: float = 24.0, policy: str = "default"
) -> tuple[dict[str, float], float]:
    """Return the GPU time of each team over that of a third of the GPUs, as far as it has runs for them; and the use.

    The use is the part of the GPU time of the whole cluster that runs hold.
    """
    arrivals = [each for team in TEAMS for each in _runs(team, days, random.Random(f"{seed} {team}"))]
    if choice == "gangs":
        arrivals = [each for each in arrivals if each.spec.team != TEAMS[0]] + _gangs(days)
    else:
        chosen = CHOICES[choice]
        arrivals = [chosen(each) if each.spec.team == TEAMS[0] else each for each in arrivals]
    if limit_h:
        arrivals = [
            each
            if each.spec.max_duration_s is not None
            else replace(each, spec=replace(each.spec, max_duration_s=limit_h * HOUR_S))
            for each in arrivals
        ]
    asked = {team: owed_s(arrivals, team, days * DAY_S) for team in TEAMS}
    pool = Pool(name="a100", nodes=NUM_NODES, hardware=HARDWARE)
    outcome = simulate(sorted(arrivals, key=lambda each: each.at_s), [pool], rules=POLICIES[policy])
    held_s = held_by_team(outcome, days * DAY_S)
    shares = {team: round(held_s[team] / asked[team], 4) for team in TEAMS}
    return shares, sum(held_s.values()) / (NUM_GPUS * days * DAY_S)


def owed_s(arrivals: Sequence[Arrival], team: str, until_s: float) -> float:
    """Return the GPU seconds that a team's runs hold until then on its part of the GPUs, in the order of arrival.

    The part is divisible, so that a run may go on with fewer GPUs at less speed.
    """
    coming = deque(sorted((each.at_s, _gpus(each), each.duration_s) for each in arrivals if each.spec.team == team))
    # GPUs and what is left to do, in GPU seconds.
    going, now, held_s = list[list[float]](), 0.0, 0.0
    while now < until_s:
        while coming and coming[0][0] <= now:
            _, gpus, duration_s = coming.popleft()
            going.append([gpus, gpus * duration_s])
        left, rates = NUM_GPUS / len(TEAMS), list[float]()
        for gpus, _ in going:
            rates.append(min(left, gpus))
            left -= rates[-1]
        ends = [now + work / rate for (_, work), rate in zip(going, rates, strict=True) if rate > 0]
        then = min([until_s, *ends, *([coming[0][0]] if coming else [])])
        for each, rate in zip(going, rates, strict=True):
            each[1] -= rate * (then - now)
            held_s += rate * (then - now)
        going, now = [each for each in going if each[1] > LEAST_S], then
    return held_s


def _gpus(arrival: Arrival) -> float:
    gpu = arrival.spec.resources.gpu
    assert gpu is not None
    return arrival.spec.nodes * gpu.milli / 1000


def held_by_team(outcome: Outcome, until_s: float) -> dict[str, float]:
    """Return the GPU seconds that each team held until then."""
    held = dict.fromkeys(TEAMS, 0.0)
    for run in outcome.runs:
        whole_s = sum(end - start for start, end in run.held)
        within_s = sum(max(0.0, min(end, until_s) - start) for start, end in run.held)
        # Of an elastic gang, as if its size were the same all the time.
        held[run.team] += run.gpu_s * within_s / whole_s if whole_s else 0.0
    return held


def _runs(team: str, days: float, chance: random.Random) -> list[Arrival]:
    """Return random runs that ask for ``LOAD`` of all GPUs."""
    found, work_s = list[Arrival](), LOAD * NUM_GPUS * days * DAY_S
    while work_s > 0:
        num_gpus = chance.choice((1, 1, 2, 4, 8, 8, 16))
        duration_s = math.exp(chance.uniform(math.log(SHORTEST_S), math.log(LONGEST_S)))
        spec = _spec(
            f"{team}-{len(found)}x", team, nodes=max(1, num_gpus // GPUS_A_NODE), gpus=min(num_gpus, GPUS_A_NODE)
        )
        found.append(Arrival(at_s=chance.uniform(0.0, days * DAY_S), duration_s=duration_s, spec=spec))
        work_s -= num_gpus * duration_s
    return found


def _gangs(days: float) -> list[Arrival]:
    """Return runs of the whole cluster for a day each, all submitted first, and as many as half of its time."""
    return [
        Arrival(at_s=0.0, duration_s=DAY_S - HOUR_S, spec=_spec(f"gang-{number}x", TEAMS[0], NUM_NODES, GPUS_A_NODE))
        for number in range(round(LOAD * days))
    ]


def _spec(name: str, team: str, nodes: int, gpus: int) -> Training:
    gpu = GpuRequest(milli=1000 * gpus)
    return Training(name=name, run="-", team=team, nodes=nodes, resources=Resources(gpu=gpu, cpu_milli=1000 * gpus))


def _with(**changes: object) -> Choice:
    return lambda each: replace(each, spec=replace(each.spec, **changes))  # type: ignore[arg-type]


def _everything(each: Arrival) -> Arrival:
    """Use every number at once: all submitted first, elastic, with estimates that are never true."""
    chosen = _with(priority=1000, most_nodes=NUM_NODES, expected_duration_s=1.0)(each)
    return replace(chosen, at_s=0.0)


CHOICES: dict[str, Choice] = {
    "plain": lambda each: each,
    "priority": _with(priority=1000),
    "estimates": _with(expected_duration_s=1.0),
    "early": lambda each: replace(each, at_s=0.0),
    "elastic": _with(most_nodes=NUM_NODES),
    "all": _everything,
    "gangs": lambda each: each,
}


def _choices(text: str) -> list[str]:
    for name in text.split(","):
        if name not in CHOICES:
            raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(CHOICES)}")
    return text.split(",")


if __name__ == "__main__":
    main()
