"""``fairlead simulate``: replay a trace with the production decisions on a simulated cluster."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.recorded import record_history, recorded_target, save_history
from fairlead.cli.report import render
from fairlead.cli.show import as_json, message, table
from fairlead.cluster.local.home import Home
from fairlead.control.outcomes import summary
from fairlead.control.simulation import World, declared, expected, never_fits
from fairlead.control.simulation import simulate as replay
from fairlead.control.simulation_figures import as_data, in_all, pool_rows, summaries_of, team_rows
from fairlead.control.simulation_reports import keep_report, report_of
from fairlead.errors import CannotFit, ClusterError, InvalidSpec
from fairlead.specs.formats.reading import load_file
from fairlead.specs.pool import Pool
from fairlead.specs.simulation import Simulation
from fairlead.specs.team import Team
from fairlead.state.scheduling_policy import POLICIES
from fairlead.traces.reading import read_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlead.control.outcomes import Outcome
    from fairlead.control.simulation import World
    from fairlead.control.simulation_figures import Result
    from fairlead.specs.pool import Pool
    from fairlead.specs.simulation import Simulation
    from fairlead.specs.team import Team
    from fairlead.traces.arrivals import Arrival

    Replay = tuple[Sequence[Arrival], Sequence[Pool], Sequence[Team], tuple[Simulation, ...]]


@click.command()
@click.argument("trace", type=click.Path(path_type=Path), required=False)
@click.option(
    "--cluster",
    metavar="FILE",
    help="File with Pools, and optionally Teams and Simulations. With --from-cluster: local or kubernetes.",
)
@click.option("--from-cluster", is_flag=True, help="Replay a cluster's own history on its own nodes.")
@click.option("--context", metavar="NAME", help="With --from-cluster: a context of the kubeconfig.")
@click.option("-n", "--namespace", metavar="NAME", help="With --from-cluster: a namespace, if you may not read all.")
@click.option(
    "--save",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --from-cluster: save trace.csv and cluster.yaml in this directory.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(tuple(POLICIES)),
    help="Scheduling policy; repeat it to compare several (default: that of real runs).",
)
@click.option("--declare", type=float, help="Set max_duration of each run to its duration times this, above 1.")
@click.option("--expect", type=float, help="Set expected_duration of each run to its duration times this.")
@click.option("--seed", default=0, help="Seed of the random events of nodes (default 0).")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Write a report with plots to this file.",
)
@click.option("--no-keep", is_flag=True, help="Do not keep the report for the web page.")
@click.option("--json", "json_", is_flag=True, help="Print a JSON object per policy, with the figures and every run.")
def simulate(
    trace: Path | None,
    cluster: str | None,
    from_cluster: bool,
    context: str | None,
    namespace: str | None,
    save: Path | None,
    policies: tuple[str, ...],
    declare: float | None,
    expect: float | None,
    seed: int,
    html: Path | None,
    no_keep: bool,
    json_: bool,
) -> None:
    """Replay TRACE on the nodes of a cluster file, with the scheduler of real runs.

    TRACE is a CSV table with submit_s and duration_s (and name, team, nodes, gpu, cpu, memory, priority and more),
    a table of the Philly or Muri traces, or a file of Trainings that have a max_duration. With --from-cluster it is a
    cluster's own history.

    The newest reports are kept in the state directory, and `fairlead ui` shows them.
    """
    if from_cluster:
        if trace is not None:
            raise click.UsageError(f"Give {trace} or --from-cluster, not both.")
        place = {"cluster": cluster, "context": context, "namespace": namespace}
        title, (arrivals, pools, teams, assumed) = _from_cluster(place, save)
    else:
        title, (arrivals, pools, teams, assumed) = _from_files(trace, cluster, context or namespace or save)
    world = World(simulations=assumed, seed=seed)
    if declare is not None:
        if declare <= 1:
            raise click.BadParameter("a run would be stopped before its work is done; give more than 1.")
        arrivals = declared(arrivals, declare, world)
    if expect is not None:
        if expect <= 0:
            raise click.BadParameter("a run takes some time; give more than 0.")
        arrivals = expected(arrivals, expect)
    misfits = never_fits(arrivals, pools)
    if misfits:
        lines = [f"{reason.message} {reason.remedy or ''}".rstrip() for reason in misfits[:5]]
        if len(misfits) > len(lines):
            lines.append(f"{len(misfits) - len(lines)} more of other sizes fit nowhere either.")
        lines.append(
            "Its nodes are not here now: --save the history and add them to its cluster file."
            if from_cluster
            else "Or add a pool that holds it to the cluster file, or leave it out of the trace."
        )
        raise CannotFit("\n".join(lines))
    names = tuple(dict.fromkeys(policies)) or ("default",)
    outcomes = [(name, _replay(name, arrivals, pools, teams, world)) for name in names]
    results = [(name, outcome, summary(outcome)) for name, outcome in outcomes]
    if json_:
        for result in results:
            print(as_json(as_data(result, seed)))
    else:
        print(table(team_rows(summaries_of(results))))
        if len(pools) > 1 or assumed:
            print(table(pool_rows(summaries_of(results))))
        for name, outcome, figures in results:
            for line in in_all(outcome, figures):
                print(f"{name + ': ' if len(results) > 1 else ''}{line}")
    if html is not None:
        html.write_text(render(title, results), encoding="utf-8")
        message(f"Report: {html}")
    if not no_keep:
        settings = (("--declare", declare), ("--expect", expect), ("--seed", seed or None))
        _keep(title, [f"{option} {value:.15g}" for option, value in settings if value is not None], results)


def _keep(title: str, settings: list[str], results: "list[Result]") -> None:
    """Keep the report for the web page; the simulation succeeds without."""
    try:
        keep_report(Home.open(), report_of(title, settings, results, time.time()))
    except ClusterError as error:
        message(f"The report is not kept for the web page: {error}")
    else:
        message("`fairlead ui` shows this report under Simulations.")


def _from_cluster(place: dict[str, str | None], save: Path | None) -> tuple[str, "Replay"]:
    target = recorded_target(place)
    recording, teams = record_history(target)
    if save is not None:
        save_history(recording, teams, save)
    return f"History of {target.context or target.cluster}", (recording.arrivals, recording.pools, teams, ())


def _from_files(trace: Path | None, cluster: str | None, stray: object) -> tuple[str, "Replay"]:
    if trace is None or cluster is None:
        raise click.UsageError("Give TRACE and --cluster FILE, or --from-cluster.")
    if stray is not None:
        raise click.UsageError("--context, --namespace and --save go with --from-cluster.")
    pools, teams, assumed = _read_cluster(Path(cluster))
    return f"{trace.name} on {Path(cluster).name}", (read_trace(trace), pools, teams, assumed)


def _read_cluster(path: Path) -> tuple[tuple["Pool", ...], tuple["Team", ...], tuple["Simulation", ...]]:
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
    if not sys.stderr.isatty():
        return replay(arrivals, pools, world, teams=teams, rules=POLICIES[policy])
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"simulating {policy}", total=len(arrivals))

        def report(done: int, _seconds: float) -> None:
            progress.update(task, completed=done)

        return replay(arrivals, pools, world, teams=teams, rules=POLICIES[policy], report=report)
