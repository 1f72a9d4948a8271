"""Exports the spans of runs that finished on Kubernetes to an OpenTelemetry receiver; the leading operator does.

Everything that a trace contains is in the run's object, and so is a mark once its spans are accepted. A new leader
therefore sends exactly those that the one before did not, or not certainly, and of each run the same spans.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.operator.request_dispatch import Dispatcher
from fairlead.cluster.kubernetes.workloads.run_record import TrainingObject, known_events
from fairlead.control.span_receiver import ANSWER_S, MOST_AGE_S, MOST_RETRY_S, RETRY_S, SpanReceiver
from fairlead.control.spans import end_of, spans_of
from fairlead.errors import ClusterError
from fairlead.state.shared_limits import by_turns

log = logging.getLogger(__name__)

MOST_AT_ONCE = 100


class ClusterSpanExporter(Controller):
    """Sends spans of finished runs in a thread of its own.

    Args:
        namespace: Only runs of this namespace; None for all.
        may_act: Returns whether this process still leads; asked before each request.
    """

    name = "spans"

    def __init__(
        self,
        cluster: KubernetesCluster,
        receiver: SpanReceiver,
        *,
        namespace: str | None = None,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        self._cluster = cluster
        self._receiver = receiver
        self._namespace = namespace
        self._may_act = may_act
        self._marks = cluster.view.marks()
        self._due: dict[str, None] = {}
        # By run, the end after which this process sent its spans, for as long as that is not in the object.
        self._sent: dict[str, float] = {}
        self._retry_s, self._retry_at = 0.0, 0.0
        self._thread = Dispatcher(1)

    def act(self, turn: Turn) -> None:
        """Start to send the spans of runs that have finished."""
        now = turn.now
        for uid in self._marks.take()[0]:
            if self._is_due(self._cluster.view.find(uid), now):
                self._due[uid] = None
            else:
                self._due.pop(uid, None)
                self._sent.pop(uid, None)
        if self._due and now >= self._retry_at:
            uids = tuple(by_turns(self._due, self._team_of, MOST_AT_ONCE))
            self._thread.submit("spans", "send spans", partial(self._send_all, uids))

    def finish(self) -> None:
        """Finish the request under way, and what marks its run."""
        self._thread.stop(wait_s=ANSWER_S)

    def _team_of(self, uid: str) -> str:
        run_object = self._cluster.view.find(uid)
        return "" if run_object is None else run_object.namespace

    def _is_due(self, item: TrainingObject | None, now: float) -> bool:
        if item is None or item.workload is None or self._namespace not in (None, item.namespace):
            return False
        status = item.state.status
        is_sent = item.state.traced == end_of(item.workload)
        return status.phase.is_final and not is_sent and now - end_of(item.workload) < MOST_AGE_S

    def _send_all(self, uids: tuple[str, ...]) -> None:
        try:
            for uid in uids:
                self._send(uid)
        except (OSError, ClusterError) as error:
            if not self._retry_s:
                log.warning("spans cannot be sent to %s: %s", self._receiver.url, error)
            self._retry_s = min(MOST_RETRY_S, max(RETRY_S, 2 * self._retry_s))
            self._retry_at = time.time() + self._retry_s
        else:
            self._retry_s = 0.0

    def _send(self, uid: str) -> None:
        item = self._cluster.view.find(uid)
        if item is None or item.workload is None or not self._is_due(item, time.time()):
            self._due.pop(uid, None)  # it is gone or goes on, or the receiver did not answer for too long
            return
        end = end_of(item.workload)
        if self._sent.get(uid) != end:
            if not self._may_act():
                return
            self._receiver.send(item.workload, spans_of(item.workload, known_events(item), item.state.attempts))
            self._sent[uid] = end
        if self._may_act():
            # If the object has changed meanwhile, its newer version is marked with the next pass.
            self._cluster.write(item, replace(item.state, traced=end), is_quiet=True)
