"""Formats statistics of simulations as tables, sentences and plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from fairlead.control.outcomes import (
    Figures,
    Outcome,
    Summary,
    gpus_held,
    gpus_up,
    queue_length,
    time_spent,
)
from fairlead.control.spending import Uses
from fairlead.text.quantities import describe_duration, plural

Result = tuple[str, Outcome, Summary]
Summarized = tuple[str, Summary]
Row = tuple[str, ...]

_TEAMS = (
    "team", "runs", "unfinished", "wait, mean", "wait, p99", "completion, mean", "completion, p99", "interrupted",
    "GPU hours", "redone", "goodput", "cost",
)  # fmt: skip
_POOLS = ("pool", "type", "node hours", "GPU hours", "held", "down", "per GPU hour", "cost")


def summaries_of(results: Sequence[Result]) -> list[Summarized]:
    """Return the summary of each policy."""
    return [(policy, summary) for policy, _, summary in results]


def team_rows(results: Sequence[Summarized]) -> list[Row]:
    """Return the header, then for each policy a row per team, if there are several, and one for all."""
    rows = []
    for policy, summary in results:
        teams = summary.teams.items() if len(summary.teams) > 1 else ()
        rows += [(policy, *_team_row(team, figures)) for team, figures in (*teams, ("all", summary.whole))]
    return _without_lone_policy(results, [("policy", *_TEAMS), *rows])


def pool_rows(results: Sequence[Summarized]) -> list[Row]:
    """Return the header, then for each policy a row per pool."""
    rows = [(policy, *_pool_row(name, uses)) for policy, outcome in results for name, uses in outcome.pools.items()]
    return _without_lone_policy(results, [("policy", *_POOLS), *rows])


def in_all(outcome: Outcome, summary: Summary) -> list[str]:
    """Summarize a simulation in one or two lines."""
    size = f"{plural(outcome.num_nodes, 'node')} with {plural(outcome.num_gpus, 'GPU')}"
    parts = [f"{describe_duration(summary.makespan_s)} on {size}"]
    if summary.gpu_utilisation is not None:
        parts.append(f"{summary.gpu_utilisation:.1%} of the GPU time held")
    if summary.cost is not None:
        idle = "" if summary.idle_cost is None else f", ${summary.idle_cost:,.2f} of it for idle GPUs"
        parts.append(f"${summary.cost:,.2f}{idle}")
    lines = ["; ".join(parts)]
    whole = summary.capacity_gpu_hours
    shares = {name: hours / whole for name, hours in time_spent(summary).items() if hours >= 0.0005 * whole > 0}
    if set(shares) - {"useful", "idle"}:
        lines.append("GPU time: " + ", ".join(f"{share:.1%} {name}" for name, share in shares.items()))
    if outcome.store_gb is not None:
        lines.append(f"{outcome.store_gb / 1e3:,.2f} TB left the store")
    return lines


def as_data(result: Result, seed: int) -> Mapping[str, object]:
    """Return all results as plain data: times in seconds, levels over time as steps (start, count)."""
    policy, outcome, summary = result
    return {
        "policy": policy,
        "seed": seed,
        "summary": asdict(summary),
        "store_gb": outcome.store_gb,
        "over_time": {
            "gpus_up": gpus_up(outcome),
            "gpus_held": gpus_held(outcome),
            "runs_waiting": queue_length(outcome),
        },
        "runs": [
            asdict(run) | {"waited_s": run.waited_s, "completion_s": run.completion_s, "goodput": run.spent.goodput}
            for run in outcome.runs
        ],
    }


def _team_row(team: str, figures: Figures) -> Row:
    times = (
        figures.average_wait_s, figures.p99_wait_s, figures.average_completion_s, figures.p99_completion_s
    )  # fmt: skip
    texts = ("-" if seconds is None else describe_duration(seconds) for seconds in times)
    counts = (str(figures.num_runs), str(figures.unfinished))
    goodput = "-" if figures.goodput is None else f"{figures.goodput:.1%}"
    hours = (f"{figures.gpu_hours:,.1f}", f"{figures.redone_gpu_hours:,.1f}")
    return (team, *counts, *texts, str(figures.interruptions), *hours, goodput, describe_cost(figures.cost))


def _pool_row(name: str, uses: Uses) -> Row:
    gpu_hours = uses.gpu_hours or 1.0
    held, down = (
        f"{hours / gpu_hours:.1%}" if uses.gpu_hours else "-" for hours in (uses.held_gpu_hours, uses.down_gpu_hours)
    )
    hours = (f"{uses.node_hours:,.1f}", f"{uses.gpu_hours:,.1f}")
    return (
        name,
        uses.capacity_type,
        *hours,
        held,
        down,
        describe_cost(uses.price_per_gpu_hour),
        describe_cost(uses.cost),
    )


def describe_cost(amount: float | None) -> str:
    """Format dollars; a dash where a price is unknown."""
    return "-" if amount is None else f"${amount:,.2f}"


def _without_lone_policy(results: Sequence[Summarized], rows: list[Row]) -> list[Row]:
    return rows if len(results) > 1 else [row[1:] for row in rows]
