"""Reports pods and workloads that name a run or a parent as their owner which does not have them.

Anybody who may create an object may write any label and any owner reference into it. Such an object counts for nothing;
whoever wrote it by mistake, as by copying a manifest, finds the reason in its Events.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping

from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.operator.events.event_recorder import EventRecorder, PendingEvent, regarding

log = logging.getLogger(__name__)

EVERY_S = 30.0
# Whoever creates thousands gets few Events, and no more memory here.
MOST_AT_ONCE, MOST_REMEMBERED = 20, 10_000


class ForeignObjects(Controller):
    """Records an Event for each such object once; created before the watches start.

    Pods are noticed as they come, since the garbage collector soon removes one whose owner is in another namespace.

    Attributes:
        number: How many there are, as of the last look at all of them.
    """

    name = "foreign objects"

    def __init__(self, view: Informers, recorder: EventRecorder) -> None:
        self._view = view
        self._recorder = recorder
        self._recorded: OrderedDict[str, None] = OrderedDict()
        self._looked_at = float("-inf")
        self._num_left = MOST_AT_ONCE
        self._lock = threading.Lock()
        self._new: list[PodObject] = []
        self.number = 0
        view.pods.listen(self._pod_changed)

    def act(self, turn: Turn) -> None:
        """Queue the Events of objects that are new."""
        agent, now = turn.agent, turn.now
        with self._lock:
            new, self._new = self._new, []
        records = [_of_pod(pod, now) for pod in new]
        if not 0 <= now - self._looked_at < EVERY_S:
            self._looked_at, self._num_left = now, MOST_AT_ONCE
            others = list(self._find(now))
            self.number = len(others)
            records += others
        fresh = {
            str(record.regarding["uid"]): record for record in records if record.regarding["uid"] not in self._recorded
        }
        for uid, record in list(fresh.items())[: self._num_left]:
            self._num_left -= 1
            about = record.regarding
            log.warning("%s %s/%s is ignored: %s", about["kind"], about["namespace"], about["name"], record.note)
            self._recorder.tell_once(agent, record)
            self._recorded[uid] = None
        while len(self._recorded) > MOST_REMEMBERED:
            self._recorded.popitem(last=False)

    def numbers(self) -> Mapping[str, float]:
        return {"fairlead_foreign_objects": float(self.number)}

    def _pod_changed(self, before: PodObject | None, after: PodObject | None) -> None:
        if after is None or (before is not None and before.uid == after.uid) or not self._view.is_foreign(after):
            return
        with self._lock:
            if len(self._new) < MOST_AT_ONCE:
                self._new.append(after)

    def _find(self, now: float) -> Iterator[PendingEvent]:
        for pod in self._view.foreign_pods():
            yield _of_pod(pod, now)
        for child in self._view.foreign_children():
            parent = "" if child.workload is None else child.workload.parent
            yield _record(regarding(child), f"its owner (uid {parent}) has no child of this namespace and name", now)


def _of_pod(pod: PodObject, now: float) -> PendingEvent:
    namespace, _, name = pod.key.partition("/")
    about = {"apiVersion": "v1", "kind": "Pod", "name": name, "namespace": namespace, "uid": pod.uid}
    return _record(about, f"labels or owner name a run (uid {pod.claim}) for which Fairlead did not create it", now)


def _record(about: dict[str, str], why: str, now: float) -> PendingEvent:
    name = f"{about['name']}.{about['uid'][:8]}.foreign"
    return PendingEvent(regarding=about, name=name, reason="NotOfItsOwner", note=why, at=now, is_warning=True)
