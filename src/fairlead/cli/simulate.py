"""``fairlead simulate``: a trace through the production decisions on a cluster that need not exist."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.show import as_json, table
from fairlead.errors import CannotFit, InvalidSpec
from fairlead.policy.quantities import say_duration
from fairlead.specs.quantities import parse_duration

if TYPE_CHECKING:
    from fairlead.control.outcomes import Figures, Summary
    from fairlead.control.simulation import Outcome


def _duration(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--cluster", type=click.Path(path_type=Path), required=True, help="A file of Pools: the nodes there are.")
@click.option("--start-up", default="0s", callback=_duration, help="From placement to the first step (default 0s).")
@click.option("--checkpoint-every", default="10m", callback=_duration, help="Where a spec does not say (default 10m).")
@click.option("--node-mtbf", callback=_duration, help="Mean time between failures of a node; none when left out.")
@click.option("--repair", default="1h", callback=_duration, help="How long a failed node is away (default 1h).")
@click.option("--seed", default=0, help="Of the failures (default 0).")
@click.option("--html", type=click.Path(path_type=Path), help="Write a report with plots to this file.")
@click.option("--json", "json_", is_flag=True, help="One JSON object with the figures and every run.")
def simulate(
    trace: Path,
    cluster: Path,
    start_up: float,
    checkpoint_every: float,
    node_mtbf: float | None,
    repair: float,
    seed: int,
    html: Path | None,
    json_: bool,
) -> None:
    """Replay TRACE on the nodes of a cluster file, with the decisions that runs get for real.

    TRACE is a CSV table with submit_s and duration_s (and name, team, nodes, gpu, cpu, memory, priority), a table of
    the Philly or Muri traces, or a file of Trainings that have a max_duration.
    """
    from fairlead.cli.report import render
    from fairlead.control.outcomes import summary
    from fairlead.control.simulation import Outcome, World, never_fits
    from fairlead.control.simulation import simulate as replay
    from fairlead.specs.pool import Pool
    from fairlead.specs.reading import load_file
    from fairlead.traces.reading import read_trace

    pools = load_file(cluster)
    strangers = [spec for spec in pools if not isinstance(spec, Pool)]
    if strangers:
        raise InvalidSpec((f"{cluster}: {strangers[0].name} is a {type(strangers[0]).__name__}; give Pools only",))
    arrivals = read_trace(trace)
    own = [pool for pool in pools if isinstance(pool, Pool)]
    misfits = never_fits(arrivals, own)
    if misfits:
        raise CannotFit("\n".join(reason.message for reason in misfits[:5]))
    world = World(
        start_s=start_up, checkpoint_s=checkpoint_every, node_mtbf_s=node_mtbf, repair_s=repair, seed=seed
    )  # fmt: skip

    def run() -> Outcome:
        if not sys.stderr.isatty():
            return replay(arrivals, own, world)
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("simulating", total=len(arrivals))
            return replay(arrivals, own, world, told=lambda done, _: progress.update(task, completed=done))

    outcome = run()
    figures = summary(outcome)
    if json_:
        print(as_json({"summary": asdict(figures), "runs": [asdict(item) for item in outcome.runs]}))
    else:
        print(table(_rows(figures)))
        print(_in_all(outcome, figures))
    if html is not None:
        html.write_text(render(f"{trace.name} on {cluster.name}", outcome, figures, _rows(figures)))
        print(f"Report: {html}", file=sys.stderr)


def _rows(summary: "Summary") -> list[tuple[str, ...]]:
    head = ("team", "runs", "unfinished", "wait, mean", "wait, p99", "completion, mean", "completion, p99", "GPU hours")
    teams = summary.teams.items() if len(summary.teams) > 1 else ()
    return [head, *(_row(team, figures) for team, figures in teams), _row("all", summary.whole)]


def _row(team: str, figures: "Figures") -> tuple[str, ...]:
    times = (
        figures.average_wait_s, figures.p99_wait_s, figures.average_completion_s, figures.p99_completion_s
    )  # fmt: skip
    said = ("-" if seconds is None else say_duration(seconds) for seconds in times)
    return (team, str(figures.num_runs), str(figures.unfinished), *said, f"{figures.gpu_hours:,.1f}")


def _in_all(outcome: "Outcome", summary: "Summary") -> str:
    parts = [f"{say_duration(summary.makespan_s)} on {outcome.num_nodes} nodes with {outcome.num_gpus} GPUs"]
    if summary.gpu_utilisation is not None:
        parts.append(f"{summary.gpu_utilisation:.1%} of the GPU time held")
    if summary.cost is not None:
        idle = "" if summary.idle_cost is None else f", ${summary.idle_cost:,.2f} of it for idle GPUs"
        parts.append(f"${summary.cost:,.2f}{idle}")
    return "; ".join(parts)
