"""Asynchronous successive halving: which trials pause at a rung, and which paused ones are promoted to the next.

Li et al., "A System for Massively Parallel Hyperparameter Tuning" (arXiv:1810.05934), algorithm 2. A trial that is not
among the best ``1 / factor`` of those that have reached its rung pauses with a checkpoint, and goes on from it as
soon as it is among them. So the first trials at a rung cost no more than their way there, and a good one that came
early is not lost. Two things differ from the paper. At an early rung only those trials pause that have improved
steadily on their way there (decision 144). And when no more trials are to come, the best at each rung goes on even if
fewer than ``factor`` have reached it, so that at least one comes to its end.
"""

from collections.abc import Collection, Sequence

from fairlead.policy.search.pruning import RungReport
from fairlead.specs.goal import Goal
from fairlead.specs.sweep import Prune


def pauses(
    prune: Prune, goal: Goal, report: RungReport, reports: Sequence[RungReport], *, gone: Collection[int], is_last: bool
) -> bool:
    """Return whether a trial pauses at the rung of its report.

    Args:
        reports: All reports of all trials, with this one.
        gone: Trials that cannot go on, which take no place among the best.
        is_last: Whether no more trials are to come.
    """
    return not report.is_unsettled and report.trial not in _best(prune, goal, report.rung, reports, gone, is_last)


def promotable(
    prune: Prune,
    goal: Goal,
    reports: Sequence[RungReport],
    *,
    paused: Collection[int],
    gone: Collection[int],
    is_last: bool,
) -> list[int]:
    """Return the paused trials that are among the best of the last rung that they reached, the furthest first."""
    furthest = dict[int, int]()
    for report in reports:
        if report.trial in paused:
            furthest[report.trial] = max(report.rung, furthest.get(report.trial, 0))
    return [
        trial
        for rung in sorted(set(furthest.values()), reverse=True)
        for trial in _best(prune, goal, rung, reports, gone, is_last)
        if furthest.get(trial) == rung
    ]


def _best(
    prune: Prune, goal: Goal, rung: int, reports: Sequence[RungReport], gone: Collection[int], is_last: bool
) -> list[int]:
    """Return the trials that may leave a rung, best first."""
    on_rung = [report for report in reports if report.rung == rung]
    number = max(int(is_last), len(on_rung) // prune.one_in)
    able = (report for report in on_rung if report.trial not in gone and not report.is_late)
    ordered = sorted(able, key=lambda report: (goal.sign * report.value, report.trial))
    return [report.trial for report in ordered[:number]]
