"""Orders jobs so that none finishes later than with an equal share, and the cluster finishes early.

Finish-time fairness of a job (Themis, NSDI'20; Shockwave, NSDI'23): its completion time over the time it would take on
1/N of the cluster. A job is due when that ratio would reach ``TARGET``. There are three classes, each greedy, skipping
what does not fit: jobs that would be late if they waited much longer; jobs whose own length determines the makespan,
longest first; the rest by shortest remaining service, which is good for the average. Guarantees: never more devices
than exist, no job waits while as many devices as it needs are idle, and the most pressed job runs.
"""

from enum import IntEnum

from fairlead.frozen import dataclass
from fairlead.policy.selection.jobs import Job

# The ratio up to which Shockwave counts a job as treated fairly.
TARGET = 1.05

# A job is pressed when its slack is below this many times its remaining time, since others will be pressed as well.
PRESSED = 1.0

# A job is long when it needs this many times the time in which all work could be done on all devices.
LONG = 1.0


class JobClass(IntEnum):
    """The classes of jobs, in order."""

    PRESSED = 0
    LONG = 1
    SHORTEST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShare:
    """A job with the inputs of its fair share: its arrival and its total seconds alone.

    ``back_s`` is the time it would lose if stopped now: a job that holds devices keeps its place before one whose turn
    is no further away than that.
    """

    job: Job
    submitted_s: float
    total_s: float
    back_s: float = 0.0


def slack_s(claim: JobShare, now: float, contention: float) -> float:
    """Return the seconds that the job may still wait and finish when due; negative if it will be late.

    A job that holds devices would lose ``back_s`` at once.
    """
    return due_s(claim, contention) - now - claim.job.remaining_s - claim.back_s


def due_s(claim: JobShare, contention: float) -> float:
    """Return when its ratio reaches ``TARGET``."""
    return claim.submitted_s + TARGET * max(1.0, contention / claim.job.weight) * claim.total_s


def pressed_at(claim: JobShare, contention: float) -> float:
    """Return when it becomes pressed if it waits until then."""
    return due_s(claim, contention) - (1.0 + PRESSED) * claim.job.remaining_s


def turn(claim: JobShare, now: float, contention: float, drain_s: float) -> JobClass:
    """Return its class; ``drain_s`` is the time in which all devices could finish all remaining work."""
    if slack_s(claim, now, contention) <= PRESSED * claim.job.remaining_s:
        return JobClass.PRESSED
    if claim.job.remaining_s + claim.back_s >= LONG * drain_s:
        return JobClass.LONG
    return JobClass.SHORTEST


def rank(claim: JobShare, now: float, contention: float, drain_s: float) -> tuple[JobClass, float]:
    """Return the sort key of a job; the smallest comes first."""
    whose = turn(claim, now, contention, drain_s)
    remaining_s = max(claim.job.remaining_s, 1.0)
    if whose is JobClass.PRESSED:
        return whose, slack_s(claim, now, contention) / remaining_s
    if whose is JobClass.LONG:
        return whose, -remaining_s - claim.back_s
    return whose, (remaining_s - claim.back_s) * claim.job.num_gpus
