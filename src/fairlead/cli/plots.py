"""Draws plots as standalone SVG: step lines over an axis, and stacked bars.

Colours are CSS variables of the page, distinguishable in light and dark mode and with any common colour blindness.
Lines also differ in dashes, and every plot has a description for screen readers.
"""

import html
from collections.abc import Callable, Sequence

from fairlead.control.outcomes import thinned
from fairlead.frozen import dataclass

WIDTH, HEIGHT, LEFT, RIGHT, FOOT, HEAD = 640, 230, 52, 14, 34, 12
MOST_POINTS = 2_000
"""Maximum steps of a line; more than the pixels are indistinguishable."""
MOST_LINES = 6
"""Maximum lines of a plot, the number of line colours."""
NUM_COLOURS = 8

Steps = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A named step line; ``colour`` is a number below ``NUM_COLOURS``."""

    name: str
    steps: Steps
    colour: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of parts, each with its colour, followed by ``text``."""

    name: str
    parts: Sequence[tuple[int, float]]
    text: str


def plot(what: str, lines: Sequence[Line], *, span: float, top: float, say: Callable[[float], str]) -> str:
    """Draw step lines from 0 to ``span`` seconds and from 0 to ``top``; ``say`` formats a level."""
    span, top = span or 1.0, top or 1.0
    marks = "".join(
        f"<line class='grid' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{_y(part):.1f}' y2='{_y(part):.1f}'/>"
        f"<text x='{LEFT - 7}' y='{_y(part) + 4:.1f}' text-anchor='end'>{html.escape(say(top * part))}</text>"
        for part in (0.0, 0.5, 1.0)
    )
    unit_s, unit = _unit(span)
    ticks = "".join(
        f"<text x='{_x(part):.1f}' y='{HEIGHT - 10}' text-anchor='{anchor}'>{span * part / unit_s:.3g} {unit}</text>"
        for part, anchor in ((0.0, "start"), (0.25, "middle"), (0.5, "middle"), (0.75, "middle"), (1.0, "end"))
    )
    drawn = "".join(_path(line, span, top) for line in lines)
    return _svg(what, HEIGHT, f"{marks}{ticks}{drawn}") + (legend([(x.colour, x.name) for x in lines]) if lines else "")


def bars(what: str, rows: Sequence[Bar], names: Sequence[tuple[int, str]], *, top: float | None = None) -> str:
    """Draw stacked bars below each other on one scale, with a legend."""
    longest = top or max((sum(value for _, value in bar.parts) for bar in rows), default=0.0) or 1.0
    room = WIDTH - 120 - 120
    drawn = []
    for place, bar in enumerate(rows):
        y, x = 6 + place * 30, 120.0
        drawn.append(f"<text x='112' y='{y + 15}' text-anchor='end'>{html.escape(bar.name)}</text>")
        for colour, value in bar.parts:
            width = room * value / longest
            if width > 0:
                drawn.append(f"<rect class='part fill{colour}' x='{x:.1f}' y='{y}' width='{width:.1f}' height='20'/>")
            x += width
        drawn.append(f"<text x='{x + 8:.1f}' y='{y + 15}'>{html.escape(bar.text)}</text>")
    return _svg(what, 12 + 30 * len(rows), "".join(drawn)) + legend(names)


def legend(names: Sequence[tuple[int, str]]) -> str:
    """Draw a legend of colours."""
    items = "".join(f"<li><i class='fill{colour}'></i>{html.escape(name)}</li>" for colour, name in names)
    return f"<ul class='legend'>{items}</ul>"


def _svg(what: str, height: int, content: str) -> str:
    label = html.escape(what, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}"><title>{label}</title>{content}</svg>'


def _path(line: Line, span: float, top: float) -> str:
    steps = thinned(line.steps, MOST_POINTS)
    path = [f"M{_x(0.0):.1f},{_y(steps[0][1] / top if steps and steps[0][0] <= 0 else 0.0):.1f}"]
    path += [f"H{_x(min(at, span) / span):.1f}V{_y(level / top):.1f}" for at, level in steps]
    path.append(f"H{_x(1.0):.1f}")
    return f"<path class='line line{line.colour}' d='{''.join(path)}'/>"


def _x(share: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * share


def _y(share: float) -> float:
    return HEIGHT - FOOT - (HEIGHT - FOOT - HEAD) * share


def _unit(span_s: float) -> tuple[float, str]:
    """Return a suitable unit for a duration."""
    for unit_s, unit in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min")):
        if span_s >= 3 * unit_s:
            return unit_s, unit
    return 1.0, "s"
