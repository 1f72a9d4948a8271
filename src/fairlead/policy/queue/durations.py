"""Computes the latest end of a run as far as known: from its limit, its estimate, or earlier runs of the same name.

A ``max_duration`` is a limit; an ``expected_duration`` counts until the run has taken longer. Runs of one team and name
are of one kind; the number appended to a repeated name (``train-2``) is ignored. Infinity means unknown.
"""

import math
import re
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

from fairlead.policy.queue.duration_estimates import enough_s
from fairlead.specs.gang import GangSpec
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.snapshot import Completed, Pod, Workload

# A run that is leaving or overdue may be gone at the next pass, but is not gone now.
SOON_S = 1.0

# If more runs than this have ended since the last pass, everything is recomputed.
MOST_GONE = 16

_NUMBER = re.compile(r"-\d+$")


class Durations:
    """Known run times; ends are Unix times."""

    def __init__(self, completed: Iterable[Completed]) -> None:
        took: dict[tuple[str, str], list[float]] = defaultdict(list)
        for run in completed:
            took[kind_of(run)].append(run.took_s)
        self._took = {kind: sorted(durations) for kind, durations in took.items()}
        self._whole_s = {kind: enough_s(durations) for kind, durations in self._took.items()}

    def after(self, gone: Iterable[Completed], new: Iterable[Completed]) -> "Durations":
        """Return a copy with some runs removed and others added, at a cost proportional to their number."""
        durations = Durations(())
        durations._took, durations._whole_s = dict(self._took), dict(self._whole_s)
        for runs, is_there in ((gone, True), (new, False)):
            for run in runs:
                kind = kind_of(run)
                took = list(durations._took.get(kind, ()))
                if is_there:
                    took.remove(run.took_s)
                else:
                    insort(took, run.took_s)
                durations._took[kind], durations._whole_s[kind] = took, enough_s(took)
        return durations

    def length_s(self, workload: Workload, now: float, kind: tuple[str, str] | None = None) -> float:
        """Return the longest time that the run takes if it starts now.

        Args:
            kind: The result of ``kind_of``, if known.
        """
        spec, started = workload.spec, workload.status.started_at
        if spec.max_duration_s is None:
            if kind is not None and spec.expected_duration_s is None:
                known_s = self._whole_s.get(kind)
                return math.inf if known_s is None else known_s
            return self._expected_s(workload, 0.0)
        had_s = 0.0 if started is None else now - started
        return max(0.0, spec.max_duration_s - had_s) + spec.grace_s + SOON_S

    def ends_at(self, workload: Workload, pods: Iterable[Pod], now: float) -> float:
        """Return the latest time by which a run that holds something has left."""
        spec, started = workload.spec, workload.status.started_at
        leaves = [pod.terminating_since for pod in pods if not pod.phase.is_final]
        if leaves and all(since is not None for since in leaves):
            return max(now, max(since or 0.0 for since in leaves) + spec.grace_s) + SOON_S
        if started is None:
            return math.inf
        if spec.max_duration_s is not None:
            end = started + spec.max_duration_s + spec.grace_s
        else:
            end = started + self._expected_s(workload, max(0.0, now - started))
        return max(end, now) + SOON_S

    def took(self, kind: tuple[str, str]) -> list[float] | None:
        """Return the times of runs of the kind, ascending and not to be modified; None if none has ended.

        ``after`` keeps the same list object for kinds that did not change.
        """
        return self._took.get(kind)

    def same_until(self, workload: Workload, pods: Iterable[Pod], now: float) -> float:
        """Return the time until which ``ends_at`` stays the same if nothing happens; a past time if it has changed."""
        spec, started = workload.spec, workload.status.started_at
        leaves = [pod.terminating_since for pod in pods if not pod.phase.is_final]
        if leaves and all(since is not None for since in leaves):
            return max(since or 0.0 for since in leaves) + spec.grace_s
        if started is None:
            return math.inf
        if spec.max_duration_s is not None:
            return started + spec.max_duration_s + spec.grace_s
        done_s = max(0.0, now - started)
        if spec.expected_duration_s is not None and spec.most_nodes is None:
            left_s = max(0.0, spec.expected_duration_s - workload.status.run_time.saved_s)
            if done_s <= left_s:
                return started + left_s
        took_s = self._took.get(kind_of(spec), ())
        longer = bisect_right(took_s, done_s)
        return started + took_s[longer] if longer < len(took_s) else math.inf

    def _expected_s(self, workload: Workload, done_s: float) -> float:
        """Return the whole duration of a start that has run for this long."""
        expected_s = workload.spec.expected_duration_s
        if expected_s is not None and workload.spec.most_nodes is None:
            left_s = max(0.0, expected_s - workload.status.run_time.saved_s)
            if done_s <= left_s:
                return left_s
        return self._learnt_s(workload, done_s)

    def _learnt_s(self, workload: Workload, done_s: float) -> float:
        kind = kind_of(workload.spec)
        learnt_s = enough_s(self._took.get(kind, ()), done_s) if done_s else self._whole_s.get(kind)
        return math.inf if learnt_s is None else learnt_s


# The last result, from which the next mostly differs by one run at each end; replaced, never modified.
_last: tuple[tuple[Completed, ...], Durations] = ((), Durations(()))


def durations_of(completed: tuple[Completed, ...]) -> Durations:
    """Return the known run times, given completed runs."""
    global _last
    before, known = _last
    if before is not completed and before != completed:
        shift = _shift(before, completed)
        if shift is None:
            known = Durations(completed)
        else:
            known = known.after(before[:shift], completed[len(before) - shift :])
        _last = (completed, known)
    return known


def _shift(before: tuple[Completed, ...], after: tuple[Completed, ...]) -> int | None:
    """Return the number of runs dropped from the front, if ``after`` continues the rest; None if too many changed."""
    for shift in range(min(MOST_GONE, len(before)) + 1):
        left = len(before) - shift
        if left and left <= len(after) <= left + MOST_GONE and before[shift] == after[0]:
            return shift if before[shift:] == after[:left] else None
    return None


def kind_of(run: Completed | GangSpec | WorkloadSpec) -> tuple[str, str]:
    """Return the kind of a run; runs with an equal result are of one kind."""
    return run.team, _plain(run.name)


# More than the number of names in a long queue; a smaller cache would be recomputed at each pass.
@lru_cache(maxsize=65_536)
def _plain(name: str) -> str:
    return _NUMBER.sub("", name)
