"""Decides which trials are stopped early, by their values at rungs: numbers of steps that grow by ``factor``."""

from collections.abc import Sequence
from dataclasses import replace

from fairlead.frozen import dataclass
from fairlead.policy.search.trials import TrialRecord, TrialState, draw
from fairlead.specs.goal import Goal
from fairlead.specs.sweep import Prune, Rule

# The minimum number of others at a rung for their median to count.
LEAST_OTHERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RungReport:
    """The objective of a trial when it was seen at a rung or beyond; the first rung is 0.

    Attributes:
        step: The step at which it was seen; 0 if not recorded.
        is_late: Whether the rung became known when the trial was far beyond it, so that the value is not comparable.
        is_unsettled: Whether the rung is an early one, and the trial has not improved steadily on its way there.
    """

    trial: int
    rung: int
    value: float
    step: int = 0
    is_late: bool = False
    is_unsettled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyCurve:
    """The objective of a trial on its way to an early first rung.

    Attributes:
        parts: Completed parts of the way, of ``CURVE_PARTS``.
        missed: Parts of these at whose end it was not seen.
        value: The objective when it was seen last.
        has_improved: Whether it was better each time than the time before.
    """

    trial: int
    parts: int
    missed: int
    value: float
    has_improved: bool

    @property
    def is_steady(self) -> bool:
        """Return whether it has improved steadily, as far as was seen; one part may be missed."""
        return self.has_improved and self.missed <= MOST_MISSED


# The first rung as a part of a whole trial, if the spec leaves it open: measured on trials of a small network
# (docs/early-stopping.md). Before a fifth of the trial the order of all trials predicts little of their final order.
FIRST_RUNG_PART = 4
# Of those that have improved steadily it predicts much more (decision 144): from the end of each of this number of
# parts of the way to an early rung to the end of the next.
CURVE_PARTS = 5
MOST_MISSED = 1


def whole_length(history: Sequence[TrialRecord]) -> int | None:
    """Return the steps of a whole trial, as far as trials have reported; None while unknown.

    The longest counts: of those that report their remaining steps, or else of those that completed.
    """
    lengths = [
        trial.step + trial.num_left for trial in history if trial.step is not None and trial.num_left is not None
    ]
    ended = [trial.step for trial in history if trial.state is TrialState.SUCCEEDED and trial.step is not None]
    return max(lengths or ended, default=None)


def has_early_rung(prune: Prune, length: int) -> bool:
    """Return whether trials that pause are so long that a rung can come before the one at a quarter."""
    return prune.after is None and _part_of(length, FIRST_RUNG_PART * prune.one_in) >= CURVE_PARTS


def with_rungs(prune: Prune, length: int | None, *, is_early: bool = False) -> Prune | None:
    """Return the rule with its first rung; None while that depends on an unknown length.

    Args:
        length: Steps of a whole trial.
        is_early: Whether a rung comes before the one at a quarter.
    """
    if prune.after is not None:
        return prune
    if prune.rule in (Rule.PBT, Rule.HYPERBAND):
        return replace(prune, after=1)
    part = FIRST_RUNG_PART * (prune.one_in if is_early else 1)
    return None if length is None else replace(prune, after=max(1, _part_of(length, part)))


def followed(
    prune: Prune, goal: Goal, curve: EarlyCurve | None, *, trial: int, step: int, value: float
) -> EarlyCurve | None:
    """Return the curve of a trial up to a step, given the one so far; None before the end of the first part."""
    assert prune.after is not None, "made by `with_rungs`"
    before = 0 if curve is None else curve.parts
    parts = sum(-(-prune.after * part // CURVE_PARTS) <= step for part in range(1, CURVE_PARTS + 1))
    if parts <= before:
        return curve
    missed = (0 if curve is None else curve.missed) + parts - before - 1
    has_improved = curve is None or (curve.has_improved and goal.sign * value < goal.sign * curve.value)
    return EarlyCurve(trial=trial, parts=parts, missed=missed, value=value, has_improved=has_improved)


def rung_steps(prune: Prune, rung: int) -> int:
    """Return the number of steps of a rung from the beginning."""
    assert prune.after is not None, "made by `with_rungs`"
    if prune.rule is Rule.PBT:
        return prune.after * (rung + 1)
    return int(prune.after * prune.one_in**rung)


def num_rungs(prune: Prune, step: int) -> int:
    """Return how many rungs a trial has reached at a step."""
    assert prune.after is not None, "made by `with_rungs`"
    if prune.rule is Rule.PBT:
        return step // prune.after
    number = 0
    while rung_steps(prune, number) <= step:
        number += 1
    return number


def bracket_of(prune: Prune, seed: int, trial: int) -> int:
    """Return the bracket of a trial: in Hyperband, later brackets begin a rung later with fewer trials; otherwise 0.

    A bracket gets trials in proportion to those that Hyperband begins there, for brackets of equal cost.
    """
    if prune.rule is not Rule.HYPERBAND:
        return 0
    last = prune.num_brackets - 1
    weights = [prune.one_in ** (last - bracket) / (last - bracket + 1) for bracket in range(last + 1)]
    left = draw(seed, trial, "bracket") * sum(weights)
    for bracket, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return bracket
    return last


def is_pruned(prune: Prune, goal: Goal, seed: int, report: RungReport, reports: Sequence[RungReport]) -> bool:
    """Return whether a trial stops at a rung, given all reports of all trials so far."""
    bracket = bracket_of(prune, seed, report.trial)
    if report.rung < bracket:
        return False
    others = [
        goal.sign * other.value
        for other in reports
        if other.rung == report.rung and other.trial != report.trial and bracket_of(prune, seed, other.trial) == bracket
    ]
    own = goal.sign * report.value
    if prune.rule is Rule.MEDIAN:
        return len(others) >= LEAST_OTHERS and own > sorted(others)[len(others) // 2]
    return sum(value < own for value in others) >= max(1, (len(others) + 1) // prune.one_in)


def _part_of(length: int, part: int) -> int:
    return -(-length // part)
