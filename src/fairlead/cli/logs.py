"""``fairlead logs``: output of all ranks in order of time, through restarts."""

import heapq
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict

import click

from fairlead.cli.names import RunName, find_all
from fairlead.cli.show import as_json, json_option, message
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.facing import Facing
from fairlead.cluster.port import LogLine
from fairlead.errors import FairleadError
from fairlead.policy.quantities import plural
from fairlead.state.snapshot import Workload

Line = tuple[Workload, LogLine]


@click.command()
@click.argument("names", nargs=-1, required=True, type=RunName())
@click.option("-f", "--follow", is_flag=True, help="Go on until NAMES are over.")
@click.option("--rank", type=click.IntRange(min=0), help="Only this rank.")
@click.option("--attempt", type=click.IntRange(min=0), help="Only this start of the run, from 0.")
@click.option("--tail", type=click.IntRange(min=1), help="Only the last lines; not with --follow.")
@click.option("--timestamps", is_flag=True, help="The time of each line.")
@json_option
@cluster_options
def logs(
    target: Target,
    names: tuple[str, ...],
    follow: bool,
    rank: int | None,
    attempt: int | None,
    tail: int | None,
    timestamps: bool,
    json_: bool,
) -> None:
    """Show the output of NAMES, each line with its rank, and with its run when there are several.

    With --json each line is an object.
    """
    if follow and tail is not None:
        raise click.UsageError("--tail shows the end of what there is, --follow what is to come: give one of them.")
    cluster = target.open()
    runs = find_all(cluster, names)
    for run in runs:
        _check(run, rank, attempt)
    together = _as_they_come if follow else _in_order
    lines: Iterable[Line] = together(cluster, runs, rank, attempt)
    shown = 0
    for run, line in lines if tail is None else deque(lines, maxlen=tail):
        if json_:
            text = as_json({"run": run.spec.name, **asdict(line)})
        else:
            text = format_line(line, run, with_name=len(runs) > 1, timestamps=timestamps)
        print(text, flush=follow)
        shown += 1
    if not shown:
        for run in runs:
            state = run.status
            message(f"{run.spec.name} has no such output; it is {state.phase.value}: {state.reason.message}")


def format_line(line: LogLine, run: Workload, *, with_name: bool, timestamps: bool = False) -> str:
    """A line for people."""
    when = time.strftime("%H:%M:%S ", time.localtime(line.at)) if timestamps else ""
    name = f"{run.spec.name} | " if with_name else ""
    rank = f"[{line.rank if line.rank >= 0 else '-'}] " if run.gang.world_size > 1 else ""
    return f"{when}{name}{rank}{line.text}"


def _check(run: Workload, rank: int | None, attempt: int | None) -> None:
    if rank is not None and rank >= run.gang.world_size:
        raise click.UsageError(f"--rank {rank}: {run.spec.name} has {plural(run.gang.world_size, 'rank')}, from 0.")
    if attempt is not None and attempt > run.status.attempt:
        raise click.UsageError(f"--attempt {attempt}: the newest start of {run.spec.name} is {run.status.attempt}.")


def _in_order(cluster: Facing, runs: list[Workload], rank: int | None, attempt: int | None) -> Iterator[Line]:
    """What there is now, merged by time."""

    def of(run: Workload) -> Iterator[Line]:
        return ((run, line) for line in cluster.logs(run.uid, rank=rank, attempt=attempt))

    return heapq.merge(*(of(run) for run in runs), key=lambda item: item[1].at)


def _as_they_come(cluster: Facing, runs: list[Workload], rank: int | None, attempt: int | None) -> Iterator[Line]:
    """What there is and what comes, until all runs are over."""
    if len(runs) == 1:
        yield from ((runs[0], line) for line in cluster.logs(runs[0].uid, rank=rank, attempt=attempt, follow=True))
        return
    lines: queue.SimpleQueue[Line | Exception | None] = queue.SimpleQueue()

    def read(run: Workload) -> None:
        try:
            # A connection of its own: one belongs to one thread.
            own = cluster.another()
            for line in own.logs(run.uid, rank=rank, attempt=attempt, follow=True):
                lines.put((run, line))
            own.close()
        except FairleadError as error:
            lines.put(error)
        else:
            lines.put(None)

    for run in runs:
        threading.Thread(target=read, args=(run,), daemon=True).start()
    reading = len(runs)
    while reading:
        item = lines.get()
        if isinstance(item, Exception):
            raise item
        if item is None:
            reading -= 1
        else:
            yield item
