"""A simulation as one HTML page that needs nothing else: a table, and plots as SVG."""

import html
from collections.abc import Callable, Sequence
from itertools import pairwise

from fairlead.control.outcomes import Outcome, Summary, gpus_held, queue_length

WIDTH, HEIGHT, MARGIN = 900, 220, 56
MOST_POINTS = 2_000
"""More steps than pixels cannot be told apart."""

Steps = Sequence[tuple[float, float]]

STYLE = """
:root { color-scheme: light dark; --line: #2563eb; --grid: #8884; --text: #555 }
@media (prefers-color-scheme: dark) { :root { --line: #7aa7ff; --text: #aaa } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .25rem .9rem; text-align: right }
th:first-child, td:first-child { text-align: left } tr + tr { border-top: 1px solid var(--grid) }
svg { width: 100%; height: auto } .line { fill: none; stroke: var(--line); stroke-width: 1.5 }
.grid { stroke: var(--grid) } text { fill: var(--text); font-size: 12px }
"""


def render(title: str, results: Sequence[tuple[str, Outcome, Summary]], rows: Sequence[Sequence[str]]) -> str:
    """The page; ``rows`` is the table that the command prints, its header first."""
    head, *body = rows
    table = "".join(
        ["<tr>", *(f"<th>{html.escape(cell)}</th>" for cell in head), "</tr>"]
        + [f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in body]
    )
    outcome = results[0][1]
    # One scale for all, or what is compared could not be seen.
    span = max(each.ended_s for _, each, _ in results) or 1.0
    longest = max(max((level for _, level in queue_length(each)), default=0.0) for _, each, _ in results)
    drawn = "".join(_plots(policy if len(results) > 1 else "", each, span, longest) for policy, each, _ in results)
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(title)}</title>"
        f"<style>{STYLE}</style><h1>{html.escape(title)}</h1>"
        f"<p>{len(outcome.runs)} runs on {outcome.num_nodes} nodes with {outcome.num_gpus} GPUs.</p>"
        f"<table>{table}</table>{drawn}</html>\n"
    )


def _plots(policy: str, outcome: Outcome, span: float, longest: float) -> str:
    plots = [
        ("GPUs held", plot(gpus_held(outcome), span, top=float(outcome.num_gpus or 1))),
        ("Runs that wait", plot(queue_length(outcome), span, top=longest or 1.0)),
        ("Share of runs that waited no longer than", plot(_waits(outcome), None, top=1.0)),
    ]
    suffix = f", {policy}" if policy else ""
    return "".join(f"<h2>{html.escape(name + suffix)}</h2>{svg}" for name, svg in plots)


def plot(steps: Steps, span_s: float | None, *, top: float | None = None) -> str:
    """A step line over time as SVG, with its axes named in hours."""
    steps = _thinned(steps)
    span = span_s or max((at for at, _ in steps), default=0.0) or 1.0
    high = top or max((level for _, level in steps), default=0.0) or 1.0
    x: Callable[[float], float] = lambda at: MARGIN + (WIDTH - 2 * MARGIN) * min(at, span) / span  # noqa: E731
    y: Callable[[float], float] = lambda level: HEIGHT - 30 - (HEIGHT - 50) * level / high  # noqa: E731
    path = [f"M{x(0):.1f},{y(steps[0][1] if steps else 0):.1f}"]
    path += [f"H{x(at):.1f}V{y(level):.1f}" for at, level in steps]
    path.append(f"H{x(span):.1f}")
    marks = "".join(
        f"<line class='grid' x1='{MARGIN}' x2='{WIDTH - MARGIN}' y1='{y(high * part):.1f}' y2='{y(high * part):.1f}'/>"
        f"<text x='{MARGIN - 8}' y='{y(high * part) + 4:.1f}' text-anchor='end'>{high * part:g}</text>"
        for part in (0.0, 0.5, 1.0)
    )
    ticks = "".join(
        f"<text x='{x(span * part):.1f}' y='{HEIGHT - 8}' text-anchor='middle'>{span * part / 3600:.4g} h</text>"
        for part in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    return (
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img'>{marks}{ticks}<path class='line' d='{''.join(path)}'/></svg>"
    )


def _waits(outcome: Outcome) -> Steps:
    waits = sorted(run.waited_s for run in outcome.runs if run.waited_s is not None)
    return [(wait, (index + 1) / len(outcome.runs)) for index, wait in enumerate(waits)]


def _thinned(steps: Steps) -> Steps:
    """At most so many steps, each the largest of those it stands for."""
    if len(steps) <= MOST_POINTS:
        return steps
    edges = [len(steps) * part // MOST_POINTS for part in range(MOST_POINTS + 1)]
    return [
        (steps[first][0], max(level for _, level in steps[first:last]))
        for first, last in pairwise(edges)
        if last > first
    ]
