"""``fairlead cost``: costs of runs and of unused capacity."""

import csv
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fairlead.cli.cloud_or_own import Offers, describe, draw, load_of_cluster, load_of_machine, load_of_trace
from fairlead.cli.moments import Moment
from fairlead.cli.parquet import write_costs
from fairlead.cli.pricing import Dollars, Number, owned_node, owned_options
from fairlead.cli.show import as_json, describe_time, json_option, message, table
from fairlead.cli.svg_files import SvgFile
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.client import ClusterClient, PublishedCostDays
from fairlead.cluster.cost_rows import cost_rows
from fairlead.cluster.ledger_tables import CostGrouping, Payer
from fairlead.control.budget_balances import Balance, balances
from fairlead.control.opening import open_local
from fairlead.ledger.bills import Statement
from fairlead.ledger.comparison import Payment
from fairlead.ledger.focus import Charge, focus_row
from fairlead.ledger.usage import DAY_MS, Use
from fairlead.text.money import describe_microusd
from fairlead.text.quantities import plural

if TYPE_CHECKING:
    from fairlead.cli.cloud_or_own import Load

DAY_S = DAY_MS / 1000
WINDOW_S = 30 * DAY_S
NOBODY = "(no run)"
# Maximum budgets listed below a table.
MOST_BUDGETS = 10


@click.group(invoke_without_command=True)
@click.option(
    "--by",
    type=click.Choice([choice.value for choice in CostGrouping]),
    default="run",
    help="What a row stands for; run by default.",
)
@click.option("--since", type=Moment(), help="Start of the period: 30d ago by default, 2026-01-31 or @1769860800.")
@click.option("--until", type=Moment(), help="End of the period; now by default.")
@click.option("--csv", "csv_", is_flag=True, help="CSV instead of a table.")
@click.option(
    "--parquet",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the rows to a Parquet file.",
)
@click.option("--focus", is_flag=True, help="CSV with the columns of FOCUS 1.0, a row for each day, run and use.")
@json_option
@cluster_options
@click.pass_context
def cost(
    ctx: click.Context,
    target: Target,
    by: str,
    since: float | None,
    until: float | None,
    csv_: bool,
    parquet: Path | None,
    focus: bool,
    json_: bool,
) -> None:
    """Show the costs of nodes by run, team or model and by use, idle time included.

    The rows add up to the bill exactly. The cost of a node is divided by its GPUs, without GPUs by its cores. Days are
    in UTC. Set prices of this machine with `fairlead prices set`. On Kubernetes days are whole, and your permissions
    decide whether you see all costs or those of a namespace.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_stray(ctx, ctx.invoked_subcommand)
        return
    if csv_ + focus + json_ + (parquet is not None) > 1:
        raise click.UsageError("--csv, --parquet, --focus and --json are forms of the same: give one of them.")
    now = time.time()
    end = now if until is None else min(until, now)
    start = end - WINDOW_S if since is None else since
    if start > end:
        raise click.UsageError("--since is later than --until, or than now: nothing is in between.")
    cluster, grouping = target.quietly(), CostGrouping(by)
    cluster.nudge()
    whose = None
    if cluster.published_costs is not None:
        start, end, whose = _whole_days(cluster.published_costs, start, end)
    if focus:
        _print_focus(cluster, start, end)
        return
    statement = cluster.costs(grouping, since=start, until=end)
    rows = cost_rows(statement, grouping)
    # Costs of a namespace alone exclude what its team spends elsewhere.
    spent = balances(cluster, now) if whose is None else []
    if json_:
        print(
            as_json(
                {
                    "since": start,
                    "until": end,
                    "by": by,
                    "billed_microusd": statement.billed_microusd,
                    "pools": dict(statement.billed),
                    "rows": rows,
                    "budgets": [_balance_json(balance) for balance in spent],
                }
            )
        )
    elif parquet is not None:
        write_costs(parquet, rows, by)
        message(f"{parquet} has {plural(len(rows), 'row')}, {describe_microusd(statement.billed_microusd)} in all.")
    elif csv_:
        columns = [name for name in rows[0] if name != "uses"] if rows else [by, "microusd", "node_hours"]
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([*columns, *(use.value for use in Use)])
        for row in rows:
            writer.writerow(
                [
                    *("" if row[name] is None else row[name] for name in columns),
                    *(row["uses"].get(use.value, 0) for use in Use),
                ]
            )
    elif cluster.machine is not None and not cluster.machine.prices():
        message("No price is set, so nothing is billed; `fairlead prices set localhost 2.50` sets one.")
    elif not rows:
        message(f"Nothing is billed from {describe_time(start)} to {describe_time(end)}.")
    else:
        print(table([(by.upper(), "COST", "SHARE", "NODE-HOURS", "FOR"), *_table_rows(rows, by, statement)]))
        of = "" if whose is None else f" of {whose}"
        message(
            f"{describe_microusd(statement.billed_microusd)}{of} from {describe_time(start)} to {describe_time(end)}."
        )
        for balance in spent[:MOST_BUDGETS]:
            message(f"{balance}.")
        if len(spent) > MOST_BUDGETS:
            message(f"{plural(len(spent) - MOST_BUDGETS, 'more budget')}: `fairlead cost --json` has them all.")


def _balance_json(balance: Balance) -> dict[str, Any]:
    account = balance.account
    return {
        "team": account.team,
        "project": account.project,
        "monthly_microusd": account.limit,
        "spent_microusd": balance.spent,
        "when_spent": account.budget.when_spent.value,
    }


def _whole_days(published: PublishedCostDays, start: float, end: float) -> tuple[float, float, str | None]:
    """Return the window in whole days, up to the last published time, and the owner of the costs."""
    at, team = published.costs_at(start, end)
    return start - start % DAY_S, at, None if team is None else f"namespace {team}"


def _refuse_stray(ctx: click.Context, subcommand: str) -> None:
    """Raise if an option of the table is given to a subcommand, which has options of its own."""
    options = [option for option in ctx.params if ctx.get_parameter_source(option) is ParameterSource.COMMANDLINE]
    if options:
        names = ", ".join(f"--{option.rstrip('_').replace('_', '-')}" for option in sorted(options))
        raise click.UsageError(f"{names}: give the options of `cost {subcommand}` after that word.")


@cost.command()
@click.argument("trace", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--on-demand", type=Dollars(), required=True, help="Dollars for an hour of an on-demand node.")
@click.option("--reserved", type=Dollars(), help="Dollars for an hour of a reserved node, busy or not.")
@click.option("--spot", type=Dollars(), help="Dollars for an hour of a spot node.")
@click.option(
    "--most-spot", type=click.IntRange(min=0), help="Maximum number of spot nodes at a time; no limit by default."
)
@click.option("--egress", type=Dollars(), help="Dollars for a GB that leaves the cloud.")
@click.option("--egress-gb", type=Number(), metavar="GB", help="GB that leave it in an hour in which a node is busy.")
@owned_options
@click.option("--gpus", type=click.IntRange(min=1), default=8, help="GPUs of a node, for TRACE; 8 by default.")
@click.option("--since", type=Moment(), help="Start of the recorded load; 30d ago by default.")
@click.option("--pool", metavar="NAME", help="Pool of a cluster whose load to compare, if runs held several.")
@click.option("--plot", type=SvgFile(), metavar="FILE", help="Plot costs by how busy nodes are, as SVG.")
@json_option
@cluster_options
def compare(
    target: Target,
    trace: Path | None,
    on_demand: int,
    reserved: int | None,
    spot: int | None,
    most_spot: int | None,
    egress: int | None,
    egress_gb: Decimal | None,
    gpus: int,
    since: float | None,
    pool: str | None,
    plot: Path | None,
    json_: bool,
    **owned: Any,
) -> None:
    """Compare owned, reserved, on-demand and spot nodes for a recorded load, and find the cheapest mix.

    The load is that of this machine or of a pool of a cluster, or that of TRACE, a trace as for `fairlead simulate`,
    whose runs start when they are submitted. On a cluster days are whole, and your permissions decide whether the load
    is that of all runs or of a namespace. No other mix costs less for this load. Work that is lost with reclaimed spot
    nodes is left out.
    """
    node = owned_node(**owned)
    prices = {Payment.OWNED: None if node is None else node.rate, Payment.RESERVED: reserved, Payment.SPOT: spot}
    known = {way: rate for way, rate in prices.items() if rate is not None} | {Payment.ON_DEMAND: on_demand}
    if most_spot is not None and spot is None:
        raise click.UsageError("--most-spot is for --spot.")
    if (egress is None) != (egress_gb is None):
        raise click.UsageError("--egress is the price of each of --egress-gb: give both or neither.")
    if trace is None:
        load = _recorded_load(target, pool, since)
    elif since is not None or pool is not None or target.options:
        raise click.UsageError("--since, --pool and the options of a cluster are for a recorded load: give no TRACE.")
    else:
        load = load_of_trace(trace, gpus)
    most = {} if most_spot is None else {Payment.SPOT: most_spot}
    leaving = round((egress or 0) * (egress_gb or 0))
    offers = Offers(prices=known, egress=leaving, node=node, most=most)
    print(describe(load, offers, json_=json_))
    if plot is not None:
        plot.write_text(draw(load, offers))
        message(f"Wrote what nodes cost by how busy they are to {plot}.")


def _recorded_load(target: Target, pool: str | None, since: float | None) -> "Load":
    now = time.time()
    start = now - WINDOW_S if since is None else since
    if start > now:
        raise click.UsageError("--since is later than now: nothing is recorded yet.")
    if not target.is_kubernetes:
        if pool is not None:
            raise click.UsageError("--pool is for a cluster; this machine is one node.")
        return load_of_machine(open_local(), start, now)
    cluster = target.of_context()
    try:
        return load_of_cluster(cluster, pool, start, now)
    finally:
        cluster.close()


def _table_rows(rows: list[dict[str, Any]], by: str, statement: Statement[Payer]) -> list[tuple[str, ...]]:
    whole = statement.billed_microusd or 1
    return [
        (
            NOBODY if row[by] is None else row[by] or "-",
            describe_microusd(row["microusd"]),
            f"{row['microusd'] / whole:.1%}",
            f"{row['node_hours']:.3g}",
            ", ".join(
                f"{use} {describe_microusd(amount)}"
                for use, amount in sorted(row["uses"].items(), key=lambda item: -item[1])
                if amount
            ),
        )
        for row in rows
    ]


def _print_focus(cluster: ClusterClient, start: float, end: float) -> None:
    statement = cluster.costs(CostGrouping.RUN, since=start, until=end, daily=True)
    holders = cluster.holders()
    writer = None
    for line in statement.lines:
        assert line.key is not None, "daily rows have their day"
        day = datetime.fromisoformat(line.key[0]).replace(tzinfo=UTC)
        charge = Charge(line=line, start=day, end=day + timedelta(days=1), holder=_of(line.key, holders))
        row = focus_row(charge, cluster.account)
        if writer is None:
            writer = csv.DictWriter(sys.stdout, row, lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
    if writer is None:
        message(f"Nothing is billed from {describe_time(start)} to {describe_time(end)}.")


def _of(payer: tuple[str, ...], holders: Mapping[str, Any]) -> Any:
    return holders.get(payer[2]) if len(payer) > 2 else None
