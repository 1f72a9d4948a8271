"""Chooses the runs that leave the queue of owned nodes for rented ones, so that waits stay within a limit.

A job waits while the waiting that it causes, its own and that of later jobs, is worth the saved money: while it is at
most k (units x hours)^2, where k follows how much of the allowed average wait is left once the waiting jobs have
started as booked. The square keeps large jobs, a few of which account for most of the cost. Waiting jobs are booked
shortest first, which lets more of them wait for less. Starburst (Luo et al., USENIX ATC 2024) defines the problem and
the figures with which ``benchmarks.burst`` compares this rule. Units are GPUs, or cores for jobs without GPUs.
"""

import math
from collections.abc import Sequence

from fairlead.frozen import dataclass

# One setting for all loads; k is START times the allowed wait when waits are exactly as allowed.
START = 0.4
# The change of log k for each allowed wait that is saved or overdrawn.
GAIN = 0.04
# The same once it is overdrawn: nobody knows whether later jobs make up for it.
OVERDRAWN_GAIN = 0.3
# The part of the allowed wait to use.
PART = 0.99
# The maximum number of waiting jobs considered, oldest first: the work grows with the cube of their number.
MOST_WAITING = 48
# A job that runs longer than expected may end at any time.
_SOON_H = 1e-3
_EPS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A waiting job.

    Attributes:
        name: Its identifier; lower ones come first in ties.
        arrived_h: Its arrival, in hours.
        hours: Its expected duration.
        units: Units of each of its nodes.
        nodes: The number of nodes it uses at once.
        may_use: Suitable nodes; None for all.
        may_leave: Whether it may leave; False for one that only occupies the queue.
    """

    name: int
    arrived_h: float
    hours: float
    units: float
    nodes: int = 1
    may_use: frozenset[int] | None = None
    may_leave: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Units of a node that are held until a time, in hours."""

    node: int
    until_h: float
    units: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """The start of a job: its time in hours, and its nodes."""

    job: WaitingJob
    start_h: float
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """The allowed average wait in hours, the number of jobs so far, and the total wait of those that no longer wait."""

    allowed_h: float
    num_jobs: int
    waited_h: float


Span = tuple[float, float, float]
"""Beginning and end in hours, and the units taken."""


def book(waiting: Sequence[WaitingJob], held: Sequence[Held], now: float, *, sizes: Sequence[float]) -> list[Booking]:
    """Book the earliest start of each job, shortest first, into gaps where it fits.

    Args:
        sizes: Units of each node.

    Returns:
        A booking for each job that fits on the nodes at all.
    """
    taken: list[list[Span]] = [[] for _ in sizes]
    for holding in held:
        taken[holding.node].append((-math.inf, max(holding.until_h, now + _SOON_H), holding.units))
    bookings = []
    for job in sorted(waiting, key=lambda job: (job.hours, job.name)):
        booking = _booking(job, taken, now, sizes)
        if booking is None:
            continue
        for node in booking.nodes:
            taken[node].append((booking.start_h, booking.start_h + job.hours, job.units))
        bookings.append(booking)
    return bookings


def choose_leaving(
    waiting: Sequence[WaitingJob], held: Sequence[Held], now: float, waits: Waits, *, sizes: Sequence[float]
) -> list[WaitingJob]:
    """Return the waiting jobs that should leave now, those whose wait is worth least first."""
    staying = sorted(waiting, key=lambda job: (job.arrived_h, job.name))[:MOST_WAITING]
    gone: list[WaitingJob] = []
    pending_h = sum(now - job.arrived_h for job in waiting if job.may_leave)
    allowed_h = PART * waits.allowed_h
    while True:
        bookings = book(staying, held, now, sizes=sizes)
        # A wait that is only counted once it is over is overdrawn by then.
        booked_h = sum(entry.start_h - now for entry in bookings if entry.job.may_leave)
        left = (allowed_h * waits.num_jobs - waits.waited_h - pending_h - booked_h) / allowed_h
        gain = GAIN if left > 0.0 else OVERDRAWN_GAIN
        k = START * allowed_h * math.exp(min(50.0, max(-50.0, gain * left)))
        whole_h = sum(entry.start_h for entry in bookings)
        ratios = []
        for booking in bookings:
            job = booking.job
            if not job.may_leave:
                continue
            others = [other for other in staying if other is not job]
            caused_h = whole_h - sum(entry.start_h for entry in book(others, held, now, sizes=sizes)) - now
            ratios.append((caused_h / (k * (job.nodes * job.units * job.hours) ** 2), job.name, job))
        if not ratios:
            return gone
        ratio, _, worst = max(ratios, key=lambda rated: rated[:2])
        if ratio <= 1.0:
            return gone
        staying.remove(worst)
        gone.append(worst)


def _booking(job: WaitingJob, taken: Sequence[Sequence[Span]], now: float, sizes: Sequence[float]) -> Booking | None:
    usable = [
        node
        for node, size in enumerate(sizes)
        if size + _EPS >= job.units and (job.may_use is None or node in job.may_use)
    ]
    if len(usable) < job.nodes:
        return None
    if job.nodes == 1:
        start, _, node = min((*_earliest(taken[node], job, now, sizes[node]), node) for node in usable)
        return Booking(job=job, start_h=start, nodes=(node,))
    for start in [now, *sorted({end for node in usable for _, end, _ in taken[node] if end > now})]:
        free = sorted((_free(taken[node], start, job.hours, sizes[node]), node) for node in usable)
        fitting = [node for least, node in free if least + _EPS >= job.units]
        if len(fitting) >= job.nodes:
            return Booking(job=job, start_h=start, nodes=tuple(fitting[: job.nodes]))
    raise AssertionError("every node is free once all that holds it has ended")


def _earliest(spans: Sequence[Span], job: WaitingJob, now: float, size: float) -> tuple[float, float]:
    """Return the earliest start on a node, and the units free there beside the job then."""
    for start in [now, *sorted(end for _, end, _ in spans if end > now)]:
        if _free(spans, start, job.hours, size) + _EPS >= job.units:
            return start, _free(spans, start, 0.0, size) - job.units
    raise AssertionError("a node is free once all that holds it has ended")


def _free(spans: Sequence[Span], start: float, hours: float, size: float) -> float:
    """Return the units of a node that are free throughout a time."""
    end = start + hours
    moments = [start, *(begin for begin, _, _ in spans if start < begin < end - _EPS)]
    return min(size - sum(units for begin, until, units in spans if begin <= at + _EPS < until) for at in moments)
