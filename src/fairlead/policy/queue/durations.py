"""Tells when a run is over at the latest, as far as it is known: by its limit, its estimate, or others of its name.

A ``max_duration`` is a limit; an ``expected_duration`` counts until the run has taken longer. Runs of one team and name
are of one kind; a number that a repeated name was given (``train-2``) does not count. Infinity stands for not known.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

from fairlead.policy.placement.memo import kept
from fairlead.policy.queue.duration_estimates import enough_s
from fairlead.specs.gang import GangSpec
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.snapshot import Completed, Pod, Workload

# What is leaving or overdue may be gone at the next look, and is not gone now.
SOON_S = 1.0

_NUMBER = re.compile(r"-\d+$")


class Durations:
    """The knowledge of run times; ends are Unix times."""

    def __init__(self, completed: Iterable[Completed]) -> None:
        self._took: dict[tuple[str, str], list[float]] = defaultdict(list)
        for run in completed:
            self._took[kind_of(run)].append(run.took_s)
        for took in self._took.values():
            took.sort()
        self._whole_s = {kind: enough_s(took) for kind, took in self._took.items()}

    def length_s(self, workload: Workload, now: float) -> float:
        """Return how long the run takes at most if it starts now."""
        spec, started = workload.spec, workload.status.started_at
        if spec.max_duration_s is None:
            return self._expected_s(workload, 0.0)
        had_s = 0.0 if started is None else now - started
        return max(0.0, spec.max_duration_s - had_s) + spec.grace_s + SOON_S

    def ends_at(self, workload: Workload, pods: Iterable[Pod], now: float) -> float:
        """Return when a run that holds something has left at the latest."""
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

    def _expected_s(self, workload: Workload, done_s: float) -> float:
        """Return how long the whole of a start takes that has run so long."""
        expected_s = workload.spec.expected_duration_s
        if expected_s is not None and workload.spec.most_nodes is None:
            left_s = max(0.0, expected_s - workload.status.ran_s)
            if done_s <= left_s:
                return left_s
        return self._learnt_s(workload, done_s)

    def _learnt_s(self, workload: Workload, done_s: float) -> float:
        kind = kind_of(workload.spec)
        found = enough_s(self._took.get(kind, ()), done_s) if done_s else self._whole_s.get(kind)
        return math.inf if found is None else found


@kept
def durations_of(completed: tuple[Completed, ...]) -> Durations:
    """Return what these runs tell of run times."""
    return Durations(completed)


def kind_of(run: Completed | GangSpec | WorkloadSpec) -> tuple[str, str]:
    """Runs for which this is equal are of one kind."""
    return run.team, _plain(run.name)


@lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    return _NUMBER.sub("", name)
