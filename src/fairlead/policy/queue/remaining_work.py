"""Estimates the remaining work of a run from its spec, its steps, or earlier runs of its name.

The result is in seconds of work on the fewest nodes that the run requests. It is a best estimate and need not be right:
no run is stopped for taking longer. Sources, in this order:

1. The declared ``expected_duration``, less the part of its steps that is done; without steps, less the time that it
   has run; past that, the expected rest of a time that may be wrong by ``WRONG_BY``.
2. Its steps at the pace so far, once enough of them are done.
3. The inverse Gittins index of the times of runs of its team and name, if ``LEAST_KNOWN`` or more have succeeded;
   runs of other names have a small weight (``fairlead.policy.queue.duration_estimates``).

Of any other run nothing is known. A ``max_duration`` is a limit and does not indicate how long a run takes.
"""

from collections.abc import Iterable
from functools import lru_cache

from fairlead.policy.placement.memo import cached_last
from fairlead.policy.queue.duration_estimates import LEAST_KNOWN, History, declared_remaining_s
from fairlead.policy.queue.durations import kind_of
from fairlead.state.run_times import ran_until
from fairlead.state.snapshot import Completed, Workload

# Users' estimates are within this factor for most runs, as in the comparisons of docs/decisions/0010.
WRONG_BY = 2.0
# The first steps are slow for transient reasons: compilation, cold data.
ENOUGH_STEPS = 0.02


class Remaining:
    """The remaining work of runs, estimated from completed runs."""

    def __init__(self, completed: Iterable[Completed]) -> None:
        self._completed = completed
        self._history: History | None = None

    def left_s(self, workload: Workload, now: float) -> float | None:
        """Return the seconds of work left; None if nothing is known."""
        spec = workload.spec
        done_s = ran_until(workload.status, now) / (1 if spec.most_nodes is None else spec.nodes)
        part = _part_done(workload)
        if spec.expected_duration_s is not None:
            return _declared_s(spec.expected_duration_s, part, done_s)
        if part is not None and part >= ENOUGH_STEPS and done_s:
            return done_s * (1.0 - part) / part
        kind = _text(*kind_of(spec))
        if sum(self.history.kinds.get(kind, ())) < LEAST_KNOWN:
            return None
        return self.history.remaining_s(kind, done_s)

    @property
    def history(self) -> History:
        """Return the known run times, built on first use."""
        if self._history is None:
            took = ((_text(*kind_of(run)), run.took_s) for run in self._completed)
            self._history = History.of(took)
        return self._history


@cached_last
def remaining_of(completed: tuple[Completed, ...]) -> Remaining:
    """Return the estimator for these completed runs."""
    return Remaining(completed)


def _declared_s(declared_s: float, part: float | None, done_s: float) -> float:
    if part is not None:
        return declared_s * (1.0 - part)
    return declared_s - done_s if done_s < declared_s else declared_remaining_s(declared_s, WRONG_BY, done_s)


def _part_done(workload: Workload) -> float | None:
    progress = workload.progress
    if progress is None or progress.step is None or not progress.total_steps:
        return None
    return min(1.0, progress.step / progress.total_steps)


@lru_cache(maxsize=4096)
def _text(team: str, name: str) -> str:
    return f"{team}/{name}"
