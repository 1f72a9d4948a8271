"""``fairlead logs``: show output of all ranks in order of time, across restarts."""

import heapq
import os
import queue
import re
import shlex
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace

import click

from fairlead.cli.families import leaves
from fairlead.cli.moments import Moment
from fairlead.cli.names import RunName, find_all
from fairlead.cli.show import as_json, json_option, message
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.output import EVERYTHING, LogQuery
from fairlead.cluster.port import LogLine
from fairlead.control.pipelines.step_output import runs_of_steps
from fairlead.errors import FairleadError
from fairlead.state.snapshot import Workload
from fairlead.text.quantities import plural

Line = tuple[Workload, LogLine]
Selected = tuple[Workload, LogQuery]

# Control sequences other than colours: cursor movements and titles, which are dropped, and other control characters,
# which are escaped.
_MOVE = r"\x1b\[[0-?]*[ -/]*[@-ln-~]"
_TITLE = r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
_OTHER = r"(\x1b(?!\[[0-9;:]*m)|[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f])"
_CONTROL = re.compile(f"{_MOVE}|{_TITLE}|{_OTHER}")
_RESET = "\x1b[0m"
_FOUND = "\x1b[1;31m"


class Ranks(click.ParamType[frozenset[int]]):
    """Ranks, such as ``0``, ``0,3`` or ``4-7``."""

    name = "ranks"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[int]:
        ranks: set[int] = set()
        for part in str(value).split(","):
            match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
            if match is None or int(match[2] or match[1]) < int(match[1]):
                self.fail(f"{value!r} names no ranks; give one, such as 3, or several, such as 0,3 or 4-7.", param, ctx)
            ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
        return frozenset(ranks)


class Pattern(click.ParamType[re.Pattern[str]]):
    """A regular expression."""

    name = "regex"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> re.Pattern[str]:
        try:
            return re.compile(str(value))
        except re.error as error:
            plain = shlex.quote(re.escape(str(value)))
            sentence = f"{value!r} is not a regular expression: {error}. To find it as plain text, give {plain}."
            self.fail(sentence, param, ctx)


@click.command()
@click.argument("names", nargs=-1, required=True, type=RunName())
@click.option("-f", "--follow", is_flag=True, help="Follow until NAMES have ended.")
@click.option("--rank", "ranks", type=Ranks(), multiple=True, help="Only these ranks, such as 3, 0,3 or 4-7.")
@click.option("--attempt", type=click.IntRange(min=0), help="Only this attempt of the run, from 0.")
@click.option(
    "--step", "steps", multiple=True, help="Only this step of a pipeline, or an item of it, such as 'train[2]'."
)
@click.option("--since", type=Moment(), help="Only from then on: 10m ago, 2026-01-31T14:05, 14:05:30 or @1769860800.")
@click.option("--until", type=Moment(), help="Only output until then.")
@click.option("--grep", "pattern", type=Pattern(), help="Only lines that match this regular expression.")
@click.option("--tail", type=click.IntRange(min=1), help="Only the last N lines; with --follow, also new ones.")
@click.option("--timestamps", is_flag=True, help="Show the time of each line.")
@json_option
@cluster_options
def logs(
    target: Target,
    names: tuple[str, ...],
    follow: bool,
    ranks: tuple[frozenset[int], ...],
    attempt: int | None,
    steps: tuple[str, ...],
    since: float | None,
    until: float | None,
    pattern: re.Pattern[str] | None,
    tail: int | None,
    timestamps: bool,
    json_: bool,
) -> None:
    """Show the output of NAMES, each line with its rank, and with its run when there are several.

    With --json each line is an object. Output that no longer exists is reported in its place. With one --step its lines
    are shown as its program printed them.
    """
    if since is not None and until is not None and since > until:
        raise click.UsageError("--since is later than --until: no line is in between.")
    query = LogQuery(
        ranks=frozenset().union(*ranks) if ranks else None,
        attempt=attempt,
        since=since,
        until=until,
        pattern=pattern,
        tail=tail,
    )
    cluster = target.open()
    workloads = find_all(cluster, names)
    if steps:
        selected = [
            (run, replace(query, prefix=prefix))
            for workload in workloads
            for run, prefix in runs_of_steps(cluster, workload, steps)
        ]
    else:
        selected = [(run, query) for run in leaves(cluster, workloads)]
    for run, query in selected:
        _check(run, query)
    if steps and not selected:
        message(f"None of these steps has begun; `fairlead status {names[0]}` shows all.")
        return
    runs = [run for run, _ in selected]
    lines = _as_they_come(cluster, selected) if follow else _in_order(cluster, selected)
    terminal = is_terminal()
    shown = 0
    for run, line in lines:
        if json_:
            text = as_json({"run": run.spec.name, **asdict(line)})
        else:
            text = format_line(
                line, run, with_name=len(runs) > 1, timestamps=timestamps, terminal=terminal, pattern=pattern
            )
        print(text, flush=follow)
        shown += 1
    if not shown:
        for run, query in selected:
            state = run.status
            which = "such output" if query != EVERYTHING else "output" if state.phase.is_final else "output yet"
            message(f"{run.spec.name} has no {which}; it is {state.phase.value}: {state.reason.message}")


def format_line(
    line: LogLine,
    run: Workload,
    *,
    with_name: bool,
    timestamps: bool = False,
    terminal: bool = False,
    pattern: re.Pattern[str] | None = None,
) -> str:
    """Format a line; for a terminal, without control sequences and with matches of ``pattern`` in colour."""
    text = _for_terminal(line.text, pattern) if terminal else line.text
    when = time.strftime("%H:%M:%S ", time.localtime(line.at)) if timestamps else ""
    name = f"{run.spec.name} | " if with_name else ""
    rank = f"[{line.rank if line.rank >= 0 else '-'}] " if run.gang.world_size > 1 else ""
    return f"{when}{name}{rank}{text}"


def is_terminal() -> bool:
    """Return whether output goes to a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def _for_terminal(text: str, pattern: re.Pattern[str] | None) -> str:
    if not text.isprintable():
        text = _CONTROL.sub(lambda match: "" if match[1] is None else f"\\x{ord(match[1]):02x}", text)
        if "\x1b" in text:
            text += _RESET  # an unterminated colour would continue in the next line
    if pattern is not None and not os.environ.get("NO_COLOR"):
        text = pattern.sub(lambda match: f"{_FOUND}{match[0]}{_RESET}" if match[0] else "", text)
    return text


def _check(run: Workload, query: LogQuery) -> None:
    most = max(query.ranks, default=0) if query.ranks is not None else 0
    if most >= run.gang.world_size:
        raise click.UsageError(f"--rank {most}: {run.spec.name} has {plural(run.gang.world_size, 'rank')}, from 0.")
    if query.attempt is not None and query.attempt > run.status.attempt:
        newest = run.status.attempt
        raise click.UsageError(f"--attempt {query.attempt}: the newest start of {run.spec.name} is {newest}.")


def _lines(cluster: ClusterClient, run: Workload, query: LogQuery, *, follow: bool) -> Iterator[Line]:
    """Yield the selected lines of a run, without what the prefix of a query matches."""
    for line in cluster.logs(run.uid, query, follow=follow):
        prefix = None if query.prefix is None else query.prefix.match(line.text)
        yield run, line if prefix is None else replace(line, text=line.text[prefix.end() :])


def _in_order(cluster: ClusterClient, selected: list[Selected]) -> Iterable[Line]:
    """Return the existing lines, merged by time."""
    if len(selected) == 1:
        return _lines(cluster, *selected[0], follow=False)
    lines = heapq.merge(
        *(_lines(cluster, run, query, follow=False) for run, query in selected), key=lambda item: item[1].at
    )
    tail = next((query.tail for _, query in selected), None)
    return lines if tail is None else deque(lines, maxlen=tail)


def _as_they_come(cluster: ClusterClient, selected: list[Selected]) -> Iterator[Line]:
    """Yield existing and new lines until all runs have ended."""
    if len(selected) == 1:
        yield from _lines(cluster, *selected[0], follow=True)
        return
    lines: queue.SimpleQueue[Line | Exception | None] = queue.SimpleQueue()

    def read(run: Workload, query: LogQuery) -> None:
        try:
            # A connection of its own: one belongs to one thread.
            own = cluster.another()
            for line in _lines(own, run, query, follow=True):
                lines.put(line)
            own.close()
        except FairleadError as error:
            lines.put(error)
        else:
            lines.put(None)

    for pair in selected:
        threading.Thread(target=read, args=pair, daemon=True).start()
    reading = len(selected)
    while reading:
        item = lines.get()
        if isinstance(item, Exception):
            raise item
        if item is None:
            reading -= 1
        else:
            yield item
