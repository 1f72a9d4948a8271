"""Raises the priority of pending runs over time, so that no run starves.

Within a team, a run of priority p precedes every run of priority q > p that arrives ``(q - p) x AGEING_S`` seconds
later or after, so only a bounded number of runs ever overtake it. A run keeps its gained points when it starts, so that
the runs it has overtaken do not preempt it. Only time spent Pending counts. Constant time.
"""

from fairlead.state.snapshot import Phase, Workload

# One point of priority per ten minutes: 100 points are 17 hours, the whole range of 1000 is a week.
AGEING_S = 600.0
_PENDING = Phase.PENDING


def raised(workload: Workload, now: float) -> int:
    """Return the points of priority gained by waiting so far."""
    status = workload.status
    waited_s = now - status.since if status.phase is _PENDING else 0.0
    return status.queue.raised + (int(waited_s / AGEING_S) if waited_s > 0.0 else 0)


def effective_priority(workload: Workload, now: float) -> int:
    """Return the priority including the gained points; that of a scavenger never rises."""
    priority = workload.spec.priority
    return priority if priority < 0 else priority + raised(workload, now)


def precedence(workload: Workload, now: float) -> tuple[int, float, str]:
    """Return the sort key for runs of one team; the smallest comes first."""
    return -effective_priority(workload, now), workload.created_at, workload.uid
