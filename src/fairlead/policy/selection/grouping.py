"""Groups jobs of one size on a number of slots: sets of as many devices as each of them needs.

Maximises the sum over members of worth (``worth``) x speed beside each other. While jobs of the size wait, groups are
made one after the other, each the most valuable that the next jobs of each kind give. Once no job of the size waits,
further slots split groups where the sum gains most, until every job is alone; what a split leaves together may be worth
a little less than its best member alone, and all run. Splitting before that, where it gains more than a further group,
gives a greater sum now and longer waits: remaining waiting counts too little
(docs/decisions/0010-queue-order-and-sharing.md). Only jobs of one size share, as in Muri (SIGCOMM'22): a member that
shared some of its devices would leave the others idle.

Guarantees: groups of at most ``MAX_MEMBERS`` jobs that all may share and are ``alike``, no more than have room beside
    each other, and whose declared needs of device memory fit.
"""

import heapq
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from itertools import islice

from fairlead.frozen import dataclass
from fairlead.policy.gpu.stage_interleaving import MAX_MEMBERS
from fairlead.policy.selection.jobs import Job, Sharable, Speeds
from fairlead.policy.selection.knapsack import PackedJobs
from fairlead.policy.selection.worth import worth

# Candidates for a group are the next jobs of at most this many kinds, the most valuable first.
MAX_CANDIDATES = 12

# A gain below this part of the sum is rounding.
_LEAST_GAIN = 1e-9


@dataclass(frozen=True, slots=True)
class Grouping:
    """Makes packings of jobs that share with the given speeds."""

    speeds: Speeds

    def __call__(self, jobs: Sequence[Job], num_slots: int) -> list[PackedJobs]:
        """Return a packing for 1, 2, ... ``num_slots`` slots, of growing worth; fewer if jobs are fewer than slots.

        At most slots x MAX_CANDIDATES^2 x 3 groups are evaluated, and each kind's jobs are sorted once.
        """
        weighing = _Weighing(self.speeds, jobs)
        made: list[_Draft] = []
        packings: list[PackedJobs] = []
        total = 0.0
        for draft in islice(weighing.densest_first(), num_slots):
            made.append(draft)
            total += draft.worth
            packings.append(_packing(total, made))
        spread = islice(weighing.spread(made), num_slots - len(made))
        return packings + [_packing(sum(job.worth for job in apart), apart) for apart in spread]


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """A job, its worth alone, and the number of its line."""

    job: Job
    worth: float
    line: int


@dataclass(frozen=True, slots=True, eq=False)
class _Draft:
    """An unfinished group; members are in the order of their lines, which is that of their kinds."""

    members: tuple[_Member, ...]
    worth: float


class _Weighing:
    """Evaluates groups of jobs of one size; those of one kind that share alike form a line, the most valuable last."""

    def __init__(self, speeds: Speeds, jobs: Sequence[Job]) -> None:
        by_kind: dict[Sharable, list[Job]] = defaultdict(list)
        # A job that does not share is a line of its own, after the others.
        alone: list[Job] = []
        for job in jobs:
            (alone if job.sharable is None else by_kind[job.sharable]).append(job)
        shared = list(by_kind)
        numbers: dict[Hashable, int] = {}
        alike = [numbers.setdefault(entry.alike, len(numbers)) for entry in shared]
        order = sorted(range(len(shared)), key=lambda i: (shared[i].kind, alike[i], shared[i].memory, shared[i].most))
        self._says = [shared[i] for i in order]
        self._alike = [alike[i] for i in order]
        lines = [by_kind[kind] for kind in self._says] + [[job] for job in alone]
        self._lines = [
            sorted((_Member(job, worth(job), line) for job in line_jobs), key=lambda member: member.worth)
            for line, line_jobs in enumerate(lines)
        ]
        self._speeds = speeds
        self._known: dict[tuple[int, ...], tuple[float, ...]] = {}

    def densest_first(self) -> Iterator[_Draft]:
        """Yield disjoint groups, each the most valuable that can be grown from one of the next jobs."""
        left = {number: line for number, line in enumerate(self._lines) if line}
        grown: dict[int, _Draft] = {}
        while left:
            candidates = heapq.nlargest(MAX_CANDIDATES, left, key=lambda number: left[number][-1].worth)
            for seed in candidates:
                if seed not in grown:
                    grown[seed] = self._grow(seed, candidates)
            draft = grown[max(candidates, key=lambda number: grown[number].worth)]
            yield draft
            # Used jobs leave the lines, and groups grown with them are grown again; the others could only lose.
            used = [member.line for member in draft.members]
            for number in used:
                left[number].pop()
                if not left[number]:
                    del left[number]
            grown = {
                seed: group for seed, group in grown.items() if not any(member.line in used for member in group.members)
            }

    def spread(self, made: Sequence[_Draft]) -> Iterator[tuple[_Draft, ...]]:
        """Yield the groups with one more slot each time: the member whose leaving gains most leaves its group."""
        groups = list(made)
        splits = [self._best_split(draft) for draft in groups]
        while True:
            gain, index = max(((split[0], index) for index, split in enumerate(splits) if split), default=(0.0, -1))
            split = splits[index] if index >= 0 else None
            if split is None or gain <= 0.0:
                return
            _, rest, leaver = split
            groups[index] = rest
            groups.append(leaver)
            splits[index] = self._best_split(rest)
            splits.append(None)
            yield tuple(groups)

    def _grow(self, seed: int, candidates: Sequence[int]) -> _Draft:
        """Grow a group around the next job of a line: the job that adds most joins, while there is a gain."""
        first = self._lines[seed][-1]
        members: tuple[_Member, ...] = (first,)
        best, used = first.worth, [seed]
        if seed >= len(self._says):
            return _Draft(members, best)
        alike, most, memory = self._alike[seed], self._says[seed].most, self._says[seed].memory
        joinable = [number for number in candidates if number < len(self._says) and self._alike[number] == alike]
        while len(members) < MAX_MEMBERS:
            joining, least = None, best * (1.0 + _LEAST_GAIN)
            for number in joinable:
                line, says, ahead = self._lines[number], self._says[number], used.count(number)
                has_room = len(members) < min(most, says.most) and memory + says.memory <= 1.0
                if ahead >= len(line) or not has_room:
                    continue
                tried = _with(members, line[-1 - ahead])
                together = self._worth(tried)
                if together > least:
                    joining, least = tried, together
                    joined = number
            if joining is None:
                break
            members, best = joining, least
            used.append(joined)
            most, memory = min(most, self._says[joined].most), memory + self._says[joined].memory
        return _Draft(members, best)

    def _worth(self, members: tuple[_Member, ...]) -> float:
        """Return the worth of a second of them on one slot."""
        if len(members) == 1:
            return members[0].worth
        key = tuple([member.line for member in members])
        speeds = self._known.get(key)
        if speeds is None:
            speeds = self._known[key] = self._speeds(tuple(self._says[line].kind for line in key))
        total = 0.0
        for member, speed in zip(members, speeds, strict=True):
            total += member.worth * speed
        return total

    def _best_split(self, draft: _Draft) -> tuple[float, _Draft, _Draft] | None:
        """Return the gain, the rest and the leaving member of the best split; None for a job alone."""
        if len(draft.members) == 1:
            return None
        best = []
        for leaver in draft.members:
            rest = tuple(member for member in draft.members if member is not leaver)
            left = _Draft(rest, self._worth(rest))
            best.append((left.worth + leaver.worth - draft.worth, left, _Draft((leaver,), leaver.worth)))
        return max(best, key=lambda split: split[0])


def _with(members: tuple[_Member, ...], other: _Member) -> tuple[_Member, ...]:
    """Return the members and one more, in order."""
    for place, member in enumerate(members):
        if other.line < member.line:
            return (*members[:place], other, *members[place:])
    return (*members, other)


def _packing(total: float, groups: Sequence[_Draft]) -> PackedJobs:
    return PackedJobs(worth=total, members=tuple(tuple(member.job for member in group.members) for group in groups))
