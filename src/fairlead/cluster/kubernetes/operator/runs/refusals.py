"""Tells of what the API server, or the rules of specs, refuse: on the workloads concerned, and by Events."""

import logging
from collections.abc import Callable
from functools import partial

from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.controller import Controller, PassStage, Turn
from fairlead.cluster.kubernetes.operator.events.event_recorder import EventRecorder, api_refusal_of, refusal_of
from fairlead.cluster.kubernetes.workloads.run_record import AnyObject

log = logging.getLogger("fairlead.operator")

INVALID_SPECS = "invalid-specs"
"""The kind of the requests that tell of them, which are many where a tenant means harm."""


class InvalidSpecs(Controller):
    """Writes into the status of a workload that its spec breaks a rule that the API server lacks.

    Args:
        may_act: Returns whether this process still leads; asked before each request.
    """

    name = "refused specs"
    stage = PassStage.CHANGES

    def __init__(self, cluster: KubernetesCluster, recorder: EventRecorder, *, may_act: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._may_act = may_act

    def act(self, turn: Turn) -> None:
        """Queue the writes for all such workloads."""
        for invalid in self._cluster.invalid():
            name = f"refuse {invalid.kind} {invalid.key} {invalid.version}"
            turn.agent.report(INVALID_SPECS, invalid.namespace, name, partial(self._refuse, invalid, turn))

    def _refuse(self, invalid: AnyObject, turn: Turn) -> None:
        if self._may_act() and self._cluster.refuse(invalid):
            self._recorder.tell(turn.agent, refusal_of(invalid, turn.now), turn.now)


class RefusedWrites(Controller):
    """Records an Event for each write to a workload that the API server refuses."""

    name = "refusals"

    def __init__(self, cluster: KubernetesCluster, recorder: EventRecorder) -> None:
        self._cluster = cluster
        self._recorder = recorder

    def act(self, turn: Turn) -> None:
        """Queue the Events of what was refused since the last pass."""
        for workload_object, refusal, message in self._cluster.take_refusals():
            log.warning("%s of %s: %s: %s", workload_object.name, workload_object.namespace, refusal, message)
            record = api_refusal_of(workload_object, refusal, message, turn.now)
            self._recorder.tell(turn.agent, record, turn.now)
