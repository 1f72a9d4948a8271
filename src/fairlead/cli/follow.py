"""Following runs until all are over: their output as it comes, what happens to them, and how far they are."""

import queue
import sys
import threading
import time
from typing import Protocol

from fairlead.cli.show import message
from fairlead.cli.streams import discard
from fairlead.cli.troubles import Troubles
from fairlead.cli.views import Json, Plain, Terminal
from fairlead.cluster.facing import Facing
from fairlead.cluster.port import EventRecord, LogLine
from fairlead.errors import FairleadError, NotFound
from fairlead.state.snapshot import Phase, Workload

EXIT_CODES = {Phase.SUCCEEDED: 0, Phase.FAILED: 1, Phase.STOPPED: 3}
DELETED = 5
DETACHED = 130
# Of several runs the first of these that came up.
WORST_FIRST = (1, DELETED, 3, 0)
LOOK_S = 0.2
NUDGE_S = 1.0
DRAIN_S = 10.0


class View(Protocol):
    """What is made of what happens to runs."""

    def __enter__(self) -> "View": ...

    def __exit__(self, *_: object) -> None: ...

    def line(self, run: Workload, line: LogLine) -> None: ...

    def event(self, run: Workload, event: EventRecord) -> None: ...

    def progress(self, runs: list[Workload]) -> None:
        """Called a few times a second with the runs that are not over."""

    def end(self, run: Workload) -> None: ...


def follow(cluster: Facing, runs: list[Workload], *, json_: bool = False) -> int:
    """Show the runs until all are over; the exit code that tells how. Ctrl-C or a closed pipe leaves them running."""
    try:
        with _view(cluster, json_, several=len(runs) > 1) as view:
            codes = _until_over(cluster, runs, view)
    except (KeyboardInterrupt, BrokenPipeError) as error:
        if isinstance(error, BrokenPipeError):
            discard(sys.stdout)
        what = f"{runs[0].spec.name} goes on" if len(runs) == 1 else f"{len(runs)} runs go on"
        again = cluster.named(*runs)
        message(f"\nDetached; {what}. `fairlead attach {again}` follows again, `fairlead stop {again}` stops.")
        return DETACHED
    return next(code for code in WORST_FIRST if code in codes)


def _view(cluster: Facing, json_: bool, *, several: bool) -> View:
    if json_:
        return Json()
    terminal = all(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr))
    return Terminal(cluster, several=several) if terminal else Plain(cluster, several=several)


def _until_over(cluster: Facing, runs: list[Workload], view: View) -> set[int]:
    """Exit codes of the runs, each once."""
    going = [_Watch(cluster, run) for run in runs]
    codes: set[int] = set()
    troubles = Troubles(cluster)
    while True:
        for watch in list(going):
            try:
                now, events = watch.look(), watch.events()
                if any(event.type in EXIT_CODES for event in events):
                    now = watch.look()  # it may have ended in between, and its end is told once
                for event in events:
                    view.event(now, event)
                for line in watch.rest() if now.status.phase.is_final else watch.lines():
                    view.line(now, line)
            except NotFound:
                message(f"\n{watch.run.spec.name} was deleted.")
                codes.add(DELETED)
                going.remove(watch)
                continue
            if now.status.phase.is_final:
                going.remove(watch)
                view.end(now)
                codes.add(EXIT_CODES[now.status.phase])
        if not going:
            return codes
        view.progress([watch.run for watch in going])
        troubles.tell()
        cluster.wait(LOOK_S)


class _Watch:
    """What is new of one run: its state, events and lines of output."""

    def __init__(self, cluster: Facing, run: Workload) -> None:
        self.run = run
        self._cluster = cluster
        self._lines: queue.SimpleQueue[LogLine | None] = queue.SimpleQueue()
        self._last_event = 0
        self._nudged = time.monotonic()
        threading.Thread(target=self._read, daemon=True).start()

    def look(self) -> Workload:
        """The run as it is; somebody looks after it."""
        if time.monotonic() - self._nudged > NUDGE_S:
            self._cluster.nudge()
            self._nudged = time.monotonic()
        self.run = self._cluster.get(self.run.uid)
        return self.run

    def events(self) -> tuple[EventRecord, ...]:
        """What has happened since."""
        new = self._cluster.events(self.run.uid, after=self._last_event)
        self._last_event = new[-1].id if new else self._last_event
        return new

    def lines(self) -> list[LogLine]:
        """Output that has come since."""
        found = []
        while not self._lines.empty():
            line = self._lines.get()
            if line is not None:
                found.append(line)
        return found

    def rest(self) -> list[LogLine]:
        """The rest of the output of a run that is over."""
        found = []
        try:
            while (line := self._lines.get(timeout=DRAIN_S)) is not None:
                found.append(line)
        except queue.Empty:  # its disk hangs; what came so far is better than nothing
            message(f"The end of the output of {self.run.spec.name} could not be read in time.")
        return found

    def _read(self) -> None:
        try:
            # A connection of its own: one belongs to one thread.
            cluster = self._cluster.another()
            for line in cluster.logs(self.run.uid, follow=True):
                self._lines.put(line)
            cluster.close()
        except FairleadError as error:
            # A run that was deleted is told of elsewhere; anything else goes on without its output.
            if not isinstance(error, NotFound):
                message(f"fairlead: {error}")
        finally:
            self._lines.put(None)
