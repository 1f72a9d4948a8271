"""Renders simulations as a standalone HTML page of tables and plots, with several policies side by side."""

import html
from collections.abc import Callable, Sequence

from fairlead.cli.plots import MOST_LINES, NUM_COLOURS, Bar, Line, bars, plot
from fairlead.control.outcomes import Outcome, gpus_held, gpus_up, queue_length, time_spent, wait_shares
from fairlead.control.simulation_figures import Result, pool_rows, summaries_of, team_rows
from fairlead.text.quantities import describe_duration, plural

# Uses of GPU time, with the number of their colour.
PARTS = {
    "useful": 2, "redone": 1, "start-up": 4, "saving": 0, "slowed": 3, "stopping": 5, "idle": 6, "down": 7,
}  # fmt: skip

LIGHT = ("#0072b2", "#c44e00", "#007f5f", "#a8437f", "#8a6d00", "#5b4fc7", "#8b8b8b", "#b00020")
DARK = ("#6cb6ee", "#ff9f5a", "#4fd0a5", "#f095c6", "#e0c040", "#b0a8ff", "#8f8f8f", "#ff8a8a")
DASHES = ("none", "7 3", "2 3", "10 3 2 3", "4 4", "1 2", "none", "none")


def render(title: str, results: Sequence[Result]) -> str:
    """Render the page, with the tables that the command prints."""
    outcome, summaries = results[0][1], summaries_of(results)
    sections = "".join(f"<section><h2>{name}</h2>{content}</section>" for name, content in _sections(results))
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{_style()}</style></head><body><main>"
        f"<h1>{html.escape(title)}</h1>"
        f"<p>{plural(len(outcome.runs), 'run')} on at most {plural(outcome.num_nodes, 'node')} "
        f"with {plural(outcome.num_gpus, 'GPU')}.</p>"
        f"{_table(team_rows(summaries))}{_table(pool_rows(summaries))}{sections}</main></body></html>\n"
    )


def _sections(results: Sequence[Result]) -> list[tuple[str, str]]:
    """Return headings with content. All policies have one scale, so that plots are comparable."""
    span = max(outcome.ended_s for _, outcome, _ in results)
    gpus = float(max((level for _, outcome, _ in results for _, level in gpus_up(outcome)), default=1.0))
    longest = max((level for _, outcome, _ in results for _, level in queue_length(outcome)), default=1.0)
    waited = max((run.waited_s or 0.0 for _, outcome, _ in results for run in outcome.runs), default=1.0)
    sections = [("Where the GPU time went", _where(results))]
    if any(summary.cost is not None for _, _, summary in results):
        sections.append(("Cost", _cost(results)))
    return [
        *sections,
        ("GPUs over time", _beside(results, lambda outcome: _gpus(outcome, span, gpus))),
        ("Runs that wait", _beside(results, lambda outcome: _queue(outcome, span, longest))),
        ("Share of runs that waited no longer than", _beside(results, lambda outcome: _waits(outcome, waited))),
    ]


def _where(results: Sequence[Result]) -> str:
    rows = []
    for policy, _, summary in results:
        parts = [(PARTS[name], time) for name, time in time_spent(summary).items()]
        goodput = "-" if summary.goodput is None else f"{summary.goodput:.1%} goodput"
        rows.append(Bar(name=policy, parts=parts, text=goodput))
    names = [(colour, name) for name, colour in PARTS.items()]
    return bars("GPU hours by outcome, for each policy", rows, names)


def _cost(results: Sequence[Result]) -> str:
    """Draw the dollars for GPUs by team, and the rest."""
    teams = list(results[0][2].teams)[: MOST_LINES - 1]
    rows = []
    for policy, _, summary in results:
        if summary.cost is None:
            continue
        parts = [(number, summary.teams[team].cost or 0.0) for number, team in enumerate(teams)]
        others = sum(figures.cost or 0.0 for team, figures in summary.teams.items() if team not in teams)
        rest = max(0.0, summary.cost - others - sum(value for _, value in parts))
        rows.append(Bar(name=policy, parts=[*parts, (5, others), (6, rest)], text=f"${summary.cost:,.2f}"))
    names = [*enumerate(teams), *([(5, "other teams")] if len(results[0][2].teams) > len(teams) else [])]
    return bars("Dollars for GPUs by team, for each policy", rows, [*names, (6, "held by no run")])


def _beside(results: Sequence[Result], draw: Callable[[Outcome], str]) -> str:
    several = len(results) > 1
    drawn = "".join(
        f"<figure>{f'<figcaption>{html.escape(policy)}</figcaption>' if several else ''}{draw(outcome)}</figure>"
        for policy, outcome, _ in results
    )
    return f"<div class='beside'>{drawn}</div>"


def _gpus(outcome: Outcome, span: float, top: float) -> str:
    lines = [
        Line(name="there and up", steps=gpus_up(outcome), colour=6),
        Line(name="held by runs", steps=gpus_held(outcome), colour=0),
    ]
    return plot("GPUs that are up, and those that runs hold, over time", lines, span=span, top=top, say=_number)


def _queue(outcome: Outcome, span: float, top: float) -> str:
    line = Line(name="wait for their first start", steps=queue_length(outcome), colour=0)
    return plot("Runs that wait for their first start over time", [line], span=span, top=top, say=_number)


def _waits(outcome: Outcome, longest: float) -> str:
    """Draw a line for each team, or the largest teams if there are many, and one for all runs."""
    by_team: dict[str, list[float | None]] = {}
    for run in outcome.runs:
        by_team.setdefault(run.team, []).append(run.waited_s)
    largest = sorted(by_team, key=lambda team: (-len(by_team[team]), team))[: MOST_LINES - 1]
    shown = sorted(largest) if len(by_team) > 1 else []
    lines = [Line(name=team, steps=wait_shares(by_team[team]), colour=number) for number, team in enumerate(shown)]
    whole = Line(name="all runs", steps=wait_shares([run.waited_s for run in outcome.runs]), colour=6)
    what = f"Shares of runs by how long they waited, at most {describe_duration(longest)}, for each team"
    return plot(what, [whole, *lines], span=longest, top=1.0, say=lambda share: f"{share:.0%}")


def _number(level: float) -> str:
    return f"{level:,.4g}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    header = "".join(f"<th scope='col'>{html.escape(cell)}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in body)
    return f"<div class='wide'><table><thead><tr>{header}</tr></thead><tbody>{lines}</tbody></table></div>"


def _style() -> str:
    assert len(LIGHT) == len(DARK) == len(DASHES) == NUM_COLOURS, "a colour and a dash for each number"
    light = ";".join(f"--c{number}:{colour}" for number, colour in enumerate(LIGHT))
    dark = ";".join(f"--c{number}:{colour}" for number, colour in enumerate(DARK))
    colours = "".join(
        f".fill{number}{{fill:var(--c{number});background:var(--c{number})}}"
        f".line{number}{{stroke:var(--c{number});stroke-dasharray:{dash}}}"
        for number, dash in enumerate(DASHES)
    )
    return f":root{{color-scheme:light dark;{light};--paper:#fff;--ink:#1a1a1a;--faint:#595959;--grid:#8885}}" + (
        f"@media(prefers-color-scheme:dark){{:root{{{dark};--paper:#16181d;--ink:#e8e8e8;--faint:#b4b4b4}}}}"
        "body{font:15px/1.5 system-ui,sans-serif;margin:0;background:var(--paper);color:var(--ink)}"
        "main{max-width:94rem;margin:0 auto;padding:1.5rem}h1{font-size:1.5rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}"
        ".wide{overflow-x:auto}table{border-collapse:collapse;margin-bottom:1.5rem;font-variant-numeric:tabular-nums}"
        "td,th{padding:.3rem .6rem;text-align:right;white-space:nowrap}th{color:var(--faint);font-weight:600}"
        "th:first-child,td:first-child{text-align:left}tbody tr{border-top:1px solid var(--grid)}"
        ".beside{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(28rem,100%),1fr));gap:1rem}"
        "figure{margin:0}figcaption{color:var(--faint)}svg{width:100%;max-width:52rem;height:auto;display:block}"
        ".line{fill:none;stroke-width:1.8}.grid{stroke:var(--grid)}text{fill:var(--faint);font-size:12px}"
        ".part{stroke:var(--paper);stroke-width:1}"
        ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;margin:.3rem 0;padding:0;"
        "color:var(--faint);font-size:.85rem}"
        ".legend i{display:inline-block;width:.8em;height:.8em;margin-right:.4em}" + colours
    )
