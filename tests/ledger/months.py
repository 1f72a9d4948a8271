"""Simulated months of a few nodes: pods with parts of GPUs that are preempted, crash and hang, and prices that change.

``recount`` bills a month by brute force, from its events alone and in fractions, sharing nothing with the ledger but
the words for uses.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from fairlead.ledger.usage import DAY_MS, HOUR_MS, Use
from fairlead.specs.training import Training
from fairlead.state.snapshot import Gpu, Grant, Node, Pod, PodPhase, Progress, RankExit, Whereabouts
from tests.builders import training

MONTH_MS = 30 * DAY_MS
START_MS = 20_000 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One pod with its run; ``marks`` are the uses of its life with their ends, as the world knows them."""

    pod: Pod
    spec: Training
    progress: Progress | None
    part: Fraction
    marks: tuple[tuple[Use, int], ...]
    ended_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """All that happened: prices by node, micro-dollars an hour or None, and pods."""

    nodes: tuple[Node, ...]
    prices: dict[str, list[tuple[int, int | None]]]
    lives: tuple[Life, ...]


def month(seed: int, *, num_pods: int = 60) -> Month:
    """A month of four nodes, another for each seed."""
    draw = random.Random(seed)
    nodes = tuple(_node(f"node-{number}", draw) for number in range(4))
    prices = {node.name: _prices(draw) for node in nodes}
    lives = []
    free = {(node.name, gpu.uuid): [0] * 4 for node in nodes for gpu in node.gpus}
    cores = {node.name: [0] * 4 for node in nodes if not node.gpus}
    for number in range(num_pods):
        node = draw.choice(nodes)
        lives.append(_life(number, node, free, cores, draw))
    return Month(nodes=nodes, prices=prices, lives=tuple(lives))


def recount(world: Month, start_ms: int, end_ms: int) -> dict[tuple[str, str | None, Use], int]:
    """Micro-dollars by node, run and use, between two times: each second by itself between any two events."""
    paid: dict[tuple[str, str | None, Use], int] = {}
    for node in world.nodes:
        own = [life for life in world.lives if life.pod.node == node.name]
        times = {start_ms, end_ms} | {at for at, _ in world.prices[node.name]}
        for life in own:
            times |= {round(life.pod.created_at * 1000), *(end for _, end in life.marks)}
        cuts = sorted(at for at in times if start_ms <= at <= end_ms)
        exact: defaultdict[tuple[str, str | None, Use], Fraction] = defaultdict(Fraction)
        for low, high in pairwise(cuts):
            rate = next((rate for at, rate in reversed(world.prices[node.name]) if at <= low), None)
            if rate is None:
                continue
            cost, left = Fraction(rate * (high - low), HOUR_MS), Fraction(1)
            for life in own:
                begin = round(life.pod.created_at * 1000)
                use = next((use for use, end in life.marks if begin <= low < end), None)
                if use is not None:
                    exact[node.name, life.spec.name, use] += cost * life.part
                    left -= life.part
            exact[node.name, None, Use.IDLE] += cost * left
        paid |= _whole(exact)
    return {key: amount for key, amount in paid.items() if amount}


def _whole(exact: dict[tuple[str, str | None, Use], Fraction]) -> dict[tuple[str, str | None, Use], int]:
    """Whole micro-dollars that sum to the rounded bill, by largest remainders."""
    bill = (2 * sum(exact.values(), Fraction()) + 1) // 2
    paid = {key: int(amount) for key, amount in exact.items()}
    by_remainder = sorted(exact, key=lambda key: exact[key] - int(exact[key]), reverse=True)
    for key in by_remainder[: int(bill) - sum(paid.values())]:
        paid[key] += 1
    return paid


def _node(name: str, draw: random.Random) -> Node:
    kind = draw.choice(["whole", "mig", "none"])
    gpus = {
        "whole": [(f"{name}-{i}", 1000, True) for i in range(draw.choice([1, 2, 4, 8]))],
        "mig": [(f"{name}-{i}", milli, False) for i, milli in enumerate([500, 250, 250])],
        "none": [],
    }[kind]
    devices = tuple(Gpu(uuid=uuid, model="A", memory_bytes=1, milli=m, divisible=d) for uuid, m, d in gpus)
    return Node(name=name, cpu_milli=4000, memory_bytes=1, gpus=devices)


def _prices(draw: random.Random) -> list[tuple[int, int | None]]:
    changes: list[tuple[int, int | None]] = [(START_MS + draw.randrange(-MONTH_MS, DAY_MS), draw.randrange(60_000_000))]
    for _ in range(draw.randrange(4)):
        rate = draw.choice([None, 0, 1, draw.randrange(60_000_000)])
        changes.append((START_MS + draw.randrange(MONTH_MS), rate))
    return sorted({at: (at, rate) for at, rate in changes}.values())


def _life(
    number: int,
    node: Node,
    free: dict[tuple[str, str], list[int]],
    cores: dict[str, list[int]],
    draw: random.Random,
) -> Life:
    """A pod on the quarters of one device, or the cores, that are free first."""
    if node.gpus:
        gpu = draw.choice(node.gpus)
        quarters = free[node.name, gpu.uuid]
        wanted = draw.choice([1, 2, 4]) if gpu.divisible else 4
        milli = wanted * 250 if gpu.divisible else gpu.milli
        grant = Grant(cpu_milli=1, gpu_uuids=(gpu.uuid,), gpu_milli=wanted * 250)
        part = Fraction(milli, sum(each.milli for each in node.gpus))
    else:
        quarters, wanted = cores[node.name], draw.choice([1, 2, 4])
        grant, part = Grant(cpu_milli=wanted * 1000), Fraction(wanted, 4)
    order = sorted(range(4), key=lambda slot: quarters[slot])[:wanted]
    begin = max(START_MS, *(quarters[slot] for slot in order)) + draw.choice([0, draw.randrange(2 * DAY_MS)])
    spans = [draw.choice([0, 1, draw.randrange(1, HOUR_MS), draw.randrange(1, 4 * DAY_MS)]) for _ in range(4)]
    end = begin + sum(spans)
    for slot in order:
        quarters[slot] = end
    spec = training(f"run-{number}", team=f"team-{number % 3}", labels={"project": "p"} if number % 2 else {})
    started = begin + spans[0]
    pod = Pod(
        uid=f"{number}", workload_uid=f"uid-{number}", attempt=0, index=0, node=node.name, grant=grant,
        phase=PodPhase.SUCCEEDED, created_at=begin / 1000, started_at=started / 1000,
        exits=(RankExit(rank=0, exit_code=0, at=end / 1000),),
    )  # fmt: skip
    fate = draw.choice(["succeeds", "never starts", "crashes", "crashes saved", "notice saved", "notice", "hangs"])
    first, saved = started + spans[1], Progress(checkpoint_at=(started + spans[1]) / 1000)
    progress: Progress | None = None
    marks: list[tuple[Use, int]] = [(Use.STARTING, started), (Use.PRODUCTIVE, end)]
    if fate == "never starts":
        pod, marks = replace(pod, phase=PodPhase.LOST, started_at=None), [(Use.STARTING, end)]
    elif fate == "crashes":
        pod, marks = replace(pod, phase=PodPhase.FAILED), [(Use.STARTING, started), (Use.REDONE, end)]
    elif fate == "crashes saved":
        pod, progress = replace(pod, phase=PodPhase.FAILED), saved
        marks = [(Use.STARTING, started), (Use.PRODUCTIVE, first), (Use.REDONE, end)]
    elif fate == "notice saved":
        kept = first + spans[2]
        pod, progress = replace(pod, terminating_since=first / 1000), Progress(checkpoint_at=kept / 1000)
        marks = [(Use.STARTING, started), (Use.PRODUCTIVE, first), (Use.SAVING, kept), (Use.STALLED, end)]
        if kept == first:  # saved just when it was told: nothing was lost, and nothing took time
            marks = [(Use.STARTING, started), (Use.PRODUCTIVE, first), (Use.STALLED, end)]
    elif fate == "notice":
        pod = replace(pod, terminating_since=first / 1000, phase=PodPhase.FAILED)
        marks = [(Use.STARTING, started), (Use.REDONE, first), (Use.STALLED, end)]
    elif fate == "hangs":
        hung = RankExit(rank=0, signal=9, at=end / 1000, hang=Whereabouts())
        pod = replace(pod, phase=PodPhase.FAILED, exits=(hung,), active_at=first / 1000)
        marks = [(Use.STARTING, started), (Use.REDONE, first), (Use.STALLED, end)]
    return Life(pod=pod, spec=spec, progress=progress, part=part, marks=tuple(marks), ended_ms=end)
