"""Metrics of a run over time and summaries of them: pure functions of points in order of arrival."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from fairlead.frozen import dataclass
from fairlead.specs.goal import Goal

# Metrics with one of these words in their name are minimised unless stated otherwise.
LOW_IS_GOOD = ("loss", "err", "perplexity", "ppl", "mse", "mae", "rmse", "bpb", "nll", "latency", "time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of one metric.

    Attributes:
        at: Unix time.
        step: Completed steps at that time; None if the program reports none.
        attempt: The attempt that reported it, from 0.
    """

    at: float
    step: int | None
    value: float
    attempt: int = 0


def usual_goal(metric: str) -> Goal:
    """Return the usual goal for a metric of that name."""
    return Goal.MINIMIZE if any(word in metric.lower() for word in LOW_IS_GOOD) else Goal.MAXIMIZE


def best(points: Iterable[Point], goal: Goal) -> Point | None:
    """Return the best point, the first among equals; None without points."""
    return min(points, key=lambda point: goal.sign * point.value, default=None)


def continued(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the curve without repeated parts: an attempt that begins at step 80 replaces all points from there on."""
    curve: list[Point] = []
    for point in points:
        if curve and point.attempt > curve[-1].attempt and point.step is not None:
            first = point.step
            curve = [point for point in curve if point.step is None or point.step < first]
        curve.append(point)
    return tuple(curve)


def thinned(points: Sequence[Point], most: int) -> tuple[Point, ...]:
    """Return at most so many points (at least 4): the first, the last, and the minimum and maximum of each stretch."""
    if len(points) <= most:
        return tuple(points)
    inner = points[1:-1]
    stretches = max(1, (most - 2) // 2)
    edges = [len(inner) * place // stretches for place in range(stretches + 1)]
    chosen = [points[0]]
    for begin, end in pairwise(edges):
        places = range(begin, end)
        if places:
            pair = {
                min(places, key=lambda place: inner[place].value),
                max(places, key=lambda place: inner[place].value),
            }
            chosen.extend(inner[place] for place in sorted(pair))
    return (*chosen, points[-1])
