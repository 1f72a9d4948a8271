"""``fairlead simulate``: a trace through the production decisions on a cluster that need not exist."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.show import as_json, table
from fairlead.errors import CannotFit, InvalidSpec
from fairlead.policy.rules import NAMED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlead.control.outcomes import Outcome
    from fairlead.control.simulation import World
    from fairlead.specs.pool import Pool
    from fairlead.specs.simulation import Simulation
    from fairlead.specs.team import Team
    from fairlead.traces.arrivals import Arrival


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--cluster", type=click.Path(path_type=Path), required=True, help="A file of Pools, and of Teams if there are any."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(tuple(NAMED)),
    help="Which queue; several are compared (default: the one that runs get for real).",
)
@click.option("--declare", type=float, help="Give each run a max_duration of so many times what it takes, above 1.")
@click.option("--seed", default=0, help="Of what happens to nodes (default 0).")
@click.option("--html", type=click.Path(path_type=Path), help="Write a report with plots to this file.")
@click.option("--json", "json_", is_flag=True, help="A JSON object for each policy, with the figures and every run.")
def simulate(
    trace: Path,
    cluster: Path,
    policies: tuple[str, ...],
    declare: float | None,
    seed: int,
    html: Path | None,
    json_: bool,
) -> None:
    """Replay TRACE on the nodes of a cluster file, with the decisions that runs get for real.

    TRACE is a CSV table with submit_s and duration_s (and name, team, nodes, gpu, cpu, memory, priority, max_duration),
    a table of the Philly or Muri traces, or a file of Trainings that have a max_duration.
    """
    from fairlead.cli.figures import as_data, in_all, pool_rows, team_rows
    from fairlead.cli.report import render
    from fairlead.control.outcomes import summary
    from fairlead.control.simulation import World, declared, never_fits
    from fairlead.traces.reading import read_trace

    pools, teams, assumed = _read_cluster(cluster)
    arrivals = read_trace(trace)
    world = World(simulations=assumed, seed=seed)
    if declare is not None:
        if declare <= 1:
            raise click.BadParameter("a run would be stopped before its work is done; give more than 1.")
        arrivals = declared(arrivals, declare, world)
    misfits = never_fits(arrivals, pools)
    if misfits:
        raise CannotFit("\n".join(reason.message for reason in misfits[:5]))
    names = tuple(dict.fromkeys(policies)) or ("default",)
    outcomes = [(name, _replay(name, arrivals, pools, teams, world)) for name in names]
    results = [(name, outcome, summary(outcome)) for name, outcome in outcomes]
    if json_:
        for result in results:
            print(as_json(as_data(result, seed)))
    else:
        print(table(team_rows(results)))
        if len(pools) > 1 or assumed:
            print(table(pool_rows(results)))
        for name, outcome, figures in results:
            for line in in_all(outcome, figures):
                print(f"{name + ': ' if len(results) > 1 else ''}{line}")
    if html is not None:
        html.write_text(render(f"{trace.name} on {cluster.name}", results), encoding="utf-8")
        print(f"Report: {html}", file=sys.stderr)


def _read_cluster(path: Path) -> tuple[tuple["Pool", ...], tuple["Team", ...], tuple["Simulation", ...]]:
    from fairlead.specs.pool import Pool
    from fairlead.specs.reading import load_file
    from fairlead.specs.simulation import Simulation
    from fairlead.specs.team import Team

    specs = load_file(path)
    strangers = [spec for spec in specs if not isinstance(spec, Pool | Team | Simulation)]
    if strangers:
        kind = type(strangers[0]).__name__
        raise InvalidSpec((f"{path}: {strangers[0].name} is a {kind}; give Pools, Teams and Simulations only",))
    pools = tuple(spec for spec in specs if isinstance(spec, Pool))
    if not pools:
        raise InvalidSpec((f"{path}: there is no Pool in it, so nothing says what nodes there are",))
    teams = tuple(spec for spec in specs if isinstance(spec, Team))
    return pools, teams, tuple(spec for spec in specs if isinstance(spec, Simulation))


def _replay(
    policy: str,
    arrivals: "Sequence[Arrival]",
    pools: "Sequence[Pool]",
    teams: "Sequence[Team]",
    world: "World",
) -> "Outcome":
    from fairlead.control.simulation import simulate as replay

    if not sys.stderr.isatty():
        return replay(arrivals, pools, world, teams=teams, rules=NAMED[policy])
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"simulating {policy}", total=len(arrivals))

        def told(done: int, _seconds: float) -> None:
            progress.update(task, completed=done)

        return replay(arrivals, pools, world, teams=teams, rules=NAMED[policy], told=told)
