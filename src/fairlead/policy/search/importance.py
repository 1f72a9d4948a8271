"""Estimates which parameters of a sweep mattered for its objective."""

from collections.abc import Sequence

from fairlead.policy.search.trials import TrialRecord, TrialState
from fairlead.specs.search_space import Parameter, Value

NUM_GROUPS = 5
# With fewer trials the result is not meaningful.
LEAST_TRIALS = 10


def importance(space: Sequence[Parameter], history: Sequence[TrialRecord]) -> dict[str, float]:
    """Return the part, from 0 to 1, of the variance of the objective's ranks between groups of each parameter's values.

    Groups are its values, if they are few, or fifths of the trials in the order of its values (eta squared of a one-way
    analysis of variance). Only successful trials count; the result is empty with fewer than ten.
    """
    ended = [each for each in history if each.state is TrialState.SUCCEEDED and each.value is not None]
    if len(ended) < LEAST_TRIALS:
        return {}
    ordered = sorted(ended, key=lambda each: each.value or 0.0)
    ranks = {each.number: float(rank) for rank, each in enumerate(ordered)}
    found = {}
    for parameter in space:
        groups = _groups(parameter, [each for each in ended if parameter.name in each.values])
        found[parameter.name] = _between([[ranks[each.number] for each in group] for group in groups])
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _groups(parameter: Parameter, trials: Sequence[TrialRecord]) -> list[list[TrialRecord]]:
    listed = parameter.listed
    if listed is not None and len(listed) <= NUM_GROUPS:
        return [[each for each in trials if each.values[parameter.name] == value] for value in listed]
    place: dict[Value, float] = {
        each.values[parameter.name]: parameter.part(each.values[parameter.name]) for each in trials
    }
    ordered = sorted(trials, key=lambda each: place[each.values[parameter.name]])
    edges = [len(ordered) * part // NUM_GROUPS for part in range(NUM_GROUPS + 1)]
    return [ordered[edges[part] : edges[part + 1]] for part in range(NUM_GROUPS)]


def _between(groups: Sequence[Sequence[float]]) -> float:
    values = [value for group in groups for value in group]
    if not values:
        return 0.0
    mean = sum(values) / len(values)
    whole = sum((value - mean) ** 2 for value in values)
    parts = sum(len(group) * (sum(group) / len(group) - mean) ** 2 for group in groups if group)
    return parts / whole if whole else 0.0
