"""Warns in the operator's log, and by an Event of its Lease, that another operator leads and may act on the same runs.

Operators with the same Lease take turns. Those with Leases in separate namespaces do not know of each other: both lead,
and decide on the same runs, by policies that may differ.

A Lease counts in namespaces of operators alone, since tenants write Leases in theirs.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.client.operator_lease import API, in_conflict, labelled_namespaces, leaders
from fairlead.cluster.kubernetes.names import LEASE, OPERATORS
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.cluster.kubernetes.operator.events.event_recorder import EventRecorder, PendingEvent
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent

log = logging.getLogger("fairlead.operator")

EVERY_S = 60.0
AGAIN_S = 3600.0  # as long as the API server keeps an Event
QUEUE = "other-leaders"


class OtherLeaders(Controller):
    """Looks for other leaders once a minute.

    Args:
        namespace: Namespace of this operator's Lease.
        may_act: Returns whether this process leads.
    """

    name = "other leaders"

    def __init__(self, client: Client, recorder: EventRecorder, namespace: str, *, may_act: Callable[[], bool]) -> None:
        self._client = client
        self._recorder = recorder
        self._namespace = namespace
        self._may_act = may_act
        self._next_at = float("-inf")
        self._warned: tuple[str, float] = ("", 0.0)
        self._is_unlabelled = False

    def act(self, turn: Turn) -> None:
        """Queue the next look, if it is time."""
        agent, now = turn.agent, turn.now
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + EVERY_S
            agent.submit(QUEUE, f"look for other leaders at {now}", partial(self._look, agent, now))

    def _look(self, agent: PodAgent, now: float) -> None:
        try:
            counted = labelled_namespaces(self._client)
            known = leaders(self._client, counted | {self._namespace})
        except ApiError as error:
            if error.status != 403:
                raise
            log.info("it cannot be seen whether other operators lead: %s", error)
            self._next_at = time.monotonic() + AGAIN_S
            return
        own = next((leader for leader in known if leader.namespace == self._namespace), None)
        if own is None or not self._may_act():
            return
        if self._namespace not in counted and not self._is_unlabelled:
            log.warning(
                "other operators do not see this one, since its namespace is not labelled as one of operators: "
                "kubectl label namespace %s %s=enabled", self._namespace, OPERATORS,
            )  # fmt: skip
        self._is_unlabelled = self._namespace not in counted
        others = [leader for leader in known if leader is not own and in_conflict(own, leader)]
        if not others:
            self._warned = "", now
            return
        names = ", ".join(f"{other.name} in namespace {other.namespace}" for other in others)
        note = (
            f"another operator leads too and may act on the same runs: {names}. Stop all but one; all with "
            f"`--namespace {self._namespace}` take turns"
        )
        warning, at = self._warned
        if warning == note and now - at < AGAIN_S:
            return
        self._warned = note, now
        log.warning("%s", note)
        regarding = {
            "apiVersion": API.removeprefix("/apis/"), "kind": "Lease", "name": LEASE, "namespace": own.namespace,
            "uid": own.uid,
        }  # fmt: skip
        name = f"{LEASE}.{int(now * 1e6):x}"
        record = PendingEvent(
            regarding=regarding, name=name, reason="OtherLeader", note=note, at=now, is_warning=True
        )  # fmt: skip
        self._recorder.tell(agent, record, now)
