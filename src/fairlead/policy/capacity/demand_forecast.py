"""Forecasts the maximum number of nodes that a pool will need until nodes requested now have come.

Simple predictors are evaluated on the past: the need stays, equals the recent mean, continues the recent trend, or
follows the same time of other days. The one with the least loss is chosen, plus the requested quantile of its own past
errors, so that no distribution of demand is assumed, and past bursts count. That quantile is the order-up-to level of
inventory theory (newsvendor; Arrow, Harris and Marschak, Optimal Inventory Policy, Econometrica 1951), with nodes for
goods and their lead time plus the time to the next look for the time of delivery.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fairlead.frozen import dataclass

Floats = NDArray[np.float64]

DAY_SLOTS = 24 * 60
# With a shorter history errors are unknown, and there is no forecast. A quantile of few errors is the greatest of them,
# which errs towards too many nodes.
LEAST_ORIGINS = 10
# The age difference in minutes at which an error counts half as much.
HALF_LIFE_SLOTS = 6 * 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The need of a pool until nodes requested now have come.

    Attributes:
        nodes: The upper bound at the requested confidence.
        expected: The prediction without error margin.
        by: The predictor, as the end of a sentence.
    """

    nodes: int
    expected: float
    by: str


# Called at each pass, while the history changes once a minute.
@lru_cache(maxsize=64)
def forecast(needed: tuple[int, ...], horizon: int, confidence: float) -> Forecast | None:
    """Forecast the maximum need within the next minutes; return None while too little is known.

    Args:
        needed: The maximum need of each past minute, oldest first.
        horizon: The number of minutes ahead.
        confidence: The share of times in which the forecast should suffice.
    """
    past = np.asarray(needed, dtype=np.float64)
    num = len(past) - horizon
    if num < LEAST_ORIGINS:
        return None
    # The maximum need in the minutes after each origin.
    after = _greatest(past[1:], horizon)
    age = np.arange(num - 1, -1, -1, dtype=np.float64)
    weights = np.exp2(-age / HALF_LIFE_SLOTS)
    best: tuple[float, Forecast] | None = None
    for by, predicted in _predictors(past, horizon):
        known = np.isfinite(predicted[:num])
        if np.count_nonzero(known) < LEAST_ORIGINS:
            continue
        errors, counts = after[known] - predicted[:num][known], weights[known]
        margin = _quantile(errors, counts, confidence)
        beyond = errors - margin
        loss = float(np.average(np.where(beyond > 0, confidence * beyond, (confidence - 1) * beyond), weights=counts))
        now = float(predicted[-1])
        if best is None or loss < best[0] - 1e-9:
            nodes = max(0, math.ceil(now + margin - 1e-9))
            best = loss, Forecast(nodes=nodes, expected=max(0.0, now), by=by)
    return None if best is None else best[1]


def _predictors(past: Floats, horizon: int) -> Sequence[tuple[str, Floats]]:
    """Return each predictor's value at each past minute and now; NaN where it has none."""
    window = max(2, horizon)
    sums = np.concatenate(([0.0], np.cumsum(past)))
    mean = np.full(len(past), math.nan)
    mean[window - 1 :] = (sums[window:] - sums[:-window]) / window
    slope = np.full(len(past), math.nan)
    slope[2 * window - 1 :] = (mean[2 * window - 1 :] - mean[window - 1 : -window]) / window
    found = [
        ("the latest need", past),
        ("the need of late", mean),
        ("the trend of late", past + horizon * slope),
    ]
    if len(past) >= DAY_SLOTS + horizon + LEAST_ORIGINS:
        # The same change from now as at that time of a past day; the mean over several days.
        days = (len(past) - horizon) // DAY_SLOTS
        total, count = np.zeros(len(past)), np.zeros(len(past))
        ahead = np.full(len(past), math.nan)
        ahead[: len(past) - horizon] = _greatest(past[1:], horizon)
        rise = ahead - past
        for day in range(1, days + 1):
            shift = day * DAY_SLOTS
            there = rise[: len(past) - shift]
            known = np.isfinite(there)
            total[shift:][known] += there[known]
            count[shift:][known] += 1
        with np.errstate(invalid="ignore"):
            found.append(("the same time of other days", past + np.where(count > 0, total / count, math.nan)))
    return found


def _greatest(values: Floats, window: int) -> Floats:
    """Return the maximum of each window of consecutive values."""
    return np.asarray(np.lib.stride_tricks.sliding_window_view(values, window).max(axis=1))


def _quantile(values: Floats, weights: Floats, share: float) -> float:
    """Return the weighted quantile: the least value not exceeded with that share of the weights."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][min(len(order) - 1, int(np.searchsorted(reached, share * reached[-1])))])
