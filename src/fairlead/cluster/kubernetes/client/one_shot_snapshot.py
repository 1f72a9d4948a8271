"""Reads a cluster's state once, without watches: for a plan, and for the pods of one run."""

import time
from dataclasses import replace
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.watching import ObjectCache
from fairlead.cluster.kubernetes.client.operator_lease import leader_there, rules_of
from fairlead.cluster.kubernetes.informers.autoscalers import Autoscalers
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.informers.node_history import histories_there
from fairlead.cluster.kubernetes.informers.pod_status import stray
from fairlead.cluster.kubernetes.informers.snapshot_cache import SnapshotCache
from fairlead.cluster.kubernetes.informers.vertical_recommendations import read_recommendations
from fairlead.cluster.kubernetes.names import RUN_UID, segment
from fairlead.cluster.kubernetes.workloads.run_record import TrainingObject
from fairlead.cluster.kubernetes.workloads.workload_api import items_of
from fairlead.policy.health.node_faults import with_health
from fairlead.state.snapshot import Pod, Snapshot


class OneShotSnapshot:
    """The operator's view, filled from lists."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._view = Informers(client)

    def snapshot(self) -> Snapshot:
        """Return all nodes, DaemonSets, pods and runs, with the policy of the leading operator."""
        view = self._view
        # A run is evaluated with its pods, so they are added first.
        workloads = {**view.leaves, **view.parents}
        view.look_for_slices()
        for cache in view.caches:
            if cache not in workloads.values():
                self._fill(cache, may_be_hidden=cache in view.slice_caches)
        for kind, runs in workloads.items():
            for content in items_of(self._client, kind, None):
                runs.put(content)
        # A run that does not exist yet may wait for nodes too, so autoscalers are queried for any pending run.
        growth = Autoscalers(self._client).ask(time.time())
        leader, recommended = leader_there(self._client), read_recommendations(self._client, None)
        rules = rules_of(leader)
        if leader is not None:
            view.namespace = leader.namespace
        snapshot = SnapshotCache(view, namespace=None, progress_of=view.last_words, rules=rules).look()
        snapshot = replace(snapshot, recommended=recommended, growth=growth)
        histories = {} if leader is None else histories_there(self._client, leader.namespace)
        faults = {node.key: node.faults for node in view.nodes.all() if node.faults}
        nodes = with_health(snapshot.nodes, histories, faults)
        snapshot = replace(snapshot, nodes=nodes, node_health=histories, node_faults=faults)
        return snapshot if leader is None else replace(snapshot, debts=leader.debts.counted())

    def _fill(self, cache: ObjectCache[Any], *, may_be_hidden: bool) -> None:
        try:
            for content in self._client.items(cache.path):
                cache.put(content)
        except ApiError as error:
            if error.status != 403 or not may_be_hidden:
                raise

    def pods(self, training: TrainingObject) -> tuple[Pod, ...]:
        """Return the pods of a run: its latest gang, and remaining pods of earlier ones; none of another cluster."""
        if training.cluster:
            return ()
        path = f"/api/v1/namespaces/{segment(training.namespace)}/pods"
        for content in self._client.items(path, {"labelSelector": f"{RUN_UID}={training.uid}"}):
            self._view.pods.put(content)
        objects = self._view.pods_of_object(training).values()
        for node in {pod.node for pod in objects if pod.node}:
            # Users may not read nodes; the operator reports a lost node in the run's status.
            self._view.nodes.put(_unseen(node))
        gang = training.state.gang
        earlier = (
            stray(pod) for pod in objects if gang is None or not gang.has(pod.attempt, pod.index, pod.replacement)
        )
        return tuple(sorted((*earlier, *self._view.members(training)), key=lambda pod: (pod.attempt, pod.index)))


def _unseen(name: str) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True"}
    return {"metadata": {"name": name, "resourceVersion": "0"}, "status": {"conditions": [ready]}}
