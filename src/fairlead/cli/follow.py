"""Following a run: its output as it comes, its phases, and a line of progress at the bottom of a terminal."""

import queue
import sys
import threading
import time
from typing import Any

from fairlead.cli.logs import format_line
from fairlead.cli.show import message, say_progress, say_reason
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.port import LogLine
from fairlead.policy.quantities import say_duration
from fairlead.state.snapshot import Phase, Workload

EXIT_CODES = {Phase.SUCCEEDED: 0, Phase.FAILED: 1, Phase.STOPPED: 3}
DETACHED = 130
LOOK_S = 0.2
PLAIN_PROGRESS_S = 5.0


def follow(cluster: LocalCluster, uid: str) -> int:
    """Show the run until it is over; the exit code that tells how. Ctrl-C leaves it running."""
    run = cluster.store.get(uid)
    try:
        ended = _terminal(cluster, run) if sys.stderr.isatty() else _plain(cluster, run)
    except KeyboardInterrupt:
        name = run.spec.name
        message(
            f"\nDetached; {name} goes on. `fairlead attach {name}` follows it again, `fairlead stop {name}` stops it."
        )
        return DETACHED
    _conclude(ended)
    return EXIT_CODES[ended.status.phase]


class _Watch:
    """What is new of a run: lines of output, events and its state."""

    def __init__(self, cluster: LocalCluster, run: Workload) -> None:
        self._cluster, self._run = cluster, run
        self._lines: queue.SimpleQueue[LogLine | None] = queue.SimpleQueue()
        self._last_event = 0
        self._nudged = time.monotonic()
        threading.Thread(target=self._read, daemon=True).start()

    def lines(self) -> list[str]:
        """Output that has come since."""
        found = []
        while not self._lines.empty():
            line = self._lines.get()
            if line is not None:
                found.append(format_line(line, self._run.spec.world_size > 1))
        return found

    def events(self) -> list[str]:
        """What has happened since."""
        new = self._cluster.events(self._run.uid, after=self._last_event)
        self._last_event = new[-1].id if new else self._last_event
        return [f"{event.type}: {event.reason.message}" for event in new]

    def state(self) -> Workload:
        """The run as it is; somebody looks after it."""
        if time.monotonic() - self._nudged > 1.0:
            self._cluster.nudge()
            self._nudged = time.monotonic()
        return self._cluster.store.get(self._run.uid)

    def drain(self) -> list[str]:
        """The rest of the output of a run that is over."""
        found = []
        while (line := self._lines.get(timeout=10.0)) is not None:
            found.append(format_line(line, self._run.spec.world_size > 1))
        return found

    def _read(self) -> None:
        # A connection of its own: one belongs to one thread.
        cluster = LocalCluster(self._cluster.home)
        for line in cluster.logs(self._run.uid, follow=True):
            self._lines.put(line)
        self._lines.put(None)
        cluster.close()


def _plain(cluster: LocalCluster, run: Workload) -> Workload:
    watch, told = _Watch(cluster, run), time.monotonic()
    while True:
        now = watch.state()
        for event in watch.events():
            message(f"* {event}")
        for line in watch.drain() if now.status.phase.is_final else watch.lines():
            print(line, flush=True)
        if now.status.phase.is_final:
            return now
        if time.monotonic() - told > PLAIN_PROGRESS_S and now.progress is not None:
            message(f"* {say_progress(now.progress)}")
            told = time.monotonic()
        cluster.wait(LOOK_S)


def _terminal(cluster: LocalCluster, run: Workload) -> Workload:
    from rich.console import Console
    from rich.live import Live

    watch = _Watch(cluster, run)
    console = Console(stderr=True, highlight=False)
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        while True:
            now = watch.state()
            for event in watch.events():
                console.print(f"* {event}", style="dim", markup=False)
            for line in watch.drain() if now.status.phase.is_final else watch.lines():
                console.print(line, markup=False)
            if now.status.phase.is_final:
                return now
            live.update(_bar(now))
            cluster.wait(LOOK_S)


def _bar(run: Workload) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    progress, state = run.progress, run.status
    grid = Table.grid(padding=(0, 1))
    cells: list[Any] = [f"[bold]{run.spec.name}[/] {state.phase.value}, {run.spec.world_size} ranks"]
    if progress is not None and progress.step is not None:
        if progress.total_steps:
            cells.append(ProgressBar(total=progress.total_steps, completed=progress.step, width=24))
        cells.append(say_progress(progress))
        left = _time_left(run)
        if left is not None:
            cells.append(f"{say_duration(left)} left")
    else:
        cells.append(state.reason.message)
    grid.add_row(*cells)
    return grid


def _time_left(run: Workload) -> float | None:
    """Seconds to the last step at the pace of this start; None before there is one."""
    progress = run.progress
    if progress is None or not progress.step or not progress.total_steps:
        return None
    done = progress.step - (progress.resumed_step or 0)
    spent = progress.updated_at - run.status.since
    return None if done <= 0 or spent <= 0 else (progress.total_steps - progress.step) * spent / done


def _conclude(run: Workload) -> None:
    name, state = run.spec.name, run.status
    message(f"\n{name} is {state.phase.value}: {say_reason(state.reason)}")
    if state.phase is Phase.FAILED:
        message(f"Next: `fairlead logs {name}`; when it is mended, `fairlead resume {name}`.")
