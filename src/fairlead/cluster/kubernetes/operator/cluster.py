"""A Kubernetes cluster behind the port: a workload's object holds its truth, and each change is one guarded write.

Changes to children come before that write where repeating them does no harm: creating them, and letting them run.
Stopping them comes after it, since the operator that continues from the write repeats the request.
"""

import logging
import math
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from typing import Any, Protocol

from fairlead.cluster.kubernetes.api.client import BUSY, ApiError, Client, Object
from fairlead.cluster.kubernetes.api.objects import NodeObject
from fairlead.cluster.kubernetes.informers.informers import Informers, WatchedObjects
from fairlead.cluster.kubernetes.informers.run_reports import RunReports
from fairlead.cluster.kubernetes.informers.snapshot_cache import IdleOf, SnapshotCache, everyone
from fairlead.cluster.kubernetes.kinds import is_parent_kind, objects_path, workload_kinds
from fairlead.cluster.kubernetes.manifests.conditions import INVALID, invalid_conditions
from fairlead.cluster.kubernetes.manifests.statuses import parent_status, training_status
from fairlead.cluster.kubernetes.operator.intake import take_in
from fairlead.cluster.kubernetes.operator.request_dispatch import TOLD_AT
from fairlead.cluster.kubernetes.operator.retry_delays import RetryDelays
from fairlead.cluster.kubernetes.operator.write_pool import WritePool
from fairlead.cluster.kubernetes.workloads.run_record import (
    FINALIZER,
    AnyObject,
    Gang,
    RunRecord,
    TrainingObject,
    adopted,
    intent_of,
    is_attempt_over,
    recorded,
    reported,
    stamped,
    state_plain,
    with_attempt,
)
from fairlead.cluster.kubernetes.workloads.workload_api import (
    TRIES,
    WorkloadApi,
    inherited_annotations,
    parent_in,
    workload_of,
)
from fairlead.errors import ClusterError, Conflict, NameTaken, NotFound
from fairlead.ledger.run_cost import RunCost
from fairlead.policy.kinds.table import runs_of
from fairlead.policy.next_decision import next_decision_at
from fairlead.specs.keys import API_VERSION
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.plan import Change, ChildIntent, Plan
from fairlead.state.scheduling_policy import DEFAULT, SchedulingPolicy
from fairlead.state.snapshot import (
    Intent,
    Phase,
    Pod,
    PodPhase,
    Snapshot,
    Workload,
    is_leaf,
)
from fairlead.state.transitions import Child, LivePod, NewChild, Transition, transition

log = logging.getLogger(__name__)

NUM_WRITERS = 8
MOST_REFUSALS = 20
"""Refusals that are told of one workload until one of its changes is written."""
_NUMBERS = re.compile(r"\d+")


class RefusedWrite(StrEnum):
    """The kinds of write that the API server may refuse; each is the reason of the Event that reports it."""

    CHILD = "ChildRefused"
    STATUS = "StatusRefused"
    REQUEST = "RequestRefused"


class RunLedger(Protocol):
    """The part of a ledger that its cluster uses."""

    def price_per_hour(self, node: NodeObject, /) -> float | None: ...

    def settle(self, run: TrainingObject, /) -> None: ...

    def cost_of(self, workload: Workload, now: float, /) -> RunCost | None: ...


class KubernetesCluster(WorkloadApi):
    """A ``Cluster`` of Kubernetes' nodes, and the operator's ``WorkloadStore``: both answer from watches.

    Args:
        view: The watches, started before the first call.
        namespace: Consider only runs of this namespace; None for all.
        rules: The policy by which pending runs are started.
        ledger: Records what pods hold; None records nothing.
        idle_of: Returns how idle a run is; None if it is not, or that is not measured.
        reports: What runs report beside their objects; by default nothing was reported yet.
    """

    def __init__(
        self,
        client: Client,
        *,
        view: Informers,
        namespace: str | None = None,
        rules: SchedulingPolicy = DEFAULT,
        ledger: "RunLedger | None" = None,
        idle_of: IdleOf = lambda _: None,
        reports: RunReports | None = None,
    ) -> None:
        super().__init__(client, namespace=namespace, source=WatchedObjects(view))
        self.view = view
        self.reports = reports or RunReports(view)
        self._rules = rules
        self._writer = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._lock = threading.Lock()
        self._last_event = 0
        self._seen = -1
        self._picture: SnapshotCache | None = None
        self.shown: Snapshot | None = None
        """The latest snapshot, with all that was added to it; None before the first."""
        self._written_phases: dict[str, tuple[PodPhase, ...]] = {}
        self._refused: dict[str, set[tuple[RefusedWrite, str]]] = {}
        self._unaddressed: dict[str, str] = {}
        self._untold: list[tuple[str, RefusedWrite, str]] = []
        self._delays = RetryDelays[str]()
        self._writes: WritePool[Change] | None = None
        self._ledger = ledger
        self._idle_of = idle_of

    def snapshot(self) -> Snapshot:
        self._seen = self.view.epoch
        if self._picture is None:
            self._picture = SnapshotCache(
                self.view,
                namespace=self._namespace,
                progress_of=self.reports.progress_of,
                rules=self._rules,
                price_of=None if self._ledger is None else self._ledger.price_per_hour,
                idle_of=self._idle_of,
            )
        snapshot, behind = take_in(self._with_deferred(self._picture.look()))
        for team in behind:
            self.view.urgent.request(team)
        with self._lock:
            unaddressed = self._unaddressed
        self.shown = replace(snapshot, unaddressed=unaddressed) if unaddressed else snapshot
        return self.shown

    def _with_deferred(self, seen: Snapshot) -> Snapshot:
        """Return the snapshot with the workloads whose last change was refused or has no answer yet.

        What such a change starts may be written at any time, so that its pods count as pods of others.
        """
        slow = {} if self._writes is None else self._writes.slow()
        with self._lock:
            deferred = frozenset((*slow, *self._delays.delayed()))
        if not deferred:
            return seen
        pods = tuple(
            Pod(
                uid=f"unanswered-{uid}-{order.index}",
                workload_uid="",
                attempt=order.attempt,
                index=order.index,
                node=order.node,
                grant=order.grant,
                phase=PodPhase.STARTING,
                created_at=0.0,
            )
            for uid, change in slow.items()
            for order in change.create
        )
        return replace(seen, deferred=deferred, pods=(*seen.pods, *pods))

    @property
    def refused(self) -> set[str]:
        """The uids of the workloads whose last change the API server refused."""
        with self._lock:
            return set(self._delays.failed())

    def next_decision_at(self, now: float) -> float:
        """Return when time alone may change what was decided on the latest snapshot, in Unix seconds; infinity if
        never."""
        return math.inf if self.shown is None else next_decision_at(self.shown, now)

    def apply(self, plan: Plan, meanwhile: Callable[[], None] = lambda: None) -> tuple[bool, ...]:
        """Apply each change of a plan, as ``Cluster`` says.

        Args:
            meanwhile: Called while changes are written, to act on those that are already written.
        """
        uids = [change.workload_uid for change in plan.changes]
        if len(set(uids)) < len(uids):
            return tuple(self._carry_out(change) for change in plan.changes)
        if self._writes is None:
            self._writes = WritePool(
                self._carry_out, lambda change: change.workload_uid, team_of=self._team_of, num_threads=NUM_WRITERS,
                wake=self.view.wake, is_urgent=self.view.urgent.are_beside,
            )  # fmt: skip
        return self._writes.write(plan.changes, meanwhile)

    def _team_of(self, change: Change) -> str:
        workload = self.view.find_any(change.workload_uid)
        return "" if workload is None else workload.namespace

    def wait(self, timeout_s: float) -> None:
        self.view.wait(self._seen, timeout_s)
        self._seen = self.view.epoch

    def refreshed(self, item: TrainingObject) -> RunRecord:
        """Return the state with what was observed since it was written: lost pods, progress, and events of ranks."""
        state, gang = item.state, item.state.gang
        if gang is not None:
            known = {pod.uid for pod in state.ended}
            over = [
                pod
                for pod in self.view.over(item.uid).values()
                if gang.has(pod.attempt, pod.index, pod.replacement) and pod.uid not in known
            ]
            if over:
                state = replace(state, ended=(*state.ended, *over))
            if not gang.created and gang.attempt in self.view.engines.of_run(item.uid):
                state = replace(state, gang=replace(gang, created=True))
            elif not gang.created:
                existing = {(pod.attempt, pod.index) for pod in self.view.pods_of(item.uid).values()}
                gone = {pod.index for pod in state.ended}
                if all((gang.attempt, index) in existing or index in gone for index in range(len(gang.nodes))):
                    state = replace(state, gang=replace(gang, created=True))
            if state.gang is not None and not all(replacement.created for replacement in state.gang.replaced):
                state = replace(state, gang=self._with_created(item.uid, state))
            pull = None if state.gang is None else self.reports.pull_of(item.uid, state.gang.attempt)
            if state.gang is not None and pull is not None:
                state = replace(state, gang=replace(state.gang, pull=pull))
        if (of_attempt := self.reports.events_of(item.uid)) is not None:
            attempt, events = of_attempt
            state = reported(state, attempt, events, next_event=lambda: self._next_event(time.time()))
        progress = self.reports.progress_of(item.uid)
        return state if progress is None else replace(state, progress=progress)

    def _with_created(self, uid: str, state: RunRecord) -> Gang | None:
        """Return the gang with the replacements whose pods have been seen by now."""
        gang = state.gang
        if gang is None:
            return None
        existing = {(pod.attempt, pod.index, pod.replacement) for pod in self.view.pods_of(uid).values()}
        existing |= {(pod.attempt, pod.index, pod.replacement) for pod in state.ended}
        replaced = tuple(
            replace(
                replacement,
                created=replacement.created or (gang.attempt, replacement.index, replacement.number) in existing,
            )
            for replacement in gang.replaced
        )
        return replace(gang, replaced=replaced)

    def adopt(self, item: TrainingObject) -> bool:
        """Record an edited spec or an unknown intent, with the event; return False if the object has changed."""
        return self.write(item, self._adopted(item, time.time()))

    def _adopted(self, item: AnyObject, now: float) -> RunRecord:
        state = item.state if is_parent_kind(item.kind) else self.refreshed(item)
        return adopted(item, state, now, next_event=lambda: self._next_event(now))

    def shows_pods(self, uid: str, members: tuple[Pod, ...]) -> bool:
        """Return whether the run's object shows its pods as they are; assumed if another process wrote it."""
        phases = tuple(pod.phase for pod in members)
        return self._written_phases.get(uid, phases) == phases

    def write(self, item: AnyObject, state: RunRecord, *, is_quiet: bool = False) -> bool:
        """Write a state if the object is unchanged since it was read; return whether it was.

        Args:
            is_quiet: The write only records observations, and leaves the run's version as it is.
        """
        workload = workload_of(item)
        state = stamped(item, state, self._writer, is_quiet=is_quiet)
        intent = intent_of(state, item.wish, is_leaving=item.is_leaving)
        run = replace(workload, status=state.status, intent=intent, progress=state.progress)
        pods: tuple[Pod, ...] = ()
        if is_leaf(run):
            pods = self.view.members(item)
            if self._ledger is not None and run.status.phase.is_final:
                self._ledger.settle(item)  # the run's cost is not written after this
            cost = None if self._ledger is None else self._ledger.cost_of(run, time.time())
            status = training_status(run, pods, generation=item.generation, before=item.conditions, cost=cost)
        else:
            status = parent_status(run, generation=item.generation, before=item.conditions)
        body: Object = {
            "apiVersion": API_VERSION,
            "kind": item.kind,
            "metadata": {
                "name": item.name,
                "namespace": item.namespace,
                "uid": item.uid,
                "resourceVersion": str(item.version),
            },
            "status": {**status, "state": state_plain(state)},
        }
        try:
            path = f"{objects_path(item.kind, item.namespace, item.name)}/status"
            content = self.client.apply(path, body, retried=BUSY)
        except ApiError as error:
            if error.status == 409:
                latest = self.read(item.kind, item.namespace, item.name)
                if latest is not None:
                    self.view.cache_of(item.kind).put(latest[0])
                    stored = latest[1].state
                    # This very write may have succeeded in an earlier attempt whose answer was lost.
                    return error.unsure and (stored.writer, stored.written) == (state.writer, state.written)
            if error.status in (404, 409):
                return False
            raise
        self.view.cache_of(item.kind).put(content)
        self._written_phases[item.uid] = tuple(pod.phase for pod in pods)
        return True

    @property
    def namespace(self) -> str | None:
        """Return the only namespace whose workloads are considered; None for all."""
        return self._namespace

    def invalid(self) -> list[AnyObject]:
        """Return the workloads that cannot run because their specs break rules the API server lacks, which their
        status does not say yet. Those that another version accepted are left as they are."""
        items = self.view.workload_objects()
        return [item for item in items if item.problem and not item.shown_phase and self._is_ours(item)]

    def _is_ours(self, item: AnyObject) -> bool:
        return self._namespace in (None, item.namespace) and not item.is_leaving

    def refuse(self, item: AnyObject) -> bool:
        """Report in the status of a workload that its spec is invalid; return False if the object has changed."""
        path = objects_path(item.kind, item.namespace, item.name)
        status = {"phase": Phase.FAILED.value, "reason": INVALID, "message": item.problem}
        body = {
            "apiVersion": API_VERSION,
            "kind": item.kind,
            "metadata": {"name": item.name, "uid": item.uid, "resourceVersion": str(item.version)},
            "status": {
                "observedGeneration": item.generation,
                **status,
                "conditions": invalid_conditions(item.problem, at=time.time(), generation=item.generation),
            },
        }
        try:
            content = self.client.apply(f"{path}/status", body)
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        self.view.cache_of(item.kind).put(content)
        return True

    def _carry_out(self, change: Change) -> bool:
        """Apply a change, and retry where only a quiet write or a changed label intervened.

        An answer about the workload, such as of a quota or a webhook, delays that workload alone, and is told on it: a
        child that it submits, or its own status.
        """
        uid = change.workload_uid
        with self._lock:
            if self._delays.is_delayed(uid):
                return False
        try:
            done = any(self._try(change) for _ in range(TRIES))
        except (_ChildRefusedError, ApiError) as error:
            if error.concerns_all:
                raise
            self._defer(uid, RefusedWrite.STATUS if isinstance(error, ApiError) else RefusedWrite.CHILD, error)
            return False
        except ClusterError:
            raise
        except Exception as error:  # noqa: BLE001
            # The changes of other workloads are applied all the same; a later pass decides this one anew.
            self.view.isolation.note(f"change of {self._name(uid)}", error)
            with self._lock:
                self._delays.fail(uid)
            return False
        with self._lock:
            self._delays.succeed(uid)
            if done and (change.status is not None or change.submit or change.children):
                self._refused.pop(uid, None)
        return done

    def _defer(self, uid: str, what: RefusedWrite, error: ClusterError) -> None:
        """Try the changes of a workload later, and tell of a refusal that is no matter of a moment."""
        with self._lock:
            num_failures = self._delays.fail(uid)
        cause = error if isinstance(error, ApiError) else error.__cause__
        if num_failures >= TOLD_AT or (isinstance(cause, ApiError) and cause.status < 500):
            self.note_refusal(uid, what, str(error))

    def _name(self, uid: str) -> str:
        item = self.view.find_any(uid)
        return f"run {uid}" if item is None else f"{item.kind} {item.key}"

    def note_refusal(self, uid: str, what: RefusedWrite, problem: str) -> None:
        """Record what a workload is refused, so that it is told once."""
        message = what, _NUMBERS.sub("0", problem)  # of ports, seconds and attempts
        with self._lock:
            known = self._refused.setdefault(uid, set())
            if message not in known and len(known) < MOST_REFUSALS:
                known.add(message)
                self._untold.append((uid, what, problem))

    def note_address(self, uid: str, problem: str | None) -> None:
        """Record why an endpoint has no address, or that it has one, for the next decision."""
        with self._lock:
            if self._unaddressed.get(uid) == problem:
                return
            others = {other: reason for other, reason in self._unaddressed.items() if other != uid}
            self._unaddressed = others if problem is None else {**others, uid: problem}
        self.view.wake()

    def keep_addresses(self, uids: Collection[str]) -> None:
        """Forget all endpoints except these."""
        with self._lock:
            self._unaddressed = {uid: reason for uid, reason in self._unaddressed.items() if uid in uids}

    def take_refusals(self) -> list[tuple[AnyObject, RefusedWrite, str]]:
        """Return the workloads that the API server refuses something, with its message, once for each message."""
        with self._lock:
            untold, self._untold = self._untold, []
        items = ((self.view.find_any(uid), what, problem) for uid, what, problem in untold)
        return [(item, what, problem) for item, what, problem in items if item is not None]

    def _try(self, change: Change) -> bool:
        item = self.view.find_any(change.workload_uid)
        now = time.time()
        effect = None if item is None else transition_of(self.view, item, change, now)
        if item is None or effect is None:
            return False
        if self._ledger is not None and (effect.after is None or effect.created) and is_leaf(workload_of(item)):
            self._ledger.settle(item)  # before the object forgets these pods
        if effect.after is None:
            return self._forget(item)
        if (effect.created or effect.submitted) and FINALIZER not in item.finalizers:
            if item.is_leaving:
                return False
            held = self._with_finalizers(item, (*item.finalizers, FINALIZER))
            if held is None:
                return False
            item = held
        with _of_children():
            if not self._submit_children(item, effect.submitted):
                return False
            self._ask_children(child for child in effect.requested if child.intent is Intent.RUN)
        before = self._adopted(item, now)
        state = recorded(replace(item, state=before), effect, now, event_id=self._next_event(now))
        if change.incident is not None:
            state = replace(state, incident=change.incident)
        if is_attempt_over(before, state):
            state = with_attempt(before, state, self.view.members(item), now)
        if not self.write(item, state):
            return False
        with _of_children():
            self._ask_children(child for child in effect.requested if child.intent is not Intent.RUN)
        return True

    def _submit_children(self, parent: AnyObject, children: tuple[NewChild, ...]) -> bool:
        """Create the missing children; return False if the parent has changed, or a name is taken."""
        if not children:
            return True
        latest = self.read(parent.kind, parent.namespace, parent.name)
        if latest is None or latest[1].version != parent.version:
            return False
        annotations = latest[0]["metadata"].get("annotations") or {}
        if any(self._is_taken(child.spec, parent.uid) for child in children):
            return False
        try:
            for child in children:
                # Files of an earlier spec of the parent are not for children that have their files in the image.
                # The runs of a pipeline follow from its object.
                has_files = getattr(child.spec, "workdir", None) is not None
                has_files = has_files or any(run.workdir is not None for run in runs_of(child.spec))
                inherited = inherited_annotations(annotations, child.spec) if has_files else {}
                content = self.create(child.spec, inherited, workload_of(parent))
                self.view.cache_of(type(child.spec).__name__).put(content)
        except NameTaken:
            return False
        return True

    def _is_taken(self, spec: WorkloadSpec, parent: str) -> bool:
        """Return whether an unfinished workload that is not the parent's has the name of a child."""
        key = f"{spec.team}/{spec.name}"
        namesakes = (self.view.cache_of(kind).get(key) for kind in workload_kinds())
        others = (item for item in namesakes if item is not None and parent_in(item) != parent)
        return any(item.workload is None or not item.workload.status.phase.is_final for item in others)

    def _ask_children(self, orders: Iterable[ChildIntent]) -> None:
        for order in orders:
            # It is gone or is being deleted.
            with suppress(NotFound, Conflict):
                self.set_intent(order.uid, order.intent)

    def _forget(self, item: AnyObject) -> bool:
        """Delete the object of a workload that has neither live pods nor children."""
        if not item.is_leaving:
            leaving = self._let_go(item)
            if leaving is None:
                return False
            item = leaving
        rest = tuple(name for name in item.finalizers if name != FINALIZER)
        if rest != item.finalizers and self._with_finalizers(item, rest) is None:
            return False
        if not rest:
            self.view.cache_of(item.kind).drop(item.key, item.version)
        self.reports.forget(item.uid)
        with self._lock:
            self._written_phases.pop(item.uid, None)
            self._refused.pop(item.uid, None)
            self._delays.succeed(item.uid)
        return True

    def _let_go(self, item: AnyObject) -> AnyObject | None:
        """Delete the object, which then waits for our finalizer; return None if it has changed since it was read."""
        preconditions = {"uid": item.uid, "resourceVersion": str(item.version)}
        options = {"propagationPolicy": "Background", "preconditions": preconditions}
        try:
            content = self.client.delete(objects_path(item.kind, item.namespace, item.name), options)
        except ApiError as error:
            if error.status in (404, 409):
                return None
            raise
        if content.get("kind") == item.kind:
            return self.view.cache_of(item.kind).put(content)
        self.view.cache_of(item.kind).drop(item.key, item.version)
        return replace(item, is_leaving=True, finalizers=())

    def _with_finalizers(self, item: AnyObject, finalizers: tuple[str, ...]) -> AnyObject | None:
        """Return the object with these finalizers; None if it has changed since it was read."""
        metadata = {"resourceVersion": str(item.version), "uid": item.uid, "finalizers": list(finalizers)}
        try:
            content = self.client.merge(objects_path(item.kind, item.namespace, item.name), {"metadata": metadata})
        except ApiError as error:
            if error.status in (404, 409):
                return None
            raise
        return self.view.cache_of(item.kind).put(content) if finalizers or not item.is_leaving else item

    def _next_event(self, now: float) -> int:
        with self._lock:
            self._last_event = max(int(now * 1e6), self._last_event + 1)
            return self._last_event


def transition_of(view: Informers, item: AnyObject, change: Change, now: float) -> Transition[Any] | None:
    """Return the effect of a change on the workload of an object; None if it is stale or cannot be read."""
    if item.workload is None:
        return None
    pods, children = list[LivePod](), list[Child]()
    if change.needs_pods:
        notices = {notice.pod_uid: notice for notice in item.state.notices}
        live = (pod for pod in everyone(view, item) if not pod.phase.is_final)
        pods = [LivePod(uid=pod.uid, notice=notices.get(pod.uid)) for pod in live]
    if change.needs_children:
        known = (child.workload for child in view.children_of(item.uid))
        children = [
            Child(uid=child.uid, name=child.spec.name, intent=child.intent) for child in known if child is not None
        ]
    return transition(item.workload, change, now, pods=pods, children=children)


class _ChildRefusedError(ClusterError):
    """The API server refuses a child that a change creates or updates."""

    @property
    def concerns_all(self) -> bool:
        return False


@contextmanager
def _of_children() -> Iterator[None]:
    try:
        yield
    except ClusterError as error:
        answer = error if isinstance(error, ApiError) else error.__cause__
        if isinstance(answer, ApiError) and not answer.concerns_all:
            raise _ChildRefusedError(str(error)) from answer
        raise  # no answer: other requests get none either
