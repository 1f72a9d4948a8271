"""Draws curves of metrics over steps or time as inline SVG that takes its colours from the page."""

import math
from collections.abc import Sequence

from fairlead.frozen import dataclass
from fairlead.state.series import Point, thinned

WIDTH, HEIGHT = 320, 120
LEFT, RIGHT, TOP, FOOT = 52, 8, 8, 20
MOST_POINTS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCurve:
    """A drawn metric.

    Attributes:
        path: The ``d`` of an SVG path within ``WIDTH`` x ``HEIGHT``; empty without any finite value.
        grid: Heights of horizontal lines with their labels.
        first: Label of the left end of the axis.
        last: Label of the right end of the axis, with the unit.
        newest: The last value.
        summary: A description of the curve for screen readers.
    """

    name: str
    path: str
    grid: tuple[tuple[float, str], ...]
    first: str
    last: str
    newest: str
    summary: str


def curve(name: str, points: Sequence[Point]) -> MetricCurve:
    """Draw points in order of arrival; over steps if every point has a step, else over time."""
    known = thinned([point for point in points if math.isfinite(point.value)], MOST_POINTS)
    if not known:
        return MetricCurve(name=name, path="", grid=(), first="", last="", newest="-", summary="no finite value")
    has_steps = all(point.step is not None for point in known)
    begin = known[0].at
    places = [float(point.step or 0) if has_steps else point.at - begin for point in known]
    values = [point.value for point in known]
    low, high = min(values), max(values)
    if low == high:
        low, high = low - (abs(low) or 1.0) * 0.05, high + (abs(high) or 1.0) * 0.05
    left, right = min(places), max(places)
    span = (right - left) or 1.0
    drawn = [
        (LEFT + (at - left) / span * (WIDTH - LEFT - RIGHT), _height(value, low, high))
        for at, value in zip(places, values, strict=True)
    ]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in drawn)
    if len(drawn) == 1:
        path += "h1"
    levels = (low, (low + high) / 2, high)
    unit = "step" if has_steps else "s"
    return MetricCurve(
        name=name,
        path=path,
        grid=tuple((_height(level, low, high), short(level)) for level in levels),
        first=short(left),
        last=f"{unit} {short(right)}" if has_steps else f"{short(right)} {unit}",
        newest=short(values[-1]),
        summary=f"{name}: {short(values[0])} at first, {short(values[-1])} now, from {short(min(values))} to "
        f"{short(max(values))}",
    )


def short(value: float) -> str:
    """Format a number in at most four digits."""
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.4g}"


def _height(value: float, low: float, high: float) -> float:
    return TOP + (high - value) / (high - low) * (HEIGHT - TOP - FOOT)
