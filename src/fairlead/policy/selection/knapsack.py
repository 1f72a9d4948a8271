"""Selects the jobs that hold devices now, and their groups, if any may be preempted.

The selected groups are those of the greatest worth (``worth``) that fit into the number of devices together. Placement
is decided elsewhere: they come largest first, so that sizes that divide each other and a node leave no fragments.

Guarantees: never more devices than exist; no job waits while as many devices as it needs are idle; while all jobs fit,
    none shares; of two jobs of one size and one profile, the one with less remaining time never waits for the other.
    There is no bound on how long a long job waits: like every order by remaining time it may starve under overload.

Quotas, priorities and prices are not considered: those decide which jobs are in the queue.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate

from fairlead.frozen import dataclass
from fairlead.policy.selection.jobs import Job, JobGroup
from fairlead.policy.selection.worth import worth


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedJobs:
    """Jobs on as many slots as there are groups of members, and their sum of worth x speed."""

    worth: float
    members: tuple[tuple[Job, ...], ...]

    def groups(self) -> tuple[JobGroup, ...]:
        """Return the members as groups."""
        return tuple(JobGroup(jobs=jobs) for jobs in self.members)


Packings = Callable[[Sequence[Job], int], list[PackedJobs]]
"""Takes jobs of one size; returns a packing for 1, 2, ... slots."""


def choose(queue: Sequence[Job], num_gpus: int, packings: Packings | None = None) -> tuple[JobGroup, ...]:
    """Return the groups that should run from now on, largest first; the order of ``queue`` only breaks ties.

    Exact for the worths of each size's packings (a knapsack over sizes): num_gpus^2 x sum over sizes of 1 / size steps,
    and the cost of ``packings``.
    """
    fitting = [job for job in queue if job.num_gpus <= num_gpus]
    if sum(job.num_gpus for job in fitting) <= num_gpus:
        chosen = [JobGroup(jobs=(job,)) for job in fitting]
    else:
        by_size: dict[int, list[Job]] = defaultdict(list)
        for job in fitting:
            by_size[job.num_gpus].append(job)
        offers = {size: (packings or alone)(jobs, num_gpus // size) for size, jobs in by_size.items()}
        chosen = [group for packing in _fill(offers, num_gpus) for group in packing.groups()]
    return tuple(sorted(chosen, key=lambda group: -group.num_gpus))


def alone(jobs: Sequence[Job], num_slots: int) -> list[PackedJobs]:
    """Return for each number of slots the most valuable jobs without sharing."""
    worths = [worth(job) for job in jobs]
    first = sorted(range(len(jobs)), key=worths.__getitem__, reverse=True)[:num_slots]
    members = tuple((jobs[index],) for index in first)
    totals = accumulate(worths[index] for index in first)
    return [PackedJobs(worth=total, members=members[:count]) for count, total in enumerate(totals, start=1)]


def _fill(offers: dict[int, list[PackedJobs]], num_gpus: int) -> list[PackedJobs]:
    """Return one packing of each size, or none, that fit together with the greatest worth."""
    best = [0.0] * (num_gpus + 1)
    taken: list[tuple[PackedJobs, ...]] = [()] * (num_gpus + 1)
    for size, packs in offers.items():
        before, before_taken = best[:], taken[:]
        for slots, packing in enumerate(packs, start=1):
            for room in range(slots * size, num_gpus + 1):
                total = before[room - slots * size] + packing.worth
                if total > best[room]:
                    best[room] = total
                    taken[room] = (*before_taken[room - slots * size], packing)
    return list(taken[num_gpus])
