"""Creates, updates and deletes the autoscaler object of each endpoint that the cluster's own autoscaler scales.

Existing objects are read once, when this operator begins to lead, and all are rewritten periodically: that restores
deleted objects, and shows what the autoscaler reports.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.manifests.autoscalers import APIS, Object, complaint, render_autoscaler
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.controller import Controller, PassStage, Turn
from fairlead.frozen import dataclass
from fairlead.policy.serving.routes import endpoints
from fairlead.specs.serving import AUTOSCALERS, Autoscaler, Serving
from fairlead.state.measurements import Measurement
from fairlead.state.snapshot import Intent, Snapshot, Workload

# How often existing objects are rewritten, and how long to wait before retrying what was refused.
CHECK_S, PAUSE_S = 30.0, 10.0
SURVEY = "survey-of-autoscalers"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """An object as it was written for an endpoint."""

    by: Autoscaler
    path: str
    content: Object
    at: float


class AutoscalerController(Controller):
    """Manages the autoscaler objects of endpoints for the operator.

    Args:
        namespace: Consider only endpoints of this namespace; None for all.
        may_act: Returns whether this process still leads; asked before each request.
        query_problem: Returns why no Prometheus at a URL may be asked; None if it may.
    """

    name = "autoscalers"
    stage = PassStage.CHANGES

    def __init__(
        self,
        client: Client,
        view: Informers,
        *,
        namespace: str | None = None,
        may_act: Callable[[], bool],
        query_problem: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._client = client
        self._view = view
        self._namespace = namespace
        self._may_act = may_act
        self._query_problem = query_problem
        self._lock = threading.Lock()
        self._autoscalers: dict[str, _Written] | None = None
        self._wanted: dict[str, Workload[Serving]] = {}
        self._problems: dict[str, tuple[str, float]] = {}
        self._is_due = False
        self._check_at = 0.0

    @property
    def is_behind(self) -> bool:
        """Return whether anything is still to be written or read."""
        return self._is_due or (bool(self._wanted) and time.monotonic() >= self._check_at)

    def extend(self, snapshot: Snapshot, now: float) -> Snapshot:
        problems = self.look(snapshot) if self._may_act() else {}
        return replace(snapshot, measurements={**snapshot.measurements, **problems}) if problems else snapshot

    def look(self, seen: Snapshot) -> Mapping[str, Measurement]:
        """Return why autoscalers cannot scale, by the uids of endpoints, as queries without an answer."""
        with self._lock:
            problems = {uid: problem for uid, (problem, _) in self._problems.items()}
        return {
            endpoint.uid: Measurement(since=endpoint.created_at, problem=problems.get(endpoint.uid))
            for endpoint in endpoints(seen)
            if endpoint.spec.scale.by is not None
        }

    def act(self, turn: Turn) -> None:
        """Queue the work that follows from a snapshot."""
        agent, seen = turn.agent, turn.snapshot
        wanted = {
            endpoint.uid: endpoint
            for endpoint in endpoints(seen)
            if endpoint.spec.scale.by is not None and endpoint.intent is Intent.RUN
        }
        now = time.monotonic()
        with self._lock:
            self._wanted = wanted
            self._problems = {uid: problem for uid, problem in self._problems.items() if uid in wanted}
            written = self._autoscalers
            waiting = {uid for uid, (_, at) in self._problems.items() if now < at}
        if written is None:
            if wanted or any(isinstance(parent.spec, Serving) for parent in seen.parents):
                self._is_due = True
                agent.submit(SURVEY, "look which endpoints autoscalers have", self._survey)
            return
        behind = [uid for uid, endpoint in wanted.items() if not _is_like(written.get(uid), endpoint)]
        again = [uid for uid in wanted if uid in written and now - written[uid].at >= CHECK_S]
        gone = [uid for uid in written if uid not in wanted or written[uid].by is not wanted[uid].spec.scale.by]
        self._is_due = bool(behind or gone)
        self._check_at = min((autoscaler.at + CHECK_S for autoscaler in written.values()), default=now + CHECK_S)
        for uid in gone:
            agent.submit(uid, f"take away the autoscaler of {written[uid].path}", partial(self._delete, uid))
        for uid in dict.fromkeys((*behind, *again)):
            if uid not in waiting and uid not in gone:
                spec = wanted[uid].spec
                agent.submit(uid, f"have {spec.scale.by} scale {spec.team}/{spec.name}", partial(self._write, uid))

    def _survey(self) -> None:
        """Read the existing autoscaler objects of Fairlead."""
        written: dict[str, _Written] = {}
        for by, (api, plural) in APIS.items():
            place = f"/apis/{api}/{plural}"
            if self._namespace is not None:
                place = f"/apis/{api}/namespaces/{segment(self._namespace)}/{plural}"
            try:
                for content in self._client.items(place, {"labelSelector": names.ENDPOINT_UID}):
                    about, uid = content["metadata"], content["metadata"]["labels"][names.ENDPOINT_UID]
                    if self._view.owns(uid, about):
                        path = f"/apis/{api}/namespaces/{segment(about['namespace'])}/{plural}/{segment(about['name'])}"
                        written[uid] = _Written(by=by, path=path, content={}, at=0.0)
            except ApiError as error:
                # An operator with roles of an older version has created none.
                if error.status not in (403, 404):
                    raise
        with self._lock:
            self._autoscalers = written
        self._view.wake()

    def _write(self, uid: str) -> None:
        with self._lock:
            endpoint = self._wanted.get(uid)
        if endpoint is None or not self._may_act():
            return
        spec, by = endpoint.spec, endpoint.spec.scale.by
        if by is None:
            return
        if spec.scale.replicas is None:
            # An object without a replica count is not to be scaled.
            first = {"spec": {"scale": {"replicas": max(1, spec.replicas)}}}
            about = {"metadata": {"uid": uid}}
            self._client.merge(objects_path("Serving", spec.team, spec.name), {**about, **first})
        query = spec.scale.prometheus
        if query is not None and (refusal := self._query_problem(query.url)) is not None:
            self._note(uid, refusal, time.monotonic() + PAUSE_S)
            return
        content = render_autoscaler(endpoint)
        api, plural = APIS[by]
        path = f"/apis/{api}/namespaces/{segment(spec.team)}/{plural}/{segment(content['metadata']['name'])}"
        problem: str | None
        try:
            problem = complaint(self._client.apply(path, content))
        except ApiError as error:
            if error.status not in (400, 403, 404, 422):
                raise
            message = " ".join(error.server_message.split()).rstrip(".")
            lacks = f"this cluster has no {AUTOSCALERS[by]} ({api}), which `by: {by}` needs"
            problem = lacks if error.status == 404 else f"the API server refuses its {AUTOSCALERS[by]}: {message}"
            self._note(uid, problem, time.monotonic() + PAUSE_S)
            return
        with self._lock:
            if self._autoscalers is not None:
                self._autoscalers[uid] = _Written(by=by, path=path, content=content, at=time.monotonic())
        self._note(uid, problem, 0.0)

    def _note(self, uid: str, problem: str | None, again_at: float) -> None:
        with self._lock:
            before = self._problems.pop(uid, (None, 0.0))[0]
            if problem is not None:
                self._problems[uid] = (problem, again_at)
        if before != problem:
            self._view.wake()

    def _delete(self, uid: str) -> None:
        with self._lock:
            written = None if self._autoscalers is None else self._autoscalers.get(uid)
        if written is None or not self._may_act():
            return
        try:
            self._client.delete(written.path)
        except ApiError as error:
            if error.status != 404:
                raise
        with self._lock:
            if self._autoscalers is not None:
                self._autoscalers.pop(uid, None)
        self._view.wake()


def _is_like(written: _Written | None, endpoint: Workload[Serving]) -> bool:
    """Return whether the written object is as wanted, and its replica count is set."""
    if written is None or endpoint.spec.scale.replicas is None:
        return False
    spec = replace(endpoint.spec, scale=replace(endpoint.spec.scale, replicas=None))
    return written.content == render_autoscaler(replace(endpoint, spec=spec))
