"""Creates, updates and deletes the one engine object of each endpoint that has an engine.

Level-triggered and stateless: an object's name follows from its endpoint, its last content is written on it, and the
wanted content follows from the endpoint's own status. An operator that takes over finds both.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import partial
from typing import Any, cast

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.watching import IDLE_S, Cache
from fairlead.cluster.kubernetes.engines.endpoint_port import GIVEN, EndpointDriver, Handover, Version, rendered
from fairlead.cluster.kubernetes.engines.port import Object
from fairlead.cluster.kubernetes.engines.table import endpoint_driver_of, missing
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.manifests.endpoints import endpoint_name
from fairlead.cluster.kubernetes.operator.controller import Controller, PassStage, Turn
from fairlead.cluster.kubernetes.operator.engines.engine_controller import device_of, models_of
from fairlead.cluster.kubernetes.operator.engines.engine_problems import EngineProblems
from fairlead.cluster.kubernetes.operator.pods import pod_rejections as refusals
from fairlead.cluster.kubernetes.operator.pods.pod_agent import Agent
from fairlead.frozen import dataclass
from fairlead.policy.kinds.serving import is_to_be_tried, share_of_canary, spec_of
from fairlead.specs.endpoint_engines import EndpointEngine
from fairlead.specs.serving import Serving
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.engine_endpoints import EngineEndpoint
from fairlead.state.snapshot import Intent, Phase, Snapshot, Workload

# The parts of an object that are kept.
KEPT = ("apiVersion", "kind", "status")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """An object of an engine, or one that the engine created for it, without its spec.

    Attributes:
        endpoint_uid: The uid of the endpoint by its label, which says nothing of whose the object is.
        owner_uid: The uid of its controller; empty for none.
    """

    key: str
    version: int
    uid: str
    endpoint_uid: str
    owner_uid: str
    owner_name: str
    content: Mapping[str, Any] = field(compare=False)
    is_leaving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Caches:
    """The watches for one engine."""

    driver: EndpointDriver
    objects: Cache[_Kept]
    made: Cache[_Kept]

    @property
    def is_synced(self) -> bool:
        return self.objects.is_synced and self.made.is_synced

    def of(self, endpoint: Workload[Serving]) -> _Kept | None:
        """The object of an endpoint, which has its name and its namespace, and is owned by it."""
        found = self.objects.get(f"{endpoint.spec.team}/{endpoint_name(endpoint.spec)}")
        return None if found is None or found.owner_uid != endpoint.uid else found

    def made_from(self, there: _Kept) -> list[_Kept]:
        """The objects that the engine created from an endpoint's; one between them has the same name."""
        namespace, _, name = there.key.partition("/")
        return [
            each
            for each in self.made.all()
            if each.endpoint_uid == there.endpoint_uid
            and each.key.startswith(f"{namespace}/")
            and (each.owner_uid == there.uid or each.owner_name == name)
        ]


class EndpointController(Controller):
    """Manages the engine objects of endpoints for the operator.

    Args:
        may_act: Returns whether this process still leads; asked before each request.
    """

    name = "the engines of endpoints"
    stage = PassStage.CHANGES

    def __init__(
        self, client: Client, view: Informers, *, may_act: Callable[[], bool] = lambda: True, idle_s: float = IDLE_S
    ) -> None:
        self._client = client
        self._view = view
        self._may_act = may_act
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._caches: dict[EndpointEngine, _Caches] = {}
        self._problems = EngineProblems()
        self._wanted: dict[str, Workload[Serving]] = {}
        self._is_behind = False

    @property
    def is_behind(self) -> bool:
        """Return whether anything is still to be written or read."""
        return self._is_behind

    @property
    def caches(self) -> list[Cache[_Kept]]:
        """The caches of the engines that are used."""
        return [cache for each in list(self._caches.values()) for cache in (each.objects, each.made)]

    def stop(self) -> None:
        """End all watches."""
        for cache in self.caches:
            cache.stop()

    def extend(self, snapshot: Snapshot, now: float) -> Snapshot:
        reports = self.look(snapshot)
        return replace(snapshot, engine_endpoints=reports) if reports else snapshot

    def look(self, seen: Snapshot) -> Mapping[str, EngineEndpoint]:
        """Return what engines report of the endpoints of a snapshot, by uid."""
        found = {}
        for endpoint in _endpoints(seen):
            assert endpoint.spec.engine is not None
            with self._view.isolation.of(f"{endpoint.spec.engine} of {endpoint.spec.team}/{endpoint.spec.name}"):
                found[endpoint.uid] = self._look(endpoint, self._watch(endpoint.spec.engine))
        return found

    def _look(self, endpoint: Workload[Serving], caches: _Caches) -> EngineEndpoint:
        kind = caches.driver.kind
        if not caches.is_synced:
            problem = self._problem(caches)
            # Until the objects are listed it may exist.
            return EngineEndpoint(kind=kind, is_there=problem is None, message=problem or "")
        there = caches.of(endpoint)
        refusal = self._problems.refusal(endpoint.uid)
        if there is None:
            return EngineEndpoint(kind=kind, message="" if refusal is None else refusal.problem)
        made = [each.content for each in caches.made_from(there)]
        told = caches.driver.observe(there.content, made)
        if refusal is not None and refusal.content != _given(there):
            return replace(told, ready=False, message=refusal.problem)
        finding = self._problems.finding(endpoint.uid, _target(endpoint))
        return told if told.ready or not finding else replace(told, message=finding)

    def act(self, turn: Turn) -> None:
        """Queue the work that follows from a snapshot."""
        agent, seen = turn.agent, turn.snapshot
        self._is_behind = False
        wanted = {each.uid: each for each in _endpoints(seen)}
        with self._lock:
            self._wanted = wanted
        self._problems.keep(wanted.keys())
        for endpoint in wanted.values():
            name = f"{endpoint.spec.engine} {endpoint.spec.team}/{endpoint.spec.name}"
            with self._view.isolation.of(name):
                self._is_behind = self._act_on(endpoint, name, agent) or self._is_behind

    def _act_on(self, endpoint: Workload[Serving], name: str, agent: Agent) -> bool:
        """Queue the work that one endpoint needs; return whether more is to come."""
        assert endpoint.spec.engine is not None
        uid, caches = endpoint.uid, self._watch(endpoint.spec.engine)
        if not caches.is_synced:
            return True
        there = caches.of(endpoint)
        if not _is_to_run(endpoint):
            if there is not None and not there.is_leaving:
                agent.submit(uid, f"delete {name}", partial(self._delete, caches, there))
            return False
        content = self._content(endpoint)
        if content is None:
            return False
        given = content["metadata"]["annotations"][GIVEN]
        if there is None or (_given(there) != given and not there.is_leaving):
            if not self._problems.is_paused(uid, given):
                agent.submit(uid, f"give {name}", partial(self._write, uid))
            return True
        if there.is_leaving:
            return True
        if self._look(endpoint, caches).ready:
            self._problems.clear(uid)
            return False
        if self._problems.is_due(uid):
            agent.submit(uid, f"ask why {name} is not ready", partial(self._ask, endpoint))
        return True

    def _content(self, endpoint: Workload[Serving]) -> Object | None:
        """Return an endpoint's wanted object; None if no decision was made yet."""
        engine = endpoint.spec.engine
        handover = handover_of(endpoint)
        if engine is None or handover is None:
            return None
        nodes = self._view.nodes.all()
        replica = handover.target.spec.replica()
        models = models_of(replica, nodes)
        if models is None:
            # No resource is known for GPUs that no node is labelled with; kube-scheduler reports those.
            models = ()
        return rendered(endpoint_driver_of(engine), replace(handover, device=device_of(replica, nodes), models=models))

    def _write(self, uid: str) -> None:
        """Write the wanted object of an engine."""
        with self._lock:
            endpoint = self._wanted.get(uid)
        if endpoint is None or endpoint.spec.engine is None or not _is_to_run(endpoint) or not self._may_act():
            return
        content = self._content(endpoint)
        if content is None:
            return
        caches, given = self._caches[endpoint.spec.engine], content["metadata"]["annotations"][GIVEN]
        path = _path(caches.driver, endpoint.spec.team, content["metadata"]["name"])
        try:
            problem = self._taken(path, endpoint)
            answer = None if problem is not None else self._client.apply(path, content)
        except ApiError as error:
            phase, problem = refusals.explain(error, endpoint.spec.team, kind=content["kind"])
            if phase is None:
                raise
            answer = None
        self._problems.answered(uid, problem, given)
        if answer is not None:
            caches.objects.put(answer)
        self._view.wake()

    def _taken(self, path: str, endpoint: Workload[Serving]) -> str | None:
        """Report that another object has the name; None if none has."""
        try:
            there = self._client.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        owner = names.controller_of(there["metadata"])
        if owner.get("uid") == endpoint.uid:
            return None
        kind, name = there["kind"], there["metadata"]["name"]
        if names.group_of(owner) == names.DOMAIN:
            return f"the {kind} {name} of an endpoint that had the name before is on its way out"
        return f"a {kind} named {name} exists that Fairlead did not create; delete it, or give another name"

    def _delete(self, caches: _Caches, there: _Kept) -> None:
        if not self._may_act():
            return
        namespace, _, name = there.key.partition("/")
        # It stays until all of its pods are gone.
        options = {"propagationPolicy": "Foreground", "preconditions": {"uid": there.uid}}
        try:
            content = self._client.delete(_path(caches.driver, namespace, name), options)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return
        if content.get("kind") == caches.driver.kind and "deletionTimestamp" in content["metadata"]:
            caches.objects.put(content)

    def _ask(self, endpoint: Workload[Serving]) -> None:
        """Record the problem of the target's newest pod that is not ready, which says more than engines do."""
        query, target = {"labelSelector": f"{names.ENDPOINT_UID}={endpoint.uid}"}, _target(endpoint)
        pods = self._client.items(f"/api/v1/namespaces/{endpoint.spec.team}/pods", query)
        pods_of_target = [each for each in pods if each["metadata"]["labels"].get(names.REVISION, target) == target]
        found = ""
        for pod in sorted(pods_of_target, key=lambda each: str(each["metadata"].get("creationTimestamp"))):
            found = trouble_of(pod) or found
        if self._problems.find(endpoint.uid, found, target):
            self._view.wake()

    def _watch(self, engine: EndpointEngine) -> _Caches:
        found = self._caches.get(engine)
        if found is None:
            driver = endpoint_driver_of(engine)
            query = {"labelSelector": f"{names.ENGINE}={engine.value},{names.ENDPOINT_UID}"}

            def cache(api: str, plural: str) -> Cache[_Kept]:
                return Cache(
                    self._client, f"/apis/{api}/{plural}", _read, lambda *_: self._view.wake(),
                    synced=self._view.wake, query=query, idle_s=self._idle_s,
                )  # fmt: skip

            found = _Caches(driver=driver, objects=cache(driver.api, driver.plural), made=cache(*driver.made))
            self._caches[engine] = found
            found.objects.start()
            found.made.start()
        return found

    def _problem(self, caches: _Caches) -> str | None:
        """Report what a cluster lacks for an engine, or forbids; None if nothing is known to be missing."""
        driver = caches.driver
        for cache, kind, api in (
            (caches.objects, driver.kind, driver.api),
            (caches.made, driver.made[1], driver.made[0]),
        ):
            trouble = None if cache.is_synced else cache.trouble
            if isinstance(trouble, ApiError) and trouble.status == 404:
                return missing(driver.engine, kind, api)
            if isinstance(trouble, ApiError) and trouble.status == 403:
                return f"the operator may not watch {kind} ({api}): `fairlead install` gives it the right"
        return None


def handover_of(endpoint: Workload[Serving]) -> Handover | None:
    """Return what an engine is to serve for an endpoint, by its status; None if no decision was made yet."""
    detail = detail_of(endpoint)
    target = detail.revision(detail.target)
    if target is None:
        return None
    # The replica count and scaling come from the current spec; everything else from the revision.
    spec = spec_of(target)
    spec = replace(
        spec, replicas=endpoint.spec.replicas, most_replicas=endpoint.spec.most_replicas, scale=endpoint.spec.scale
    )
    handover = Handover(workload=endpoint, target=Version(name=target.name, spec=spec))
    trial, canary = detail.canary, endpoint.spec.canary
    if canary is None:
        return handover
    if trial is not None:
        old, share = detail.revision(trial.old), share_of_canary(endpoint.spec, trial)
    elif is_to_be_tried(endpoint.spec, detail):
        # Given before it is ready, for the engine sends requests as soon as it is, and all if nobody has said how many.
        old, share = detail.revision(detail.serving), canary.steps[0]
    else:
        return handover
    if old is None:
        return handover
    return replace(handover, beside=Version(name=old.name, spec=spec_of(old)), percent=round(share * 100))


def trouble_of(pod: Mapping[str, Any]) -> str:
    """Return why a pod is not ready, as a clause; empty if it is, or no reason is reported."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"kube-scheduler finds no place for {name}: {_clause(condition.get('message'))}"
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    for container in containers:
        state = container.get("state") or {}
        waiting = state.get("waiting") or {}
        ended = (container.get("lastState") or {}).get("terminated") or state.get("terminated") or {}
        if ended.get("exitCode"):
            return f"{container['name']} of {name} ended with exit code {ended['exitCode']}"
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{container['name']} of {name} waits: {_clause(waiting.get('message') or waiting['reason'])}"
    for container in containers:
        # Last, as a sidecar that probes the server is not ready either.
        if not container.get("ready") and "running" in (container.get("state") or {}):
            return f"{container['name']} of {name} runs and does not answer its probe yet"
    return ""


def _clause(text: object) -> str:
    return " ".join(str(text or "it does not say why").split()).rstrip(".")[:400]


def _endpoints(seen: Snapshot) -> list[Workload[Serving]]:
    found = [parent for parent in seen.parents if isinstance(parent.spec, Serving) and parent.spec.engine is not None]
    return cast("list[Workload[Serving]]", found)


def _target(endpoint: Workload[Serving]) -> str:
    """The name of the revision that is to serve; empty before there is one."""
    detail = detail_of(endpoint)
    found = detail.revision(detail.target)
    return "" if found is None else found.name


def _is_to_run(endpoint: Workload[Serving]) -> bool:
    return endpoint.intent is Intent.RUN and endpoint.status.phase is Phase.RUNNING


def _given(there: _Kept) -> str | None:
    found: str | None = (there.content["metadata"].get("annotations") or {}).get(GIVEN)
    return found


def _path(driver: EndpointDriver, namespace: str, name: str) -> str:
    return f"/apis/{driver.api}/namespaces/{namespace}/{driver.plural}/{name}"


def _read(content: dict[str, Any]) -> _Kept | None:
    metadata = content["metadata"]
    uid, owner = (metadata.get("labels") or {}).get(names.ENDPOINT_UID), names.controller_of(metadata)
    if uid is None:
        return None
    about = {name: metadata.get(name) for name in ("name", "namespace", "generation", "labels", "annotations")}
    return _Kept(
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=int(metadata["resourceVersion"]),
        uid=str(metadata["uid"]),
        endpoint_uid=str(uid),
        owner_uid=str(owner.get("uid") or ""),
        owner_name=str(owner.get("name") or ""),
        content={"metadata": about, **{name: content.get(name) for name in KEPT}},
        is_leaving="deletionTimestamp" in metadata,
    )
