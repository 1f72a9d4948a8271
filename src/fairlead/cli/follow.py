"""Follows runs until all have ended: shows their output, their events and their progress."""

import math
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from fairlead.cli.show import message
from fairlead.cli.streams import discard
from fairlead.cli.troubles import Troubles
from fairlead.cli.views import Json, Plain, Terminal
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.output import EVERYTHING, LogQuery, Watermark
from fairlead.cluster.port import EventRecord, LogLine
from fairlead.errors import FairleadError, NotFound
from fairlead.policy.kinds.lifecycle import is_over
from fairlead.specs.serving import Serving
from fairlead.state.snapshot import AnyWorkload, Phase, Workload, is_leaf
from fairlead.text.quantities import plural

EXIT_CODES = {Phase.SUCCEEDED: 0, Phase.FAILED: 1, Phase.STOPPED: 3}
DELETED = 5
DETACHED = 130
# With several runs, the first of these that occurred is the exit code.
WORST_FIRST = (1, DELETED, 3, 0)
LOOK_S = 0.2
NUDGE_S = 1.0
CATCH_UP_S = 0.02
DRAIN_S = 10.0
MOST_HELD_S = 5.0
"""Maximum delay of an event, in case the output before it cannot be read."""
MOST_PAST = 100
"""Finished children whose output a parent's follower shows."""
MOST_LINES = 10_000  # between two polls of the run
MOST_WAITING = 100_000


class View(Protocol):
    """Shows output, events and progress of runs."""

    def __enter__(self) -> "View": ...

    def __exit__(self, *_: object) -> None: ...

    def line(self, run: Workload, line: LogLine) -> None: ...

    def event(self, run: AnyWorkload, event: EventRecord) -> None: ...

    def progress(self, runs: list[AnyWorkload]) -> None:
        """Show the progress of unfinished runs; called several times a second."""

    def end(self, run: AnyWorkload) -> None: ...


def follow(cluster: ClusterClient, runs: list[AnyWorkload], *, json_: bool = False, since: float | None = None) -> int:
    """Show the runs until all have ended; return the exit code. Ctrl-C or a closed pipe leaves them running.

    Args:
        since: Show only what comes after this time, in Unix seconds; None for all.
    """
    try:
        several = len(runs) > 1 or not all(map(is_leaf, runs))
        with _view(cluster, json_, several=several) as view:
            codes = _until_over(cluster, runs, view, since)
    except (KeyboardInterrupt, BrokenPipeError) as error:
        if isinstance(error, BrokenPipeError):
            discard(sys.stdout)
        what = f"{runs[0].spec.name} continues" if len(runs) == 1 else f"{len(runs)} runs continue"
        again = cluster.named(*runs)
        message(f"\nDetached; {what}. `fairlead attach {again}` follows again, `fairlead stop {again}` stops.")
        return DETACHED
    return next(code for code in WORST_FIRST if code in codes)


def _view(cluster: ClusterClient, json_: bool, *, several: bool) -> View:
    if json_:
        return Json()
    terminal = all(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr))
    return Terminal(cluster, several=several) if terminal else Plain(cluster, several=several)


def _until_over(cluster: ClusterClient, runs: list[AnyWorkload], view: View, since: float | None) -> set[int]:
    """Follow the runs and return their distinct exit codes; children of parents are shown too, but do not count."""
    going = [_Watch(cluster, run, since) for run in runs]
    own = {run.uid for run in runs}
    codes: set[int] = set()
    troubles = Troubles(cluster)
    while True:
        for watch in list(going):
            try:
                now = watch.look()
                if any(event.type in EXIT_CODES for event in watch.see()):
                    now = watch.look()  # it may have ended in between, and its end is shown once
                has_ended = is_over(now)
                for entry in watch.news(is_over=has_ended):
                    if isinstance(entry, EventRecord):
                        view.event(now, entry)
                    elif is_leaf(now):
                        view.line(now, entry)
            except NotFound:
                message(f"\n{watch.run.spec.name} was deleted.")
                codes |= {DELETED} if watch.run.uid in own else set()
                going.remove(watch)
                continue
            going += watch.joining()
            if has_ended:
                going.remove(watch)
                view.end(now)
                codes |= {EXIT_CODES[now.status.phase]} if now.uid in own else set()
        if not going:
            return codes
        view.progress([watch.run for watch in going])
        troubles.tell()
        cluster.wait(CATCH_UP_S if any(watch.is_waiting for watch in going) else LOOK_S)


class _Watch:
    """Reads the state, and the new output and events of one run in order.

    An event is shown after the output that preceded it: it is held back until the reader has read all pods once more
    since the event was seen.
    """

    def __init__(self, cluster: ClusterClient, run: AnyWorkload, since: float | None = None) -> None:
        self.run = run
        self._query = EVERYTHING if since is None else LogQuery(since=since)
        self._cluster = cluster
        self._lines: queue.SimpleQueue[LogLine | None] = queue.SimpleQueue()
        self._num_before = 0  # lines read before the last query of events
        self._is_read = False
        self._watermark = Watermark()
        self._events: deque[EventRecord] = deque()
        self._held: list[LogLine] = []  # lines after the first held event
        self._held_until = 0.0
        past = () if since is None else (event.id for event in cluster.events(run.uid) if event.at <= since)
        self._last_event = max(past, default=0)
        self._nudged = time.monotonic()
        # Of a parent, unfinished children and all new ones are followed, and the newest finished ones shown.
        self._children = {child.uid for child in self._past_children()}
        if is_leaf(run):
            threading.Thread(target=self._read, daemon=True).start()
        else:
            self._is_read = True

    @property
    def is_waiting(self) -> bool:
        """Return whether an event is held back for the output before it."""
        return bool(self._events)

    def look(self) -> AnyWorkload:
        """Return the current run, and ensure from time to time that a loop handles it."""
        if time.monotonic() - self._nudged > NUDGE_S:
            self._cluster.nudge()
            self._nudged = time.monotonic()
        self.run = self._cluster.get(self.run.uid)
        return self.run

    def joining(self) -> "list[_Watch]":
        """Return watches of children that are not followed yet."""
        new = [child for child in self._all_children() if child.uid not in self._children]
        self._children |= {child.uid for child in new}
        return [_Watch(self._cluster, child) for child in new]

    def _past_children(self) -> tuple[AnyWorkload, ...]:
        """Return the finished children that are not shown: those of an endpoint, and all but the newest of others."""
        finished = tuple(child for child in self._all_children() if child.status.phase.is_final)
        if isinstance(self.run.spec, Serving):
            return finished
        past = finished[:-MOST_PAST]
        if past:
            what = f"{plural(len(past), 'run')} of {self.run.spec.name} that ended earlier"
            message(f"{what} not shown; `fairlead logs {past[0].spec.name}` shows the first.")
        return past

    def _all_children(self) -> tuple[AnyWorkload, ...]:
        return () if is_leaf(self.run) else self._cluster.children(self.run.uid)

    def see(self) -> tuple[EventRecord, ...]:
        """Return new events, which ``news`` shows in order."""
        self._num_before = self._lines.qsize()
        new = self._cluster.events(self.run.uid, after=self._last_event)
        if new:
            if not self._events:
                self._held_until = time.monotonic() + MOST_HELD_S
            self._last_event = new[-1].id
            self._events.extend(new)
            self._watermark.want(time.time())
        return new

    def news(self, *, is_over: bool) -> Iterator[LogLine | EventRecord]:
        """Yield new output and events whose order is known; of an ended run, the rest of both."""
        # Read first: all output up to this watermark is in the queue.
        reached = self._watermark.reached
        if not self._events:
            # Later output may follow an event that has not been queried yet.
            yield from self._coming(self._num_before, is_over=is_over)
            return
        num = self._lines.qsize()
        for line in self._coming(num, is_over=is_over):
            # The first pass yields lines in order; later lines are unordered if several threads read pods.
            while self._events and reached == 0.0 and line.at > self._events[0].at and not self._is_last(is_over):
                yield self._events.popleft()
            if self._events and line.at > self._events[0].at and not self._is_last(is_over):
                self._held.append(line)
            else:
                yield line
        is_through = reached >= self._watermark.wanted and num <= MOST_LINES
        if is_over or self._is_read or is_through or time.monotonic() > self._held_until:
            yield from self._released(is_over=is_over)

    def _is_last(self, is_over: bool) -> bool:
        """Return whether only the final event is left, which no output follows, whatever the clocks say."""
        return is_over and len(self._events) == 1

    def _released(self, *, is_over: bool) -> Iterator[LogLine | EventRecord]:
        while self._events:
            at = math.inf if self._is_last(is_over) else self._events[0].at
            yield from (line for line in self._held if line.at <= at)
            yield self._events.popleft()
            self._held = [line for line in self._held if line.at > at]
        yield from self._held
        self._held = []

    def _coming(self, most: int, *, is_over: bool) -> Iterator[LogLine]:
        """Yield new output, up to a number of lines; of an ended run, all remaining output."""
        num, most = 0, min(most, MOST_LINES)
        while not self._is_read and (is_over or num < most):
            try:
                line = self._lines.get(timeout=DRAIN_S) if is_over else self._lines.get_nowait()
            except queue.Empty:
                if is_over:  # its disk hangs; show the output read so far
                    message(f"The end of the output of {self.run.spec.name} could not be read in time.")
                return
            if line is None:
                self._is_read = True
            else:
                num += 1
                yield line

    def _read(self) -> None:
        try:
            # A connection of its own: one belongs to one thread.
            cluster = self._cluster.another()
            for line in cluster.logs(self.run.uid, self._query, follow=True, watermark=self._watermark):
                self._lines.put(line)
                while self._lines.qsize() > MOST_WAITING:
                    time.sleep(0.01)  # the view is slower
            cluster.close()
        except FairleadError as error:
            # `_until_over` reports deleted runs; after another error the run is followed without its output.
            if not isinstance(error, NotFound):
                message(f"fairlead: {error}")
        finally:
            self._lines.put(None)
