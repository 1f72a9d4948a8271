"""Records what happens to runs and teams as Events of the API server, so that ``kubectl describe`` shows it.

The objects hold the history; Events are a copy for people, which the API server deletes after an hour. A repeated
message on the same object increases the count of one Event, and objects with too many Events are throttled.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.manifests.conditions import moment
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.cluster import RefusedWrite
from fairlead.cluster.kubernetes.operator.controller import Controller, PassStage, Turn
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.cluster.kubernetes.workloads.run_record import AnyObject, KeptEvent
from fairlead.frozen import dataclass
from fairlead.specs.keys import API_VERSION
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Phase

COMPONENT = "fairlead-operator"
QUEUE = "events"  # one for all Events, so that work on runs has precedence under load
NOTE_MOST = 1024  # the API server's limit, in bytes
# What happened before is assumed to be recorded; an operator that takes over records it again, under the same names.
RECENT_S = 120.0
# client-go's own recorder allows each object 25 at once, and then one every 5 minutes.
BURST, EVERY_S = 25, 60.0
SAME_S = 3600.0  # as long as the API server keeps an Event
MOST_REMEMBERED = 10_000
WARNINGS = frozenset({Phase.FAILED.value, Phase.RESTARTING.value, "CheckpointFailed", "CheckpointDamaged"})
WARNING_CODES = frozenset(
    {
        Code.NODES_NOT_COMING,
        Code.CANNOT_FIT,
        Code.START_DELAYED,
        Code.END_UNCONFIRMED,
        Code.DEADLINE_EXCEEDED,
        Code.CHECKPOINT_LATE,
        Code.NODE_SILENT,
        Code.INTENT_UNKNOWN,
    }
)

Regarding = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingEvent:
    """An Event to be recorded.

    Attributes:
        regarding: The object concerned: apiVersion, kind, name, uid, and namespace if it has one.
        name: The name of the Event, the same however often it is recorded.
        is_warning: Somebody may need to act.
    """

    regarding: Regarding
    name: str
    reason: str
    note: str
    at: float
    is_warning: bool = False


def telling_of(workload_object: AnyObject, event: KeptEvent) -> PendingEvent:
    """Return the Event for an event of a workload."""
    reason = event.reason
    note = f"{reason.message}. {reason.remedy}" if reason.remedy else reason.message
    return PendingEvent(
        regarding=regarding(workload_object),
        name=f"{workload_object.name}.{event.id:x}",
        reason=reason.code.value,
        note=f"{event.type}: {note}" if event.type != reason.code.value else note,
        at=event.at,
        is_warning=event.type in WARNINGS or reason.code in WARNING_CODES,
    )


def refusal_of(workload_object: AnyObject, now: float) -> PendingEvent:
    """Return the Event for a spec that cannot be read."""
    name, note = f"{workload_object.name}.{workload_object.uid[:8]}.invalid", workload_object.problem
    return PendingEvent(
        regarding=regarding(workload_object), name=name, reason="InvalidSpec", note=note, at=now, is_warning=True
    )


def api_refusal_of(workload_object: AnyObject, what: RefusedWrite, message: str, now: float) -> PendingEvent:
    """Return the Event for the API server's refusal of a workload's child, or of its own status."""
    name = f"{workload_object.name}.{workload_object.uid[:8]}.{what.lower()}"
    return PendingEvent(
        regarding=regarding(workload_object), name=name, reason=what, note=message, at=now, is_warning=True
    )


def regarding(workload_object: AnyObject) -> dict[str, str]:
    """Return the reference to a workload in its Events."""
    return {
        "apiVersion": API_VERSION,
        "kind": workload_object.kind,
        "name": workload_object.name,
        "namespace": workload_object.namespace,
        "uid": workload_object.uid,
    }


def render_event(telling: PendingEvent) -> dict[str, Any]:
    """Render the Event. For an object without a namespace it is in ``default``, as the API server requires."""
    at = moment(telling.at)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": telling.name, "namespace": telling.regarding.get("namespace") or "default"},
        "involvedObject": dict(telling.regarding),
        "type": "Warning" if telling.is_warning else "Normal",
        "reason": telling.reason,
        "message": _cut(telling.note),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


class EventRecorder(Controller):
    """Records Events of runs as they change, and of other objects on request.

    Args:
        may_act: Returns whether this process still leads; asked before each request.
    """

    name = "events"
    stage = PassStage.CHANGES

    def __init__(self, view: Informers, *, may_act: Callable[[], bool] = lambda: True) -> None:
        self._view = view
        self._client: Client = view.client
        self._may_act = may_act
        self._lock = threading.Lock()
        self._changed: set[str] = set()
        self._last_ids: dict[str, int] = {}
        self._same: OrderedDict[tuple[str, ...], tuple[str, int, float]] = OrderedDict()
        self._allowance: dict[str, tuple[float, float]] = {}
        for cache in view.leaves.values():
            cache.listen(self._workload_changed)
        for cache in view.parents.values():
            cache.listen(self._workload_changed)

    def act(self, turn: Turn) -> None:
        """Queue the Events of the runs that changed."""
        agent, now = turn.agent, turn.now
        with self._lock:
            changed, self._changed = self._changed, set()
        for uid in changed:
            workload_object = self._view.find_any(uid)
            if workload_object is None:
                self._last_ids.pop(uid, None)
                self._allowance.pop(uid, None)
                continue
            last = self._last_ids.get(uid, int((now - RECENT_S) * 1e6))
            with self._view.isolation.of(f"events of {workload_object.kind} {workload_object.key}"):
                # Its age already shows when it was submitted.
                fresh = [event for event in workload_object.state.events if event.id > last]
                for event in fresh:
                    self.tell(agent, telling_of(workload_object, event), now)
                    self._last_ids[uid] = max(event.id, self._last_ids.get(uid, 0))

    def tell(self, agent: PodAgent, telling: PendingEvent, now: float) -> None:
        """Queue an Event, unless the object has used up its allowance. Safe from any thread."""
        uid = str(telling.regarding["uid"])
        key = (uid, telling.reason, telling.note)
        with self._lock:
            if not self._is_allowed(uid, now):
                return
            name, count, at = self._same.get(key, (telling.name, 0, now))
            is_again = name != telling.name and now - at < SAME_S
            if not is_again:
                name, count = telling.name, 0
            self._same[key] = (name, count + 1, now)
            self._same.move_to_end(key)
            while len(self._same) > MOST_REMEMBERED:
                self._same.popitem(last=False)
        namespace = telling.regarding.get("namespace", "")
        if is_again:
            agent.report(
                QUEUE, namespace, f"count up {name} {count + 1}", partial(self._count, telling, name, count + 1)
            )
        else:
            agent.report(QUEUE, namespace, f"tell {name}", partial(self._create, telling))

    def tell_once(self, agent: PodAgent, telling: PendingEvent) -> None:
        """Queue an Event that its object gets once, so that nothing is remembered of it."""
        namespace = telling.regarding.get("namespace", "")
        agent.report(QUEUE, namespace, f"tell {telling.name}", partial(self._create, telling))

    def _is_allowed(self, uid: str, now: float) -> bool:
        tokens, at = self._allowance.get(uid, (float(BURST), now))
        tokens = min(float(BURST), tokens + (now - at) / EVERY_S)
        self._allowance[uid] = (tokens - 1 if tokens >= 1 else tokens, now)
        while len(self._allowance) > MOST_REMEMBERED:
            del self._allowance[next(iter(self._allowance))]
        return tokens >= 1

    def _workload_changed(self, before: AnyObject | None, after: AnyObject | None) -> None:
        workload_object = after or before
        if workload_object is not None and (
            before is None or after is None or before.state.events != after.state.events
        ):
            with self._lock:
                self._changed.add(workload_object.uid)

    def _create(self, telling: PendingEvent) -> None:
        if not self._may_act():
            return
        event = render_event(telling)
        try:
            self._client.create(f"/api/v1/namespaces/{segment(event['metadata']['namespace'])}/events", event)
        except ApiError as error:
            # Recorded before, or its namespace is being deleted.
            if error.reason != "AlreadyExists" and error.status not in (403, 404):
                raise

    def _count(self, telling: PendingEvent, name: str, count: int) -> None:
        if not self._may_act():
            return
        namespace = telling.regarding.get("namespace") or "default"
        path = f"/api/v1/namespaces/{segment(namespace)}/events/{segment(name)}"
        try:
            self._client.merge(path, {"count": count, "lastTimestamp": moment(time.time())})
        except ApiError as error:
            if error.status not in (403, 404):
                raise


def _cut(note: str) -> str:
    encoded = note.encode()
    return note if len(encoded) <= NOTE_MOST else encoded[: NOTE_MOST - 4].decode(errors="ignore") + " ..."
