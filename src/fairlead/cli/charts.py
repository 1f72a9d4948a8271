"""Draws charts as standalone SVG: curves and marks over one axis, distinguished by colour and dashes."""

import html
import math
from collections.abc import Sequence

from fairlead.frozen import dataclass

WIDTH, HEIGHT, LEFT, RIGHT, FOOT, HEAD = 760, 420, 70, 20, 48, 36
LINE_HEIGHT = 18
# Distinguishable with any common colour blindness (Okabe and Ito, 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("", "7 3", "2 3", "9 3 2 3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A named series of points, joined by a line or each drawn as a mark."""

    name: str
    places: Sequence[tuple[float, float]]
    is_joined: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The name of an axis, and whether its scale is logarithmic, which requires positive numbers."""

    name: str
    is_log: bool = False


def chart(title: str, curves: Sequence[Curve], x: Axis, y: Axis) -> str:
    """Draw a chart as an SVG document; a chart without points has a note instead."""
    places = [place for curve in curves for place in curve.places]
    height = HEIGHT + LINE_HEIGHT * len(curves)
    content = [
        f"<title>{html.escape(title)}</title>",
        f"<rect width='{WIDTH}' height='{height}' fill='white'/>",
        f"<text x='{LEFT}' y='22' font-weight='bold'>{html.escape(title)}</text>",
    ]
    if not places:
        content.append(f"<text x='{LEFT}' y='{HEIGHT // 2}'>no values were reported</text>")
        return _document(height, content)
    columns, rows = _Scale(x, [at for at, _ in places]), _Scale(y, [value for _, value in places])
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        at, level = _x(part), _y(part)
        content.append(f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{level:.1f}' y2='{level:.1f}' stroke='#ddd'/>")
        content.append(f"<text x='{LEFT - 8}' y='{level + 4:.1f}' text-anchor='end'>{rows.value(part):.4g}</text>")
        content.append(f"<text x='{at:.1f}' y='{HEIGHT - 26}' text-anchor='middle'>{columns.value(part):.4g}</text>")
    middle = (LEFT + WIDTH - RIGHT) / 2
    content.append(f"<text x='{middle}' y='{HEIGHT - 8}' text-anchor='middle'>{html.escape(x.name)}</text>")
    content.append(f"<text x='{LEFT}' y='{HEAD}' font-style='italic'>{html.escape(y.name)}</text>")
    for number, curve in enumerate(curves):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        shown = [(_x(columns.part(at)), _y(rows.part(value))) for at, value in curve.places]
        if curve.is_joined:
            path = " ".join(f"{at:.1f},{level:.1f}" for at, level in shown)
            content.append(
                f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.8' "
                f"stroke-dasharray='{dash}'/>"
            )
        else:
            content += [f"<circle cx='{at:.1f}' cy='{level:.1f}' r='3.5' fill='{colour}'/>" for at, level in shown]
        place = HEIGHT + LINE_HEIGHT * number + 6
        content.append(
            f"<line x1='{LEFT}' x2='{LEFT + 26}' y1='{place}' y2='{place}' stroke='{colour}' stroke-width='2.5' "
            f"stroke-dasharray='{dash}'/>"
        )
        content.append(f"<text x='{LEFT + 34}' y='{place + 4}'>{html.escape(curve.name)}</text>")
    return _document(height, content)


class _Scale:
    """A mapping between values and fractions of an axis."""

    def __init__(self, axis: Axis, values: Sequence[float]) -> None:
        self._is_log = axis.is_log and min(values) > 0
        known = [self._warped(value) for value in values]
        self._low, high = min(known), max(known)
        self._span = (high - self._low) or 1.0

    def part(self, value: float) -> float:
        return (self._warped(value) - self._low) / self._span

    def value(self, part: float) -> float:
        warped = self._low + part * self._span
        return math.exp(warped) if self._is_log else warped

    def _warped(self, value: float) -> float:
        return math.log(value) if self._is_log else value


def _x(part: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * part


def _y(part: float) -> float:
    return HEIGHT - FOOT - (HEIGHT - FOOT - HEAD - 8) * part


def _document(height: int, content: Sequence[str]) -> str:
    inner = "\n".join(content)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' "
        f"font-family='sans-serif' font-size='12'>\n{inner}\n</svg>\n"
    )
