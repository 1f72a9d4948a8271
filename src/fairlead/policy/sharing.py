"""How jobs of one size share a number of slots: sets of as many devices as each of them needs.

Seeks a great sum over members of worth (``ordering``) x speed (``colocation``). While jobs of the size wait, groups are
made one after the other, each the worthiest that the next jobs of each profile give. Once nobody of the size waits,
further slots split groups where the sum gains most, until everybody is alone. To split before that, where it gains more
than a further group, comes to a greater sum now and to longer waits: what is left to wait counts too little in it
(docs/decisions/0010-queue-order-and-sharing.md). Only jobs of one size share, as in Muri (SIGCOMM'22): a member that
shared some of its devices would hold the others idle.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from fairlead.policy.colocation import MAX_MEMBERS, Profile, round_time_s
from fairlead.policy.jobs import Group, Job
from fairlead.policy.ordering import worth

# Candidates for a place in a group are the next jobs of at most so many profiles, the worthiest first.
MAX_CANDIDATES = 12

# A gain below this share of the sum is rounding.
_LEAST_GAIN = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Jobs on as many slots as there are groups of members, and the sum of worth x speed that they come to."""

    worth: float
    members: tuple[tuple[Job, ...], ...]

    def groups(self) -> tuple[Group, ...]:
        """The members as values."""
        return tuple(Group(jobs=jobs) for jobs in self.members)


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
        return _Draft(jobs, weight, weight / round_time_s(_stages(jobs)))


def _stages(jobs: Sequence[Job]) -> tuple[tuple[float, float, float], ...]:
    return tuple(sorted(job.profile.stages_s for job in jobs if job.profile is not None))


def _densest_first(jobs: Sequence[Job]) -> Iterator[_Draft]:
    """Disjoint groups, each the worthiest that can be grown from one of the next jobs."""
    lines: dict[Profile | None, list[_Draft]] = defaultdict(list)
    for job in jobs:
        lines[job.profile].append(_Draft.alone(job))
    for line in lines.values():
        line.sort(key=lambda draft: draft.worth)
    grown: dict[Profile | None, _Draft] = {}
    while lines:
        candidates = heapq.nlargest(MAX_CANDIDATES, lines, key=lambda profile: lines[profile][-1].worth)
        for seed in candidates:
            if seed not in grown:
                grown[seed] = _grow(seed, {profile: lines[profile] for profile in candidates})
        best = max(candidates, key=lambda profile: grown[profile].worth)
        draft = grown[best]
        yield draft
        # What is taken leaves the lines, and what was grown with it is grown again; the rest could only lose.
        used = {job.profile for job in draft.jobs}
        for job in draft.jobs:
            lines[job.profile].pop()
        lines = {profile: line for profile, line in lines.items() if line}
        grown = {seed: each for seed, each in grown.items() if used.isdisjoint(job.profile for job in each.jobs)}


def _grow(seed: Profile | None, lines: dict[Profile | None, list[_Draft]]) -> _Draft:
    """A group around the next job of a profile: whoever adds most joins, as long as the sum grows."""
    draft = lines[seed][-1]
    if seed is None:
        return draft
    used = dict.fromkeys(lines, 0)
    used[seed] = 1
    while len(draft.jobs) < MAX_MEMBERS:
        joined = [
            (draft.joined_by(line[-1 - used[profile]]), profile)
            for profile, line in lines.items()
            if profile is not None and used[profile] < len(line)
        ]
        better, profile = max(joined, key=lambda pair: pair[0].worth, default=(draft, seed))
        if better.worth <= draft.worth * (1.0 + _LEAST_GAIN):
            break
        draft = better
        used[profile] += 1
    return draft


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
