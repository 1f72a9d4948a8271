"""Creates and deletes the pods of gangs for the operator.

It works from the objects and keeps no state that matters; another operator may continue after this one is killed.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.devices import resource_of
from fairlead.cluster.kubernetes.lease_contents import DURATION_S
from fairlead.cluster.kubernetes.manifests import driver_bundle, workspaces
from fairlead.cluster.kubernetes.manifests.conditions import READY
from fairlead.cluster.kubernetes.manifests.endpoint_weights import render_weights_key, render_weights_service
from fairlead.cluster.kubernetes.manifests.network_policies import render_run_policy
from fairlead.cluster.kubernetes.manifests.pod_environment import has_shared_weights
from fairlead.cluster.kubernetes.manifests.pods import PodSettings, render_pod
from fairlead.cluster.kubernetes.manifests.run_keys import render_key
from fairlead.cluster.kubernetes.manifests.runtime_bundle import render_bundle
from fairlead.cluster.kubernetes.manifests.services import render_service
from fairlead.cluster.kubernetes.manifests.workdir import archive_place, part_names
from fairlead.cluster.kubernetes.names import is_alone, pod_name, segment
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster, RefusedWrite
from fairlead.cluster.kubernetes.operator.leader_election import DEADLINE_S
from fairlead.cluster.kubernetes.operator.pods import pod_rejections as refusals
from fairlead.cluster.kubernetes.operator.pods.gang_groups import GangGroups
from fairlead.cluster.kubernetes.operator.pods.network_leftovers import NetworkLeftovers, has_no_network
from fairlead.cluster.kubernetes.operator.pods.pod_actions import Create, Delete, Order, Verify, is_settled, orders
from fairlead.cluster.kubernetes.operator.pods.pod_dns import Addressing
from fairlead.cluster.kubernetes.operator.request_dispatch import Dispatcher
from fairlead.cluster.kubernetes.workloads.run_record import Gang, TrainingObject
from fairlead.cluster.origins import is_run_name
from fairlead.errors import ClusterError
from fairlead.policy.placement.networks import Endowment, FabricShare, connect
from fairlead.policy.placement.topology import domains_of
from fairlead.runtime.run_key import new_key
from fairlead.specs.serving import Replica
from fairlead.state.plan import CreatePod
from fairlead.state.pod_uids import pod_uid
from fairlead.state.snapshot import Grant, Phase, Pod, PodPhase, Workload, is_workspace

log = logging.getLogger(__name__)

# The least time between two writes that only record progress or a lost pod.
REFRESH_S = 10.0
# The runtime is large and shared by all runs of a namespace, so first attempts write it again only after this time.
PROVIDE_S = 10.0
# With fewer, the work that follows from a gang's first pods occupies a busy API server before its last pods are
# created. Kubernetes' own Job controller creates up to 500 at once, and API servers admit 200 writes, fairly shared.
NUM_THREADS = 128
MOST_REPORTS = 2
"""Reports of one kind about one namespace that are sent at once, so that a tenant's thousands of refused objects, and
their Events, do not fill an API server that others wait for."""
OF_A_RUN = (
    "is the name of a run, whose place `fairlead run` looks up; in an object give the place itself, a URL or a "
    "directory of a volume"
)
VANISHED = "its pod disappeared while no operator was running"


class _NotEquippedError(ClusterError):
    """The API server refuses an object that pods need."""

    def __init__(self, kind: str, refusal: ApiError) -> None:
        super().__init__(f"{kind}: {refusal}")
        self.kind = kind
        self.refusal = refusal

    @property
    def concerns_all(self) -> bool:
        return self.refusal.concerns_all


class PodAgent:
    """Carries out the actions that follow from the runs' objects.

    Args:
        settings: The cluster's settings for all pods.
        may_act: Returns whether this process still leads; asked before each request that creates something.
        is_making_way: Returns whether a run's quota still counts deleted pods of it, so that a refusal will pass.
        create_s: Seconds after which a creation is no longer attempted: those for which the Lease outlives ``may_act``,
            since the next leader does not know the requests under way here.
    """

    def __init__(
        self,
        cluster: KubernetesCluster,
        settings: PodSettings,
        *,
        may_act: Callable[[], bool] = lambda: True,
        is_making_way: Callable[[str], bool] = lambda _: False,
        create_s: float = DURATION_S - DEADLINE_S,
        num_threads: int = NUM_THREADS,
    ) -> None:
        self._cluster = cluster
        self._view = cluster.view
        self._client = cluster.client
        self._settings = settings
        self._may_act = may_act
        self._is_making_way = is_making_way
        self._work = Dispatcher(num_threads, refused=self._note_refusal)
        self._leftovers = NetworkLeftovers(cluster, may_act=may_act)
        self._addressing = Addressing(self._client, self._work.submit)
        self._groups = GangGroups(cluster, self._work.submit, may_act=may_act)
        self._create_s = create_s
        self._marks = self._view.marks()
        self._unsettled: set[str] = set()
        self._equipping: dict[str, threading.Lock] = {}
        self._equipped: dict[str, int] = {}
        self._refreshed: dict[str, float] = {}
        self._providing: dict[str, threading.Lock] = {}
        self._provided: dict[str, float] = {}

    def act(self, now: float) -> None:
        """Queue the work that is due; threads do it, and the watches show when it is done.

        Only runs that have changed are considered, and those for which time alone may bring actions.
        """
        self._groups.look()
        changed, _ = self._marks.take()
        for uid in changed | self._unsettled:
            run_object = self._view.find(uid)
            if run_object is None:
                self._forget(uid)
                continue
            is_settled = False
            with self._view.isolation.of(f"pods of {run_object.kind} {run_object.key}"):
                is_settled = run_object.workload is None or self._look_after(run_object, now)
            if is_settled:
                self._unsettled.discard(uid)
            else:
                self._unsettled.add(uid)
        self._leftovers.act(self._work.submit, self.unequip)
        for parent in self._view.parent_objects():
            if parent.is_unobserved:
                # Tools wait for the generation, also of an edit that changes no decision.
                name = f"observe generation {parent.generation} of {parent.key}"
                self._work.submit(parent.uid, name, partial(self._observe, parent.uid))

    def _look_after(self, run_object: TrainingObject, now: float) -> bool:
        """Queue the work that one run needs; return whether only a change can bring more."""
        members = self._view.members(run_object)
        objects = self._view.pods_of(run_object.uid)
        nodes = self._view.nodes_of(objects.values())
        is_creating = self._work.is_waiting(run_object.uid)
        engine_objects = self._view.engines.of_run(run_object.uid)
        actions = orders(
            run_object, members, objects, nodes, now, is_creating=is_creating, engine_attempts=engine_objects
        )
        for order in actions:
            self._give(run_object, order)
        is_known = self._addressing.look(run_object, objects, now)
        is_grouped = self._groups.look_after(run_object, members, objects.values())
        is_done = is_known and is_grouped and not actions
        # Queued work may fail silently, so it is checked again.
        return self._refresh(run_object, members, now) and is_done and is_settled(run_object, members)

    def _forget(self, uid: str) -> None:
        self._unsettled.discard(uid)
        self._addressing.forget(uid)
        self._groups.forget(uid)
        self._equipped.pop(uid, None)
        self._equipping.pop(uid, None)
        self._refreshed.pop(uid, None)

    def submit(self, run: str, name: str, job: Callable[[], None]) -> None:
        """Queue other work for a run."""
        self._work.submit(run, name, job)

    def report(self, kind: str, namespace: str, name: str, job: Callable[[], None]) -> None:
        """Queue a request that only tells something about an object of a namespace; few of each run at once."""
        self._work.submit(f"{kind} of {namespace}", name, job, most=MOST_REPORTS)

    def _note_refusal(self, run: str, message: str) -> None:
        if self._view.find_any(run) is not None:
            self._cluster.note_refusal(run, RefusedWrite.REQUEST, message)

    @property
    def refused(self) -> set[str]:
        """The uids of the objects about which the latest request failed, or names of other work."""
        return self._work.refused

    @property
    def is_busy(self) -> bool:
        """Return whether time alone may bring actions."""
        return bool(self._unsettled) or self._work.num_waiting > 0

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is queued or running; return False after the timeout."""
        return self._work.drain(timeout_s)

    @property
    def num_waiting(self) -> int:
        """The number of pending and running requests."""
        return self._work.num_waiting

    def close(self) -> None:
        """Accept no more work."""
        self._work.stop()

    def _give(self, run_object: TrainingObject, order: Order) -> None:
        if isinstance(order, Create):
            name = f"create {pod_uid(run_object.key, order.attempt, order.index, order.replacement)}"
            self._work.submit(run_object.uid, name, partial(self._create, run_object, order))
        elif isinstance(order, Delete):
            name = f"delete {order.key} {order.uid} within {order.grace_s} s"
            self._work.submit(run_object.uid, name, partial(self._delete, order))
        else:
            name = f"look for {pod_uid(run_object.key, order.attempt, order.index, order.replacement)}"
            self._work.submit(run_object.uid, name, partial(self._verify, run_object, order))

    def _create(self, run_object: TrainingObject, order: Create) -> None:
        current = self._view.find(run_object.uid)
        flight = (run_object.uid, order.attempt, order.index)
        if current is None or not self._view.begin(flight):
            return
        try:
            if self._is_wanted(current, order) and self._may_act() and not self._is_equipped(current, order):
                return
            latest = self._view.find(run_object.uid)
            if latest is not None and self._is_wanted(latest, order) and self._may_act():
                self._post(latest, order.index)
        finally:
            self._view.finish(flight)

    def _is_wanted(self, run_object: TrainingObject, order: Create) -> bool:
        """Return whether the object still needs the pod when its request is about to be sent."""
        gang, run = run_object.state.gang, run_object.workload
        if gang is None or run is None:
            return False
        uid = pod_uid(run_object.uid, order.attempt, order.index, order.replacement)
        name = pod_name(run.spec, order.attempt, order.index, order.replacement)
        pod = self._view.pods.get(f"{run_object.namespace}/{name}")
        return (
            gang.has(order.attempt, order.index, order.replacement)
            and gang.attempt == run.status.attempt
            # The request may have been queued while the same request was running.
            and (pod is None or self._view.run_of(pod) != run_object.uid)
            and run.status.phase in (Phase.STARTING, Phase.RUNNING)
            and all(notice.pod_uid != uid for notice in run_object.state.notices)
        )

    def equipping_refusal(self, run_object: TrainingObject, attempt: int) -> tuple[PodPhase, str] | None:
        """Create the objects that the pods of an attempt need; return how the pods ended if that is refused.

        Raises:
            ClusterError: It is not known whether they exist.
        """
        try:
            self._equip(run_object, attempt)
        except _NotEquippedError as error:
            phase, message = refusals.explain(error.refusal, run_object.namespace, kind=error.kind)
            if phase is None:
                raise
            return phase, message
        return None

    def _is_equipped(self, run_object: TrainingObject, order: Create) -> bool:
        """Create the objects that the pod needs; return False if that is refused, as the pod might be."""
        refused = self.equipping_refusal(run_object, order.attempt)
        if refused is not None and run_object.state.gang is not None:
            self._bury(run_object, run_object.state.gang.member(order.index), *refused)
        return refused is None

    def _equip(self, run_object: TrainingObject, attempt: int) -> None:
        """Create the objects that the pods of an attempt need, once for each attempt, as they may have been deleted.

        They are the runtime, for a workspace its process and the claim of its home, for several pods the Service that
        gives them names and the policy that lets them communicate, and the key by which ranks know each other.
        """
        if self._equipped.get(run_object.uid) == attempt or run_object.workload is None:
            return
        place = f"namespaces/{segment(run_object.namespace)}"
        with self._equipping.setdefault(run_object.uid, threading.Lock()):
            if self._equipped.get(run_object.uid) == attempt:
                return
            wanted = {}
            if not is_alone(run_object.workload.spec):
                wanted[f"/api/v1/{place}/services"] = render_service(run_object.workload)
            if not self._is_isolated(run_object.workload):
                policy = render_run_policy(run_object.workload, self._settings.system)
                wanted[f"/apis/networking.k8s.io/v1/{place}/networkpolicies"] = policy
            if wanted:
                self._leftovers.note(run_object.uid)
            # All pods wait for them, so they are requested together.
            if run_object.workload.spec.has_rendezvous:
                wanted[f"/api/v1/{place}/secrets"] = render_key(run_object.workload, attempt, new_key())
            if has_shared_weights(run_object.workload):
                wanted |= self._of_weights(run_object.workload, place)
            with ThreadPoolExecutor(4, thread_name_prefix="equip") as at_once:
                futures = [at_once.submit(self._ensure, path, content) for path, content in wanted.items()]
                futures.append(at_once.submit(self._groups.choose, run_object, attempt, self._trial_pod))
                self._provide(run_object.namespace, anew=attempt > 0)
                if driver_bundle.is_driver(run_object.workload.spec):
                    driver = driver_bundle.render_bundle(run_object.namespace)
                    self._ensure(f"/api/v1/{place}/configmaps", driver)
                if is_workspace(run_object.workload):
                    self._ensure(f"/api/v1/{place}/configmaps", workspaces.render_bundle(run_object.namespace))
                    claim = workspaces.render_claim(run_object.workload.spec)
                    self._ensure(f"/api/v1/{place}/persistentvolumeclaims", claim)
                for future in futures:
                    future.result()
            self._equipped[run_object.uid] = attempt

    def _of_weights(self, replica: Workload, place: str) -> dict[str, dict[str, Any]]:
        """Return the objects that the replicas of an endpoint share, by the paths to create them at."""
        return {
            f"/api/v1/{place}/services": render_weights_service(replica),
            f"/api/v1/{place}/secrets": render_weights_key(replica, new_key()),
        }

    def _trial_pod(self, run_object: TrainingObject, group: str) -> dict[str, Any]:
        """Render the first pod of a gang as it will be but for its devices and files, to try what becomes of it."""
        run, gang = run_object.workload, run_object.state.gang
        if run is None or gang is None:
            return {}
        return render_pod(run, gang.member(0), self._settings, group=group)

    def _is_isolated(self, run: Workload) -> bool:
        """Return whether the policies of a team's namespace isolate the run's only pod as its own would."""
        team = self._view.teams.get(run.spec.team)
        is_closed = team is not None and not team.is_leaving and team.is_true(READY)
        return is_closed and is_alone(run.spec) and not isinstance(run.spec, Replica)

    def unequip(self, uid: str, remove: Callable[[], None]) -> None:
        """Call ``remove`` for the network objects of a run, unless it may have pods again."""
        with self._equipping.setdefault(uid, threading.Lock()):
            run_object = self._view.find(uid)
            if run_object is not None and has_no_network(run_object, self._view.pods_of(uid).values()):
                remove()
                self._equipped.pop(uid, None)

    def _provide(self, namespace: str, *, anew: bool) -> None:
        """Create the runtime, which all runs of a namespace share."""
        with self._providing.setdefault(namespace, threading.Lock()):
            now = time.monotonic()
            if anew or now - self._provided.get(namespace, -PROVIDE_S) >= PROVIDE_S:
                self._ensure(f"/api/v1/namespaces/{segment(namespace)}/configmaps", render_bundle(namespace))
                self._provided[namespace] = now

    def _ensure(self, path: str, content: dict[str, Any]) -> None:
        try:
            self._client.create(path, content)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise _NotEquippedError(content["kind"], error) from error

    def _post(self, run_object: TrainingObject, index: int) -> None:
        run, gang = run_object.workload, run_object.state.gang
        if run is None or gang is None:
            return
        member = gang.member(index)
        node = self._view.nodes.get(member.node)
        offered = dict(node.allocatable.devices) if node is not None else {}
        device = resource_of(member.grant.gpu_uuids)
        if device is not None and offered.get(device.name, 0) < device.count:
            self._bury(run_object, member, PodPhase.LOST, f"node {member.node} offers no such GPU any more")
            return
        origin = run.spec.checkpoint.origin
        if origin is not None and is_run_name(origin):
            self._bury(run_object, member, PodPhase.FAILED, f"checkpoint.from: {origin!r} {OF_A_RUN}")
            return
        settings = replace(
            self._settings, workdir=part_names(run_object.workdir), archive=archive_place(run_object.workdir)
        )
        connection = self._connection(run, gang, index)
        if connection is None and run.spec.network.is_required:
            self._bury(run_object, member, PodPhase.LOST, f"node {member.node} offers its `network` no more")
            return
        taints = node.taints if node is not None else ()
        group = self._groups.of(run.uid, member.attempt)
        domains = domains_of(node.labels) if node is not None else None
        pod = render_pod(
            run, member, settings, device=device, taints=taints, connection=connection, group=group, domains=domains
        )
        path = f"/api/v1/namespaces/{segment(run_object.namespace)}/pods"
        try:
            content = self._client.create(path, pod, patience_s=self._create_s)
        except ApiError as error:
            if error.reason == "AlreadyExists":
                self._meet(run_object, member, f"{path}/{segment(pod['metadata']['name'])}")
                return
            phase, message = refusals.explain(error, run_object.namespace, num_pods=len(gang.nodes))
            if phase is None or (phase is PodPhase.REFUSED and self._is_making_way(run_object.uid)):
                raise
            self._bury(run_object, member, phase, message)
            return
        self._view.pods.put(content)

    def _connection(self, run: Workload, gang: Gang, index: int) -> FabricShare | None:
        """Return the fabric of a member, by what the nodes of all members offer now."""
        own = self._view.nodes.get(gang.nodes[index])
        if own is None or not own.extended:
            return None
        grants = [gang.member(number).grant for number in range(len(gang.nodes))]
        nodes = [self._view.nodes.get(name) for name in gang.nodes]
        members = [
            Endowment(labels={}, extended={})
            if node is None
            else Endowment(
                labels=node.labels,
                extended=node.extended,
                num_gpus=sum(count for _, count in node.allocatable.devices),
                num_granted=len(grant.gpu_uuids),
            )
            for node, grant in zip(nodes, grants, strict=True)
        ]
        return connect(run.spec.network, members, index)

    def _meet(self, run_object: TrainingObject, member: CreatePod, path: str) -> None:
        """Handle an existing object of the name: this run's, a previous run's of that name, or anyone's."""
        try:
            content = self._client.get(path)
        except ApiError as error:
            if error.status == 404:
                return
            raise
        pod, name = self._view.pods.put(content), content["metadata"]["name"]
        if pod is None and f"{run_object.namespace}/{name}" in {apart.key for apart in self._view.pods.unreadable}:
            return
        if pod is not None and self._view.run_of(pod) == run_object.uid:
            return
        if pod is not None and pod.run_uid and self._view.find(pod.run_uid) is None:
            self._delete(Delete(key=pod.key, uid=pod.uid, grace_s=1))
            return
        if pod is None or not pod.run_uid:
            message = f"a pod named {name} exists that Fairlead did not create; delete it, or give the run another name"
            self._bury(run_object, member, PodPhase.FAILED, message)

    def _delete(self, order: Delete) -> None:
        namespace, _, name = order.key.partition("/")
        options = {"gracePeriodSeconds": order.grace_s, "preconditions": {"uid": order.uid}}
        try:
            content = self._client.delete(f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}", options)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            # Gone already, or another pod of that name: the watch will show which.
            return
        if content.get("kind") == "Pod" and "deletionTimestamp" in content["metadata"] and order.grace_s:
            self._view.pods.put(content)

    def _verify(self, run_object: TrainingObject, order: Verify) -> None:
        name = pod_uid(run_object.name, order.attempt, order.index, order.replacement)
        try:
            content = self._client.get(f"/api/v1/namespaces/{segment(run_object.namespace)}/pods/{segment(name)}")
        except ApiError as error:
            if error.status != 404:
                raise
        else:
            seen = self._view.pods.put(content)
            if seen is not None and self._view.run_of(seen) == run_object.uid:
                return
        gang = run_object.state.gang
        if gang is not None and gang.has(order.attempt, order.index, order.replacement):
            self._bury(run_object, gang.member(order.index), PodPhase.LOST, VANISHED, is_guess=True)

    def _bury(
        self, run_object: TrainingObject, member: CreatePod, phase: PodPhase, message: str, *, is_guess: bool = False
    ) -> None:
        """Record the end of a pod that has no object."""
        self._view.bury(
            Pod(
                uid=pod_uid(run_object.uid, member.attempt, member.index, member.replacement),
                workload_uid=run_object.uid,
                attempt=member.attempt,
                index=member.index,
                replacement=member.replacement,
                node=member.node,
                grant=replace(member.grant) if member.grant else Grant(),
                phase=phase,
                created_at=time.time(),
                message=message,
            ),
            is_guess=is_guess,
        )

    def _refresh(self, run_object: TrainingObject, members: tuple[Pod, ...], now: float) -> bool:
        """Write what was observed and no decision wrote, but not often; return False to check again later."""
        if run_object.state.written == 0:
            return True
        if run_object.edited or run_object.is_wish_unknown or run_object.is_unobserved:
            self._work.submit(
                run_object.uid, f"adopt the spec of {run_object.key}", partial(self._adopt, run_object.uid)
            )
            return False
        state = self._cluster.refreshed(run_object)
        is_shown = run_object.shown_phase == state.status.phase.value
        if state == run_object.state and is_shown and self._cluster.shows_pods(run_object.uid, members):
            self._refreshed[run_object.uid] = now
            return True
        # After all pods were created once none is created again, which must survive a restart of the operator.
        is_urgent = state.gang != run_object.state.gang or not is_shown
        if not is_urgent and now - self._refreshed.setdefault(run_object.uid, now) < REFRESH_S:
            return False
        self._refreshed[run_object.uid] = now
        self._work.submit(run_object.uid, f"refresh {run_object.key}", partial(self._write, run_object.uid))
        return False

    def _adopt(self, uid: str) -> None:
        run_object = self._view.find(uid)
        if run_object is not None and (run_object.edited or run_object.is_wish_unknown or run_object.is_unobserved):
            self._cluster.adopt(run_object)

    def _observe(self, uid: str) -> None:
        parent = self._view.find_parent(uid)
        if parent is not None and parent.is_unobserved and self._may_act():
            self._cluster.write(parent, parent.state, is_quiet=True)

    def _write(self, uid: str) -> None:
        run_object = self._view.find(uid)
        if run_object is not None:
            self._cluster.write(run_object, self._cluster.refreshed(run_object), is_quiet=True)
