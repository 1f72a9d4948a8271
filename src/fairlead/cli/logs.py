"""``fairlead logs``: output of all ranks in order of time, through restarts."""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict

import click

from fairlead.cli.names import RunName
from fairlead.cli.show import as_json
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.port import LogLine


@click.command()
@click.argument("name", type=RunName())
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over.")
@click.option("--rank", type=click.IntRange(min=0), help="Only this rank.")
@click.option("--attempt", type=click.IntRange(min=0), help="Only this start of the run, from 0.")
@click.option("--tail", type=click.IntRange(min=1), help="Only the last lines; not with --follow.")
@click.option("--timestamps", is_flag=True, help="The time of each line.")
@click.option("--json", "json_", is_flag=True, help="A JSON object for each line.")
def logs(
    name: str, follow: bool, rank: int | None, attempt: int | None, tail: int | None, timestamps: bool, json_: bool
) -> None:
    """Show the output of NAME's ranks, the rank before each line when there are several."""
    if follow and tail is not None:
        raise click.UsageError("--tail shows the end of what there is, --follow what is to come: give one of them.")
    cluster = LocalCluster.open()
    cluster.nudge()
    workload = cluster.find(name)
    lines: Iterable[LogLine] = cluster.logs(workload.uid, rank=rank, attempt=attempt, follow=follow)
    for line in lines if tail is None else deque(lines, maxlen=tail):
        text = as_json(asdict(line)) if json_ else format_line(line, workload.spec.world_size > 1, timestamps)
        print(text, flush=follow)


def format_line(line: LogLine, with_rank: bool, timestamps: bool = False) -> str:
    """A line for people."""
    when = time.strftime("%H:%M:%S ", time.localtime(line.at)) if timestamps else ""
    rank = f"[{line.rank if line.rank >= 0 else '-'}] " if with_rank else ""
    return f"{when}{rank}{line.text}"
