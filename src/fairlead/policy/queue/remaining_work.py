"""Estimates how much work is left of a run: by its spec, its own steps, or what others of its name took.

The answer is in seconds of work on the fewest nodes that the run asks for. It need not be right, only the best that is
known, and nobody is ever stopped for having taken longer. In this order:

1. What was declared (``expected_duration``), less the part of its steps that is done; when it reports no steps, less
   the time that it has run; once that is more, the rest that is expected of a time that may be wrong by ``WRONG_BY``.
2. Its steps, when enough of them are done: at the pace so far.
3. The inverse Gittins index of what runs of its team and name took, if ``LEAST_KNOWN`` or more have succeeded; those of
   other names have a small say (``fairlead.policy.queue.duration_estimates``).

Of any other nothing is known. A ``max_duration`` is a limit, and says nothing of how long a run takes.
"""

from collections.abc import Iterable
from functools import lru_cache

from fairlead.policy.kinds.lifecycle import ran_until
from fairlead.policy.placement.memo import kept
from fairlead.policy.queue.duration_estimates import LEAST_KNOWN, History, declared_remaining_s
from fairlead.policy.queue.durations import kind_of
from fairlead.state.snapshot import Completed, Workload

# People's estimates: within this factor for most runs, as in the comparisons of docs/decisions/0010.
WRONG_BY = 2.0
# The first steps are slow for reasons that pass: compilation, cold data.
ENOUGH_STEPS = 0.02


class Remaining:
    """The work left of runs, given those that are over."""

    def __init__(self, completed: Iterable[Completed]) -> None:
        self._completed = completed
        self._history: History | None = None

    def left_s(self, workload: Workload, now: float) -> float | None:
        """Seconds of work left; None when nothing is known."""
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
        """Return what is known of run times; made when somebody first needs it."""
        if self._history is None:
            took = ((_text(*kind_of(each)), each.took_s) for each in self._completed)
            self._history = History.of(took)
        return self._history


@kept
def remaining_of(completed: tuple[Completed, ...]) -> Remaining:
    """Return what these runs, which are over, tell of others."""
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
