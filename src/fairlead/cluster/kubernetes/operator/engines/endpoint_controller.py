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
from fairlead.cluster.kubernetes.api.watching import IDLE_S
from fairlead.cluster.kubernetes.engines.endpoint_port import GIVEN, EndpointDriver, Handover, Version, rendered
from fairlead.cluster.kubernetes.engines.port import Object
from fairlead.cluster.kubernetes.engines.table import AnyEngine, driver_of, path_of
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.manifests.endpoints import endpoint_name
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.controller import Turn
from fairlead.cluster.kubernetes.operator.engines.engine_controller import device_of, models_of
from fairlead.cluster.kubernetes.operator.engines.parent_engine_controller import EngineWatch, ParentEngineController
from fairlead.cluster.kubernetes.operator.pods import pod_rejections as refusals
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
class _EngineObject:
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


class EndpointController(ParentEngineController[Serving, EndpointDriver, EngineEndpoint]):
    """Manages the engine objects of endpoints for the operator."""

    name = "the engines of endpoints"
    uid_label = names.ENDPOINT_UID

    def __init__(
        self, client: Client, view: Informers, *, may_act: Callable[[], bool] = lambda: True, idle_s: float = IDLE_S
    ) -> None:
        super().__init__(client, view, may_act=may_act, idle_s=idle_s)
        self._lock = threading.Lock()
        self._wanted: dict[str, Workload[Serving]] = {}

    def extend(self, snapshot: Snapshot, now: float) -> Snapshot:
        reports = self.look(snapshot)
        return replace(snapshot, engine_endpoints=reports) if reports else snapshot

    def parents(self, snapshot: Snapshot) -> list[Workload[Serving]]:
        """Return the endpoints of a snapshot that have an engine."""
        endpoints = cast("list[Workload[Serving]]", [run for run in snapshot.parents if isinstance(run.spec, Serving)])
        return [endpoint for endpoint in endpoints if endpoint.spec.engine is not None]

    def owners(self, snapshot: Snapshot) -> list[Workload[Serving]]:
        """Return the endpoints of a snapshot that have an engine, and take them as those whose objects are wanted."""
        endpoints = self.parents(snapshot)
        with self._lock:
            self._wanted = {endpoint.uid: endpoint for endpoint in endpoints}
        return endpoints

    def read_name(self, parent: Workload[Serving]) -> str:
        """Name what is read for an endpoint."""
        return f"{parent.spec.engine} of {parent.spec.team}/{parent.spec.name}"

    def work_name(self, parent: Workload[Serving]) -> str:
        """Name what is done for an endpoint."""
        return f"{parent.spec.engine} {parent.spec.team}/{parent.spec.name}"

    def report(self, parent: Workload[Serving]) -> EngineEndpoint:
        """Return what its engine reports of an endpoint."""
        watch = self.watch_of(parent)
        kind = watch.driver.kind
        if not watch.is_synced:
            problem = watch.problem()
            # Until the objects are listed it may exist.
            return EngineEndpoint(kind=kind, is_there=problem is None, message=problem or "")
        item = object_of(watch, parent)
        refusal = self._problems.refusal(parent.uid)
        if item is None:
            return EngineEndpoint(kind=kind, message="" if refusal is None else refusal.problem)
        made = [part.content for part in made_from(watch, item)]
        report = watch.driver.observe(item.content, made)
        if refusal is not None and refusal.content != _digest_of(item):
            return replace(report, ready=False, message=refusal.problem)
        finding = self._problems.finding(parent.uid, _target(parent))
        return report if report.ready or not finding else replace(report, message=finding)

    def watch_of(self, endpoint: Workload[Serving]) -> EngineWatch[EndpointDriver]:
        """Return the watches of an endpoint's engine."""
        assert endpoint.spec.engine is not None
        return self.watch(endpoint.spec.engine)

    def begin(self, engine: AnyEngine) -> EngineWatch[EndpointDriver]:
        """Return the watches of an engine, not yet started."""
        driver = driver_of(EndpointEngine(engine))
        api, plural = driver.made
        return EngineWatch(
            engine=engine,
            driver=driver,
            objects=self.cache_of(engine, driver.api, driver.plural, _read),
            parts=self.cache_of(engine, api, plural, _read),
            made=(plural, api),
        )

    def act_on(self, parent: Workload[Serving], turn: Turn) -> bool:
        """Queue the work that one endpoint needs; return whether more is to come."""
        agent, endpoint, name = turn.agent, parent, self.work_name(parent)
        uid, watch = endpoint.uid, self.watch_of(endpoint)
        if not watch.is_synced:
            return True
        item = object_of(watch, endpoint)
        if not _is_to_run(endpoint):
            if item is not None and not item.is_leaving:
                agent.submit(uid, f"delete {name}", partial(self._delete, watch, item))
            return False
        content = self._content(endpoint)
        if content is None:
            return False
        digest = content["metadata"]["annotations"][GIVEN]
        if item is None or (_digest_of(item) != digest and not item.is_leaving):
            if not self._problems.is_paused(uid, digest):
                agent.submit(uid, f"give {name}", partial(self._write, uid))
            return True
        if item.is_leaving:
            return True
        if self.report(endpoint).ready:
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
        return rendered(driver_of(engine), replace(handover, device=device_of(replica, nodes), models=models))

    def _write(self, uid: str) -> None:
        """Write the wanted object of an engine."""
        with self._lock:
            endpoint = self._wanted.get(uid)
        if endpoint is None or endpoint.spec.engine is None or not _is_to_run(endpoint) or not self._may_act():
            return
        content = self._content(endpoint)
        if content is None:
            return
        watch, digest = self.watch_of(endpoint), content["metadata"]["annotations"][GIVEN]
        path = path_of(watch.driver, endpoint.spec.team, content["metadata"]["name"])
        try:
            problem = self._taken(path, endpoint)
            answer = None if problem is not None else self._client.apply(path, content)
        except ApiError as error:
            phase, problem = refusals.explain(error, endpoint.spec.team, kind=content["kind"])
            if phase is None:
                raise
            answer = None
        self._problems.answered(uid, problem, digest)
        if answer is not None:
            watch.objects.put(answer)
        self._view.wake()

    def _taken(self, path: str, endpoint: Workload[Serving]) -> str | None:
        """Report that another object has the name; None if none has."""
        try:
            content = self._client.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        owner = names.controller_of(content["metadata"])
        if owner.get("uid") == endpoint.uid:
            return None
        kind, name = content["kind"], content["metadata"]["name"]
        if names.group_of(owner) == names.DOMAIN:
            return f"the {kind} {name} of an endpoint that had the name before is on its way out"
        return f"a {kind} named {name} exists that Fairlead did not create; delete it, or give another name"

    def _delete(self, watch: EngineWatch[EndpointDriver], item: _EngineObject) -> None:
        if not self._may_act():
            return
        namespace, _, name = item.key.partition("/")
        # It stays until all of its pods are gone.
        options = {"propagationPolicy": "Foreground", "preconditions": {"uid": item.uid}}
        try:
            content = self._client.delete(path_of(watch.driver, namespace, name), options)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return
        if content.get("kind") == watch.driver.kind and "deletionTimestamp" in content["metadata"]:
            watch.objects.put(content)

    def _ask(self, endpoint: Workload[Serving]) -> None:
        """Record the problem of the target's newest pod that is not ready, which says more than engines do."""
        query, target = {"labelSelector": f"{names.ENDPOINT_UID}={endpoint.uid}"}, _target(endpoint)
        pods = self._client.items(f"/api/v1/namespaces/{segment(endpoint.spec.team)}/pods", query)
        newest, trouble = "", ""
        for pod in pods:
            created, problem = str(pod["metadata"].get("creationTimestamp")), trouble_of(pod)
            is_of_target = pod["metadata"]["labels"].get(names.REVISION, target) == target
            if is_of_target and problem and created >= newest:
                newest, trouble = created, problem
        if self._problems.find(endpoint.uid, trouble, target):
            self._view.wake()


def object_of(watch: EngineWatch[EndpointDriver], endpoint: Workload[Serving]) -> _EngineObject | None:
    """Return the object of an endpoint, which has its name and its namespace, and is owned by it."""
    item: _EngineObject | None = watch.objects.get(f"{endpoint.spec.team}/{endpoint_name(endpoint.spec)}")
    return None if item is None or item.owner_uid != endpoint.uid else item


def made_from(watch: EngineWatch[EndpointDriver], item: _EngineObject) -> list[_EngineObject]:
    """Return the objects that the engine created from an endpoint's; one between them has the same name."""
    namespace, _, name = item.key.partition("/")
    return [
        part
        for part in watch.parts.all()
        if part.endpoint_uid == item.endpoint_uid
        and part.key.startswith(f"{namespace}/")
        and (part.owner_uid == item.uid or part.owner_name == name)
    ]


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


def _target(endpoint: Workload[Serving]) -> str:
    """The name of the revision that is to serve; empty before there is one."""
    detail = detail_of(endpoint)
    revision = detail.revision(detail.target)
    return "" if revision is None else revision.name


def _is_to_run(endpoint: Workload[Serving]) -> bool:
    return endpoint.intent is Intent.RUN and endpoint.status.phase is Phase.RUNNING


def _digest_of(item: _EngineObject) -> str | None:
    digest: str | None = (item.content["metadata"].get("annotations") or {}).get(GIVEN)
    return digest


def _read(content: dict[str, Any]) -> _EngineObject | None:
    metadata = content["metadata"]
    uid, owner = (metadata.get("labels") or {}).get(names.ENDPOINT_UID), names.controller_of(metadata)
    if uid is None:
        return None
    about = {name: metadata.get(name) for name in ("name", "namespace", "generation", "labels", "annotations")}
    return _EngineObject(
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=int(metadata["resourceVersion"]),
        uid=str(metadata["uid"]),
        endpoint_uid=str(uid),
        owner_uid=str(owner.get("uid") or ""),
        owner_name=str(owner.get("name") or ""),
        content={"metadata": about, **{name: content.get(name) for name in KEPT}},
        is_leaving="deletionTimestamp" in metadata,
    )
