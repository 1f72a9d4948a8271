"""Exports the spans of runs that finished on this machine to an OpenTelemetry receiver.

A run is marked after its spans are accepted; one that ended without a supervisor, or while the receiver did not answer,
is sent later. Delivery is at least once, and always of the same spans.
"""

import logging
import threading
import time
from contextlib import suppress
from pathlib import Path

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.home import Home
from fairlead.cluster.selection import FINISHED, RunSelection
from fairlead.control.span_receiver import ANSWER_S, MOST_AGE_S, MOST_RETRY_S, RETRY_S, SpanReceiver
from fairlead.control.spans import Span, end_of, spans_of
from fairlead.errors import ClusterError
from fairlead.policy.kinds.table import leaf
from fairlead.state.attempts import finished_attempt
from fairlead.state.snapshot import Pod, Workload, is_leaf

log = logging.getLogger(__name__)

LOOK_S = 2.0
MOST_AT_ONCE = 100
SENT = "spans.sent"


class SpanExporter:
    """Sends spans of finished runs in a thread beside the loop."""

    def __init__(self, home: Home, receiver: SpanReceiver) -> None:
        self._home = home
        self._receiver = receiver
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread after a last search for spans to send."""
        self._stopping.set()
        self._thread.join(ANSWER_S)

    def _run(self) -> None:
        cluster, wait_s = LocalCluster(self._home), LOOK_S
        try:
            while True:
                is_last = self._stopping.is_set()
                try:
                    self.send(cluster, time.time())
                    wait_s = LOOK_S
                except (OSError, ClusterError) as error:
                    if wait_s == LOOK_S:
                        log.warning("spans cannot be sent to %s: %s", self._receiver.url, error)
                    wait_s = min(MOST_RETRY_S, max(RETRY_S, 2 * wait_s))
                if is_last:
                    return
                self._stopping.wait(wait_s)
        finally:
            cluster.close()

    def send(self, cluster: LocalCluster, now: float) -> int:
        """Send the unsent spans of recently ended runs; return the number of runs.

        Raises:
            OSError: The receiver did not accept them.
        """
        runs = cluster.select(RunSelection(phases=FINISHED), limit=MOST_AT_ONCE)
        sent = 0
        for run in runs:
            mark = self._home.run(run.uid) / SENT
            if not is_leaf(run) or now - end_of(run) > MOST_AGE_S or _is_marked(mark, run):
                continue
            self._receiver.send(leaf(run), self._spans(cluster, run))
            with suppress(OSError):  # the run was deleted, or the disk is full: it is sent again
                mark.write_text(str(end_of(run)))
            sent += 1
        return sent

    def _spans(self, cluster: LocalCluster, run: Workload) -> tuple[Span, ...]:
        first: dict[int, float] = {}
        for name, points in cluster.series(run.uid).items():
            for point in points if not name.startswith("system/") else ():
                first[point.attempt] = min(point.at, first.get(point.attempt, point.at))
        gangs: dict[int, list[Pod]] = {}
        for pod in cluster.pods(run.uid):
            gangs.setdefault(pod.attempt, []).append(pod)
        attempts = [
            finished_attempt(gang, until=end_of(run), first_step_at=first.get(attempt))
            for attempt, gang in sorted(gangs.items())
        ]
        return spans_of(run, cluster.events(run.uid), attempts)


def _is_marked(mark: Path, run: Workload) -> bool:
    """Return whether the spans of a run were sent after it ended; a resumed run is sent again."""
    try:
        return mark.read_text() == str(end_of(run))
    except OSError:
        return False
