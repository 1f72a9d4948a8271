"""Finds why a bound pod does not start if only the Events of its kubelet show it: volumes, its sandbox, its image.

Obstacles of a container are in the pod itself; earlier ones are not, nor that nothing happens at all. So one slow pod
of each run is checked, first after a delay and then half as often each time; a pod that starts at once costs nothing.
A pod that exceeds Fairlead's patience is checked once more, and deleted if the answer is unchanged.

The API server reads all Events of a namespace to find those of one pod: for ten thousand that takes a good part of a
second of its CPU. So one run is checked at a time, first those that have waited longest.
"""

from dataclasses import dataclass
from functools import partial

from fairlead.cluster.kubernetes.api.objects import MOST_TEXT, PodObject, seconds
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.informers.pod_status import MOUNT_PATIENCE_S, LastWord, is_stuck
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.operator.pods.pod_events import newest

LOOK_S = 1.0
# Most pods that are slower than this pull an image, and their check finds nothing.
FIRST_S, MOST_S = 20.0, 300.0
TELLERS = frozenset({"kubelet", "attachdetach-controller"})
# The least time between two checks, of whatever runs.
APART_S = 5.0


@dataclass(slots=True)
class _Turn:
    """A pod that is checked, next at ``due``."""

    pod: PodObject
    due: float
    every_s: float


class StartBlockers(Controller):
    """Checks pods that are bound and do not start, one at a time."""

    name = "start blockers"

    def __init__(self, view: Informers) -> None:
        self._view = view
        self._marks = view.marks()
        self._turns: dict[str, _Turn] = {}
        self._looked_at = 0.0
        self._asked_at = 0.0

    def act(self, turn: Turn) -> None:
        """Check the pods that are due."""
        agent, now = turn.agent, turn.now
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        for uid in self._marks.take()[0]:
            with self._view.isolation.of(f"start of run {uid}"):
                self._note(uid, self._slowest(uid), now)
        if not self._turns or now - self._asked_at < APART_S:
            return
        uid, check = min(self._turns.items(), key=lambda item: item[1].due)
        if now >= check.due:
            self._asked_at = now
            check.every_s = min(2 * check.every_s, MOST_S)
            check.due, last = now + check.every_s, check.pod.created_at + MOUNT_PATIENCE_S
            if now < last < check.due:
                check.due = last
            agent.submit(uid, "ask why a pod waits", partial(self._ask, uid, check.pod, now))

    def _note(self, uid: str, pod: PodObject | None, now: float) -> None:
        if pod is None:
            self._turns.pop(uid, None)
            self._view.note_last_word(uid, None)
        elif uid not in self._turns or self._turns[uid].pod.uid != pod.uid:
            self._turns[uid] = _Turn(pod=pod, due=now + FIRST_S, every_s=FIRST_S)
            self._view.note_last_word(uid, None)

    def _slowest(self, uid: str) -> PodObject | None:
        """Return the pod of a run to check: the first that waits for something before its containers."""
        bound = (pod for pod in self._view.pods_of(uid).values() if pod.node and not pod.is_over)
        slow = [pod for pod in bound if pod.started_at is None and pod.told_at is None and not is_stuck(pod)]
        return min(slow, key=lambda pod: pod.index, default=None)

    def _ask(self, uid: str, pod: PodObject, now: float) -> None:
        # A scheduler's message may be recorded after the current obstacle.
        event = newest(self._view.client, pod, by=TELLERS)
        if event is None:
            self._view.note_last_word(uid, LastWord(pod_uid=pod.uid, words=None, asked_at=now))
            return
        words = str(event.get("reason"))[:MOST_TEXT], str(event.get("message") or "")[:MOST_TEXT]
        made = event["metadata"].get("creationTimestamp")
        told_at = None if made is None else seconds(made)
        self._view.note_last_word(uid, LastWord(pod_uid=pod.uid, words=words, told_at=told_at, asked_at=now))
