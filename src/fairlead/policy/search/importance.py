"""Estimates which parameters of a sweep mattered for its objective."""

from collections.abc import Sequence
from operator import mul

from fairlead.policy.search.trials import TrialRecord, TrialState
from fairlead.specs.search_space import Parameter

MOST_GROUPS = 5
# With fewer trials the result is not meaningful.
LEAST_TRIALS = 10
# A model with more columns than this part of the trials fits chance.
MOST_COLUMNS = 0.5
# Of a column's length, the part that others must leave for it to count as independent of them.
INDEPENDENT = 1e-9

Column = list[float]
"""A number for each trial: a group of a parameter's values, less its mean over the trials that have the parameter."""


def importance(space: Sequence[Parameter], history: Sequence[TrialRecord]) -> dict[str, float]:
    """Return the part, from 0 to 1, of the variance of the objective's ranks that each parameter explains by itself.

    The ranks are fitted by a sum of effects of all parameters, of which each has groups of values: its values, if they
    are few, or parts of the trials in the order of its values. A parameter explains how much worse the fit is without
    it, less what chance would explain (omega squared: Olejnik and Algina 2003, equation 2). So one that others
    determine, because the search tried them together, has no part of their effect. The values of a conditional
    parameter are compared with each other only. Only successful trials count; the result is empty with fewer than ten,
    or with too few for so many parameters.
    """
    ended = [trial for trial in history if trial.state is TrialState.SUCCEEDED and trial.value is not None]
    if len(ended) < LEAST_TRIALS:
        return {}
    for num_groups in range(MOST_GROUPS, 1, -1):
        columns = {parameter.name: _columns(parameter, ended, num_groups) for parameter in space}
        if 1 + sum(map(len, columns.values())) <= MOST_COLUMNS * len(ended):
            return _parts(columns, _ranks(ended))
    return {}


def _ranks(trials: Sequence[TrialRecord]) -> Column:
    """Return the ranks of the trials' values, centred; equal values share their mean rank."""
    values = [trial.value or 0.0 for trial in trials]
    order = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(order)))}
    last = {value: place for place, value in enumerate(order)}
    middle = (len(values) - 1) / 2
    return [(first[value] + last[value]) / 2 - middle for value in values]


def _columns(parameter: Parameter, trials: Sequence[TrialRecord], num_groups: int) -> list[Column]:
    """Return the groups of a parameter, but the first, with which the others are compared."""
    active = [place for place, trial in enumerate(trials) if parameter.name in trial.values]
    values = {place: trials[place].values[parameter.name] for place in active}
    if parameter.choices or len(set(values.values())) <= num_groups:
        # Listed words have no order in which several could form a group.
        groups = [{place for place in active if values[place] == value} for value in dict.fromkeys(values.values())]
    else:
        order = sorted(active, key=lambda place: parameter.part(values[place]))
        edges = [len(order) * part // num_groups for part in range(num_groups + 1)]
        groups = [set(order[edges[part] : edges[part + 1]]) for part in range(num_groups)]
    columns = []
    for group in [group for group in groups if group][1:]:
        mean = len(group) / len(active)
        column = [0.0] * len(trials)
        for place in active:
            column[place] = (place in group) - mean
        columns.append(column)
    return columns


def _parts(columns: dict[str, list[Column]], ranks: Column) -> dict[str, float]:
    names = [name for name, column in columns.items() for _ in column]
    vectors = [column for columns_of in columns.values() for column in columns_of]
    whole = sum(rank**2 for rank in ranks)
    products = [[_product(one, other) for other in (*vectors, ranks)] for one in vectors]
    left, num_free = _residual(products, range(len(vectors)), whole)
    error = left / (len(ranks) - 1 - num_free)
    parts = {}
    for name in columns:
        others = [place for place, other in enumerate(names) if other != name]
        without, fewer = _residual(products, others, whole)
        by_chance = (num_free - fewer) * error
        parts[name] = max(0.0, without - left - by_chance) / (whole + error) if whole else 0.0
    return dict(sorted(parts.items(), key=lambda item: -item[1]))


def _residual(products: Sequence[Column], chosen: Sequence[int], whole: float) -> tuple[float, int]:
    """Return the squared error of the least-squares fit by some columns, and how many of these are independent.

    Args:
        products: The normal equations: products of columns with columns, and last with what is fitted.
        whole: The square of what is fitted.
    """
    rows = [[products[row][column] for column in (*chosen, -1)] for row in chosen]
    left, num_free = whole, 0
    for place, row in enumerate(rows):
        pivot = row[place]
        if pivot <= INDEPENDENT * products[chosen[place]][chosen[place]]:
            continue
        left -= row[-1] ** 2 / pivot
        num_free += 1
        for other in rows[place + 1 :]:
            factor = other[place] / pivot
            for column in range(place, len(row)):
                other[column] -= factor * row[column]
    return max(0.0, left), num_free


def _product(one: Column, other: Column) -> float:
    """Return the scalar product."""
    return sum(map(mul, one, other), 0.0)
