"""``fairlead nodes`` and ``fairlead node``: the nodes of a cluster, their failures, and whether runs may use them."""

import time
from typing import Any

import click

from fairlead.cli.show import as_json, describe_time, json_option, message, table
from fairlead.cli.target import Target, cluster_options
from fairlead.control.node_listing import NodeRow, node_rows
from fairlead.errors import InvalidArgument, NotFound
from fairlead.text.lists import listed
from fairlead.text.quantities import describe_dollars
from fairlead.text.visible_text import visible

MOST_RUNS = 3
MOST_REASON = 200


@click.command()
@click.argument("name", required=False)
@json_option
@cluster_options
def nodes(target: Target, name: str | None, json_: bool) -> None:
    """List nodes with their risk and failures, or show the node NAME with the reason of its state.

    RISK is the probability that a node is unreliable, which placement follows. Failures are those of the last 30 days,
    of all runs. Causes `program` and `unknown` without progress do not count towards the risk.
    """
    now = time.time()
    rows = node_rows(target.quietly().snapshot(), now)
    if name is not None:
        rows = tuple(row for row in rows if row.node == name)
        if not rows:
            raise NotFound(f"There is no node {name!r}; `fairlead nodes` lists them.")
    if json_:
        print(as_json(_json(rows[0]) if name is not None else [_json(row) for row in rows]))
    elif name is not None:
        _show(rows[0])
    else:
        titles = ("NODE", "POOL", "GPUS", "RISK", "FAILURES", "IN USE BY", "STATE")
        print(table([titles, *(_cells(row) for row in rows)]))


@click.group()
def node() -> None:
    """Close a node for new runs, or open it again."""


@node.command()
@click.argument("name")
@click.option("--reason", default="", help="Why, for `fairlead nodes` and the reasons of runs that wait.")
@json_option
@cluster_options
def cordon(target: Target, name: str, reason: str, json_: bool) -> None:
    """Place no more pods on the node NAME; those that are there stay. Needs the right to change nodes."""
    if len(reason) > MOST_REASON or not reason.isprintable():
        raise InvalidArgument(f"--reason: give at most {MOST_REASON} printable characters, in one line.")
    target.quietly().cordon(name, reason)
    if json_:
        print(as_json({"node": name, "cordoned": True, "reason": reason}))
    else:
        message(f"{name} takes no more pods. `fairlead node uncordon {name}` opens it again.")


@node.command()
@click.argument("name")
@json_option
@cluster_options
def uncordon(target: Target, name: str, json_: bool) -> None:
    """Open the node NAME again, also one that was taken out: its earlier failures then count no more."""
    target.quietly().uncordon(name)
    if json_:
        print(as_json({"node": name, "cordoned": False}))
    else:
        message(f"{name} takes pods again. `fairlead nodes {name}` shows its state.")


def _cells(row: NodeRow) -> tuple[str, ...]:
    return (
        row.node, row.pool, str(row.gpus), _risk(row), _causes(row), listed(row.runs, MOST_RUNS) or "-",
        row.state.value,
    )  # fmt: skip


def _risk(row: NodeRow) -> str:
    return "-" if row.chance is None else f"{row.chance:.0%}"


def _causes(row: NodeRow) -> str:
    return ", ".join(f"{count} {cause}" for cause, count in row.causes.items()) or "-"


def _show(row: NodeRow) -> None:
    print(f"{row.node}: {row.state.value}{f': {visible(row.reason)}' if row.reason else ''}")
    price = "unknown" if row.price_per_hour is None else f"{describe_dollars(row.price_per_hour)} an hour"
    gpus = f"{row.gpus} {row.gpu_model}" if row.gpu_model is not None else "none"
    print(f"pool {row.pool}, GPUs: {gpus}, price: {price}, in use by: {listed(row.runs, MOST_RUNS) or 'no run'}")
    if row.chance is None or row.failures_per_day is None:
        print("no failures are known")
        return
    print(f"unreliable with a probability of {row.chance:.1%}: {row.failures_per_day:.3f} failures a day are expected")
    if row.failures:
        titles = ("FAILED", "CAUSE", "RUN", "SHARE")
        print(table([titles, *(
            (describe_time(one.at), one.cause.value, one.run or "-", f"{one.share:.2f}") for one in row.failures
        )]))  # fmt: skip


def _json(row: NodeRow) -> dict[str, Any]:
    return {
        "node": row.node,
        "pool": row.pool,
        "gpus": row.gpus,
        "gpu_model": row.gpu_model,
        "price_per_hour": row.price_per_hour,
        "risk": row.chance,
        "failures_per_day": row.failures_per_day,
        "causes": dict(row.causes),
        "failures": [
            {"at": one.at, "cause": one.cause.value, "team": one.team, "run": one.run, "share": one.share}
            for one in row.failures
        ],
        "runs": list(row.runs),
        "state": row.state.value,
        "reason": row.reason,
    }
