"""Keeps the state of the cluster by watches: nodes, DaemonSets, everyone's pods, our runs, and teams.

It also holds how pods ended whose objects are gone, until that is in their run's status.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from fairlead.cluster.isolation import Isolation
from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.api.objects import NOBODY, NodeObject, PodObject, ResourceAmounts, read_pod
from fairlead.cluster.kubernetes.api.resource_slices import Device, are_offered
from fairlead.cluster.kubernetes.api.watching import IDLE_S, ObjectCache
from fairlead.cluster.kubernetes.devices import DRA
from fairlead.cluster.kubernetes.engines.table import driver_of
from fairlead.cluster.kubernetes.informers.daemonsets import DaemonObject, read_daemon
from fairlead.cluster.kubernetes.informers.engine_members import STOPPED_EARLY, absent, explained
from fairlead.cluster.kubernetes.informers.engine_objects import EngineObjects
from fairlead.cluster.kubernetes.informers.node_cache import NodeCache, SlicedNodes
from fairlead.cluster.kubernetes.informers.pod_groups import PodGroups
from fairlead.cluster.kubernetes.informers.pod_index import Marks, PodIndex, RunKey
from fairlead.cluster.kubernetes.informers.pod_status import LastWord, observe_pod, remembering
from fairlead.cluster.kubernetes.informers.unbound_pods import MOST_OF_NAMESPACE, MOST_OF_RUN, UnboundPods
from fairlead.cluster.kubernetes.informers.urgent_passes import UrgentPasses
from fairlead.cluster.kubernetes.kinds import leaf_kinds, objects_path, parent_kinds
from fairlead.cluster.kubernetes.names import SYSTEM_NAMESPACE, controller_of
from fairlead.cluster.kubernetes.system_namespaces import SystemNamespaces
from fairlead.cluster.kubernetes.workloads.plain_objects import KindObject, read_kind
from fairlead.cluster.kubernetes.workloads.pod_reports import read_last_words
from fairlead.cluster.kubernetes.workloads.run_record import (
    AnyObject,
    Gang,
    Spec,
    TrainingObject,
    WorkloadObject,
    read_workload,
)
from fairlead.errors import ClusterError
from fairlead.specs.engines import Engine
from fairlead.specs.keys import API_VERSION
from fairlead.specs.overlay_allowance import OverlayAllowance
from fairlead.specs.team import Team
from fairlead.state.plan import CreatePod
from fairlead.state.pod_uids import pod_uid
from fairlead.state.snapshot import Phase, Pod, PodPhase, Progress

log = logging.getLogger(__name__)

TRAININGS = f"/apis/{API_VERSION}/trainings"
TEAMS = f"/apis/{API_VERSION}/teams"
PODS, DAEMONS = "/api/v1/pods", "/apis/apps/v1/daemonsets"
SYNC_S = 60.0
# An API server that has just started refuses everyone until it has read its roles, so only lasting refusals count.
REFUSED_S = 15.0
Member = tuple[str, int, int]  # run, attempt, index
TeamObject = KindObject[Team]
_ENGINE = attrgetter("engine")
_SYSTEM = SystemNamespaces()


class Informers:
    """The caches and the state derived from them. Thread-safe.

    Args:
        system: The namespaces of which DaemonSets count on a node before their pods are there.

    Attributes:
        namespace: The operator's own, in which the placeholders of Pools are.
        isolation: Keeps failures of the operator itself at one object from its work on others.
        urgent: The teams for whose changes the next pass begins at once.
    """

    def __init__(
        self,
        client: Client,
        *,
        idle_s: float = IDLE_S,
        allowed: OverlayAllowance | None = None,
        namespace: str = SYSTEM_NAMESPACE,
        system: SystemNamespaces = _SYSTEM,
    ) -> None:
        self.client = client
        self.namespace = namespace
        self.isolation = Isolation()
        self.urgent = UrgentPasses()
        read = partial(read_workload, allowed=allowed)
        sliced = SlicedNodes(client, self._slices_changed, idle_s=idle_s)
        self._has_slices = False
        self.nodes = NodeCache(client, sliced, self._node_changed, idle_s=idle_s)
        self.daemons: ObjectCache[DaemonObject] = ObjectCache(
            client, DAEMONS, partial(read_daemon, system=system), self._daemon_changed, idle_s=idle_s
        )
        self.pods: ObjectCache[PodObject] = ObjectCache(client, PODS, self._read_pod, self._pod_changed, idle_s=idle_s)
        self.leaves: Mapping[str, ObjectCache[TrainingObject]] = {
            kind: ObjectCache(client, objects_path(kind), read, self._training_changed, idle_s=idle_s)
            for kind in leaf_kinds()
        }
        self.trainings = self.leaves["Training"]
        self.teams: ObjectCache[TeamObject] = ObjectCache(
            client, TEAMS, partial(read_kind, Team), self._team_changed, idle_s=idle_s
        )
        self.parents: Mapping[str, ObjectCache[AnyObject]] = {
            kind: ObjectCache(client, objects_path(kind), read, self._parent_changed, idle_s=idle_s)
            for kind in parent_kinds()
        }
        self.engines = EngineObjects(client, self.look_again, self.key_of, idle_s=idle_s)
        self.pod_groups = PodGroups(client, self.look_again, self.key_of, idle_s=idle_s)
        self._team_followers: list[Callable[[TeamObject], None]] = []
        self._changed = threading.Condition()
        self._epoch = 0
        self._lock = threading.Lock()
        self._index = PodIndex()
        self._unbound = UnboundPods()
        self._bounds_pods = False
        self._readers: list[Marks] = []
        self._seen: dict[str, dict[int, tuple[object, Pod]]] = {}
        self._key_of: dict[str, RunKey] = {}
        self._engine_of: dict[str, str] = {}
        self._parent_keys: dict[str, tuple[str, str]] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._over: dict[str, dict[str, Pod]] = {}
        self._in_flight: set[Member] = set()
        self._active: dict[str, float] = {}
        self._heard: dict[str, float] = {}
        self._last_words: dict[str, tuple[tuple[int, int, int], Progress]] = {}
        self._last_heard: dict[str, LastWord] = {}

    @property
    def caches(self) -> tuple[ObjectCache[Any], ...]:
        """All caches."""
        return (
            *self.slice_caches,
            self.nodes,
            self.daemons,
            self.pods,
            self.teams,
            *self.leaves.values(),
            *self.parents.values(),
        )

    @property
    def slice_caches(self) -> tuple[ObjectCache[Any], ...]:
        """The caches of GPUs in ResourceSlices; none if pods cannot request these."""
        return self.nodes.sliced.caches if self._has_slices else ()

    def cache_of(self, kind: str) -> ObjectCache[AnyObject]:
        """Return the cache of a kind of workload."""
        parents = self.parents.get(kind)
        return self.leaves[kind] if parents is None else parents

    def runs(self) -> list[TrainingObject]:
        """Return the objects of workloads with pods, of all kinds."""
        return [self._with_true_parent(run_object) for cache in self.leaves.values() for run_object in cache.all()]

    def workload_objects(self) -> list[AnyObject]:
        """Return the objects of workloads of all kinds."""
        return [*self.runs(), *self.parent_objects()]

    def parent_objects(self) -> list[AnyObject]:
        """Return the objects of workloads with children, of all kinds."""
        return [self._with_true_parent(parent) for cache in self.parents.values() for parent in cache.all()]

    def start(self) -> None:
        """Start the watches, and return when everything is listed once.

        Raises:
            ClusterError: The cluster cannot be reached, or lacks Fairlead's kinds.
        """
        self._await_version()
        # A run is considered only with its pods, so they are listed before it.
        for cache in self.caches:
            cache.start()
        begun = time.monotonic()
        refusals: dict[str, tuple[float, ClusterError]] = {}
        while not all(cache.is_synced for cache in self.caches):
            now = time.monotonic()
            for cache in self.caches:
                trouble = cache.trouble
                if isinstance(trouble, ApiError) and trouble.status in (401, 403, 404):
                    since, first = refusals.setdefault(cache.path, (now, trouble))
                    if trouble is not first and now - since > REFUSED_S:
                        self.stop()
                        raise _explained(trouble, self.client)
                if now - begun > SYNC_S and not cache.is_synced:
                    self.stop()
                    raise trouble or ClusterError(f"{cache.path} could not be listed within {SYNC_S:.0f} s")
            time.sleep(0.02)
        self.bound_pods()
        self.pod_groups.start()

    def look_for_slices(self) -> None:
        """Determine whether GPUs in ResourceSlices are to be watched.

        Raises:
            ClusterError: The API server does not answer.
        """
        self._has_slices = are_offered(self.client)

    def _await_version(self) -> None:
        begun = time.monotonic()
        while True:
            try:
                return self.look_for_slices()
            except ClusterError as error:
                is_refused = isinstance(error, ApiError) and error.status in (401, 403)
                if time.monotonic() - begun > (REFUSED_S if is_refused else SYNC_S):
                    raise
            time.sleep(0.1)

    def stop(self) -> None:
        """End the watches."""
        for cache in self.caches:
            cache.stop()
        self.engines.stop()
        self.pod_groups.stop()

    @property
    def epoch(self) -> int:
        """Rises with every change of anything."""
        with self._changed:
            return self._epoch

    def wait(self, seen: int, timeout_s: float) -> None:
        """Wait until something has changed since the epoch ``seen``, or the timeout has passed."""
        with self._changed:
            self._changed.wait_for(lambda: self._epoch != seen, timeout_s)

    def wake(self) -> None:
        """Wake all threads that wait for changes."""
        with self._changed:
            self._epoch += 1
            self._changed.notify_all()

    def marks(self) -> Marks:
        """Return marks for a new reader: the changes from now on, beginning with everything that exists."""
        marks = Marks()
        with self._lock:
            self._readers.append(marks)
        marks.add(runs=[run.uid for run in self.workload_objects()], nodes=[node.key for node in self.nodes.all()])
        return marks

    def follow_teams(self, changed: Callable[[TeamObject], None]) -> None:
        """Report each change of a team after ``start``; a deleted team is no longer in ``teams``."""
        self._team_followers.append(changed)

    def find(self, uid: str) -> TrainingObject | None:
        """Return the run of a uid."""
        kind, key = self.key_of(uid) or NOBODY
        run_object = self.leaves[kind].get(key) if kind else None
        return None if run_object is None else self._with_true_parent(run_object)

    def key_of(self, uid: str) -> RunKey | None:
        """Return kind, and namespace and name, of the run of a uid; None if there is none."""
        with self._lock:
            return self._key_of.get(uid)

    def find_parent(self, uid: str) -> AnyObject | None:
        """Return the workload with children of a uid."""
        with self._lock:
            kind, key = self._parent_keys.get(uid, NOBODY)
        parent = self.parents[kind].get(key) if kind else None
        return None if parent is None else self._with_true_parent(parent)

    def _with_true_parent(self, workload_object: WorkloadObject[Spec]) -> WorkloadObject[Spec]:
        """Return an object without a parent that it claims to have, and which has no child of its namespace or name."""
        child = workload_object.workload
        if child is None or child.parent is None or self._is_child(workload_object):
            return workload_object
        return replace(workload_object, workload=replace(child, parent=None))

    def _is_child(self, workload_object: AnyObject) -> bool:
        """Return whether an object may be a child of the workload that its owner reference names."""
        if workload_object.workload is None or workload_object.workload.parent is None:
            return False
        with self._lock:
            _, key = self._parent_keys.get(workload_object.workload.parent, NOBODY)
        # Without the parent nothing is made of it.
        return not key or workload_object.key.startswith(f"{key}-")

    def find_any(self, uid: str) -> AnyObject | None:
        """Return the workload of a uid, with pods or with children."""
        return self.find(uid) or self.find_parent(uid)

    def children_of(self, uid: str) -> list[AnyObject]:
        """Return the objects of a parent's children, in no order."""
        with self._lock:
            uids = tuple(self._children.get(uid, ()))
        children = (child for child in map(self.find_any, uids) if child is not None)
        return [child for child in children if child.workload is not None and child.workload.parent == uid]

    def pods_of(self, uid: str) -> Mapping[str, PodObject]:
        """Return the pods of a run by their keys."""
        key = self.key_of(uid)
        return {} if key is None else self._pods_of(uid, key)

    def pods_of_object(self, run_object: TrainingObject) -> Mapping[str, PodObject]:
        """Return the pods of a run by their keys, whether the run itself is watched or not."""
        return self._pods_of(run_object.uid, (run_object.kind, run_object.key))

    def _pods_of(self, uid: str, run_key: RunKey) -> Mapping[str, PodObject]:
        with self._lock:
            pods, word = dict(self._index.of_run(uid, run_key)), self._last_heard.get(uid)
            engine = self._engine_of.get(uid)
        if engine or any(map(_ENGINE, pods.values())):
            pods = {key: pod for key, pod in pods.items() if self._is_made_by(engine, pod)}
        return pods if word is None else {key: word.applied(pod) for key, pod in pods.items()}

    def _is_made_by(self, engine: str | None, pod: PodObject) -> bool:
        """Return whether a pod is of the engine of its run, empty for none and None if unknown, and of its object."""
        return engine in (None, pod.engine) and (not pod.engine or self.engines.may_have_made(pod))

    def guests_of(self, uid: str) -> Mapping[RunKey, tuple[PodObject, ...]]:
        """Return the pods that name a run which is not here, as of a run of another cluster, by what they say it is."""
        with self._lock:
            keys = () if uid in self._key_of else self._index.keys_of(uid)
            return {key: tuple(self._index.of_run(uid, key).values()) for key in keys}

    def run_of(self, pod: PodObject) -> str:
        """Return the uid of the run that has a pod; empty for a pod of none, whatever it says of itself."""
        with self._lock:
            is_named = bool(pod.run_uid) and self._key_of.get(pod.run_uid) == pod.run_key
            engine = self._engine_of.get(pod.run_uid)
        return pod.run_uid if is_named and self._is_made_by(engine, pod) else ""

    def owns(self, uid: str, about: Mapping[str, Any]) -> bool:
        """Return whether an object is of the workload of a uid, by owner and namespace; also if that is not here.

        Args:
            about: The object's metadata.
        """
        owner = controller_of(about)
        with self._lock:
            key = self._key_of.get(uid) or self._parent_keys.get(uid)
        named = owner.get("kind"), f"{about['namespace']}/{owner.get('name')}"
        return owner.get("uid") == uid and key in (None, named)

    def is_foreign(self, pod: PodObject) -> bool:
        """Return whether a pod names a run which is here and is not its own."""
        return bool(pod.claim) and self.key_of(pod.claim) is not None and not self.run_of(pod)

    def foreign_pods(self) -> list[PodObject]:
        """Return the pods that name a run which is here and is not theirs."""
        return [pod for pod in self.pods.all() if self.is_foreign(pod)]

    def foreign_children(self) -> list[AnyObject]:
        """Return the objects of workloads that name a parent which is here and is not theirs."""
        caches = (*self.leaves.values(), *self.parents.values())
        return [
            workload_object
            for cache in caches
            for workload_object in cache.all()
            if workload_object.workload is not None
            and workload_object.workload.parent is not None
            and not self._is_child(workload_object)
        ]

    def pods_on(self, node: str) -> tuple[PodObject, ...]:
        """Return the pods that count on a node: bound there and not over, of any owner; a run's only if it has them.

        A pod that only says it is a placeholder is none, and does not give way.
        """
        with self._lock:
            unmoved = [pod for pod in self._index.placeholders_on(node).values() if not self._is_placeholder(pod)]
            others = (replace(pod, room_for="", pool="") for pod in unmoved)
            bound = (*self._index.on_node(node).values(), *others)
            own, engines = self._key_of, self._engine_of
            doubtful = {
                pod.key
                for pod in bound
                if pod.run_uid and (pod.engine or own.get(pod.run_uid) != pod.run_key or engines.get(pod.run_uid))
            }
        if not doubtful:
            return bound
        return tuple(replace(pod, run_uid="") if pod.key in doubtful and not self.run_of(pod) else pod for pod in bound)

    def placeholders_on(self, node: str) -> tuple[PodObject, ...]:
        """Return the placeholders that are bound on a node, which give way to every other pod."""
        with self._lock:
            return tuple(pod for pod in self._index.placeholders_on(node).values() if self._is_placeholder(pod))

    def nodes_with_room(self) -> set[str]:
        """Return the nodes on which placeholders of runs are bound."""
        with self._lock:
            return {pod.node for pod in self._index.rooms() if pod.node and not pod.pool and self._is_placeholder(pod)}

    def _is_placeholder(self, pod: PodObject) -> bool:
        """Return whether a pod that says it is a placeholder is one; call with the lock held.

        Those of Pools are in the operator's namespace, those of a run in its own, with its uid as the owner's.
        """
        if pod.pool:
            return pod.key.startswith(f"{self.namespace}/")
        return self._key_of.get(pod.room_for) == pod.run_key

    def claimed_on(self, node: str) -> tuple[ResourceAmounts, ...]:
        """Return what ResourceClaims hold of the GPUs in a node's slices, beyond the requests of its pods."""
        held: dict[Device, None] = {}
        for claim, devices in self.nodes.sliced.claims_on(node):
            pod = self.pods.get(claim.pod) if claim.pod else None
            is_counted = pod is not None and pod.uid == claim.pod_uid and not pod.is_over
            if pod is None or not is_counted or not dict(pod.requests.devices).get(DRA):
                held |= dict.fromkeys(devices)
        return (ResourceAmounts(devices=((DRA, len(held)),)),) if held else ()

    def nodes_of(self, pods: Iterable[PodObject]) -> Mapping[str, NodeObject | None]:
        """Return the nodes of pods, each looked up once; None for a node that is gone."""
        return {name: self.nodes.get(name) for name in {pod.node for pod in pods} - {""}}

    def begin(self, member: Member) -> bool:
        """Record that a pod is about to be created; return False if it is being created already."""
        with self._lock:
            if member in self._in_flight:
                return False
            self._in_flight.add(member)
            return True

    def finish(self, member: Member) -> None:
        """Record that a creation has ended, successfully or not."""
        with self._lock:
            self._in_flight.discard(member)
        self._mark(runs=(member[0],))

    def bury(self, pod: Pod, *, is_guess: bool = False) -> None:
        """Record how a pod ended whose object is gone, or which was never created.

        Args:
            is_guess: The end was not observed, and an observation overrides it.
        """
        with self._lock:
            over = self._over.setdefault(pod.workload_uid, {})
            if is_guess and pod.uid in over:
                return
            over[pod.uid] = pod
        self._mark(runs=(pod.workload_uid,))

    def members(self, run_object: TrainingObject) -> tuple[Pod, ...]:
        """Return every member of the run's latest gang, whether its pod exists, will exist or is gone."""
        gang, run = run_object.state.gang, run_object.workload
        if gang is None or run is None:
            return ()
        if run.spec.engine is not None:
            return self._engine_members(run_object, gang, run.spec.engine, run.spec.ranks_on_each_node)
        own = self.pods_of_object(run_object).values()
        objects = {pod.index: pod for pod in own if gang.has(pod.attempt, pod.index, pod.replacement)}
        notices = {notice.pod_uid: notice.since for notice in run_object.state.notices}
        ended = {pod.uid: pod for pod in run_object.state.ended} | self.over(run_object.uid)
        previous, active_at = self._seen.setdefault(run_object.uid, {}), self._active.get(run_object.uid)
        heard_at = self._heard.get(run_object.uid)
        ranks = run.spec.ranks_on_each_node
        nodes = self.nodes_of(objects.values())
        with self._lock:
            in_flight = {
                index for of, attempt, index in self._in_flight if (of, attempt) == (run_object.uid, gang.attempt)
            }
        seen: list[Pod] = []
        for index in range(len(gang.nodes)):
            uid = pod_uid(run_object.uid, gang.attempt, index, gang.number(index))
            told_at, pod = notices.get(uid), objects.get(index)
            if uid in ended:
                seen.append(ended[uid])
                continue
            node = nodes.get(pod.node) if pod is not None else None
            coming = gang.is_created(index) or index in in_flight
            # The objects that each member was read from: of a thousand members few change between two looks.
            basis = gang.attempt, gang.replacement(index), pod, node, told_at, active_at, heard_at, coming
            known = previous.get(index)
            if known is None or known[0] != basis:
                member, of_pod = gang.member(index), range(index * ranks, (index + 1) * ranks)
                if pod is None:
                    was = _absent(run_object.uid, member, _decided_at(gang, index), told_at=told_at, coming=coming)
                else:
                    was = observe_pod(
                        pod, member, ranks=of_pod, told_at=told_at, node=node, gone=False,
                        active_at=active_at, heard_at=heard_at,
                    )  # fmt: skip
                known = previous[index] = (basis, was)
            seen.append(known[1])
        return tuple(seen)

    def _engine_members(self, run_object: TrainingObject, gang: Gang, engine: Engine, ranks: int) -> tuple[Pod, ...]:
        """Return the members of a gang whose pods an engine creates."""
        uid, attempt, driver = run_object.uid, gang.attempt, driver_of(engine)
        own = (pod for pod in self.pods_of_object(run_object).values() if pod.attempt == attempt)
        # Of two of an index, as when an engine creates one again, the one that lives, and then the newer one, counts.
        objects = {pod.index: pod for pod in sorted(own, key=lambda pod: (not pod.is_over, pod.created_at, pod.key))}
        notices = {notice.pod_uid: notice.since for notice in run_object.state.notices}
        ended = {pod.uid: pod for pod in run_object.state.ended} | self.over(uid)
        engine_object = self.engines.of_run(uid).get(attempt)
        with self._lock:
            in_flight = any((of, start) == (uid, attempt) for of, start, _ in self._in_flight)
        coming = in_flight or not self.engines.is_synced(engine)
        nodes = self.nodes_of(objects.values())
        members: list[Pod] = []
        for index in range(len(gang.nodes)):
            member, pod, name = gang.member(index), objects.get(index), f"{uid}-{attempt}-{index}"
            if name in ended:
                members.append(ended[name])
            elif pod is not None:
                of_pod = range(index * ranks, (index + 1) * ranks)
                seen = observe_pod(
                    pod, member, ranks=of_pod, told_at=notices.get(name), node=nodes.get(pod.node), gone=False,
                    active_at=self._active.get(uid), heard_at=self._heard.get(uid),
                )  # fmt: skip
                members.append(seen)
            else:
                created = gang.created
                members.append(
                    absent(
                        uid,
                        member,
                        gang.at,
                        driver,
                        engine_object,
                        told_at=notices.get(name),
                        coming=coming,
                        created=created,
                        ranks=ranks,
                        has_run=run_object.state.status.phase is Phase.RUNNING,
                    )
                )
        return explained(tuple(members), objects, driver, engine_object)

    def look_again_at_node(self, name: str) -> None:
        """Mark a node as changed."""
        self._mark(nodes=(name,))

    def look_again(self, uid: str) -> None:
        """Mark a run as changed."""
        self._mark(runs=(uid,))

    def note_active(self, uid: str, at: float | None) -> None:
        """Record that a run showed activity at ``at``."""
        if at is not None and at > self._active.get(uid, 0.0):
            self._active[uid] = at
            self._mark(runs=(uid,))

    def note_heard(self, uid: str, at: float) -> None:
        """Record that a run answered at ``at``."""
        self._heard[uid] = at
        self._mark(runs=(uid,))

    def last_words(self, uid: str) -> Progress | None:
        """Return the progress of a run as the ended pods of its latest attempt report it; None while they report
        none."""
        return self._last_words[uid][1] if uid in self._last_words else None

    def note_last_word(self, uid: str, word: LastWord | None) -> None:
        """Record the last message of kubelet on a pod of a run that has not started; None for none."""
        if self._last_heard.get(uid) == word:
            return
        if word is None:
            self._last_heard.pop(uid, None)
        elif self.find(uid) is not None:
            self._last_heard[uid] = word
        self._mark(runs=(uid,))

    def over(self, uid: str) -> dict[str, Pod]:
        """Return how the pods of a run ended whose objects are gone."""
        with self._lock:
            return dict(self._over.get(uid, {}))

    def _mark(self, *, runs: Iterable[str] = (), nodes: Iterable[str] = ()) -> None:
        """Wake waiting threads and mark these as changed."""
        for reader in self._readers:
            reader.add(runs=runs, nodes=nodes)
        self.wake()

    def _node_changed(self, before: NodeObject | None, after: NodeObject | None) -> None:
        # kubelet's heartbeats change nothing that matters here.
        if before is not None and after is not None and _essence(before) == _essence(after):
            return
        last = after or before
        if last is not None:
            runs = {pod.run_uid for pod in self.pods_on(last.key) if pod.run_uid}
            self._mark(runs=runs, nodes=(last.key,))

    def _slices_changed(self, nodes: Iterable[str]) -> None:
        self._mark(nodes=nodes)

    def _daemon_changed(self, before: DaemonObject | None, after: DaemonObject | None) -> None:
        # A DaemonSet's status counts its pods, which are watched anyway.
        if before is None or after is None or replace(before, version=0) != replace(after, version=0):
            self._mark(nodes=[node.key for node in self.nodes.all()])

    def bound_pods(self) -> None:
        """Bound from now on the pods on no node that are held; call it once the runs are listed, which have some."""
        self._bounds_pods = True
        for pod in self.pods.all():
            group = self._group_of(pod)
            if self._is_held(pod):
                with self._lock:
                    self._unbound.follow(pod.key, group and group[0])
            else:
                self.pods.drop(pod.key, pod.version)

    def _read_pod(self, content: Object) -> PodObject | None:
        """Read a pod; None for one from which nothing follows, or of which there are too many."""
        pod = read_pod(content)
        return pod if pod.counts and (not self._bounds_pods or self._is_held(pod)) else None

    def _is_held(self, pod: PodObject) -> bool:
        group = self._group_of(pod)
        if group is None:
            return True
        with self._lock:
            return self._unbound.admits(pod.key, *group)

    def _group_of(self, pod: PodObject) -> tuple[str, int] | None:
        """Return the group that a pod takes a place of, and how many that has; None if nodes or a gang bound it."""
        if (pod.node and not pod.is_over) or pod.is_gateway:
            return None
        namespace = pod.key.partition("/")[0]
        if pod.pool and namespace == self.namespace:
            return None
        uid = pod.run_uid or pod.room_for
        if not uid or self.key_of(uid) != pod.run_key:
            return f"namespace {namespace}", MOST_OF_NAMESPACE
        kind, key = pod.run_key
        run_object = self.leaves[kind].get(key)
        gang = None if run_object is None else run_object.state.gang
        size = 0 if gang is None else len(gang.nodes)
        # An engine gives its pods any names, so that no number of them follows from the gang.
        is_counted = bool(pod.run_uid) and not pod.engine and pod.index < size
        if is_counted and gang is not None and gang.has(pod.attempt, pod.index, pod.replacement):
            return None
        if run_object is not None and run_object.workload is not None:
            spec = run_object.workload.spec
            size = max(size, spec.nodes, spec.most_nodes or 0)
        return f"run {uid}", 2 * size + MOST_OF_RUN

    def _pod_changed(self, before: PodObject | None, after: PodObject | None) -> None:
        last = after or before
        if last is None:
            return
        group = self._group_of(after) if after is not None and self._bounds_pods else None
        with self._lock:
            self._unbound.follow(last.key, group and group[0])
            known, word = self._index.get(last.key), self._last_heard.get(last.run_uid)
            if known is not None and word is not None:
                known = word.applied(known)
            now = after if after is None else remembering(known, after)
            self._index.follow(last.key, now)
        if now is not None and now.ended is not None and (known is None or known.ended is None) and self.run_of(now):
            self._hear_out(now)
        if after is None and last.run_uid:
            self._remember(known if known is not None and known.uid == last.uid else last)
        if known is None or now is None or not _is_same(known, now):
            versions = [pod for pod in (known, now, last) if pod is not None]
            runs, nodes = {pod.run_uid for pod in versions}, {pod.node for pod in versions}
            self._mark(runs=runs - {""}, nodes=nodes - {""})
            if self.run_of(last):
                self.urgent.request(last.key.partition("/")[0])

    def _hear_out(self, pod: PodObject) -> None:
        """Record the last report of a pod; the furthest progress counts, and of equal reports the first."""
        progress = read_last_words(pod.ended or {})
        if progress is None:
            return
        rank = pod.attempt, progress.step or 0, -pod.index
        known = self._last_words.get(pod.run_uid)
        if known is None or rank > known[0]:
            self._last_words[pod.run_uid] = rank, progress

    def _remember(self, pod: PodObject) -> None:
        """Record how a pod of a current gang ended, now that its object is gone."""
        run_object = self.find(self.run_of(pod))
        gang = run_object.state.gang if run_object is not None else None
        if run_object is None or run_object.workload is None or gang is None:
            return
        if pod.index >= len(gang.nodes) or not gang.has(pod.attempt, pod.index, pod.replacement):
            return
        uid = pod_uid(pod.run_uid, pod.attempt, pod.index, pod.replacement)
        ranks = run_object.workload.spec.ranks_on_each_node
        told_at = next((notice.since for notice in run_object.state.notices if notice.pod_uid == uid), None)
        node = self.nodes.get(pod.node) if pod.node else None
        members = range(pod.index * ranks, (pod.index + 1) * ranks)
        self.bury(observe_pod(pod, gang.member(pod.index), ranks=members, told_at=told_at, node=node, gone=True))

    def _team_changed(self, before: TeamObject | None, after: TeamObject | None) -> None:
        last = after or before
        if last is None:
            return
        if last.problem and (before is None or before.problem != last.problem):
            log.warning("Team %s is left out: %s", last.name, last.problem)
        for follower in self._team_followers:
            follower(last)
        if self._team_followers or before is None or after is None or before.spec != after.spec:
            self.wake()

    def _parent_changed(self, before: AnyObject | None, after: AnyObject | None) -> None:
        with self._lock:
            if before is not None and (after is None or before.uid != after.uid):
                self._parent_keys.pop(before.uid, None)
            is_new = after is not None and after.uid not in self._parent_keys
            if after is not None:
                self._parent_keys[after.uid] = (after.kind, after.key)
            self._note_child(before, after)
            children = set(self._children.get(after.uid, ())) if after is not None and is_new else set()
        self._mark(runs={parent.uid for parent in (before, after) if parent is not None} | children)
        self._request_pass(before, after)

    def _note_child(self, before: AnyObject | None, after: AnyObject | None) -> None:
        """Record the parent of an object."""
        for child, is_there in ((before, False), (after, True)):
            parent = None if child is None or child.workload is None else child.workload.parent
            if child is None or parent is None:
                continue
            if is_there:
                self._children.setdefault(parent, {})[child.uid] = None
                continue
            children = self._children.get(parent, {})
            children.pop(child.uid, None)
            if not children:
                self._children.pop(parent, None)

    def _training_changed(self, before: TrainingObject | None, after: TrainingObject | None) -> None:
        is_new = False
        with self._lock:
            self._note_child(before, after)
            if after is None and before is not None:
                self._key_of.pop(before.uid, None)
                self._engine_of.pop(before.uid, None)
                self._over.pop(before.uid, None)
                self._active.pop(before.uid, None)
                self._heard.pop(before.uid, None)
                self._last_words.pop(before.uid, None)
                self._last_heard.pop(before.uid, None)
                self._seen.pop(before.uid, None)
            elif after is not None:
                if before is not None and before.uid != after.uid:
                    self._key_of.pop(before.uid, None)
                    self._engine_of.pop(before.uid, None)
                    self._over.pop(before.uid, None)
                    self._seen.pop(before.uid, None)
                is_new = after.uid not in self._key_of
                self._key_of[after.uid] = (after.kind, after.key)
                if after.workload is not None:
                    self._engine_of[after.uid] = after.workload.spec.engine or ""
                over, gang = self._over.get(after.uid), after.state.gang
                if over and gang is not None:
                    # What the status holds, and pods of earlier attempts, need not be kept here.
                    recorded = {pod.uid for pod in after.state.ended}
                    self._over[after.uid] = {
                        uid: pod
                        for uid, pod in over.items()
                        if uid not in recorded
                        and (pod.attempt, pod.replacement) >= (gang.attempt, gang.number(pod.index))
                    }
        if after is not None and is_new:
            # Pods are listed before their runs.
            for pod in self.pods_of(after.uid).values():
                if pod.ended is not None:
                    self._hear_out(pod)
        uids = {run.uid for run in (before, after) if run is not None}
        # A placeholder is one only with its run.
        is_end = before is not None and (after is None or after.uid != before.uid)
        with self._lock:
            rooms = [pod for uid in uids for pod in self._index.rooms_of(uid).values()] if is_new or is_end else []
        self._mark(runs=uids, nodes={pod.node for pod in rooms} - {""})
        self._request_pass(before, after)

    def _request_pass(self, before: AnyObject | None, after: AnyObject | None) -> None:
        """Let the next pass begin at once for a workload that its team has submitted or changed."""
        if after is not None and after.workload is not None and (before is None or _wish(before) != _wish(after)):
            self.urgent.request(after.namespace)


class WatchedObjects:
    """The objects of workloads, as the watches know them."""

    def __init__(self, view: Informers) -> None:
        self._view = view

    def objects(self) -> Iterable[AnyObject]:
        return self._view.workload_objects()

    def find(self, uid: str) -> AnyObject | None:
        return self._view.find_any(uid)

    def put(self, content: Object) -> None:
        self._view.cache_of(str(content["kind"])).put(content)

    def drop(self, item: AnyObject) -> None:
        self._view.cache_of(item.kind).drop(item.key, item.version)


def trainings_path(namespace: str, name: str | None = None) -> str:
    """Return the path of a namespace's runs, or of one of them."""
    return objects_path("Training", namespace, name)


def _decided_at(gang: Gang, index: int) -> float:
    replacement = gang.replacement(index)
    return gang.at if replacement is None else replacement.at


def _absent(run_uid: str, member: CreatePod, at: float, *, told_at: float | None, coming: bool) -> Pod:
    """Return a member that has no pod yet, and gets none if it was told to stop before its creation began."""
    cancelled = told_at is not None and not coming
    return Pod(
        uid=pod_uid(run_uid, member.attempt, member.index, member.replacement),
        workload_uid=run_uid,
        attempt=member.attempt,
        index=member.index,
        replacement=member.replacement,
        node=member.node,
        grant=member.grant,
        phase=PodPhase.FAILED if cancelled else PodPhase.CREATED,
        created_at=at,
        terminating_since=told_at,
        message=STOPPED_EARLY if cancelled else None,
    )


def _is_same(one: PodObject, other: PodObject) -> bool:
    """Return whether two versions of a pod are equal in all that is read here."""
    return one == replace(other, version=one.version)


def _wish(workload_object: AnyObject) -> tuple[object, ...]:
    return (
        workload_object.uid, workload_object.generation, workload_object.wish, workload_object.is_leaving,
    )  # fmt: skip


def _essence(node: NodeObject) -> tuple[object, ...]:
    return (
        node.allocatable, node.slots, node.gpu_model, node.gpu_memory_bytes, node.ready, node.cordoned, node.taints,
        node.labels, node.extended, node.faults, node.cordon_reason, node.given_back_at,
    )  # fmt: skip


def _explained(error: ApiError, client: Client) -> ClusterError:
    if error.status == 404:
        install = f"fairlead install{client.access.option}"
        return ClusterError(
            f"This cluster does not know Fairlead's kinds. `{install}` sets them up (or ask an administrator)."
        )
    return error
