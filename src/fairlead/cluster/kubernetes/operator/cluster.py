"""A Kubernetes cluster behind the port: a workload's object holds its truth, and each change is one guarded write.

Changes to children come before that write where repeating them does no harm: creating them, and letting them run.
Stopping them comes after it, since the operator that continues from the write repeats the request.
"""

import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, cast

from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.kinds import is_parent_kind, objects_path, workload_kinds
from fairlead.cluster.kubernetes.manifests.revision_files import CODE, RevisionFiles, read_files, revised
from fairlead.cluster.kubernetes.manifests.spec_objects import merge_patch, write_object
from fairlead.cluster.kubernetes.manifests.statuses import parent_status, training_status
from fairlead.cluster.kubernetes.manifests.workdir import REVISION, WORKDIR
from fairlead.cluster.kubernetes.names import owner
from fairlead.cluster.kubernetes.operator.pods.pod_reports import SeenEvent
from fairlead.cluster.kubernetes.operator.request_dispatch import at_once
from fairlead.cluster.kubernetes.operator.runs.informers import Informers, trainings_path
from fairlead.cluster.kubernetes.operator.runs.run_record import (
    FINALIZER,
    INTENT,
    SUBMITTED,
    AnyObject,
    Gang,
    RunRecord,
    TrainingObject,
    adopted,
    changed,
    event_record,
    filled,
    intent_of,
    is_attempt_over,
    read_workload,
    reported,
    stamped,
    state_plain,
    submitted,
    with_attempt,
)
from fairlead.cluster.kubernetes.operator.runs.snapshot_cache import IdleOf, SnapshotCache, everyone
from fairlead.cluster.port import EventRecord, Spec
from fairlead.errors import ClusterError, Conflict, NameTaken, NotFound
from fairlead.policy.kinds.retention import managed_elsewhere
from fairlead.policy.kinds.spec_updates import changed_meanwhile, check_update
from fairlead.policy.kinds.table import leaf, runs_of
from fairlead.policy.next_decision import next_decision_at
from fairlead.specs.keys import API_VERSION
from fairlead.specs.serving import Replica, Serving, scaled_as
from fairlead.specs.training import Training
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.attempts import ImagePull
from fairlead.state.capacity_requests import CapacityRequest, Growth
from fairlead.state.demand import Demand
from fairlead.state.engine_endpoints import EngineEndpoint
from fairlead.state.engine_searches import EngineSearch
from fairlead.state.measurements import Measurement
from fairlead.state.partitions import PartitionStep
from fairlead.state.plan import Change, ChildIntent, Plan, SubmitChild
from fairlead.state.pool_demand import Standby
from fairlead.state.scheduling_policy import DEFAULT, SchedulingPolicy
from fairlead.state.snapshot import (
    AnyWorkload,
    Intent,
    Phase,
    Pod,
    PodPhase,
    Progress,
    Recommendation,
    Snapshot,
    Workload,
    is_leaf,
)

if TYPE_CHECKING:
    from fairlead.cluster.kubernetes.operator.ledger.ledger_keeper import LedgerKeeper

log = logging.getLogger(__name__)

NUM_WRITERS = 8
Outlook = Callable[[Iterable[Workload]], tuple[Growth | None, tuple[CapacityRequest, ...]]]
TRIES = 3
INVALID = "InvalidSpec"
REFUSALS = frozenset({400, 403, 413, 422})
"""Status codes of writes that fail because of the object itself: it is invalid, forbidden or too large."""
INHERITED = (WORKDIR, REVISION)
"""Annotations that children inherit from their parent: the uploaded files and their origin.

A replica inherits those that belong to its revision of the endpoint."""


class Refusal(StrEnum):
    """The kinds of write that the API server may refuse; each is the reason of the Event that reports it."""

    CHILD = "ChildRefused"
    STATUS = "StatusRefused"


class StandbyNodes(Protocol):
    """Keeps nodes of pools ready in advance; ``standby`` lists those that are wanted."""

    standby: tuple[Standby, ...]

    def look(self, snapshot: Snapshot, now: float) -> Snapshot:
        """Return the snapshot with the known state of the pools' nodes, and record it."""
        ...


class NodePartitions(Protocol):
    """Repartitions the GPUs of nodes."""

    def look(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the progress of nodes that change their layout, and record it."""
        ...

    def decided(self, steps: tuple[PartitionStep, ...]) -> None:
        """Take the decided steps."""
        ...


class KubernetesCluster:
    """A ``Cluster`` of Kubernetes' nodes.

    With started ``Informers`` it answers from watches, as the operator needs; without them each call asks the API
    server, which is enough to submit and to read, but not for ``snapshot``, ``apply`` and ``wait``.

    Args:
        namespace: Consider only runs of this namespace; None for all.
        rules: The policy by which pending runs are started.
        outlook: Returns what may add nodes for these runs; by default nothing does.
        meanwhile: Called while changes are written, to act on those that are already written.
        ledger: Records what pods hold; None records nothing.
        demand_of: Returns the demand on the endpoints of a snapshot, by uid; by default it is not measured.
        measured_of: Returns the results of the queries that scale endpoints, by uid; by default none are made.
        served_of: Returns what engines report of the endpoints of a snapshot, by uid; by default there are none.
        searched_of: Returns what engines propose for the sweeps of a snapshot, by uid; by default there are none.
        recommended_of: Returns the recommendations for these runs; by default none are read.
        standby: Keeps nodes of pools ready in advance; None for none.
        partitions: Repartitions the GPUs of nodes; None for none.
        is_attended: An operator watches this API server, so that a deleted run waits for it. Karmada's has none.
    """

    def __init__(
        self,
        client: Client,
        *,
        view: Informers | None = None,
        namespace: str | None = None,
        rules: SchedulingPolicy = DEFAULT,
        outlook: Outlook = lambda _: (None, ()),
        meanwhile: Callable[[], None] = lambda: None,
        ledger: "LedgerKeeper | None" = None,
        idle_of: IdleOf = lambda _: None,
        demand_of: Callable[[Snapshot], Mapping[str, Demand]] = lambda _: {},
        measured_of: Callable[[Snapshot], Mapping[str, Measurement]] = lambda _: {},
        served_of: Callable[[Snapshot], Mapping[str, EngineEndpoint]] = lambda _: {},
        searched_of: Callable[[Snapshot], Mapping[str, EngineSearch]] = lambda _: {},
        recommended_of: Callable[[Iterable[Workload]], tuple[Recommendation, ...]] = lambda _: (),
        standby: StandbyNodes | None = None,
        partitions: NodePartitions | None = None,
        is_attended: bool = True,
    ) -> None:
        self._standby = standby
        self._is_attended = is_attended
        self._partitions = partitions
        self.client = client
        self._view = view
        self._namespace = namespace
        self._rules = rules
        self._writer = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._lock = threading.Lock()
        self._last_event = 0
        self._seen = -1
        self._picture: SnapshotCache | None = None
        self._shown: Snapshot | None = None
        self._progress: dict[str, Progress] = {}
        self._reported: dict[str, tuple[int, tuple[SeenEvent, ...]]] = {}
        self._pulls: dict[str, tuple[int, ImagePull]] = {}
        self._told: dict[str, tuple[PodPhase, ...]] = {}
        self._refused: dict[str, dict[Refusal, str]] = {}
        self._unaddressed: dict[str, str] = {}
        self._untold: dict[tuple[str, Refusal], str] = {}
        self._outlook = outlook
        self._meanwhile = meanwhile
        self._ledger = ledger
        self._idle_of = idle_of
        self._demand_of = demand_of
        self._measured_of = measured_of
        self._served_of = served_of
        self._searched_of = searched_of
        self._recommended_of = recommended_of

    @property
    def view(self) -> Informers:
        """The watches.

        Raises:
            ClusterError: There are none, as outside the operator.
        """
        if self._view is None:
            raise ClusterError("This needs the watches that only the operator keeps; this is a bug in Fairlead.")
        return self._view

    def snapshot(self) -> Snapshot:
        self._seen = self.view.epoch
        if self._picture is None:
            self._picture = SnapshotCache(
                self.view,
                namespace=self._namespace,
                progress_of=self.progress_of,
                rules=self._rules,
                price_of=None if self._ledger is None else self._ledger.price_per_hour,
                idle_of=self._idle_of,
            )
        seen = self._picture.look()
        if self._ledger is not None and (spending := self._ledger.spending(seen, time.time())) is not None:
            seen = replace(seen, spending=spending)
        if demand := self._demand_of(seen):
            seen = replace(seen, demand=demand)
        with self._lock:
            unaddressed = self._unaddressed
        if unaddressed:
            seen = replace(seen, unaddressed=unaddressed)
        if measured := self._measured_of(seen):
            seen = replace(seen, measurements=measured)
        if served := self._served_of(seen):
            seen = replace(seen, engine_endpoints=served)
        if searched := self._searched_of(seen):
            seen = replace(seen, engine_searches=searched)
        if recommended := self._recommended_of(seen.workloads):
            seen = replace(seen, recommended=recommended)
        growth, asked = self._outlook(seen.workloads)
        seen = seen if growth is None and not asked else replace(seen, growth=growth, asked=asked)
        seen = seen if self._standby is None else self._standby.look(seen, time.time())
        self._shown = seen if self._partitions is None else self._partitions.look(seen)
        return self._shown

    @property
    def shown(self) -> Snapshot | None:
        """The latest snapshot; None before the first."""
        return self._shown

    def next_decision_at(self, now: float) -> float:
        """Return when time alone may change what was decided on the latest snapshot, in Unix seconds; infinity if
        never."""
        return math.inf if self._shown is None else next_decision_at(self._shown, now)

    def apply(self, plan: Plan) -> tuple[bool, ...]:
        if plan.standby is not None and self._standby is not None:
            for each in plan.standby:
                if each not in self._standby.standby:
                    log.info("pool %s is to have %d nodes: %s", each.pool, each.nodes, each.why)
            self._standby.standby = plan.standby
        if self._partitions is not None:
            self._partitions.decided(plan.partitioning)
        uids = [change.workload_uid for change in plan.changes]
        if len(uids) < 2 or len(set(uids)) < len(uids):
            return tuple(self._carry_out(change) for change in plan.changes)
        return at_once(self._carry_out, plan.changes, num_threads=NUM_WRITERS, meanwhile=self._meanwhile)

    def submit(self, spec: Spec, annotations: Mapping[str, str] | None = None) -> Workload[Spec]:
        for kind in workload_kinds():
            if kind != type(spec).__name__:
                self._refuse_taken(kind, spec)
        return cast("Workload[Spec]", self._taken(self._create(spec, annotations or {})))

    def _refuse_taken(self, kind: str, spec: WorkloadSpec) -> None:
        """Refuse a name that an unfinished workload of another kind has; the API server checks only one kind."""
        try:
            there = self._read(kind, spec.team, spec.name)
        except ApiError as error:
            if not is_unknown_kind(kind, error):
                raise
            return
        run = None if there is None else there[1].workload
        if run is not None and not run.status.phase.is_final:
            raise name_taken(spec)

    def _create(self, spec: WorkloadSpec, annotations: Mapping[str, str], parent: AnyWorkload | None = None) -> Object:
        """Create the object of a workload, or find the one that an earlier attempt created.

        Raises:
            NameTaken: Another unfinished workload of the kind has the name.
        """
        kind, body = type(spec).__name__, write_object(spec)
        mark = f"{time.time():.6f}"
        if isinstance(spec, Serving):
            revised_files = revised(RevisionFiles(), spec.code, annotations)
            annotations = {name: value for name, value in revised_files.items() if value is not None}
        body["metadata"] |= {"annotations": {**annotations, SUBMITTED: mark}}
        if self._is_attended:
            body["metadata"]["finalizers"] = [FINALIZER]
        if parent is not None:
            body["metadata"]["ownerReferences"] = [owner(parent)]
        while True:
            try:
                return self.client.create(objects_path(kind, spec.team), body)
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise _explained(error, spec, self.client) from error
            there = self._read(kind, spec.team, spec.name)
            if there is not None:
                content, found = there
                is_ours = (content["metadata"].get("annotations") or {}).get(SUBMITTED) == mark
                if is_ours or (parent is not None and _parent_in(found) == parent.uid):
                    return content
                self._make_way(found, spec)

    def set_intent(self, uid: str, intent: Intent) -> AnyWorkload:
        found = self._find(uid)
        workload = _run_of(found)
        if workload.intent is intent:
            return workload
        path = objects_path(found.kind, found.namespace, found.name)
        try:
            if intent is Intent.DELETE:
                if managed_elsewhere(workload):
                    raise Conflict(
                        f"{found.name} was given to this cluster by Karmada, which would create it again and run it "
                        "anew. Delete it with the context of Karmada's control plane."
                    )
                content = self.client.delete(
                    path, {"propagationPolicy": "Background", "preconditions": {"uid": found.uid}}
                )
                if content.get("kind") != found.kind:
                    return replace(workload, intent=Intent.DELETE)
            elif found.is_leaving:
                raise Conflict(f"{found.name} is being deleted; submit it again when it is gone.")
            else:
                wish = f"{intent.value}:{time.time_ns() // 1000}"
                content = self.client.merge(path, {"metadata": {"uid": found.uid, "annotations": {INTENT: wish}}})
        except ApiError as error:
            if error.status in (404, 409):
                raise NotFound(f"There is no run with the id {uid!r} any more.") from error
            raise
        return self._taken(content)

    def update(
        self, uid: str, spec: Training, *, version: int, annotations: Mapping[str, str] | None = None
    ) -> Workload:
        key = self._find(uid)
        for _ in range(TRIES):
            there = self._read(key.kind, key.namespace, key.name)
            if there is None or there[1].uid != uid:
                break
            content, found = there
            run = leaf(_run_of(found))
            if found.is_leaving:
                raise Conflict(f"{found.name} is being deleted; submit it again when it is gone.")
            if run.version != version:
                raise Conflict(changed_meanwhile(found.name))
            if not check_update(run, filled(spec)) and not annotations:
                return run
            metadata = {
                "uid": uid,
                "resourceVersion": str(found.version),
                "annotations": dict(annotations or {}),
                "labels": merge_patch(run.spec.labels, spec.labels),
            }
            body = {"metadata": metadata, "spec": merge_patch(content["spec"], write_object(spec)["spec"])}
            try:
                return leaf(self._taken(self.client.merge(trainings_path(found.namespace, found.name), body)))
            except ApiError as error:
                if error.status == 422:
                    raise Conflict(f"{found.name}: the API server refuses it: {error.said}") from error
                if error.status not in (404, 409):
                    raise
        else:
            raise Conflict(changed_meanwhile(key.name))
        raise NotFound(f"There is no run with the id {uid!r} any more.")

    def revise(self, uid: str, spec: WorkloadSpec, annotations: Mapping[str, str]) -> AnyWorkload:
        """Give an endpoint, or a top-level pipeline, a new spec.

        Raises:
            Conflict: It is over or being deleted, or the API server refuses the spec.
            NotFound: There is none with that id.
        """
        key = self._find(uid)
        for _ in range(TRIES):
            there = self._read(key.kind, key.namespace, key.name)
            if there is None or there[1].uid != uid:
                raise NotFound(f"There is no run with the id {uid!r} any more.")
            content, found = there
            if found.is_leaving or found.state.status.phase.is_final:
                raise Conflict(f"{found.name} is over or being deleted; submit it again when it is gone.")
            spec = scaled_as(spec, _run_of(found).spec)
            metadata = {
                "uid": uid,
                "resourceVersion": str(found.version),
                "annotations": _revised_files(content, spec, annotations),
                "labels": merge_patch(_run_of(found).spec.labels, spec.labels),
            }
            body = {"metadata": metadata, "spec": merge_patch(content["spec"], write_object(spec)["spec"])}
            try:
                return self._taken(self.client.merge(objects_path(found.kind, found.namespace, found.name), body))
            except ApiError as error:
                if error.status == 422:
                    raise Conflict(f"{found.name}: the API server refuses it: {error.said}") from error
                if error.status not in (404, 409):
                    raise
        raise Conflict(changed_meanwhile(key.name))

    def workloads(self, *, limit: int | None = None) -> tuple[AnyWorkload, ...]:
        newest = sorted(self._runs(), key=lambda run: (-run.created_at, run.uid))
        return tuple(newest[:limit])

    def children(self, uid: str) -> tuple[AnyWorkload, ...]:
        found = (run for run in self._runs() if run.parent == uid)
        return tuple(sorted(found, key=lambda run: (run.created_at, run.uid)))

    def events(self, uid: str | None = None, *, after: int = 0) -> tuple[EventRecord, ...]:
        found = [
            event_record(each, kept)
            for each in self._objects()
            if uid in (None, each.uid)
            for kept in (submitted(each), *each.state.events)
            if kept.id > after
        ]
        return tuple(sorted(found, key=lambda event: event.id))

    def wait(self, timeout_s: float) -> None:
        self.view.wait(self._seen, timeout_s)
        self._seen = self.view.epoch

    def named(self, name: str, namespace: str) -> Workload:
        """Return the run of a name.

        Raises:
            NotFound: There is none.
        """
        there = self._read("Training", namespace, name)
        if there is None:
            raise NotFound(f"There is no run named {name!r} in the namespace {namespace!r}.")
        return leaf(_run_of(there[1]))

    def report(
        self,
        uid: str,
        progress: Progress | None,
        active_at: float | None,
        *,
        attempt: int = 0,
        events: tuple[SeenEvent, ...] = (),
    ) -> None:
        """Take in what an attempt of a run reports; it reaches the object with a later write."""
        is_new = progress is not None and progress != self._progress.get(uid)
        are_new = bool(events) and (attempt, events) != self._reported.get(uid)
        with self._lock:
            if progress is not None:
                self._progress[uid] = progress
            if events:
                self._reported[uid] = attempt, events
        if is_new or are_new:
            self.view.look_again(uid)
        self.view.note_active(uid, active_at)

    def note_pull(self, uid: str, attempt: int, pull: ImagePull) -> None:
        """Take in how long an attempt of a run pulled its images; it reaches the object with a later write."""
        with self._lock:
            self._pulls[uid] = attempt, pull
        self.view.look_again(uid)

    def refreshed(self, found: TrainingObject) -> RunRecord:
        """Return the state with what was observed since it was written: lost pods, progress, and events of ranks."""
        state, gang = found.state, found.state.gang
        if gang is not None:
            known = {pod.uid for pod in state.ended}
            over = [
                pod
                for pod in self.view.over(found.uid).values()
                if gang.has(pod.attempt, pod.index, pod.replacement) and pod.uid not in known
            ]
            if over:
                state = replace(state, ended=(*state.ended, *over))
            if not gang.created and gang.attempt in self.view.engines.of_run(found.uid):
                state = replace(state, gang=replace(gang, created=True))
            elif not gang.created:
                there = {(pod.attempt, pod.index) for pod in self.view.pods_of(found.uid).values()}
                gone = {pod.index for pod in state.ended}
                if all((gang.attempt, index) in there or index in gone for index in range(len(gang.nodes))):
                    state = replace(state, gang=replace(gang, created=True))
            if state.gang is not None and not all(each.created for each in state.gang.replaced):
                state = replace(state, gang=self._with_created(found.uid, state))
            attempt, pull = self._pulls.get(found.uid, (-1, None))
            if state.gang is not None and state.gang.attempt == attempt:
                state = replace(state, gang=replace(state.gang, pull=pull))
        if found.uid in self._reported:
            attempt, events = self._reported[found.uid]
            state = reported(state, attempt, events, next_event=lambda: self._next_event(time.time()))
        progress = self.progress_of(found.uid)
        return state if progress is None else replace(state, progress=progress)

    def _with_created(self, uid: str, state: RunRecord) -> Gang | None:
        """Return the gang with the replacements whose pods have been seen by now."""
        gang = state.gang
        if gang is None:
            return None
        there = {(pod.attempt, pod.index, pod.replacement) for pod in self.view.pods_of(uid).values()}
        there |= {(pod.attempt, pod.index, pod.replacement) for pod in state.ended}
        replaced = tuple(
            replace(each, created=each.created or (gang.attempt, each.index, each.number) in there)
            for each in gang.replaced
        )
        return replace(gang, replaced=replaced)

    def adopt(self, found: TrainingObject) -> bool:
        """Record an edited spec or an unknown intent, with the event; return False if the object has changed."""
        return self.write(found, self._adopted(found, time.time()))

    def _adopted(self, found: AnyObject, now: float) -> RunRecord:
        state = found.state if is_parent_kind(found.kind) else self.refreshed(found)
        return adopted(found, state, now, next_event=lambda: self._next_event(now))

    def progress_of(self, uid: str) -> Progress | None:
        """Return what a run last reported, while it ran or as a pod ended."""
        said = [each for each in (self._progress.get(uid), self.view.last_words(uid)) if each is not None]
        return max(said, key=lambda each: each.updated_at, default=None)

    def has_told(self, uid: str, members: tuple[Pod, ...]) -> bool:
        """Return whether the run's object shows its pods as they are; assumed if another process wrote it."""
        phases = tuple(pod.phase for pod in members)
        return self._told.get(uid, phases) == phases

    def write(self, found: AnyObject, state: RunRecord, *, is_quiet: bool = False) -> bool:
        """Write a state if the object is unchanged since it was read; return whether it was.

        Args:
            is_quiet: The write only records observations, and leaves the run's version as it is.
        """
        workload = _run_of(found)
        state = stamped(found, state, self._writer, is_quiet=is_quiet)
        intent = intent_of(state, found.wish, is_leaving=found.is_leaving)
        run = replace(workload, status=state.status, intent=intent, progress=state.progress)
        pods: tuple[Pod, ...] = ()
        if is_leaf(run):
            pods = self.view.members(found)
            if self._ledger is not None and run.status.phase.is_final:
                self._ledger.settle(found)  # the run's cost is not written after this
            cost = None if self._ledger is None else self._ledger.cost_of(run, time.time())
            status = training_status(run, pods, generation=found.generation, before=found.conditions, cost=cost)
        else:
            status = parent_status(run, generation=found.generation, before=found.conditions)
        body: Object = {
            "apiVersion": API_VERSION,
            "kind": found.kind,
            "metadata": {
                "name": found.name,
                "namespace": found.namespace,
                "uid": found.uid,
                "resourceVersion": str(found.version),
            },
            "status": {**status, "state": state_plain(state)},
        }
        try:
            content = self.client.apply(f"{objects_path(found.kind, found.namespace, found.name)}/status", body)
        except ApiError as error:
            if error.status == 409:
                there = self._read(found.kind, found.namespace, found.name)
                if there is not None:
                    self.view.cache_of(found.kind).put(there[0])
                    kept = there[1].state
                    # This very write may have succeeded in an earlier attempt whose answer was lost.
                    return error.unsure and (kept.writer, kept.written) == (state.writer, state.written)
            if error.status in (404, 409):
                return False
            raise
        self.view.cache_of(found.kind).put(content)
        self._told[found.uid] = tuple(pod.phase for pod in pods)
        return True

    def refuse_unreadable(self) -> list[AnyObject]:
        """Report in the status of workloads that they cannot run because their specs break rules the API server lacks.

        Return those that were just reported. Workloads that another version accepted are left as they are.
        """
        found = self.view.workload_objects()
        new = [each for each in found if each.problem and not each.shown_phase and self._is_ours(each)]
        return [each for each in new if self._refuse(each)]

    def _is_ours(self, found: AnyObject) -> bool:
        return self._namespace in (None, found.namespace) and not found.is_leaving

    def _refuse(self, found: AnyObject) -> bool:
        path = objects_path(found.kind, found.namespace, found.name)
        said = {"phase": Phase.FAILED.value, "reason": INVALID, "message": found.problem}
        body = {
            "apiVersion": API_VERSION,
            "kind": found.kind,
            "metadata": {"name": found.name, "uid": found.uid, "resourceVersion": str(found.version)},
            "status": {"observedGeneration": found.generation, **said},
        }
        try:
            content = self.client.apply(f"{path}/status", body)
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        self.view.cache_of(found.kind).put(content)
        return True

    def _carry_out(self, change: Change) -> bool:
        """Apply a change, and retry where only a quiet write or a changed label intervened.

        A refusal by the API server, such as of a quota or a webhook, delays only the workload concerned: a child that
        its
        parent submits, or the workload's own status.
        """
        try:
            done = any(self._try(change) for _ in range(TRIES))
        except _ChildRefusedError as refused:
            self.note_refusal(change.workload_uid, Refusal.CHILD, str(refused))
            return False
        except ApiError as error:
            if error.status not in REFUSALS:
                raise
            self.note_refusal(change.workload_uid, Refusal.STATUS, str(error))
            return False
        if done and (change.status is not None or change.submit or change.children):
            with self._lock:
                self._refused.pop(change.workload_uid, None)
        return done

    def note_refusal(self, uid: str, what: Refusal, said: str) -> None:
        """Record what a workload is refused, so that it is reported once."""
        with self._lock:
            known = self._refused.setdefault(uid, {})
            if known.get(what) != said:
                known[what] = self._untold[uid, what] = said

    def note_address(self, uid: str, problem: str | None) -> None:
        """Record why an endpoint has no address, or that it has one, for the next decision."""
        with self._lock:
            if self._unaddressed.get(uid) == problem:
                return
            others = {each: said for each, said in self._unaddressed.items() if each != uid}
            self._unaddressed = others if problem is None else {**others, uid: problem}
        self.view.wake()

    def keep_addresses(self, uids: Collection[str]) -> None:
        """Forget all endpoints except these."""
        with self._lock:
            self._unaddressed = {uid: said for uid, said in self._unaddressed.items() if uid in uids}

    def take_refusals(self) -> list[tuple[AnyObject, Refusal, str]]:
        """Return the workloads that the API server refuses something, with its message, once for each new message."""
        with self._lock:
            untold, self._untold = self._untold, {}
        found = ((self.view.find_any(uid), what, said) for (uid, what), said in untold.items())
        return [(each, what, said) for each, what, said in found if each is not None]

    def _try(self, change: Change) -> bool:
        found = self.view.find_any(change.workload_uid)
        if found is None or found.workload is None or found.workload.version != change.version:
            return False
        if self._ledger is not None and (change.forget or change.create) and is_leaf(found.workload):
            self._ledger.settle(found)  # before the object forgets these pods
        if change.forget:
            return self._forget(found)
        if (change.create or change.submit) and FINALIZER not in found.finalizers:
            if found.is_leaving:
                return False
            held = self._with_finalizers(found, (*found.finalizers, FINALIZER))
            if held is None:
                return False
            found = held
        with _of_children():
            if not self._submit_children(found, change.submit):
                return False
            self._ask_children(each for each in change.children if each.intent is Intent.RUN)
        now = time.time()
        live = {pod.uid for pod in everyone(self.view, found) if not pod.phase.is_final}
        change = replace(change, terminate=tuple(order for order in change.terminate if order.pod_uid in live))
        before = self._adopted(found, now)
        state = changed(replace(found, state=before), change, now, event_id=self._next_event(now))
        if is_attempt_over(before, state):
            state = with_attempt(before, state, self.view.members(found), now)
        if not self.write(found, state):
            return False
        with _of_children():
            self._ask_children(each for each in change.children if each.intent is not Intent.RUN)
        return True

    def _submit_children(self, found: AnyObject, orders: tuple[SubmitChild, ...]) -> bool:
        """Create the missing children; return False if the parent has changed, or a name is taken."""
        children = {each.name for each in self.view.children_of(found.uid)} if orders else set()
        orders = tuple(order for order in orders if order.spec.name not in children)
        if not orders:
            return True
        there = self._read(found.kind, found.namespace, found.name)
        if there is None or there[1].version != found.version:
            return False
        kept = there[0]["metadata"].get("annotations") or {}
        if any(self._is_taken(order.spec, found.uid) for order in orders):
            return False
        try:
            for order in orders:
                # Files of an earlier spec of the parent are not for children that have their files in the image.
                # The runs of a pipeline follow from its object.
                has_files = getattr(order.spec, "workdir", None) is not None
                has_files = has_files or any(run.workdir is not None for run in runs_of(order.spec))
                content = self._create(order.spec, _inherited(kept, order.spec) if has_files else {}, _run_of(found))
                self.view.cache_of(type(order.spec).__name__).put(content)
        except NameTaken:
            return False
        return True

    def _is_taken(self, spec: WorkloadSpec, parent: str) -> bool:
        """Return whether an unfinished workload that is not the parent's has the name of a child."""
        key = f"{spec.team}/{spec.name}"
        found = (self.view.cache_of(kind).get(key) for kind in workload_kinds())
        there = (each for each in found if each is not None and _parent_in(each) != parent)
        return any(each.workload is None or not each.workload.status.phase.is_final for each in there)

    def _ask_children(self, orders: Iterable[ChildIntent]) -> None:
        for order in orders:
            # It is gone or is being deleted.
            with suppress(NotFound, Conflict):
                self.set_intent(order.uid, order.intent)

    def _forget(self, found: AnyObject) -> bool:
        if any(not pod.phase.is_final for pod in everyone(self.view, found)) or self.view.children_of(found.uid):
            return False
        if not found.is_leaving:
            leaving = self._let_go(found)
            if leaving is None:
                return False
            found = leaving
        rest = tuple(name for name in found.finalizers if name != FINALIZER)
        if rest != found.finalizers and self._with_finalizers(found, rest) is None:
            return False
        if not rest:
            self.view.cache_of(found.kind).drop(found.key, found.version)
        with self._lock:
            self._progress.pop(found.uid, None)
            self._reported.pop(found.uid, None)
            self._pulls.pop(found.uid, None)
            self._told.pop(found.uid, None)
            self._refused.pop(found.uid, None)
        return True

    def _let_go(self, found: AnyObject) -> AnyObject | None:
        """Delete the object, which then waits for our finalizer; return None if it has changed since it was read."""
        preconditions = {"uid": found.uid, "resourceVersion": str(found.version)}
        options = {"propagationPolicy": "Background", "preconditions": preconditions}
        try:
            content = self.client.delete(objects_path(found.kind, found.namespace, found.name), options)
        except ApiError as error:
            if error.status in (404, 409):
                return None
            raise
        if content.get("kind") == found.kind:
            return self.view.cache_of(found.kind).put(content)
        self.view.cache_of(found.kind).drop(found.key, found.version)
        return replace(found, is_leaving=True, finalizers=())

    def _with_finalizers(self, found: AnyObject, finalizers: tuple[str, ...]) -> AnyObject | None:
        """Return the object with these finalizers; None if it has changed since it was read."""
        metadata = {"resourceVersion": str(found.version), "uid": found.uid, "finalizers": list(finalizers)}
        try:
            content = self.client.merge(objects_path(found.kind, found.namespace, found.name), {"metadata": metadata})
        except ApiError as error:
            if error.status in (404, 409):
                return None
            raise
        return self.view.cache_of(found.kind).put(content) if finalizers or not found.is_leaving else found

    def _make_way(self, found: AnyObject, spec: WorkloadSpec) -> None:
        """Remove a finished run whose name is needed again."""
        run = found.workload
        if found.is_leaving or run is None or not run.status.phase.is_final or run.intent is Intent.RUN:
            raise name_taken(spec)
        path = objects_path(found.kind, found.namespace, found.name)
        rest = [name for name in found.finalizers if name != FINALIZER]
        try:
            metadata = {"resourceVersion": str(found.version), "finalizers": rest}
            self.client.merge(path, {"metadata": metadata})
            self.client.delete(path, {"propagationPolicy": "Background", "preconditions": {"uid": found.uid}})
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        if self._view is not None:
            self._view.cache_of(found.kind).drop(found.key, found.version)

    def _next_event(self, now: float) -> int:
        with self._lock:
            self._last_event = max(int(now * 1e6), self._last_event + 1)
            return self._last_event

    def _runs(self) -> Iterator[AnyWorkload]:
        return (found.workload for found in self._objects() if found.workload is not None)

    def _objects(self) -> Iterable[AnyObject]:
        if self._view is not None:
            return [each for each in self._view.workload_objects() if self._namespace in (None, each.namespace)]
        return [
            read_workload(content)
            for kind in workload_kinds()
            for content in items_of(self.client, kind, self._namespace)
        ]

    def _find(self, uid: str) -> AnyObject:
        found = self._view.find_any(uid) if self._view is not None else None
        if found is None or self._namespace not in (None, found.namespace):
            found = next((each for each in self._objects() if each.uid == uid), None)
        if found is None:
            raise NotFound(f"There is no run with the id {uid!r}.")
        return found

    def _read(self, kind: str, namespace: str, name: str) -> tuple[Object, AnyObject] | None:
        try:
            content = self.client.get(objects_path(kind, namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return content, read_workload(content)

    def _taken(self, content: Object) -> AnyWorkload:
        """Return the workload in an answer, which the watches know from now on."""
        found = read_workload(content)
        if self._view is not None:
            self._view.cache_of(found.kind).put(content)
        return _run_of(found)


class _ChildRefusedError(ClusterError):
    """The API server refuses a child that a change creates or updates."""


@contextmanager
def _of_children() -> Iterator[None]:
    try:
        yield
    except ClusterError as error:
        if isinstance(error, ApiError) or isinstance(error.__cause__, ApiError):
            raise _ChildRefusedError(str(error)) from error
        raise  # no answer: other requests get none either


def items_of(client: Client, kind: str, namespace: str | None, query: dict[str, str] | None = None) -> Iterator[Object]:
    """Return the objects of a kind of workload; none of a kind that an older installation lacks."""
    try:
        yield from client.items(objects_path(kind, namespace), query)
    except ApiError as error:
        if not is_unknown_kind(kind, error):
            raise


def is_unknown_kind(kind: str, error: ApiError) -> bool:
    """Return whether an error means that an older installation lacks a kind; its roles then grant nothing of
    it."""
    return kind != "Training" and error.status in (403, 404)


def name_taken(spec: WorkloadSpec) -> NameTaken:
    """Return the error for the name of an unfinished run."""
    return NameTaken(
        f"A run named {spec.name!r} of team {spec.team!r} is not finished. "
        f"Stop it with `fairlead stop {spec.name}`, or choose another name with `--name`."
    )


def _inherited(kept: Mapping[str, str], child: WorkloadSpec) -> dict[str, str]:
    """Return the annotations that a child inherits; a replica has the files of its own revision."""
    found = {name: kept[name] for name in INHERITED if name in kept}
    if not isinstance(child, Replica) or (own := read_files(kept).annotations(child.code)).get(WORKDIR) is None:
        return found
    if own[WORKDIR] == found.get(WORKDIR):
        return found  # with git's complete message
    return {name: value for name, value in own.items() if value is not None}


def _revised_files(content: Object, spec: WorkloadSpec, annotations: Mapping[str, str]) -> Mapping[str, str | None]:
    """Return the annotations that give an object a new spec; None removes one."""
    if not isinstance(spec, Serving):
        return dict(annotations)
    there = read_files(content["metadata"].get("annotations") or {})
    if spec.code and WORKDIR not in annotations and there.of(spec.code) is None:
        raise Conflict(
            f"{spec.name}: the files of that revision are not kept any more: the annotation {CODE} does not name them. "
            "Run its spec again from the directory that has them."
        )
    return revised(there, spec.code, annotations)


def _parent_in(found: AnyObject) -> str | None:
    return None if found.workload is None else found.workload.parent


def _run_of(found: AnyObject) -> AnyWorkload:
    if found.workload is None:
        raise ClusterError(f"The run {found.name} cannot be read by this Fairlead: {found.problem}")
    return found.workload


def _explained(error: ApiError, spec: WorkloadSpec, client: Client) -> ClusterError:
    if error.status == 404 and "namespaces" in error.said:
        return ClusterError(
            f"There is no namespace {spec.team!r} for the run {spec.name!r}. Create it, apply a Team of that name, or "
            "choose another with `--namespace`."
        )
    if error.status == 404:
        install = f"fairlead install{client.access.option}"
        return ClusterError(f"This cluster does not know Fairlead's kinds. `{install}` sets them up.")
    if error.status == 422:
        return ClusterError(f"{spec.name}: the API server refuses it: {error.said}")
    return error
