"""Controllers that only add to the snapshot what other systems know: results of queries, recommended requests."""

import time
from collections.abc import Callable
from dataclasses import replace

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.informers.vertical_recommendations import recommended_for
from fairlead.cluster.kubernetes.operator.controller import Controller
from fairlead.cluster.prometheus import PrometheusReader
from fairlead.state.snapshot import Snapshot


class QueryMeasurements(Controller):
    """Adds the results of the queries by which endpoints scale.

    Args:
        may_act: Returns whether this process still leads; only a leader queries.
    """

    name = "the measurements of endpoints"

    def __init__(self, reader: PrometheusReader, *, may_act: Callable[[], bool]) -> None:
        self._reader = reader
        self._may_act = may_act

    def extend(self, snapshot: Snapshot, now: float) -> Snapshot:
        results = self._reader.look(snapshot, time.time()) if self._may_act() else {}
        return replace(snapshot, measurements={**snapshot.measurements, **results}) if results else snapshot


class VerticalRecommendations(Controller):
    """Adds the requests that a vertical autoscaler recommends for runs.

    Args:
        namespace: Only runs of this namespace; None for all.
    """

    name = "the recommendations for runs"

    def __init__(self, client: Client, namespace: str | None) -> None:
        self._client = client
        self._namespace = namespace

    def extend(self, snapshot: Snapshot, now: float) -> Snapshot:
        recommended = recommended_for(self._client, snapshot.workloads, self._namespace)
        return replace(snapshot, recommended=recommended) if recommended else snapshot
