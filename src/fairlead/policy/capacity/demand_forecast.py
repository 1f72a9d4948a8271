"""Forecasts the maximum number of nodes that a pool will need until nodes requested now have come.

Simple predictors are evaluated on the past: the need stays, equals the recent mean, continues the recent trend, or
follows the same time of other days. The one with the least loss is chosen, plus the requested quantile of its own past
errors, so that no distribution of demand is assumed, and past bursts count. After two weeks the same time of other
weeks replaces it if its loss over the last week is smaller, as a quiet weekend says nothing about Monday. The quantile
is the order-up-to level of inventory theory (newsvendor; Arrow, Harris and Marschak, Optimal Inventory Policy,
Econometrica 1951), with nodes for goods and their lead time plus the time to the next look for the time of delivery.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fairlead.frozen import dataclass

Floats = NDArray[np.float64]

DAY_SLOTS = 24 * 60
WEEK_SLOTS = 7 * DAY_SLOTS
# With a shorter history errors are unknown, and there is no forecast. A quantile of few errors is the greatest of them,
# which errs towards too many nodes.
LEAST_ORIGINS = 10
# The age difference in minutes at which an error counts half as much.
HALF_LIFE_SLOTS = 6 * 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandForecast:
    """The need of a pool until nodes requested now have come.

    Attributes:
        nodes: The upper bound at the requested confidence.
        expected: The prediction without error margin.
        by: The predictor, as the end of a sentence.
    """

    nodes: int
    expected: float
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """A predictor's value now, its margin at the requested confidence, and its pinball loss with that."""

    by: str
    now: float
    margin: float
    loss: float


# Called at each pass, while the history changes once a minute.
@lru_cache(maxsize=64)
def forecast(needed: tuple[int, ...], horizon: int, confidence: float) -> DemandForecast | None:
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
    recent = np.exp2(-age / HALF_LIFE_SLOTS)
    best: tuple[_Judged, Floats] | None = None
    for by, predicted in _predictors(past, after):
        judged = _judge(by, predicted, after, recent, confidence)
        if judged is not None and (best is None or judged.loss < best[0].loss - 1e-9):
            best = judged, predicted
    if best is None:
        return None
    chosen, predicted = best
    if num >= 2 * WEEK_SLOTS:
        # Each over the same week, a season of the new one, in which all minutes count alike.
        weekly = _same_time(past, after, WEEK_SLOTS)
        season = (age < WEEK_SLOTS).astype(np.float64)
        other = _judge(chosen.by, predicted, after, season, confidence)
        judged = _judge("the same time of other weeks", weekly, after, season, confidence)
        if judged is not None and other is not None and judged.loss < other.loss - 1e-9:
            chosen = judged
    return DemandForecast(
        nodes=max(0, math.ceil(chosen.now + chosen.margin - 1e-9)), expected=max(0.0, chosen.now), by=chosen.by
    )


def _judge(by: str, predicted: Floats, after: Floats, weights: Floats, confidence: float) -> _Judged | None:
    """Evaluate a predictor on the past; return None where too few of its errors are known."""
    known = np.isfinite(predicted[: len(after)]) & (weights > 0)
    if np.count_nonzero(known) < LEAST_ORIGINS:
        return None
    errors, counts = after[known] - predicted[: len(after)][known], weights[known]
    margin = _quantile(errors, counts, confidence)
    beyond = errors - margin
    loss = float(np.average(np.where(beyond > 0, confidence * beyond, (confidence - 1) * beyond), weights=counts))
    return _Judged(by=by, now=float(predicted[-1]), margin=margin, loss=loss)


def _predictors(past: Floats, after: Floats) -> Sequence[tuple[str, Floats]]:
    """Return each predictor's value at each past minute and now; NaN where it has none."""
    horizon = len(past) - len(after)
    window = max(2, horizon)
    sums = np.concatenate(([0.0], np.cumsum(past)))
    mean = np.full(len(past), math.nan)
    mean[window - 1 :] = (sums[window:] - sums[:-window]) / window
    slope = np.full(len(past), math.nan)
    slope[2 * window - 1 :] = (mean[2 * window - 1 :] - mean[window - 1 : -window]) / window
    predictors = [
        ("the latest need", past),
        ("the need of late", mean),
        ("the trend of late", past + horizon * slope),
    ]
    if len(after) >= DAY_SLOTS + LEAST_ORIGINS:
        predictors.append(("the same time of other days", _same_time(past, after, DAY_SLOTS)))
    return predictors


def _same_time(past: Floats, after: Floats, period: int) -> Floats:
    """Return the need plus its mean change after that time of earlier days or weeks, where it is known."""
    rise = after - past[: len(after)]
    total, count = np.zeros(len(past)), np.zeros(len(past))
    for shift in range(period, len(rise) + 1, period):
        earlier_rise = rise[: len(past) - shift]
        total[shift : shift + len(earlier_rise)] += earlier_rise
        count[shift : shift + len(earlier_rise)] += 1
    with np.errstate(invalid="ignore"):
        return past + np.where(count > 0, total / count, math.nan)


def _greatest(values: Floats, window: int) -> Floats:
    """Return the maximum of each window of consecutive values."""
    return np.asarray(np.lib.stride_tricks.sliding_window_view(values, window).max(axis=1))


def _quantile(values: Floats, weights: Floats, share: float) -> float:
    """Return the weighted quantile: the least value not exceeded with that share of the weights."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][min(len(order) - 1, int(np.searchsorted(reached, share * reached[-1])))])
