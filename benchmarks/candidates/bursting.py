"""Which jobs leave the queue of one's own machines for the cloud, so that waits stay within what is allowed on average.

A job waits while the waiting that it causes, its own and that of those behind it, is worth the money: while it is at
most k (GPUs x hours)^2, where k follows how much of the allowed wait is left over so far. The square keeps large jobs,
of which few cost most of the money. Those that wait are booked shortest first, which lets more of them wait for less.

Whoever decides between clusters would ask this at each arrival and each end, with the run times that are expected.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# One setting for all loads; k is START times the allowed wait where waits are just as allowed.
START = 0.3
# How fast k follows, for each allowed wait that is saved or overdrawn.
GAIN = 0.02
# Of the allowed wait so much is used, as the last waits are known only when they are over.
PART = 0.985
# What runs longer than it was expected to ends at any time.
_SOON_H = 1e-3
_EPS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that waits: when it came, how long it is expected to run, hours, and how many GPUs it has on one node."""

    name: int
    arrived_h: float
    hours: float
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """GPUs of a node that are held until a time."""

    node: int
    until_h: float
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """Start of a job: its time and its place."""

    job: Job
    start_h: float
    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """The average wait that is allowed, hours; how many jobs have come; how long those waited that wait no more."""

    allowed_h: float
    num_jobs: int
    waited_h: float


def book(waiting: Sequence[Job], held: Sequence[Held], now: float, *, nodes: int, size: int) -> list[Booking]:
    """The earliest start of each job, shortest first, on nodes with so many GPUs; into gaps where it fits."""
    taken: list[list[tuple[float, float, int]]] = [[] for _ in range(nodes)]
    for each in held:
        taken[each.node].append((-math.inf, max(each.until_h, now + _SOON_H), each.gpus))
    found = []
    for job in sorted(waiting, key=lambda job: (job.hours, job.name)):
        start, _, node = min((*_earliest(spans, job, now, size), node) for node, spans in enumerate(taken))
        taken[node].append((start, start + job.hours, job.gpus))
        found.append(Booking(job=job, start_h=start, node=node))
    return found


def leaving(
    waiting: Sequence[Job], held: Sequence[Held], now: float, waits: Waits, *, nodes: int, size: int
) -> list[Job]:
    """Those of the waiting jobs that go to the cloud now, the least worth their wait first."""
    staying = list(waiting)
    gone = []
    pending_h = sum(now - job.arrived_h for job in waiting)
    allowed_h = PART * waits.allowed_h
    left = (allowed_h * waits.num_jobs - waits.waited_h - pending_h) / allowed_h
    k = START * allowed_h * math.exp(min(50.0, max(-50.0, GAIN * left)))
    while staying:
        whole_h = _starts(staying, held, now, nodes, size)
        ratios = []
        for job in staying:
            others = [other for other in staying if other is not job]
            caused_h = whole_h - _starts(others, held, now, nodes, size) - now
            ratios.append((caused_h / (k * (job.gpus * job.hours) ** 2), job.name, job))
        ratio, _, worst = max(ratios)
        if ratio <= 1.0:
            break
        staying.remove(worst)
        gone.append(worst)
    return gone


def _starts(waiting: Sequence[Job], held: Sequence[Held], now: float, nodes: int, size: int) -> float:
    return sum(each.start_h for each in book(waiting, held, now, nodes=nodes, size=size))


def _earliest(spans: Sequence[tuple[float, float, int]], job: Job, now: float, size: int) -> tuple[float, int]:
    """The earliest start on a node, and what is free there beside it then."""
    for start in [now, *sorted(end for _, end, _ in spans if end > now)]:
        end = start + job.hours
        moments = [start, *(begin for begin, _, _ in spans if start < begin < end - _EPS)]
        free = [size - sum(gpus for begin, until, gpus in spans if begin <= at + _EPS < until) for at in moments]
        if min(free) >= job.gpus:
            return start, free[0] - job.gpus
    raise ValueError(f"a job of {job.gpus} GPUs on nodes of {size}")
