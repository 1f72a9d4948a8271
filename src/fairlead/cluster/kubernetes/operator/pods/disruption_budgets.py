"""Keeps a PodDisruptionBudget for each endpoint of several replicas, so that drains of nodes take one at a time.

Existing objects are read once, when this operator begins to lead, and all are rewritten periodically, since they may
have been deleted. An object of that name that Fairlead did not create is left alone.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.manifests.endpoints import endpoint_name, render_disruption_budget
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.controller import Controller, PassStage, Turn
from fairlead.frozen import dataclass
from fairlead.policy.serving.routes import endpoints
from fairlead.specs.serving import Serving
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.snapshot import Intent, Workload

log = logging.getLogger(__name__)

# How often existing objects are rewritten, and how long to wait before retrying what was refused.
CHECK_S, PAUSE_S = 60.0, 10.0
SURVEY = "survey-of-disruption-budgets"
API = "/apis/policy/v1"
PLURAL = "poddisruptionbudgets"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The number of pods in a budget as it was written; None as long as it is unknown."""

    path: str
    num_pods: int | None
    at: float


class DisruptionBudgets(Controller):
    """Manages the budgets of endpoints for the operator.

    Args:
        namespace: Consider only endpoints of this namespace; None for all.
        may_act: Returns whether this process still leads; asked before each request.
    """

    name = "the disruption budgets of endpoints"
    stage = PassStage.CHANGES

    def __init__(
        self, client: Client, view: Informers, *, namespace: str | None = None, may_act: Callable[[], bool]
    ) -> None:
        self._client = client
        self._view = view
        self._namespace = namespace
        self._may_act = may_act
        self._lock = threading.Lock()
        self._written: dict[str, _Written] | None = None
        self._wanted: dict[str, Workload[Serving]] = {}
        self._refused_until: dict[str, float] = {}
        self._is_due = False

    @property
    def is_behind(self) -> bool:
        """Return whether anything is still to be written or read."""
        return self._is_due

    def act(self, turn: Turn) -> None:
        """Queue the work that follows from a snapshot."""
        agent, seen = turn.agent, turn.snapshot
        wanted = {endpoint.uid: endpoint for endpoint in endpoints(seen) if num_protected(endpoint)}
        now = time.monotonic()
        with self._lock:
            self._wanted = wanted
            self._refused_until = {uid: at for uid, at in self._refused_until.items() if uid in wanted}
            written, refused_until = self._written, dict(self._refused_until)
        if written is None:
            self._is_due = any(isinstance(parent.spec, Serving) for parent in seen.parents)
            if self._is_due:
                agent.submit(SURVEY, "read the disruption budgets of endpoints", self._survey)
            return
        behind = [
            uid
            for uid, endpoint in wanted.items()
            if refused_until.get(uid, 0.0) <= now
            and (
                uid not in written
                or written[uid].num_pods != num_protected(endpoint)
                or now - written[uid].at >= CHECK_S
            )
        ]
        gone = [uid for uid in written if uid not in wanted]
        self._is_due = bool(behind or gone)
        for uid in gone:
            agent.submit(uid, f"delete the disruption budget {written[uid].path}", partial(self._delete, uid))
        for uid in behind:
            spec = wanted[uid].spec
            agent.submit(uid, f"protect replicas of {spec.team}/{spec.name}", partial(self._write, uid))

    def _survey(self) -> None:
        """Read the existing budgets of Fairlead."""
        place = (
            f"{API}/{PLURAL}" if self._namespace is None else f"{API}/namespaces/{segment(self._namespace)}/{PLURAL}"
        )
        budgets: dict[str, _Written] = {}
        try:
            for budget in self._client.items(place, {"labelSelector": f"{names.ENDPOINT_UID},{names.MANAGED_BY}"}):
                about, uid = budget["metadata"], budget["metadata"]["labels"][names.ENDPOINT_UID]
                if self._view.owns(uid, about):
                    path = f"{API}/namespaces/{segment(about['namespace'])}/{PLURAL}/{segment(about['name'])}"
                    budgets[uid] = _Written(path=path, num_pods=None, at=0.0)
        except ApiError as error:
            # An operator with roles of an older version has created none.
            if error.status != 403:
                raise
        with self._lock:
            self._written = budgets
        self._view.wake()

    def _write(self, uid: str) -> None:
        with self._lock:
            endpoint, written = self._wanted.get(uid), (self._written or {}).get(uid)
        if endpoint is None or not self._may_act():
            return
        num_pods = num_protected(endpoint)
        content = render_disruption_budget(endpoint, num_pods)
        place = f"{API}/namespaces/{segment(endpoint.spec.team)}/{PLURAL}"
        path = f"{place}/{segment(endpoint_name(endpoint.spec))}"
        try:
            if written is None:
                self._client.create(place, content)
            else:
                self._client.apply(path, content)
        except ApiError as error:
            if error.status not in (403, 409):
                raise
            # An operator with roles of an older version may not write it, and a name in use is not Fairlead's.
            log.warning("%s/%s has no PodDisruptionBudget: %s", endpoint.spec.team, endpoint.spec.name, error)
            with self._lock:
                self._refused_until[uid] = time.monotonic() + PAUSE_S
            return
        with self._lock:
            if self._written is not None:
                self._written[uid] = _Written(path=path, num_pods=num_pods, at=time.monotonic())

    def _delete(self, uid: str) -> None:
        with self._lock:
            written = None if self._written is None or uid in self._wanted else self._written.get(uid)
        if written is None or not self._may_act():
            return
        try:
            self._client.delete(written.path)
        except ApiError as error:
            if error.status != 404:
                raise
        with self._lock:
            if self._written is not None:
                self._written.pop(uid, None)


def num_protected(endpoint: Workload[Serving]) -> int:
    """Return how many replicas must stay while others are evicted: all but one; 0 for one replica, or none."""
    if endpoint.intent is not Intent.RUN:
        return 0
    return max(0, detail_of(endpoint).wanted - 1)
