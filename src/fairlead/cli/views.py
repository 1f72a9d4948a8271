"""Views of followed runs: on a terminal, as plain text, and as JSON lines."""

import sys
import time
from dataclasses import asdict
from typing import Any

from fairlead.cli.commands.logs import format_line, is_terminal
from fairlead.cli.show import (
    as_json,
    describe_event,
    describe_reason,
    event_json,
    message,
    run_json,
)
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.port import EventRecord, LogLine
from fairlead.control.pipelines.command import is_driver, is_pipeline
from fairlead.policy.kinds.progress import describe_progress, progress_of, warning_of
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AnyWorkload, Phase, Progress, Workload, is_leaf
from fairlead.text.quantities import describe_duration, plural

PLAIN_PROGRESS_S = 5.0
USUAL = frozenset(("Submitted", Phase.STARTING.value, Phase.RUNNING.value))
"""Events of a child without trouble."""


class Plain:
    """A view with output on stdout, and events, changes of progress and the end on stderr."""

    def __init__(self, cluster: ClusterClient, *, several: bool) -> None:
        self._cluster = cluster
        self._several = several
        self._looked = time.monotonic()
        self._shown: dict[str, str] = {}
        self._terminal = is_terminal()

    def __enter__(self) -> "Plain":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def line(self, run: Workload, line: LogLine) -> None:
        print(format_line(line, run, with_name=self._several, terminal=self._terminal))

    def event(self, run: AnyWorkload, event: EventRecord) -> None:
        flush()
        if not _is_end(run, event) and not _is_usual(run, event):
            message(_say_event(run, event, self._several))

    def progress(self, runs: list[AnyWorkload]) -> None:
        flush()
        if time.monotonic() - self._looked < PLAIN_PROGRESS_S:
            return
        self._looked = time.monotonic()
        for run in runs:
            wrong = warning_of(run, time.time())
            says = [] if run.progress is None and is_leaf(run) else [progress_of(run)]
            says += [] if wrong is None else [wrong.message]
            text = "; ".join(says)
            if text and text != self._shown.get(run.uid):
                self._shown[run.uid] = text
                message(f"* {f'{run.spec.name}: ' if self._several else ''}{text}")

    def end(self, run: AnyWorkload) -> None:
        flush()
        message(_end(self._cluster, run))


class Terminal:
    """A view with a progress line per run at the bottom of the terminal, and everything else above."""

    def __init__(self, cluster: ClusterClient, *, several: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self._cluster = cluster
        self._several = several
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=8, transient=True)

    def __enter__(self) -> "Terminal":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def line(self, run: Workload, line: LogLine) -> None:
        self._print(format_line(line, run, with_name=self._several, terminal=True))

    def event(self, run: AnyWorkload, event: EventRecord) -> None:
        if not _is_end(run, event) and not _is_usual(run, event):
            self._print(_say_event(run, event, self._several), style=self._style("dim"))

    def progress(self, runs: list[AnyWorkload]) -> None:
        self._live.update(_bars(runs, self._style("bold")))

    def end(self, run: AnyWorkload) -> None:
        self._print(_end(self._cluster, run))

    def _style(self, style: str) -> str:
        """Return the style, or none with NO_COLOR, where rich would keep bold and dim."""
        return "" if self._console.no_color else style

    def _print(self, text: str, style: str | None = None) -> None:
        # The terminal wraps long lines, so that they can be copied whole.
        self._console.print(text, style=style, markup=False, soft_wrap=True)


class Json:
    """A view with an object per line, each with ``type`` (log, event, progress, end) and ``run``."""

    def __init__(self) -> None:
        self._shown: dict[str, Progress] = {}

    def __enter__(self) -> "Json":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def line(self, run: Workload, line: LogLine) -> None:
        self._print("log", run, asdict(line))

    def event(self, run: AnyWorkload, event: EventRecord) -> None:
        self._print("event", run, event_json(event))
        flush()

    def progress(self, runs: list[AnyWorkload]) -> None:
        flush()
        for run in runs:
            if run.progress is not None and run.progress != self._shown.get(run.uid):
                self._shown[run.uid] = run.progress
                self._print("progress", run, asdict(run.progress))

    def end(self, run: AnyWorkload) -> None:
        self._print("end", run, run_json(run))
        flush()

    def _print(self, kind: str, run: AnyWorkload, content: dict[str, Any]) -> None:
        print(as_json({**content, "type": kind, "run": run.spec.name}))


def flush() -> None:
    """Flush stdout; flushing after every line would cost more than the rest of its processing."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _is_end(run: AnyWorkload, event: EventRecord) -> bool:
    """Return whether ``end`` will show what the event says."""
    state = run.status
    return state.phase.is_final and event.type == state.phase.value and event.at >= state.since


def _is_usual(run: AnyWorkload, event: EventRecord) -> bool:
    """Return whether an event is one that every child has, such as its start; of these a parent has hundreds."""
    return run.parent is not None and event.type in USUAL and event.reason.remedy is None


def _end(cluster: ClusterClient, run: AnyWorkload) -> str:
    """Describe the end of a run: of a child that succeeded, in one line among those of others."""
    if run.parent is None or run.status.phase is not Phase.SUCCEEDED:
        return _conclusion(cluster, run)
    return f"* {run.spec.name}: {describe_event(run.status.phase.value, run.status.reason)}"


def _say_event(run: AnyWorkload, event: EventRecord, with_name: bool) -> str:
    return f"* {f'{run.spec.name}: ' if with_name else ''}{describe_event(event.type, event.reason)}"


def _conclusion(cluster: ClusterClient, run: AnyWorkload) -> str:
    """Describe the end of a run, and the next action."""
    name, state = run.spec.name, run.status
    text = f"\n{name} is {state.phase.value}: {describe_reason(state.reason, cluster.named())}"
    if state.phase is Phase.FAILED and state.reason.code is not Code.CANNOT_FIT:
        again = cluster.named(run)
        resumed = again if run.parent is None or not is_driver(run.spec) else cluster.named(cluster.get(run.parent))
        text += f"\nNext: `fairlead logs {again}`{_resumption(state.reason, resumed)}."
        if is_pipeline(run.spec):
            text += " That keeps all succeeded steps; `fairlead run FILE` also runs those that have changed."
    return text


def _resumption(reason: Reason, again: str) -> str:
    """Describe how to continue after a failure, unless its reason does."""
    if reason.remedy is not None and "fairlead resume" in reason.remedy:
        return ""
    before = ", " if reason.code is Code.DEADLINE_EXCEEDED else "; once it is fixed, "
    return f"{before}`fairlead resume {again}`"


def _bars(runs: list[AnyWorkload], name_style: str) -> Any:
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    for run in runs:
        grid.add_row(*_bar(run, name_style))
    return grid


def _bar(run: AnyWorkload, name_style: str) -> list[Any]:
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    progress, state = run.progress, run.status
    wrong = warning_of(run, time.time())
    size = plural(run.gang.world_size, "rank") if is_leaf(run) else progress_of(run)
    name = Text(f"{run.spec.name} {state.phase.value}, {size}", style=name_style)
    if progress is None or progress.step is None:
        return [name, Text(state.reason.message if wrong is None else wrong.message)]
    cells: list[Any] = [name]
    if progress.total_steps:
        cells.append(ProgressBar(total=progress.total_steps, completed=progress.step, width=24))
    cells.append(Text(describe_progress(progress)))
    left = _time_left(run)
    if left is not None:
        cells.append(Text(f"{describe_duration(left)} left"))
    if wrong is not None:
        cells.append(Text(wrong.message))
    return cells


def _time_left(run: AnyWorkload) -> float | None:
    """Return the seconds to the last step at the pace of this attempt; None before a first step."""
    progress = run.progress
    if progress is None or not progress.step or not progress.total_steps:
        return None
    done = progress.step - (progress.resumed_step or 0)
    spent = progress.updated_at - run.status.since
    return None if done <= 0 or spent <= 0 else (progress.total_steps - progress.step) * spent / done
