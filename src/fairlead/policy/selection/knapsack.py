"""Chooses which of the jobs that want devices hold them now, and with whom, when any may be preempted.

The chosen groups are those of the greatest worth (``worth``) that fit into the number of devices together. Where
they go is for placement: they come largest first, so that sizes which divide each other and a node leave no fragments.

Promises: never more devices than there are; nobody waits while as many devices as it needs are idle; while everybody
fits, nobody shares; of two jobs of one size and one profile the one with less remaining time never waits for the other.
Promises no bound on how long a long job waits: like every order by remaining time it may starve under overload.

Knows nothing of quotas, priorities or prices: those decide who is in the queue.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate

from fairlead.frozen import dataclass
from fairlead.policy.selection.jobs import Group, Job
from fairlead.policy.selection.worth import worth


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Jobs on as many slots as there are groups of members, and the sum of worth x speed that they come to."""

    worth: float
    members: tuple[tuple[Job, ...], ...]

    def groups(self) -> tuple[Group, ...]:
        """The members as values."""
        return tuple(Group(jobs=jobs) for jobs in self.members)


Packings = Callable[[Sequence[Job], int], list[Packing]]
"""Of jobs of one size: a packing for 1, 2, ... so many slots."""


def choose(queue: Sequence[Job], num_gpus: int, packings: Packings | None = None) -> tuple[Group, ...]:
    """Groups that should run from now on, largest first; the order of ``queue`` decides only ties.

    Exact for the worths of each size's packings (a knapsack over sizes): num_gpus^2 x sum over sizes of 1 / size steps,
    and those of ``packings``.
    """
    fitting = [job for job in queue if job.num_gpus <= num_gpus]
    if sum(job.num_gpus for job in fitting) <= num_gpus:
        chosen = [Group(jobs=(job,)) for job in fitting]
    else:
        by_size: dict[int, list[Job]] = defaultdict(list)
        for job in fitting:
            by_size[job.num_gpus].append(job)
        offers = {size: (packings or alone)(jobs, num_gpus // size) for size, jobs in by_size.items()}
        chosen = [group for packing in _fill(offers, num_gpus) for group in packing.groups()]
    return tuple(sorted(chosen, key=lambda group: -group.num_gpus))


def alone(jobs: Sequence[Job], num_slots: int) -> list[Packing]:
    """For each number of slots, the worthiest jobs, nobody sharing."""
    worths = [worth(job) for job in jobs]
    first = sorted(range(len(jobs)), key=worths.__getitem__, reverse=True)[:num_slots]
    members = tuple((jobs[index],) for index in first)
    totals = accumulate(worths[index] for index in first)
    return [Packing(worth=total, members=members[:count]) for count, total in enumerate(totals, start=1)]


def _fill(offers: dict[int, list[Packing]], num_gpus: int) -> list[Packing]:
    """One packing of each size, or none, that together are worth most and fit."""
    best = [0.0] * (num_gpus + 1)
    taken: list[tuple[Packing, ...]] = [()] * (num_gpus + 1)
    for size, packs in offers.items():
        before, before_taken = best[:], taken[:]
        for slots, packing in enumerate(packs, start=1):
            for room in range(slots * size, num_gpus + 1):
                total = before[room - slots * size] + packing.worth
                if total > best[room]:
                    best[room] = total
                    taken[room] = (*before_taken[room - slots * size], packing)
    return list(taken[num_gpus])
