"""Keeps the histories of nodes in a ConfigMap of the operator's namespace, and takes part in what follows from them.

A failure is entered once: the change that ends an attempt has it in the run's status, and the record knows the newest
one of each run that it counts. So an operator may be killed at any time: the next one counts what is not counted yet,
before it decides anything. Nobody but the operator and administrators may write in that namespace.

A node that is taken out is closed for runs, not for pods of others, which needs no right to change nodes. It is given
back when an administrator says so with ``fairlead node uncordon``, or when another machine has its name.

See decision 248.
"""

import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.objects import NodeObject
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.informers.node_history import config_maps, read_history
from fairlead.cluster.kubernetes.names import HISTORY, MANAGED_BY, MANAGER, NODE_HISTORY
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.operator.events.event_recorder import EventRecorder, PendingEvent
from fairlead.cluster.kubernetes.workloads.run_record import AnyObject
from fairlead.cluster.node_records import MOST_COUNTED, NOTHING, NodeRecord, dump_record
from fairlead.policy.health.node_faults import Faults, describe, leaving_by_fault, with_faults, with_outages
from fairlead.policy.health.node_risk import SAME_S, charged, forgotten, returned, taken_out
from fairlead.state.node_health import OF_HARDWARE, Incident, NodeFault
from fairlead.state.plan import Plan
from fairlead.state.snapshot import Snapshot

log = logging.getLogger(__name__)

QUEUE = "node-history"
EVERY_S = 2.0
TAKEN_OUT, GIVEN_BACK, FAULTY, STAYS = "NodeTakenOut", "NodeGivenBack", "NodeFaulty", "FaultyNodeStays"


class NodeHealthController(Controller):
    """The histories of all nodes, and the faults that detectors report.

    Args:
        namespace: The operator's namespace.
        watches: The namespace whose runs alone count; None for all.
        may_act: Returns whether this process still leads; asked before each request.
        every_s: Seconds between two writes.
    """

    name = "histories of nodes"

    def __init__(
        self,
        client: Client,
        view: Informers,
        recorder: EventRecorder,
        namespace: str,
        *,
        watches: str | None = None,
        may_act: Callable[[], bool] = lambda: True,
        every_s: float = EVERY_S,
    ) -> None:
        self._client, self._view, self._recorder = client, view, recorder
        self._namespace, self._watches = namespace, watches
        self._may_act = may_act
        self._every_s = every_s
        self._next_at = -math.inf
        self._lock = threading.Lock()
        self._incidents: dict[str, Incident] = {}
        self._faults: Faults = {}
        self._record: NodeRecord | None = None
        self._version = ""
        self._written: NodeRecord | None = None
        self._is_refused, self._is_stale = False, False
        self._shown: tuple[Snapshot, NodeRecord, Faults, Snapshot] | None = None
        self._going: frozenset[str] = frozenset()
        self._staying: frozenset[str] = frozenset()
        self._untold: list[PendingEvent] = []
        for cache in view.leaves.values():
            cache.listen(self._run_changed)
        view.nodes.listen(self._node_changed)

    def _run_changed(self, _before: AnyObject | None, after: AnyObject | None) -> None:
        incident = None if after is None else after.state.incident
        if after is not None and incident is not None and self._watches in (None, after.namespace):
            with self._lock:
                self._incidents[after.uid] = incident

    def _node_changed(self, before: NodeObject | None, after: NodeObject | None) -> None:
        node = after or before
        faults = () if after is None else after.faults
        if node is None or self._faults.get(node.key, ()) == faults:
            return
        with self._lock:
            others = {name: known for name, known in self._faults.items() if name != node.key}
            self._faults = {**others, node.key: faults} if faults else others

    def prepare(self, now: float) -> None:
        """Read the record of the leader before, and count what it has not counted."""
        if self._record is None or self._is_stale:
            self._is_stale = False
            try:
                self._record, self._version = read_history(self._client, self._namespace)
            except ApiError as error:
                if error.status != 403:
                    raise
                log.warning("the histories of nodes last as long as this operator; run `fairlead install`: %s", error)
                self._record, self._is_refused = NOTHING, True
            self._written = self._record
            for run in self._view.workload_objects():
                self._run_changed(None, run)
        self._record = self._given_back(self._counted(self._record, now), now)

    def extend(self, snapshot: Snapshot, now: float) -> Snapshot:
        """Return the snapshot with the histories, and its nodes as they follow from them."""
        record, faults = self._record or NOTHING, self._faults
        shown = self._shown
        if shown is not None and shown[0] is snapshot and shown[1] is record and shown[2] is faults:
            return shown[3]
        closed = with_outages(snapshot.nodes, record.histories)
        going = leaving_by_fault(closed, faults)
        self._tell_faults(faults, going, now)
        nodes = with_faults(closed, faults, going)
        extended = replace(
            snapshot, nodes=nodes, node_health=record.histories, node_faults=faults, withdraws_nodes=True
        )
        self._shown = snapshot, record, faults, extended
        return extended

    def take(self, plan: Plan) -> None:
        """Take out the nodes that were decided."""
        record = self._record
        if not plan.withdrawn or record is None:
            return
        now, histories = time.time(), dict(record.histories)
        for withdrawal in plan.withdrawn:
            history = histories.get(withdrawal.node)
            if history is not None:
                log.warning("node %s is taken out: %s", withdrawal.node, withdrawal.why)
                histories[withdrawal.node] = taken_out(history, withdrawal.why, now)
                note = f"no run is placed here any more; `fairlead node uncordon {withdrawal.node}` gives it back"
                self._tell(withdrawal.node, TAKEN_OUT, f"{withdrawal.why}; {note}", now, is_warning=True)
        self._record, self._next_at = replace(record, histories=histories), -math.inf

    def act(self, turn: Turn) -> None:
        """Queue the Events of nodes, and the record if it has changed and it is time."""
        untold, self._untold = self._untold, []
        for event in untold:
            self._recorder.tell(turn.agent, event, turn.now)
        if not self._is_unwritten or time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + self._every_s
        turn.agent.submit(QUEUE, f"write histories of nodes after version {self._version}", self._write)

    def rest(self) -> None:
        """Forget the record, which another leader writes now."""
        self._record, self._written = None, None
        with self._lock:
            self._incidents.clear()

    def finish(self) -> None:
        """Write what is not written yet."""
        if self._is_unwritten:
            self._write()

    @property
    def _is_unwritten(self) -> bool:
        return not self._is_refused and self._record is not None and self._record != self._written

    def numbers(self) -> Mapping[str, float]:
        """Return the numbers of nodes that are out, that are faulty, and that stay in use with a fault.

        Only the leader counts any.
        """
        record, faulty = self._record, self._faults.keys()
        numbers = (0, 0, 0)
        if record is not None:
            num_out = sum(history.out is not None for history in record.histories.values())
            numbers = num_out, len(faulty), len(faulty - self._going)
        names = ("fairlead_nodes_taken_out", "fairlead_nodes_faulty", "fairlead_nodes_faulty_in_use")
        return dict(zip(names, map(float, numbers), strict=True))

    def _write(self) -> None:
        """Write the record over the version that was read; after a write of somebody else, read that first."""
        record = self._record
        if record is None or not self._may_act():
            return
        metadata = {"name": NODE_HISTORY, "labels": {MANAGED_BY: MANAGER}}
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        body["data"] = {HISTORY: dump_record(record)}
        path = config_maps(self._namespace)
        try:
            if self._version:
                metadata["resourceVersion"] = self._version
                content = self._client.merge(f"{path}/{NODE_HISTORY}", body)
            else:
                content = self._client.create(path, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            self._is_stale = True
            return
        self._version, self._written = str(content["metadata"]["resourceVersion"]), record

    def _counted(self, record: NodeRecord, now: float) -> NodeRecord:
        """Return the record with the failures that it does not count yet."""
        with self._lock:
            incidents, self._incidents = self._incidents, {}
        floor = min(record.counted.values()) if len(record.counted) >= MOST_COUNTED else 0.0
        counted = dict(record.counted)
        uncounted = [(uid, incident) for uid, incident in incidents.items() if incident.at > counted.get(uid, floor)]
        for name, faults in self._faults.items():
            history = record.histories.get(name)
            for fault in faults:
                at, key = min(fault.since or now, now), f"{name}/{fault.name}"
                is_new = at >= counted.get(key, floor) + (SAME_S if key in counted else 0.0)
                if is_new and _counts(fault) and fault.cause is not None and (history is None or at > history.since):
                    uncounted.append((key, Incident(at=at, cause=fault.cause, nodes=(name,))))
        if not uncounted:
            return record
        histories = record.histories
        for key, incident in sorted(uncounted, key=lambda item: (item[1].at, item[0])):
            nodes = {name: self._view.nodes.get(name) for name in incident.nodes}
            since = {name: node.created_at for name, node in nodes.items() if node is not None}
            histories = charged(histories, incident, since)
            counted[key] = math.ceil(incident.at * 10) / 10  # it is written with one decimal
        newest = sorted(counted, key=lambda key: (-counted[key], key))[:MOST_COUNTED]
        existing = frozenset(node.key for node in self._view.nodes.all())
        return NodeRecord(histories=forgotten(histories, existing, now), counted={key: counted[key] for key in newest})

    def _given_back(self, record: NodeRecord, now: float) -> NodeRecord:
        """Return the record with the nodes back that an administrator gave back, or that are other machines now."""
        back = {}
        for name, history in record.histories.items():
            node = self._view.nodes.get(name) if history.out is not None else None
            if node is None or history.out is None:
                continue
            if max(node.given_back_at, node.created_at) > history.out.since:
                back[name] = returned(history, now)
                self._tell(name, GIVEN_BACK, "runs are placed here again; its earlier failures count no more", now)
        return replace(record, histories={**record.histories, **back}) if back else record

    def _tell_faults(self, faults: Faults, going: frozenset[str], now: float) -> None:
        for name in going - self._going:
            note = f"{describe(faults[name][0])}; runs save and leave this node"
            self._tell(name, FAULTY, note, now, is_warning=True)
        stays = frozenset(faults.keys() - going)
        for name in stays - self._staying:
            note = f"{describe(faults[name][0])}; it stays in use, as too many nodes of its kind are away already"
            self._tell(name, STAYS, note, now, is_warning=True)
        self._going, self._staying = going, stays

    def _tell(self, node: str, reason: str, note: str, at: float, *, is_warning: bool = False) -> None:
        mark = hashlib.sha256(f"{reason} {note}".encode()).hexdigest()[:10]
        regarding = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
        self._untold.append(
            PendingEvent(
                regarding=regarding, name=f"{node}.{mark}", reason=reason, note=note, at=at, is_warning=is_warning
            )
        )


def _counts(fault: NodeFault) -> bool:
    return fault.is_certain and fault.cause in OF_HARDWARE
