"""What runs say of themselves: the last line of the log of each run's reporter, asked for now and then.

Pods have no way to the API server; kubelet's log endpoint is the way that is always there. A run that cannot be asked
now, because its node is slow or has no kubelet, is asked again later.
"""

from functools import partial

from fairlead.cluster.kubernetes.agent import Agent
from fairlead.cluster.kubernetes.client import ApiError
from fairlead.cluster.kubernetes.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.pods import REPORTER
from fairlead.cluster.kubernetes.reports import read_report

EVERY_S = 5.0
# Of all runs together, so that a thousand of them are asked every 50 s.
PER_SECOND = 20.0
MOST_BYTES = 65_536


class Listener:
    """Asks the running runs in turn."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self._asked: dict[str, float] = {}

    def listen(self, now: float, agent: Agent) -> None:
        """Ask those whose turn has come."""
        running = {
            pod.run_uid: pod
            for found in self._cluster.view.trainings.all()
            if found.state.gang is not None and found.workload is not None and not found.state.status.phase.is_final
            for pod in self._cluster.view.pods_of(found.uid).values()
            if pod.index == 0
            and pod.attempt == found.state.gang.attempt
            and pod.started_at is not None
            and not pod.is_over
        }
        every_s = max(EVERY_S, len(running) / PER_SECOND)
        self._asked = {uid: at for uid, at in self._asked.items() if uid in running}
        for uid, pod in running.items():
            if now - self._asked.get(uid, 0.0) >= every_s:
                self._asked[uid] = now
                agent.submit(uid, f"ask {pod.key}", partial(self._ask, uid, pod.key))

    def _ask(self, uid: str, key: str) -> None:
        namespace, _, name = key.partition("/")
        query = {"container": REPORTER, "tailLines": "1", "limitBytes": str(MOST_BYTES)}
        try:
            text = self._cluster.client.text(f"/api/v1/namespaces/{namespace}/pods/{name}/log", query)
        except ApiError as error:
            if error.status in (400, 404, 500, 502, 503):
                return
            raise
        report = read_report(text.strip())
        if report is not None:
            self._cluster.report(uid, report.progress, report.active_at)
