"""Chooses the values of a trial for several objectives, by NSGA-II (Deb et al., IEEE Trans. Evol. Comput. 6(2), 2002).

The population is the best of all finished trials, by front and, within one, by crowding distance (Sec. III-B). Two
parents each win a tournament of two; a child takes for each parameter a mixture of both (simulated binary crossover,
Deb and Agrawal 1995) or one of the two, and is mutated in one parameter on average (polynomial mutation). There are no
generations: each trial is bred from all that finished before it, so that none waits for the last of a generation.
"""

import math
from collections.abc import Sequence

from fairlead.policy.search.trials import TrialRecord, draw, front
from fairlead.specs.search_space import Parameter, Value
from fairlead.specs.sweep import Sweep

# The number of random trials before any is bred, and of parents.
POPULATION = 20
# As in the paper's experiments (Sec. V): the crossover probability, and how near children are to their parents.
CROSSED = 0.9
SPREAD = 20.0


def breed(sweep: Sweep, number: int, ended: Sequence[TrialRecord]) -> dict[str, Value]:
    """Return the values of a trial.

    Args:
        number: The number of the trial, from 0; draws follow from it and the sweep's seed.
        ended: The successful trials, with their scores.
    """
    parents = best_of_all(ended, POPULATION)
    key = (sweep.seed, number, "nsga-ii")
    one, other = (_winner(parents, (*key, side)) for side in ("one", "other"))
    is_crossed = draw(*key, "cross") < CROSSED
    values: dict[str, Value] = {}
    for parameter in sweep.space:
        if not parameter.is_active(values):
            continue
        own = (*key, parameter.name)
        parent_values = [trial.values[parameter.name] for trial in (one, other) if parameter.name in trial.values]
        if not parent_values:
            values[parameter.name] = parameter.at(draw(*own, "new"))
        elif parameter.choices:
            values[parameter.name] = _of_listed(parameter, parent_values, own, is_crossed, len(sweep.space))
        else:
            parts = [parameter.part(value) for value in parent_values]
            part = _crossed(parts[0], parts[-1], own) if is_crossed and len(parts) == 2 else parts[0]
            if draw(*own, "mutate") < 1.0 / len(sweep.space):
                part = _mutated(part, own)
            values[parameter.name] = parameter.at(min(max(part, 0.0), 1.0 - 1e-12))
    return values


def best_of_all(ended: Sequence[TrialRecord], most: int) -> list[TrialRecord]:
    """Return so many trials, by front, and of the last front those with the largest crowding distance."""
    best: list[TrialRecord] = []
    left = list(ended)
    while left and len(best) < most:
        unbeaten = front(left)
        distances = crowding([trial.scores for trial in unbeaten])
        order = sorted(range(len(unbeaten)), key=lambda index: (-distances[index], unbeaten[index].number))
        best += [unbeaten[index] for index in order]
        numbers = {trial.number for trial in unbeaten}
        left = [trial for trial in left if trial.number not in numbers]
    return best[:most]


def crowding(scores: Sequence[Sequence[float]]) -> list[float]:
    """Return the sum over objectives of the relative distance between the neighbours of each (Sec. III-B)."""
    distances = [0.0] * len(scores)
    for objective in range(len(scores[0]) if scores else 0):
        order = sorted(range(len(scores)), key=lambda index: scores[index][objective])
        low, high = scores[order[0]][objective], scores[order[-1]][objective]
        distances[order[0]] = distances[order[-1]] = math.inf
        for before, index, after in zip(order, order[1:], order[2:], strict=False):
            if high > low:
                distances[index] += (scores[after][objective] - scores[before][objective]) / (high - low)
    return distances


def _winner(parents: Sequence[TrialRecord], key: tuple[object, ...]) -> TrialRecord:
    """Return the better of two drawn parents; parents come best first."""
    return parents[min(int(draw(*key, place) * len(parents)) for place in range(2))]


def _of_listed(
    parameter: Parameter, values: Sequence[Value], key: tuple[object, ...], is_crossed: bool, num_parameters: int
) -> Value:
    if draw(*key, "mutate") < 1.0 / num_parameters:
        return parameter.at(draw(*key, "choice"))
    return values[-1] if is_crossed and draw(*key, "swap") < 0.5 else values[0]


def _crossed(one: float, other: float, key: tuple[object, ...]) -> float:
    """Return one of the two children of simulated binary crossover, whose mean is the parents'."""
    drawn = draw(*key, "spread")
    factor = math.pow(2.0 * drawn if drawn < 0.5 else 0.5 / (1.0 - drawn), 1.0 / (SPREAD + 1.0))
    sign = 1.0 if draw(*key, "child") < 0.5 else -1.0
    return 0.5 * ((one + other) + sign * factor * (one - other))


def _mutated(part: float, key: tuple[object, ...]) -> float:
    """Return a place near another one, by polynomial mutation."""
    drawn = draw(*key, "mutation")
    way = math.pow(2.0 * min(drawn, 1.0 - drawn), 1.0 / (SPREAD + 1.0)) - 1.0
    return part + (way if drawn < 0.5 else -way)
