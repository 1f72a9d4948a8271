"""Partitions that follow the load, on a day of changing demand: `python -m benchmarks.partitions [--seeds N] [--json]`.

Four nodes with an A100 of 40 GB each. By day users request sevenths for half an hour, in the afternoon instances of
20 GB for an hour, at night whole GPUs for three hours; a change of layout takes five minutes. Figures are the GPU-hours
that runs waited, weighted by their requests, and their mean wait. Every fixed layout of the four nodes is tried by the
same simulator, and the best is named, although it is known only after the day.

The optimum is exact, by CP-SAT, in slots of five minutes with the whole day known, and is optimistic: its runs change
nodes at no cost. No policy can be better; if the solver has not finished, it is the proven bound.
"""

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Any

from ortools.sat.python import cp_model

from fairlead.control.outcomes import Outcome
from fairlead.control.simulation import simulate
from fairlead.specs.pool import GpuLayout, Hardware, Partitions, Pool, PoolGpu
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.sharing import Sharing
from fairlead.specs.training import Checkpoint, Training
from fairlead.traces.arrivals import Arrival

SLOT_S = 300.0
DAY = 288
NODES = 4
LAYOUTS: Mapping[str, Mapping[str, str]] = {
    "all-1g.5gb": {"1g.5gb": "7"},
    "all-3g.20gb": {"3g.20gb": "2"},
    "all-disabled": {},
}
PARTS = {"all-1g.5gb": 7, "all-3g.20gb": 2, "all-disabled": 1}
# Of each kind of run: thousandths of a GPU, slots that it takes, and hours of the day with runs that hold GPUs at once.
KINDS: Mapping[str, tuple[int, int, Mapping[range, float]]] = {
    "seventh": (142, 6, {range(8, 12): 16.0, range(12, 18): 10.0, range(18, 22): 3.0}),
    "half": (400, 12, {range(12, 20): 3.0}),
    "whole": (1000, 36, {range(20): 0.4, range(20, 24): 2.5}),
}


def main(given: Sequence[str] | None = None) -> None:
    """Parse, simulate, solve, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=30.0, help="seconds for the optimum of a day")
    parser.add_argument("--json", action="store_true", help="one JSON object a day instead of words")
    arguments = parser.parse_args(given)
    for seed in range(arguments.seeds):
        print(json.dumps(day(seed, arguments.limit)) if arguments.json else day(seed, arguments.limit), flush=True)


def day(seed: int, limit_s: float) -> dict[str, Any]:
    """The figures of one day."""
    runs = draw(seed)
    row: dict[str, Any] = {"seed": seed}
    arrivals = [arrival(kind, number, slot) for number, (kind, slot) in enumerate(runs)]
    row["runs"] = len(runs)
    began = time.process_time()
    row |= {f"following_{name}": value for name, value in figures(simulate(arrivals, [a_pool(NODES, None)])).items()}
    row["cpu_s"] = round(time.process_time() - began, 2)
    fixed = {}
    for names in combinations_with_replacement(LAYOUTS, NODES):
        if "all-disabled" in names:  # no whole GPU, and some would never end
            pools = [
                replace(a_pool(number, name), name=name.replace(".", "-")) for name, number in Counter(names).items()
            ]
            fixed["+".join(names)] = figures(simulate(arrivals, pools))
    complete = {name: each for name, each in fixed.items() if not each["unfinished"]}
    best = min(complete, key=lambda name: complete[name]["gpu_hours_waited"])
    row |= {"best_fixed": best, **{f"fixed_{name}": value for name, value in complete[best].items()}}
    bound, is_exact = optimum(runs, limit_s)
    row |= {"optimum_gpu_hours_waited": round(bound, 2), "optimum_is_exact": is_exact}
    return row


def draw(seed: int) -> list[tuple[str, int]]:
    """Runs of a day, as their kind and the slot in which they come, in their order."""
    chance, found = random.Random(seed), list[tuple[str, int]]()
    for slot in range(DAY):
        for kind, (_, slots, hours) in KINDS.items():
            held = next((number for span, number in hours.items() if slot * SLOT_S // 3600 in span), 0.0)
            level, number = held / slots, 0
            due = chance.expovariate(1.0)
            while due < level:
                number, due = number + 1, due + chance.expovariate(1.0)
            found += [(kind, slot)] * number
    return found


def arrival(kind: str, number: int, slot: int) -> Arrival:
    """A run of the trace."""
    milli, slots, _ = KINDS[kind]
    sharing = () if milli == 1000 else (Sharing.MIG,)
    spec = Training(
        name=f"{kind}-{number}",
        team="day",
        run="replayed",
        resources=Resources(gpu=GpuRequest(milli=milli), cpu_milli=1000, sharing=sharing),
        checkpoint=Checkpoint(every_s=SLOT_S),
    )
    return Arrival(at_s=slot * SLOT_S, duration_s=slots * SLOT_S, spec=spec)


def a_pool(nodes: int, layout: str | None) -> Pool:
    """So many nodes of one layout; where that is None, of any, whole at first."""
    partitions = None
    if layout is None:
        partitions = Partitions(
            layouts={name: GpuLayout(instances=instances) for name, instances in LAYOUTS.items()}, reconfigure_s=SLOT_S
        )
    gpu = PoolGpu(model="A100", memory_bytes=40 * 10**9, instances=LAYOUTS[layout or "all-disabled"])
    hardware = Hardware(cpu_milli=64_000, memory_bytes=2**38, gpu=gpu)
    return Pool(name="day", nodes=nodes, hardware=hardware, partitions=partitions)


def figures(outcome: Outcome) -> dict[str, Any]:
    """The cost of a day to its runs: all the time from their arrival that they did not work."""
    waited = weighted = 0.0
    unfinished = 0
    for run in outcome.runs:
        kind = run.name.partition("-")[0]
        if run.ended_s is None or not run.held:
            unfinished += 1
            continue
        wait_s = run.ended_s - run.arrived_s - run.duration_s
        waited += wait_s
        weighted += wait_s * KINDS[kind][0] / 1000
    return {
        "gpu_hours_waited": round(weighted / 3600, 2),
        "mean_wait_s": round(waited / max(1, len(outcome.runs) - unfinished), 1),
        "unfinished": unfinished,
    }


def optimum(runs: Sequence[tuple[str, int]], limit_s: float) -> tuple[float, bool]:
    """The fewest GPU-hours waited, and whether that is exact and not a bound.

    Runs of a kind are alike, so that numbers tell all: how many have begun by each slot, and how many nodes have each
    layout. A part does for every run that asks for no more.
    """
    model, horizon = cp_model.CpModel(), DAY + 144
    have = {
        (name, slot): model.new_int_var(0, NODES, f"have {name} {slot}") for name in LAYOUTS for slot in range(horizon)
    }
    changing = [model.new_int_var(0, NODES, f"changing {slot}") for slot in range(horizon)]
    for slot in range(horizon):
        model.add(sum(have[name, slot] for name in LAYOUTS) + changing[slot] == NODES)
    for slot in range(1, horizon):
        # A node that has another layout than before has spent the slot between without any.
        gained = []
        for name in LAYOUTS:
            more = model.new_int_var(0, NODES, "")
            model.add(more >= have[name, slot] - have[name, slot - 1])
            gained.append(more)
        model.add(sum(gained) <= changing[slot - 1])
    model.add(have["all-disabled", 0] + changing[0] == NODES)
    waiting: list[cp_model.LinearExprT] = []
    total = cp_model.LinearExpr.sum
    running: dict[str, list[list[cp_model.LinearExprT]]] = {}
    for kind, (milli, slots, _) in KINDS.items():
        came = Counter(slot for each, slot in runs if each == kind)
        so_far = 0
        begun = []
        for slot in range(horizon):
            so_far += came[slot]
            begun.append(model.new_int_var(0, so_far, f"begun {kind} {slot}"))
            if slot:
                model.add(begun[slot] >= begun[slot - 1])
            waiting.append(milli * (so_far - begun[slot]))
        model.add(begun[-1] == so_far)
        running[kind] = [[begun[slot], *([-begun[slot - slots]] if slot >= slots else [])] for slot in range(horizon)]
    for slot in range(horizon):
        parts: list[cp_model.LinearExprT] = []
        held: list[cp_model.LinearExprT] = []
        # What is large enough for a kind is large enough for those that ask for less.
        for kind, name in (("whole", "all-disabled"), ("half", "all-3g.20gb"), ("seventh", "all-1g.5gb")):
            held += running[kind][slot]
            parts.append(PARTS[name] * have[name, slot])
            model.add(total(held) <= total(parts))
    model.minimize(cp_model.LinearExpr.sum(waiting))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = limit_s
    status = solver.solve(model)
    return solver.best_objective_bound / 1000 * SLOT_S / 3600, bool(status == cp_model.OPTIMAL)


if __name__ == "__main__":
    main()
