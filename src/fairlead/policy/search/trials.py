"""The trials of a sweep as recorded in its history: values, states and reports."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from operator import le

from fairlead.frozen import dataclass
from fairlead.specs.goal import Goal
from fairlead.specs.search_space import Value
from fairlead.state.snapshot import Progress


class TrialState(StrEnum):
    """The states of a trial."""

    ACTIVE = "active"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    PRUNED = "pruned"
    FAILED = "failed"
    STOPPED = "stopped"


# The states of trials that were stopped at a rung. A paused one may still go on, a pruned one does not.
CUT_SHORT = frozenset((TrialState.PRUNED, TrialState.PAUSED))
_COMPARED = CUT_SHORT | {TrialState.SUCCEEDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One trial.

    Attributes:
        value: The last value of the objective; None if it reported none, or with several objectives.
        num_left: Remaining steps; None if not reported.
        has_checkpoint: Whether it has saved a checkpoint from which another can continue.
        scores: The last values of several objectives, lower is better in each; empty if one of them is missing.
        step: The step that it has reached; None if it reports none.
    """

    number: int
    values: Mapping[str, Value]
    state: TrialState
    value: float | None = None
    step: int | None = None
    scores: tuple[float, ...] = ()
    num_left: int | None = None
    has_checkpoint: bool = False


def metric_of(progress: Progress | None, metric: str) -> float | None:
    """Return the last value of a metric; None if it was not reported."""
    if progress is None:
        return None
    return progress.loss if metric == "loss" else progress.metrics.get(metric)


def draw(*keys: object) -> float:
    """Return a number in [0, 1) that follows from its keys alone, uniformly distributed over keys."""
    text = "/".join(str(key) for key in keys)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]) / 2**56


def ranked(records: list[TrialRecord], goal: Goal) -> list[TrialRecord]:
    """Return the trials that ended with a value, best first; pruned and paused ones last, the furthest first."""

    def rank(trial: TrialRecord) -> tuple[bool, int, float, int]:
        is_short = trial.state in CUT_SHORT
        return is_short, -(trial.step or 0) if is_short else 0, goal.sign * (trial.value or 0.0), trial.number

    return sorted(filter(has_ended, records), key=rank)


def has_ended(record: TrialRecord) -> bool:
    """Return whether it ended with a comparable value."""
    return record.value is not None and record.state in _COMPARED


def front(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the successful trials that no other dominates, in the order of their first objective.

    A trial dominates another if it is as good in all objectives and better in one of them (Pareto dominance).
    """
    ended = sorted(
        (trial for trial in records if trial.scores and trial.state is TrialState.SUCCEEDED),
        key=lambda trial: (trial.scores, trial.number),
    )
    unbeaten: list[TrialRecord] = []
    # In this order a dominating trial comes before the dominated, as does the member of the front that dominates both.
    for record in ended:
        # With two objectives the last of the front is the best in the second.
        rivals = unbeaten[-1:] if len(record.scores) == 2 else unbeaten
        if not any(_beats(other.scores, record.scores) for other in rivals):
            unbeaten.append(record)
    return unbeaten


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether scores are as good as others in all, and better in one."""
    return one != other and all(map(le, one, other))
