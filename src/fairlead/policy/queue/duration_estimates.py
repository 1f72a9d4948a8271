"""Estimates the remaining time of a job from a declared duration that may be wrong, or from durations of similar jobs.

Times count work only, in seconds. A declared duration that was exceeded is extended within its error bounds. Without
one, the estimate is the inverse of the Gittins index: the least expected time spent per completion, over all lengths of
trying. For a known run time it equals the remaining time, and it grows as a job outlives similar jobs. It orders jobs
of unknown length for the least average completion time on one machine (Gittins 1979; Tiresias, NSDI'19, section 4.2);
for gangs it is a heuristic.

The time that a job outlives counts against it in steps only, as in Tiresias's queues. Otherwise long jobs of unknown
length would take turns at the smallest difference in attained service, and all of them would end late.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from functools import lru_cache

from fairlead.frozen import dataclass

# Run times are counted in bins of equal ratio.
FIRST_BIN_S = 10.0
BINS_PER_DECADE = 8
NUM_BINS = 7 * BINS_PER_DECADE + 1
# A step is a decade. Half a decade was as good; what the edges are matters more (docs/decisions/0010).
BINS_PER_STEP = BINS_PER_DECADE

# Before any job is known, every order of magnitude is equally likely. This prior counts as one job of the kind, and all
# jobs of other kinds together as at most four.
PRIOR_JOBS = 1.0
OTHERS_JOBS = 4.0

# A promised start relies on this part of the runs of a kind having ended, out of at least this many.
SURE = 0.9
LEAST_KNOWN = 3


def declared_remaining_s(declared_s: float, wrong_by: float, done_s: float) -> float:
    """Return the expected rest of a job declared to take ``declared_s`` with an error of at most a factor ``wrong_by``.

    The logarithm of the true time is taken as uniform; past its upper bound the job is taken as nearly done.
    """
    least_s, most_s = max(declared_s / wrong_by, done_s), declared_s * wrong_by
    if most_s <= least_s * (1.0 + 1e-9):
        return max(0.0, most_s - done_s)
    return (most_s - least_s) / math.log(most_s / least_s) - done_s


def enough_s(took_s: Sequence[float], done_s: float = 0.0) -> float | None:
    """Return the time by which ``SURE`` of the runs had ended that took longer than ``done_s``.

    None if too few did. Tsafrir, Etsion and Feitelson (TPDS 2007) backfill with the mean of a user's last two runs; a
    promise that has to hold needs more than the mean. O(log n).

    Args:
        took_s: Ascending.
    """
    shorter = bisect_right(took_s, done_s)
    longer = len(took_s) - shorter
    if longer < LEAST_KNOWN:
        return None
    return took_s[shorter + max(0, math.ceil(SURE * longer) - 1)]


@dataclass(frozen=True, slots=True)
class History:
    """Run times of completed jobs, in total and by kind (a kind groups jobs that resemble each other)."""

    everything: tuple[int, ...] = (0,) * NUM_BINS
    kinds: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, took: Iterable[tuple[str, float]]) -> "History":
        """Return the history of these kinds and run times, given in any order."""
        everything, kinds = [0] * NUM_BINS, defaultdict[str, list[int]](lambda: [0] * NUM_BINS)
        for kind, work_s in took:
            index = _bin(work_s)
            everything[index] += 1
            kinds[kind][index] += 1
        return cls(tuple(everything), {kind: tuple(counts) for kind, counts in kinds.items()})

    def with_completed(self, kind: str, work_s: float) -> "History":
        """Return the history with one more job."""
        index = _bin(work_s)
        counts = _plus_one(self.kinds.get(kind, (0,) * NUM_BINS), index)
        return replace(self, everything=_plus_one(self.everything, index), kinds={**self.kinds, kind: counts})

    def remaining_s(self, kind: str, done_s: float) -> float:
        """Return the inverse Gittins index of a job after ``done_s`` seconds, rounded to a bin; linear in the bins.

        The job keeps the value from the start of its step while that is smaller.
        """
        own = self.kinds.get(kind, ())
        if done_s < FIRST_BIN_S:
            return _inverse_index_s(self.everything, own, -1)
        index = _bin(done_s)
        start = index - index % BINS_PER_STEP
        return min(_inverse_index_s(self.everything, own, at) for at in (start, index))


def _bin(seconds: float) -> int:
    """Return the bin with the nearest middle, clamped to the ends."""
    steps = math.log10(max(seconds, FIRST_BIN_S) / FIRST_BIN_S) * BINS_PER_DECADE
    return min(round(steps), NUM_BINS - 1)


def _middle_s(index: int) -> float:
    return float(FIRST_BIN_S * 10.0 ** (index / BINS_PER_DECADE))


def _plus_one(counts: tuple[int, ...], index: int) -> tuple[int, ...]:
    return (*counts[:index], counts[index] + 1, *counts[index + 1 :])


@lru_cache(maxsize=1 << 14)
def _inverse_index_s(everything: tuple[int, ...], kind: tuple[int, ...], done: int) -> float:
    """Return min over d of E[min(S - a, d)] / P(S - a <= d), given S > a, for a distribution over the bins."""
    done_s = 0.0 if done < 0 else _middle_s(done)
    chances = _likelihood(everything, kind)
    later = range(done + 1, NUM_BINS)
    if not later:
        return done_s
    ahead = sum(chances[index] for index in later)
    best_s, ended, spent_s = math.inf, 0.0, 0.0
    for index in later:
        length_s = _middle_s(index) - done_s
        ended += chances[index]
        spent_s += chances[index] * length_s
        best_s = min(best_s, (spent_s + max(0.0, ahead - ended) * length_s) / ended)
    return best_s


def _likelihood(everything: Sequence[int], kind: Sequence[int]) -> list[float]:
    total = sum(everything)
    others = min(OTHERS_JOBS, total) / total if total else 0.0
    own = kind or (0,) * NUM_BINS
    return [PRIOR_JOBS / NUM_BINS + others * count + mine for count, mine in zip(everything, own, strict=True)]
