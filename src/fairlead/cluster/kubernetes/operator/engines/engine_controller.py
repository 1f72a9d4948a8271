"""Creates and deletes the one engine object for each attempt of a run that has an engine.

Level-triggered and stateless: an object's name follows from the run and the number of the attempt, so an operator that
takes over finds it; there is never a second one, since none is created while an older one exists.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.api.objects import MODEL_LABELS, NodeObject
from fairlead.cluster.kubernetes.devices import DeviceResource, whole_resource
from fairlead.cluster.kubernetes.engines.port import EngineStage, Object, Submission, words
from fairlead.cluster.kubernetes.engines.table import driver_of, path_of
from fairlead.cluster.kubernetes.informers.engine_objects import EngineObject
from fairlead.cluster.kubernetes.manifests.pods import PodSettings
from fairlead.cluster.kubernetes.manifests.workdir import archive_place, part_names
from fairlead.cluster.kubernetes.names import controller_of, segment
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.controller import Controller, PassStage, Turn
from fairlead.cluster.kubernetes.operator.pods import pod_rejections as refusals
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.cluster.kubernetes.workloads.run_record import Gang, TrainingObject
from fairlead.policy.placement.device_matching import matches
from fairlead.specs.engines import Engine
from fairlead.specs.training import Training
from fairlead.state.snapshot import Phase, Pod, PodPhase

log = logging.getLogger(__name__)

# An API server that has just started does not know every kind and role yet; what is really missing stays missing.
PATIENCE_S = 5.0
# How long an engine may take to create its pods before Events are read for the reason, and how often they are read.
ASK_AFTER_S, ASK_EVERY_S = 5.0, 10.0


class EngineController(Controller):
    """Manages the engine objects of runs for the operator.

    Args:
        settings: The cluster's settings for all pods.
        may_act: Returns whether this process still leads; asked before each request.
        create_s: Seconds after which a creation is no longer attempted, as for pods.
    """

    name = "engines"
    stage = PassStage.FOLLOWING

    def __init__(
        self,
        cluster: KubernetesCluster,
        agent: PodAgent,
        settings: PodSettings,
        *,
        may_act: Callable[[], bool],
        create_s: float,
    ) -> None:
        self._cluster = cluster
        self._view = cluster.view
        self._client = cluster.client
        self._agent = agent
        self._settings = settings
        self._may_act = may_act
        self._create_s = create_s
        self._marks = self._view.marks()
        self._unsettled: set[str] = set()
        self._missing_since: dict[Engine, float] = {}
        self._asked_at: dict[str, float] = {}

    @property
    def is_busy(self) -> bool:
        """Return whether anything is still to be done or checked again."""
        return bool(self._unsettled)

    def act(self, turn: Turn) -> None:
        """Queue the work that changed runs need."""
        now = turn.now
        changed, _ = self._marks.take()
        for uid in changed | self._unsettled:
            item = self._view.find(uid)
            engine = None if item is None or item.workload is None else item.workload.spec.engine
            is_settled = item is None or engine is None
            if item is not None and engine is not None:
                with self._view.isolation.of(f"{engine} of {item.kind} {item.key}"):
                    is_settled = self._look_after(item, engine, now)
            if is_settled:
                self._unsettled.discard(uid)
            else:
                self._unsettled.add(uid)

    def _look_after(self, item: TrainingObject, engine: Engine, now: float) -> bool:
        """Queue the work that one run needs; return whether only a change can bring more."""
        gang, run = item.state.gang, item.workload
        if gang is None or run is None:
            return True
        self._view.engines.watch(run.spec, item.uid)
        if not self._view.engines.is_ready(run.spec):
            return self._bear_missing(item, gang, engine, now)
        self._missing_since.pop(engine, None)
        objects = self._view.engines.of_run(item.uid)
        is_told = any(notice.pod_uid.startswith(f"{item.uid}-{gang.attempt}-") for notice in item.state.notices)
        going = [engine_object for attempt, engine_object in objects.items() if attempt != gang.attempt or is_told]
        for engine_object in going:
            if not engine_object.is_leaving:
                name = f"delete {engine_object.engine} {engine_object.key} {engine_object.uid}"
                self._agent.submit(item.uid, name, partial(self._delete, engine_object))
        if gang.attempt in objects and not going:
            unfit = _unfit_elsewhere(item, run.spec, objects[gang.attempt])
            if unfit is not None:
                return self._withdraw(item, gang, objects[gang.attempt], unfit)
            return self._is_explained(item, gang, objects[gang.attempt], now)
        if going or is_told or gang.created or not _is_wanted(item, gang):
            return not going
        if self._view.over(item.uid):
            return True  # it was refused, which the loop is to know
        name = f"hand {item.key}-{gang.attempt} to {engine}"
        self._agent.submit(item.uid, name, partial(self._create, item.uid, gang.attempt))
        return False

    def _is_explained(self, item: TrainingObject, gang: Gang, engine_object: EngineObject, now: float) -> bool:
        """Read why an engine does not create all pods if no reason is known; return whether nothing is left to read."""
        is_late = item.state.status.phase is Phase.STARTING and engine_object.observed.stage is EngineStage.WAITING
        num_pods = sum(pod.attempt == gang.attempt for pod in self._view.pods_of(item.uid).values())
        if not is_late or num_pods >= len(gang.nodes) or self._view.engines.is_explained(engine_object):
            self._asked_at.pop(item.uid, None)
            return True
        asked_at = self._asked_at.setdefault(item.uid, now - ASK_EVERY_S + ASK_AFTER_S)
        if now - asked_at >= ASK_EVERY_S:
            self._asked_at[item.uid] = now
            self._agent.submit(item.uid, f"ask why {engine_object.key} lacks pods", partial(self._ask, engine_object))
        return False

    def _withdraw(self, item: TrainingObject, gang: Gang, engine_object: EngineObject, why: str) -> bool:
        """End a start that another cluster could not carry out; whether its object is on its way out."""
        if not self._view.over(item.uid):
            self._bury(item, gang, PodPhase.FAILED, why)
        if not engine_object.is_leaving:
            name = f"delete {engine_object.engine} {engine_object.key} {engine_object.uid}"
            self._agent.submit(item.uid, name, partial(self._delete, engine_object))
        return engine_object.is_leaving

    def _ask(self, engine_object: EngineObject) -> None:
        """Record the newest warning of an engine's object, or of what it has created so far."""
        namespace, _, name = engine_object.key.partition("/")
        path = f"/api/v1/namespaces/{segment(namespace)}/events"
        newest: tuple[str, str] = "", ""
        for event in self._client.items(path, {"fieldSelector": "type=Warning"}):
            of = str(event["involvedObject"].get("name") or "")
            if of == name or of.startswith(f"{name}-"):
                at = str(event.get("lastTimestamp") or event.get("eventTime") or "")
                kind = str(event["involvedObject"].get("kind") or "object")
                newest = max(newest, (at, f"its {kind} says {words(event, fallback='nothing')}"))
        if newest[1]:
            self._view.engines.note_warning(engine_object, newest[1])

    def _bear_missing(self, item: TrainingObject, gang: Gang, engine: Engine, now: float) -> bool:
        """Wait for an engine's objects to be listed; end the attempt if the cluster lacks the engine."""
        run = item.workload
        missing = None if run is None else self._view.engines.problem(run.spec)
        if missing is None:
            return not _is_wanted(item, gang)
        since = self._missing_since.setdefault(engine, now)
        if now - since < PATIENCE_S or not _is_wanted(item, gang):
            return False
        self._bury(item, gang, PodPhase.FAILED, missing)
        return True

    def _create(self, uid: str, attempt: int) -> None:
        item = self._view.find(uid)
        flight = (uid, attempt, 0)
        if item is None or not self._view.begin(flight):
            return
        try:
            gang = item.state.gang
            if gang is None or gang.attempt != attempt or not _is_wanted(item, gang) or not self._may_act():
                return
            refused = self._agent.equipping_refusal(item, attempt)
            if refused is not None:
                self._bury(item, gang, *refused)
                return
            latest = self._view.find(uid)
            if latest is not None and latest.state.gang is not None and self._may_act():
                self._post(latest, latest.state.gang)
        finally:
            self._view.finish(flight)

    def _post(self, item: TrainingObject, gang: Gang) -> None:
        run = item.workload
        if run is None or run.spec.engine is None or not _is_wanted(item, gang):
            return
        driver = driver_of(run.spec.engine)
        models = models_of(run.spec, self._view.nodes.all())
        if models is None:
            gpu = run.spec.resources.gpu
            what = "such" if gpu is None or gpu.model is None else gpu.model
            message = (
                f"no node has {what} GPUs by its labels, by which its engine places; correct `resources.gpu`, "
                "or name the nodes under `kubernetes.spec.nodeSelector` and ask for a number of GPUs"
            )
            self._bury(item, gang, PodPhase.FAILED, message)
            return
        files = item.workdir
        settings = replace(self._settings, workdir=part_names(files), archive=archive_place(files))
        device = device_of(run.spec, self._view.nodes.all())
        start = Submission(workload=run, attempt=gang.attempt, settings=settings, device=device, models=models)
        for content in driver.render(start):
            path = path_of(driver, item.namespace, kind=content["kind"])
            try:
                answer = self._client.create(path, content, patience_s=self._create_s)
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    phase, message = refusals.explain(error, item.namespace, kind=content["kind"])
                    if phase is None:
                        raise
                    self._bury(item, gang, phase, message)
                    return
                answer = self._client.get(f"{path}/{segment(content['metadata']['name'])}")
                if controller_of(answer["metadata"]).get("uid") != item.uid:
                    self._bury(item, gang, PodPhase.FAILED, _taken(content))
                    return
        self._view.engines.put(run.spec.engine, answer)

    def _delete(self, engine_object: EngineObject) -> None:
        if not self._may_act():
            return
        driver = driver_of(engine_object.engine)
        namespace, _, name = engine_object.key.partition("/")
        # It stays until all of its pods are gone, so that nothing it owns creates new pods that nobody needs.
        options = {"propagationPolicy": "Foreground", "preconditions": {"uid": engine_object.uid}}
        for kind in driver.beside:
            self._remove(path_of(driver, namespace, name, kind=kind), {"propagationPolicy": "Background"})
        content = self._remove(path_of(driver, namespace, name), options)
        if content is not None and content.get("kind") == driver.kind and "deletionTimestamp" in content["metadata"]:
            self._view.engines.put(engine_object.engine, content)

    def _remove(self, path: str, options: Object) -> Object | None:
        """Delete an object; return None if it is gone already, or another one has its name."""
        try:
            return self._client.delete(path, options)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return None

    def _bury(self, item: TrainingObject, gang: Gang, phase: PodPhase, message: str) -> None:
        """Record the end of all members of an attempt that never came to be."""
        for index in range(len(gang.nodes)):
            member = gang.member(index)
            self._view.bury(
                Pod(
                    uid=f"{item.uid}-{gang.attempt}-{index}",
                    workload_uid=item.uid,
                    attempt=gang.attempt,
                    index=index,
                    node="",
                    grant=member.grant,
                    phase=phase,
                    created_at=time.time(),
                    message=message,
                )
            )


def models_of(spec: Training, nodes: Iterable[NodeObject]) -> tuple[tuple[str, str], ...] | None:
    """Return the labels of nodes with the GPUs that a run requests; none for any node, None if no node has them."""
    gpu = spec.resources.gpu
    if gpu is None or (gpu.model is None and gpu.min_memory_bytes is None):
        return ()
    labels: set[tuple[str, str]] = set()
    for node in nodes:
        key = next((label for label in MODEL_LABELS if label in node.labels), None)
        if key is not None and matches(node.gpu_model, node.gpu_memory_bytes, gpu.model, gpu.min_memory_bytes):
            labels.add((key, node.labels[key]))
    return tuple(sorted(labels)) or None


def device_of(spec: Training, nodes: Iterable[NodeObject]) -> DeviceResource | None:
    """Return the resource a pod requests for its GPUs: what the nodes with them offer, NVIDIA's where none does."""
    gpu = spec.resources.gpu
    if gpu is None:
        return None
    offered = {
        name
        for node in nodes
        if matches(node.gpu_model, node.gpu_memory_bytes, gpu.model, gpu.min_memory_bytes)
        for name, count in node.allocatable.devices
        if count
    }
    return DeviceResource(name=whole_resource(offered), count=gpu.num_devices)


def _unfit_elsewhere(item: TrainingObject, spec: Training, engine_object: EngineObject) -> str | None:
    """Tell why a run cannot be carried out by the cluster to which MultiKueue sends it; None where it can."""
    if not engine_object.is_dispatched or item.state.status.phase is not Phase.STARTING:
        return None
    if engine_object.engine is not Engine.KUEUE:
        return (
            f"queue {spec.queue} sends what it admits to other clusters with MultiKueue, where pods of "
            f"`engine: {engine_object.engine}` lack what Fairlead gives them here; use `engine: kueue`, "
            "or another queue"
        )
    if part_names(item.workdir):
        return (
            f"queue {spec.queue} sends what it admits to other clusters with MultiKueue, and the files of `workdir` "
            "are kept in this one; build them into `image` and leave `workdir` out, or use another queue"
        )
    return None


def _is_wanted(item: TrainingObject, gang: Gang) -> bool:
    """Return whether the attempt is the run's current one, and is not over."""
    status = item.state.status
    return gang.attempt == status.attempt and status.phase in (Phase.STARTING, Phase.RUNNING)


def _taken(content: Object) -> str:
    kind, name = content["kind"], content["metadata"]["name"]
    return f"a {kind} named {name} exists that Fairlead did not create; delete it, or give the run another name"
