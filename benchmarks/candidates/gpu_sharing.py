"""Lets jobs of one size share a number of slots: sets of as many devices as each of them needs.

Seeks a great sum over members of worth (``worth``) x speed (``stage_interleaving``). While jobs of the size wait,
groups are made one after the other, each the worthiest that the next jobs of each profile give. Once nobody of the size
waits, further slots split groups where the sum gains most, until everybody is alone. To split before that, where it
gains more than a further group, comes to a greater sum now and to longer waits: what is left to wait counts too little
(docs/decisions/0010-queue-order-and-sharing.md). Only jobs of one size share, as in Muri (SIGCOMM'22): a member that
shared some of its devices would hold the others idle.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from fairlead.policy.gpu.stage_interleaving import MAX_MEMBERS, Profile, Stages, round_time_s
from fairlead.policy.selection.jobs import Job
from fairlead.policy.selection.knapsack import Packing
from fairlead.policy.selection.worth import worth

# Candidates for a place in a group are the next jobs of at most so many profiles, the worthiest first.
MAX_CANDIDATES = 12

# A gain below this share of the sum is rounding.
_LEAST_GAIN = 1e-9


def packings(jobs: Sequence[Job], num_slots: int) -> list[Packing]:
    """A packing for 1, 2, ... ``num_slots`` slots, of growing worth; fewer when there are fewer jobs than slots.

    At most slots x MAX_CANDIDATES^2 x 3 groups are weighed, and each profile's jobs are sorted once.
    """
    made: list[_Draft] = []
    found: list[Packing] = []
    total = 0.0
    for draft in islice(_densest_first(jobs), num_slots):
        made.append(draft)
        total += draft.worth
        found.append(Packing(worth=total, members=tuple(each.jobs for each in made)))
    found.extend(
        Packing(worth=sum(each.worth for each in apart), members=tuple(each.jobs for each in apart))
        for apart in islice(_spread(made), num_slots - len(made))
    )
    return found


@dataclass(frozen=True, slots=True)
class _Draft:
    """A group in the making; ``weight`` is the sum of worth x iteration time, so that worth = weight / round time."""

    jobs: tuple[Job, ...]
    weight: float
    worth: float

    @classmethod
    def alone(cls, job: Job) -> "_Draft":
        value = worth(job)
        return cls((job,), value * job.profile.iteration_s if job.profile else 0.0, value)

    def joined_by(self, other: "_Draft") -> "_Draft":
        """The members of both on one slot."""
        jobs, weight = self.jobs + other.jobs, self.weight + other.weight
        stages = tuple(sorted(job.profile.stages_s for job in jobs if job.profile is not None))
        return _Draft(jobs, weight, weight / round_time_s(stages))


@dataclass(frozen=True, slots=True)
class _Line:
    """Jobs of one profile, the worthiest last; ``drafts`` shrinks as they are taken."""

    profile: Profile | None
    drafts: list[_Draft]

    @property
    def next_worth(self) -> float:
        return self.drafts[-1].worth


def _densest_first(jobs: Sequence[Job]) -> Iterator[_Draft]:
    """Disjoint groups, each the worthiest that can be grown from one of the next jobs."""
    by_profile: dict[Profile | None, list[_Draft]] = defaultdict(list)
    for job in jobs:
        by_profile[job.profile].append(_Draft.alone(job))
    lines = {
        index: _Line(profile, sorted(drafts, key=lambda draft: draft.worth))
        for index, (profile, drafts) in enumerate(by_profile.items())
    }
    grown: dict[int, tuple[_Draft, list[int]]] = {}
    while lines:
        candidates = heapq.nlargest(MAX_CANDIDATES, lines, key=lambda index: lines[index].next_worth)
        for seed in candidates:
            if seed not in grown:
                grown[seed] = _grow(seed, [(index, lines[index]) for index in candidates])
        draft, used = grown[max(candidates, key=lambda index: grown[index][0].worth)]
        yield draft
        # What is taken leaves the lines, and what was grown with it is grown again; the rest could only lose.
        for index in used:
            lines[index].drafts.pop()
            if not lines[index].drafts:
                del lines[index]
        grown = {seed: each for seed, each in grown.items() if set(used).isdisjoint(each[1])}


def _grow(seed: int, lines: Sequence[tuple[int, _Line]]) -> tuple[_Draft, list[int]]:
    """A group around the next job of a line, and the lines of its members: whoever adds most joins, while it adds."""
    by_index = dict(lines)
    draft, used = by_index[seed].drafts[-1], [seed]
    profile = by_index[seed].profile
    if profile is None:
        return draft, used
    jobs, weight, best = draft.jobs, draft.weight, draft.worth
    stages: tuple[Stages, ...] = (profile.stages_s,)
    while len(used) < MAX_MEMBERS:
        joining = None
        least = best * (1.0 + _LEAST_GAIN)
        for index, line in lines:
            ahead = used.count(index)
            if line.profile is None or ahead >= len(line.drafts):
                continue
            together = (weight + line.drafts[-1 - ahead].weight) / _round_s(stages, line.profile.stages_s)
            if together > least:
                least, joining = together, (index, line.drafts[-1 - ahead], line.profile.stages_s)
        if joining is None:
            break
        index, other, more = joining
        jobs, weight, best, stages = jobs + other.jobs, weight + other.weight, least, (*stages, more)
        used.append(index)
    return _Draft(jobs, weight, best), used


@lru_cache(maxsize=1 << 16)
def _round_s(stages: tuple[Stages, ...], more: Stages) -> float:
    """Round time of a group with one more member."""
    return round_time_s(tuple(sorted((*stages, more))))


def _spread(made: Sequence[_Draft]) -> Iterator[tuple[_Draft, ...]]:
    """The groups with one slot more each time: the member leaves its group whose leaving gains most."""
    groups = list(made)
    splits = [_best_split(draft) for draft in groups]
    while True:
        gain, index = max(((split[0], index) for index, split in enumerate(splits) if split), default=(0.0, -1))
        split = splits[index] if index >= 0 else None
        if split is None or gain <= 0.0:
            return
        _, rest, leaver = split
        groups[index] = rest
        groups.append(leaver)
        splits[index] = _best_split(rest)
        splits.append(None)
        yield tuple(groups)


def _best_split(draft: _Draft) -> tuple[float, _Draft, _Draft] | None:
    """The gain, the rest and the one that leaves; None for a job alone."""
    if len(draft.jobs) == 1:
        return None
    found = []
    for leaver in draft.jobs:
        rest = [_Draft.alone(job) for job in draft.jobs if job is not leaver]
        staying = rest[0]
        for each in rest[1:]:
            staying = staying.joined_by(each)
        alone = _Draft.alone(leaver)
        found.append((staying.worth + alone.worth - draft.worth, staying, alone))
    return max(found, key=lambda split: split[0])
