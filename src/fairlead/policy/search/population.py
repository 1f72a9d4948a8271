"""Population-based training: which trials are replaced by copies of better ones, and the new values of the copies.

Jaderberg et al., "Population Based Training of Neural Networks" (arXiv:1711.09846), with truncation selection: at every
interval a trial of the worst part of the population continues from the checkpoint of one of the best part (exploit),
with its values changed (explore). Trials reach an interval at different times: each is compared with those that have
reached it, until it reaches its next one, and none waits.

A copy is a trial of its own that starts from the other's checkpoint. The first trials are the population; the next
trial replaces the one that gave way first, and so on, so that the numbers determine the replacements.
"""

import math
from collections.abc import Mapping, Sequence

from fairlead.policy.search.trials import draw
from fairlead.specs.goal import Goal
from fairlead.specs.search_space import Parameter, Value
from fairlead.specs.sweep import Prune

# From the paper's experiments (Sec. 4): factors for numbers, and the probability of drawing anew from the range.
FACTORS = (0.8, 1.2)
RESAMPLED = 0.25


def gives_way(prune: Prune, goal: Goal, own: float, others: Sequence[float]) -> bool:
    """Return whether a trial is among the worst ``1 / factor`` of those that have reached its interval so far."""
    num_better = sum(goal.sign * value < goal.sign * own for value in others)
    num_worst = (len(others) + 1) // prune.one_in
    return num_worst > 0 and num_better >= len(others) + 1 - num_worst


def best_part(prune: Prune, goal: Goal, values: Mapping[int, float]) -> list[int]:
    """Return the trials to copy from: the best ``1 / factor`` of those given, at least one of any."""
    ordered = sorted(values, key=lambda trial: (goal.sign * values[trial], trial))
    return ordered[: max(1, len(ordered) // prune.one_in)]


def explore(space: Sequence[Parameter], values: Mapping[str, Value], key: tuple[object, ...]) -> dict[str, Value]:
    """Change values: numbers by a fifth, integers by at least one; each is drawn anew one time in four."""
    explored: dict[str, Value] = {}
    for parameter in space:
        if not parameter.is_active(explored):
            continue
        own = (*key, parameter.name)
        before = values.get(parameter.name)
        if before is None or draw(*own, "anew") < RESAMPLED:
            explored[parameter.name] = parameter.at(draw(*own, "value"))
        elif parameter.choices:
            explored[parameter.name] = before
        else:
            explored[parameter.name] = _multiplied(parameter, float(before), FACTORS[draw(*own, "factor") < 0.5])
    return explored


def _multiplied(parameter: Parameter, before: float, factor: float) -> Value:
    changed = before * factor if before else (parameter.high - parameter.low) * 0.1 * (factor > 1)
    if not parameter.is_whole:
        return float(f"{min(max(changed, parameter.low), parameter.high):.6g}")
    moved = math.floor(changed) if changed < before else math.ceil(changed)
    return int(min(max(moved, parameter.low), parameter.high))
