"""Adds to a run's priority while it waits, so that nobody starves.

In a team a run of priority p goes before every run of priority q > p that comes ``(q - p) x AGEING_S`` seconds later or
after, so only so many ever go before it. It keeps the points that it gained when it starts, so that those that it had
overtaken do not preempt it. Only time spent Pending counts. Constant time.
"""

from fairlead.state.snapshot import Phase, Workload

# One point of priority for ten minutes: 100 points are 17 hours, the whole range of 1000 is a week.
AGEING_S = 600.0
_PENDING = Phase.PENDING


def raised(workload: Workload, now: float) -> int:
    """Points of priority gained by waiting so far."""
    status = workload.status
    waited_s = now - status.since if status.phase is _PENDING else 0.0
    return status.raised + (int(waited_s / AGEING_S) if waited_s > 0.0 else 0)


def effective_priority(workload: Workload, now: float) -> int:
    """The priority with what waiting has added; a scavenger's never rises."""
    asked = workload.spec.priority
    return asked if asked < 0 else asked + raised(workload, now)


def precedence(workload: Workload, now: float) -> tuple[int, float, str]:
    """Sorts runs of one team: the first comes first."""
    return -effective_priority(workload, now), workload.created_at, workload.uid
