"""Creates placeholders for the runs that request nodes, and deletes them when they have to give way.

Where the Cluster Autoscaler acts on ProvisioningRequests, a run has one of these in their place. Level-triggered: the
wanted state is in the runs' objects, the actual one in the cluster. Placeholders and requests belong to their Training,
so none outlives it. Kept only in memory: why they were refused, and what the autoscaler reports.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.devices import SHARED, WHOLE, DeviceResource, whole_resource
from fairlead.cluster.kubernetes.informers.autoscalers import (
    Autoscalers,
    gpu_labels,
    prices_within,
    spot_labels,
)
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.manifests.capacity_objects import (
    REQUESTS,
    REQUESTS_VERSION,
    render_pod_template,
    render_provisioning_request,
    request_name,
)
from fairlead.cluster.kubernetes.manifests.placeholders import render_placeholder
from fairlead.cluster.kubernetes.manifests.pods import PodSettings
from fairlead.cluster.kubernetes.names import ROOM_FOR, segment
from fairlead.cluster.kubernetes.operator.controller import Controller, PassStage, Turn
from fairlead.cluster.kubernetes.operator.placeholders.capacity_objects import (
    SILENT_S,
    CapacityObject,
    CapacityObjects,
)
from fairlead.cluster.kubernetes.operator.placeholders.placeholder_pods import delete_placeholder
from fairlead.cluster.kubernetes.operator.pods import pod_rejections as refusals
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.cluster.kubernetes.operator.pods.pod_events import newest
from fairlead.errors import ClusterError
from fairlead.policy.placement.device_matching import matches
from fairlead.policy.scaling.scale_up import requested_pods
from fairlead.specs.resources import GpuRequest
from fairlead.state.capacity_requests import PATIENCE_S, CapacityRequest, Growth
from fairlead.state.snapshot import WHOLE_MILLI, Phase, Snapshot, Workload

log = logging.getLogger(__name__)

# The quota controller notices within a second or two that a pod is gone.
MAKING_WAY_S = 10.0
# A refusal is reported by then, and the next attempt comes when the run requests nodes again.
REFUSAL_KEPT_S = 30.0
LISTEN_EVERY_S = 20.0
AUTOSCALERS = ("karpenter", "cluster-autoscaler")
# Conditions of a ProvisioningRequest for which no more nodes come, or whose nodes are not held any longer.
ENDED = ("Failed", "CapacityRevoked", "BookingExpired")


class PlaceholderController(Controller):
    """Manages the placeholders of all runs; those of Pools belong to another controller.

    Args:
        may_act: Returns whether this process still leads; asked before each request that creates something.
        silent_s: Time after which a ProvisioningRequest without a condition counts as unanswered.
    """

    name = "placeholders"
    stage = PassStage.FOLLOWING

    def __init__(
        self,
        view: Informers,
        autoscalers: Autoscalers,
        settings: PodSettings,
        *,
        may_act: Callable[[], bool] = lambda: True,
        silent_s: float = SILENT_S,
    ) -> None:
        self._view = view
        self._client: Client = view.client
        self._autoscalers = autoscalers
        self._requests = CapacityObjects(
            view.client,
            REQUESTS,
            REQUESTS_VERSION,
            ROOM_FOR,
            wake=view.wake,
            may_act=may_act,
            isolation=view.isolation,
            is_ours=view.owns,
            silent_s=silent_s,
        )
        self._may_request = False
        self._settings = settings
        self._may_act = may_act
        self._lock = threading.Lock()
        self._held: dict[str, dict[str, PodObject]] = defaultdict(dict)
        self._refused: dict[str, tuple[str, float]] = {}
        self._obstacles: dict[str, str] = {}
        self._listened: dict[str, float] = {}
        self._gave_way: dict[str, float] = {}
        self._cleared: dict[str, int] = {}
        self.is_watching = False
        """True while there may be work without any change: a run requests nodes, or a request has to go."""
        view.pods.listen(self._pod_changed)

    def outlook(self, runs: Iterable[Workload]) -> tuple[Growth | None, tuple[CapacityRequest, ...]]:
        """Return what may add nodes for these runs, and the state of the requests for them.

        Raises:
            ClusterError: It cannot be determined now.
        """
        now = time.time()
        self._autoscalers.look(runs, now)
        growth = self._autoscalers.growth
        if growth is not None and growth.by_request and not self._requests.is_used(now):
            growth = replace(growth, by_request=False)
        with self._lock:
            known = {*self._refused, *self._requests.known, *(uid for uid in self._held if self._held_of(uid))}
            return growth, tuple(self._request_of(uid) for uid in sorted(known))

    def extend(self, snapshot: Snapshot, now: float) -> Snapshot:
        growth, requests = self.outlook(snapshot.workloads)
        return (
            snapshot
            if growth is None and not requests
            else replace(snapshot, growth=growth, capacity_requests=requests)
        )

    @property
    def is_behind(self) -> bool:
        return self.is_watching

    def is_making_way(self, uid: str) -> bool:
        """Return whether placeholders of a run are about to free enough of a quota for its pods."""
        return time.monotonic() - self._gave_way.get(uid, -MAKING_WAY_S) < MAKING_WAY_S

    def act(self, turn: Turn) -> None:
        """Queue the work that is due."""
        agent, now = turn.agent, turn.now
        if not turn.is_news:
            return
        runs = [item.workload for item in self._view.runs() if item.workload is not None]
        try:
            if self._autoscalers.look(runs, now):
                self._view.wake()
        except ClusterError as error:
            log.warning("whether the cluster can grow is not known: %s", error)
        requested = {run.uid: indexes for run in runs if (indexes := requested_pods(run))}
        wanted = {run.uid: run for run in runs if run.uid in requested}
        self.is_watching = bool(wanted) or not self._requests.is_clear
        with self._lock:
            held = {uid: pods for uid in self._held if (pods := self._held_of(uid))}
            self._refused = {
                uid: (why, at) for uid, (why, at) in self._refused.items() if uid in wanted or now - at < REFUSAL_KEPT_S
            }
            self._obstacles = {uid: reason for uid, reason in self._obstacles.items() if uid in wanted}
            self._listened = {uid: at for uid, at in self._listened.items() if uid in wanted}
            self._gave_way = {uid: at for uid, at in self._gave_way.items() if self.is_making_way(uid)}
        self._request(agent, wanted, held, now)
        starting = self._newly_taken(runs) if held else frozenset()
        for uid, pods in held.items():
            for pod in pods.values():
                is_needed = pod.index in requested.get(uid, ()) and not pod.is_over and pod.node not in starting
                if not is_needed and pod.told_at is None:
                    self._gave_way[uid] = time.monotonic()
                    agent.submit(uid, f"take away {pod.key} {pod.uid}", partial(delete_placeholder, self._view, pod))
        for uid, run in wanted.items():
            existing = {pod.index for pod in held.get(uid, {}).values()}
            if uid not in self._refused and (existing or not self._may_request):
                for index in requested[uid]:
                    if index not in existing:
                        agent.submit(uid, f"hold room {uid} {index}", partial(self._create, run, index))
            self._listen(agent, uid, held.get(uid, {}), now)

    def _request(
        self, agent: PodAgent, wanted: Mapping[str, Workload], held: Mapping[str, Mapping[str, PodObject]], now: float
    ) -> None:
        """Keep a ProvisioningRequest for each run that requests nodes and has no placeholder, where they are used."""
        if not wanted and self._requests.is_clear:
            return
        growth = self._autoscalers.growth
        try:
            self._may_request = (growth is None or growth.by_request) and self._requests.is_used(now)
        except ClusterError as error:
            log.warning("whether ProvisioningRequests are served is not known: %s", error)
            return
        asking = {uid: run for uid, run in wanted.items() if uid not in held} if self._may_request else {}
        is_known = self._requests.follow(agent, asking, now)
        for uid, run in asking.items():
            if is_known and uid not in self._requests.known and uid not in self._refused:
                pod = self._placeholder(run, 0)
                template = render_pod_template(pod, request_name(run))
                valid_s = PATIENCE_S if growth is None else growth.patience_s
                body = render_provisioning_request(template, len(requested_pods(run)), valid_s)
                # Nodes for pods that the namespace refuses would be of no use; a quota is asked about one member.
                self._requests.put(agent, uid, template, body, partial(self._is_accepted, run, pod))

    def _newly_taken(self, runs: Iterable[Workload]) -> frozenset[str]:
        """Return nodes on which a gang starts, so that placeholders there leave before kube-scheduler evicts them.


        Each attempt is reported once, since a placeholder that is created later may fit beside it.
        """
        taken: set[str] = set()
        starting = {run.uid: run.status.attempt for run in runs if run.status.phase is Phase.STARTING}
        for uid, attempt in starting.items():
            run_object = self._view.find(uid)
            if run_object is not None and run_object.state.gang is not None and self._cleared.get(uid) != attempt:
                taken.update(run_object.state.gang.nodes)
        self._cleared = starting
        return frozenset(taken)

    def _request_of(self, uid: str) -> CapacityRequest:
        request = self._requests.known.get(uid)
        held = self._held_of(uid)
        if request is not None and not held:
            return read_request(uid, request)
        bound = [pod.bound_at for pod in held.values() if pod.bound_at is not None]
        refused = self._refused.get(uid)
        return CapacityRequest(
            workload_uid=uid,
            bound_at=max(bound, default=None),
            refused=refused[0] if refused is not None else None,
            obstacle=self._obstacles.get(uid),
        )

    def _held_of(self, uid: str) -> dict[str, PodObject]:
        """Return the placeholders of a run, without those that only say so; call with the lock held."""
        key = self._view.key_of(uid)
        return {name: pod for name, pod in self._held.get(uid, {}).items() if key is None or pod.run_key == key}

    def _pod_changed(self, before: PodObject | None, after: PodObject | None) -> None:
        for pod, is_there in ((before, False), (after, True)):
            if pod is None or not pod.room_for or pod.pool:
                continue
            with self._lock:
                if is_there:
                    self._held[pod.room_for][pod.key] = pod
                else:
                    self._held[pod.room_for].pop(pod.key, None)
                    if not self._held[pod.room_for]:
                        del self._held[pod.room_for]

    def _create(self, run: Workload, index: int) -> None:
        run_object = self._view.find(run.uid)
        if run_object is None or run_object.workload is None or not self._may_act():
            return
        if index not in requested_pods(run_object.workload):
            return
        pod = self._placeholder(run_object.workload, index)
        try:
            self._view.pods.put(self._client.create(f"/api/v1/namespaces/{segment(run_object.namespace)}/pods", pod))
        except ApiError as error:
            if error.reason == "AlreadyExists":
                return  # being deleted, or of a previous run of that name: the next pass finds it gone
            self._note_refusal(run, error)

    def _is_accepted(self, run: Workload, pod: dict[str, Any]) -> bool:
        """Return whether the API server would create a member of the gang."""
        try:
            self._client.create(f"/api/v1/namespaces/{segment(run.spec.team)}/pods", pod, {"dryRun": "All"})
        except ApiError as error:
            if error.reason == "AlreadyExists":
                return True
            self._note_refusal(run, error)
            return False
        return True

    def _note_refusal(self, run: Workload, error: ApiError) -> None:
        phase, message = refusals.explain(error, run.spec.team, num_pods=run.spec.nodes)
        if phase is None:
            raise error
        with self._lock:
            self._refused[run.uid] = (message, time.time())
        self._view.wake()

    def _placeholder(self, run: Workload, index: int) -> dict[str, Any]:
        gpu = run.spec.resources.gpu
        device = None if gpu is None else self._device(gpu)
        labels = [] if gpu is None or gpu.model is None else gpu_labels(self._autoscalers.pools, gpu.model)
        # With `spot: auto` nodes are requested only once the deadline requires on-demand ones.
        shunned = () if run.spec.capacity.spot and not run.spec.capacity.auto else spot_labels(self._autoscalers.pools)
        most = run.spec.capacity.max_price
        return render_placeholder(
            run,
            index,
            self._settings,
            device=device,
            labels=labels,
            shunned=shunned,
            prices=None if most is None else prices_within(self._autoscalers.pools, most),
        )

    def _device(self, gpu: GpuRequest) -> DeviceResource:
        """Return the resource that existing nodes offer; without any, NVIDIA's name, which most new nodes use."""
        offered = {
            name
            for node in self._view.nodes.all()
            if matches(node.gpu_model, 0, gpu.model, None)
            for name, _ in node.allocatable.devices
        }
        if gpu.milli < WHOLE_MILLI:
            return DeviceResource(name=SHARED if SHARED in offered else WHOLE[0], count=1)
        return DeviceResource(name=whole_resource(offered), count=gpu.num_devices)

    def _listen(self, agent: PodAgent, uid: str, pods: Mapping[str, PodObject], now: float) -> None:
        """Periodically read what the autoscaler reports of a placeholder without a node."""
        growth = self._autoscalers.growth
        every_s = LISTEN_EVERY_S if growth is None else min(LISTEN_EVERY_S, growth.patience_s / 3)
        homeless = sorted(pod.key for pod in pods.values() if not pod.node)
        if not homeless:
            self._note(uid, None)
        elif now - self._listened.setdefault(uid, now) >= every_s:
            self._listened[uid] = now
            agent.submit(uid, f"ask what is said of {homeless[0]}", partial(self._hear, uid, pods[homeless[0]]))

    def _hear(self, uid: str, pod: PodObject) -> None:
        event = newest(self._client, pod, by=AUTOSCALERS)
        if event is None:
            return
        if event.get("type") != "Warning" and event.get("reason") != "NotTriggerScaleUp":
            self._note(uid, None)  # a node is being added
            return
        # Karpenter appends a long description of the placeholder.
        words = str(event.get("message") or "").partition(", requirements=")[0]
        self._note(uid, " ".join(words.split()).rstrip(".")[:400])

    def _note(self, uid: str, message: str | None) -> None:
        with self._lock:
            is_news = self._obstacles.get(uid) != message
            self._obstacles.pop(uid, None)
            if message is not None:
                self._obstacles[uid] = message
        if is_news:
            self._view.wake()


def read_request(uid: str, request: CapacityObject) -> CapacityRequest:
    """Return how far a ProvisioningRequest is, by the conditions that the Cluster Autoscaler writes."""
    ended = next(
        (condition for name in ENDED if (condition := request.conditions.get(name)) and condition.is_true), None
    )
    provisioned = request.conditions.get("Provisioned")
    if ended is None and provisioned is not None and provisioned.is_true:
        return CapacityRequest(workload_uid=uid, bound_at=provisioned.since)
    # Until it is fulfilled, the condition says why the latest try has failed.
    hindrance = ended or provisioned
    return CapacityRequest(workload_uid=uid, obstacle=None if hindrance is None else hindrance.message)
