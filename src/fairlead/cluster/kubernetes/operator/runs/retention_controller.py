"""Deletes runs whose retention has expired."""

import logging
import time

from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.controller import Controller, Turn
from fairlead.policy.kinds.retention import KEEP_ALL, Retention, forgetting

log = logging.getLogger("fairlead.operator")

AGAIN_S = 5.0
"""Seconds until the next search after one that found some, of which each search deletes a part."""
EVERY_S = 600.0


class RetentionController(Controller):
    """Searches for such runs now and then.

    Args:
        every_s: Seconds between two searches.
    """

    name = "retention"

    def __init__(self, cluster: KubernetesCluster, retention: Retention, *, every_s: float = EVERY_S) -> None:
        self._cluster = cluster
        self._retention = retention
        self._every_s = every_s
        self._next_at = 0.0

    def act(self, turn: Turn) -> None:
        """Delete some of the runs, if it is time."""
        if self._retention == KEEP_ALL or time.monotonic() < self._next_at:
            return
        # Those that a tool would create again would run again.
        declared = {item.uid for item in self._cluster.view.workload_objects() if item.is_declared}
        workloads = self._cluster.workloads()
        runs = [run for run in workloads if run.uid not in declared or not run.status.phase.is_final]
        num_gone = sum(self._cluster.apply(forgetting(runs, self._retention, turn.now)))
        if num_gone:
            log.info("forgot %d runs that are not kept any longer", num_gone)
        self._next_at = time.monotonic() + (AGAIN_S if num_gone else self._every_s)
