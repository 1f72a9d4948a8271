"""Draws levels over time as inline SVG, a line for each policy, that takes its colours from the page."""

from collections.abc import Callable, Sequence

from fairlead.frozen import dataclass
from fairlead.web.curves import FOOT, HEIGHT, LEFT, RIGHT, TOP, WIDTH, short

NUM_STYLES = 8
"""Number of styles of lines, each with a colour and dashes of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """A named line of steps, each (from when, level); ``style`` is below ``NUM_STYLES``."""

    name: str
    steps: Sequence[tuple[float, float]]
    style: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChart:
    """A drawn chart, within the same bounds as a `MetricCurve`.

    Attributes:
        paths: Names of the lines, numbers of their styles, and their ``d`` of an SVG path.
        grid: Heights of horizontal lines with their labels.
        first: Label of the left end of the axis.
        last: Label of the right end of the axis, with the unit.
        summary: A description of the chart for screen readers.
    """

    title: str
    paths: tuple[tuple[str, int, str], ...]
    grid: tuple[tuple[float, str], ...]
    first: str
    last: str
    summary: str


def step_chart(
    title: str, lines: Sequence[Levels], *, span_s: float, top: float | None = None, say: Callable[[float], str] = short
) -> StepChart:
    """Draw lines from 0 to ``span_s`` seconds on one scale; ``say`` formats a level.

    Args:
        top: The highest level of the scale; by default that of the lines.
    """
    highest = {line.name: max((level for _, level in line.steps), default=0.0) for line in lines}
    top = (max(highest.values(), default=0.0) if top is None else top) or 1.0
    span = span_s or 1.0
    unit_s, unit = _unit(span)
    maxima = "; ".join(f"{name} at most {say(level)}" for name, level in highest.items())
    return StepChart(
        title=title,
        paths=tuple((line.name, line.style % NUM_STYLES, _path(line.steps, span, top)) for line in lines),
        grid=tuple((_y(part), say(top * part)) for part in (0.0, 0.5, 1.0)),
        first="0",
        last=f"{span_s / unit_s:.3g} {unit}",
        summary=f"{title}, over {span_s / unit_s:.3g} {unit}: {maxima}",
    )


def _path(steps: Sequence[tuple[float, float]], span: float, top: float) -> str:
    path = f"M{LEFT} {_y(0.0):.1f}"
    for at, level in steps:
        path += f"H{_x(min(at, span) / span):.1f}V{_y(level / top):.1f}"
    return f"{path}H{_x(1.0):.1f}"


def _x(part: float) -> float:
    return LEFT + part * (WIDTH - LEFT - RIGHT)


def _y(part: float) -> float:
    return TOP + (1.0 - part) * (HEIGHT - TOP - FOOT)


def _unit(span_s: float) -> tuple[float, str]:
    """Return a suitable unit for a duration."""
    for unit_s, unit in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min")):
        if span_s >= 3 * unit_s:
            return unit_s, unit
    return 1.0, "s"
