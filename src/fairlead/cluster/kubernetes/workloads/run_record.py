"""Reads and writes the state in a workload object's ``status.state``, and the workload that it describes. Pure.

Most of it is about runs with pods; a parent uses the status, intent, wish and events.

The object holds the truth of its run. A change is one write of its status, guarded by the resourceVersion that it was
decided on; what follows from it (pods to create and to delete) is in that write, so any operator can complete it.

See decision 140.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Generic, TypeAlias, TypeVar

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.objects import seconds
from fairlead.cluster.kubernetes.kinds import is_parent_kind
from fairlead.cluster.kubernetes.manifests.pipeline_driver import with_driver
from fairlead.cluster.kubernetes.manifests.pods import MEMORY_BYTES_PER_RANK
from fairlead.cluster.kubernetes.manifests.revision_files import CODE, RevisionFiles, read_files
from fairlead.cluster.kubernetes.manifests.spec_objects import read_object
from fairlead.cluster.kubernetes.manifests.workdir import WORKDIR
from fairlead.cluster.kubernetes.workloads.pod_reports import SeenEvent
from fairlead.cluster.port import EventRecord
from fairlead.cluster.preflight import dataset_problem, input_problem, pod_problem, population_problem
from fairlead.cluster.records import build, plain, with_detail
from fairlead.errors import InvalidSpec
from fairlead.frozen import dataclass
from fairlead.policy.kinds.lifecycle import upgraded
from fairlead.policy.kinds.spec_updates import changed as spec_changed
from fairlead.policy.kinds.spec_updates import updated_status
from fairlead.policy.kinds.table import runs_of
from fairlead.specs.constraints import quote
from fairlead.specs.formats.differences import Difference, differences_of_values, explicit_values
from fairlead.specs.keys import API_VERSION
from fairlead.specs.overlay_allowance import OverlayAllowance, refusals
from fairlead.specs.pipeline import Pipeline
from fairlead.specs.serving import Serving
from fairlead.specs.side_containers import side_requests
from fairlead.specs.sweep import Sweep
from fairlead.specs.training import Training
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.attempts import FinishedAttempt, ImagePull, finished_attempt
from fairlead.state.node_health import Incident
from fairlead.state.plan import CreatePod, Event
from fairlead.state.reasons import JUST_SUBMITTED, Code, Reason
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, Progress, Status, Workload, with_requests
from fairlead.state.transitions import Notice, Transition

Object = dict[str, Any]
Spec = TypeVar("Spec", bound=WorkloadSpec)

INTENT = f"{names.DOMAIN}/intent"
# Characters of it that are read: it is held in the status until it is another one.
MOST_WISH = 200
WISHES = (Intent.RUN, Intent.SUSPEND, Intent.STOP)
SUBMITTED = f"{names.DOMAIN}/submitted"
FINALIZER = f"{names.DOMAIN}/run"
# For one run. The API server deletes its own Events after an hour.
MOST_EVENTS = 40
MOST_ATTEMPTS = 20
DETAIL_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A member whose pod was lost and replaced while the others went on in place.

    Attributes:
        number: How often it was lost.
        at: When the last replacement was decided.
        created: Its pod was created once; if it is missing, it has been deleted.
    """

    index: int
    number: int
    at: float
    created: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """An attempt of a run as it was decided, with one entry of ``nodes`` and ``gpus`` for each member.

    Attributes:
        gpus: The granted devices of each member, joined by commas.
        pull: The pull of images by the pod that started last; None for none, or while it is unknown.
        created: All of its first pods were created once; a missing one has been deleted.
        replaced: The members whose pods were replaced, by index.
    """

    attempt: int
    at: float
    cpu_milli: int
    memory_bytes: int
    gpu_milli: int
    nodes: tuple[str, ...]
    gpus: tuple[str, ...]
    created: bool = False
    pull: ImagePull | None = None
    replaced: tuple[Replacement, ...] = ()

    def replacement(self, index: int) -> Replacement | None:
        """Return the replacement of a member; None while it has its first pod."""
        return next((replacement for replacement in self.replaced if replacement.index == index), None)

    def number(self, index: int) -> int:
        """Return how often the pod of a member was replaced."""
        replacement = self.replacement(index)
        return 0 if replacement is None else replacement.number

    def is_created(self, index: int) -> bool:
        """Return whether the present pod of a member was created once; a missing one has been deleted."""
        replacement = self.replacement(index)
        return self.created if replacement is None else replacement.created

    def has(self, attempt: int, index: int, replacement: int) -> bool:
        """Return whether a pod is of this attempt and was not replaced."""
        return attempt == self.attempt and replacement == self.number(index)

    def member(self, index: int) -> CreatePod:
        """Return the decision for one member."""
        grant = Grant(
            cpu_milli=self.cpu_milli,
            memory_bytes=self.memory_bytes,
            gpu_uuids=tuple(uuid for uuid in self.gpus[index].split(",") if uuid),
            gpu_milli=self.gpu_milli,
        )
        number = self.number(index)
        return CreatePod(attempt=self.attempt, index=index, node=self.nodes[index], grant=grant, replacement=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEvent:
    """An event; ids are microseconds of Unix time, and rise."""

    id: int
    at: float
    type: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything that a later pass needs.

    Attributes:
        heard: The value of the annotation that ``intent`` has overridden; a different value is a new wish.
        gang: The latest attempt; None before the first.
        notices: Stop notices of pods that may still live.
        ended: Pods whose objects are gone or were never created, as they were last seen.
        quiet: The version that a write kept, because it only recorded observations; 0 after a change.
        quiet_wish, quiet_leaving: The wish and the deletion at that write, which would otherwise raise the version.
        spec: The spec at ``generation``, which may have been edited since; 0 if none was kept.
        reported_at: When the newest event of ``gang`` that its ranks reported and ``events`` has happened, by the clock
            of their node; 0 before the first.
        attempts: The newest attempts that are over, oldest first.
        traced: The end of the run after which its spans were sent, in Unix seconds; None before.
        incident: The newest failure that is to be entered in the histories of nodes, written with the change that
            follows from it; None before any.
        written: Rises with every write, so that each changes something; with ``writer`` it identifies the write.
    """

    status: Status
    intent: Intent = Intent.RUN
    heard: str = ""
    gang: Gang | None = None
    notices: tuple[Notice, ...] = ()
    ended: tuple[Pod, ...] = ()
    progress: Progress | None = None
    events: tuple[KeptEvent, ...] = ()
    reported_at: float = 0.0
    quiet: int = 0
    quiet_wish: str = ""
    quiet_leaving: bool = False
    spec: Mapping[str, str] = field(default_factory=dict)
    generation: int = 0
    attempts: tuple[FinishedAttempt, ...] = ()
    traced: float | None = None
    incident: Incident | None = None
    written: int = 0
    writer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadObject(Generic[Spec]):
    """The object of a workload as it was read.

    Attributes:
        version: ``metadata.resourceVersion``, which guards writes; the run's own moves with changes only.
        workload: None if its spec breaks a rule that the API server lacks.
        workdir: The annotation of the uploaded working directory; empty for none.
        files: The files of each revision of an endpoint.
        problem: The broken rule, if ``workload`` is None.
        edited: The differences of its spec from the one that its status was last decided on; the status is as decided.
        conditions: The conditions as they were read; their times are kept.
        observed: ``status.observedGeneration``; 0 before the first status.
        is_declared: Whether a tool would create the object again if it were deleted.
        shown_phase: ``status.phase``, which an older version may have written.
        cluster: On a control plane of Karmada, the cluster that has the run and its pods.
        kind: As in the object.
    """

    key: str
    version: int
    uid: str
    namespace: str
    name: str
    generation: int
    finalizers: tuple[str, ...]
    is_leaving: bool
    wish: str
    workdir: str
    created_at: float
    state: RunRecord
    workload: Workload[Spec] | None
    problem: str = ""
    edited: tuple[Difference, ...] = ()
    conditions: tuple[Mapping[str, Any], ...] = ()
    observed: int = 0
    is_declared: bool = False
    shown_phase: str = ""
    cluster: str = ""
    kind: str = "Training"
    files: RevisionFiles = field(default_factory=RevisionFiles)

    @property
    def is_unobserved(self) -> bool:
        """Return whether its status is of an earlier generation, although nothing in it has to change."""
        return self.workload is not None and self.observed not in (0, self.generation)

    @property
    def is_wish_unknown(self) -> bool:
        """Return whether the annotation asks for an unknown intent that was not reported yet."""
        return bool(self.wish) and self.wish != self.state.heard and _word(self.wish) not in WISHES


# Marks of Flux (kustomize-controller and helm-controller), Argo CD by label, Argo CD by annotation, and Helm.
DECLARED_LABELS = frozenset(
    ("kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name", "argocd.argoproj.io/instance")
)
DECLARED_ANNOTATIONS = frozenset(("argocd.argoproj.io/tracking-id", "meta.helm.sh/release-name"))

TrainingObject: TypeAlias = WorkloadObject[Training]
AnyObject: TypeAlias = WorkloadObject[Any]


def read_training(content: Object) -> TrainingObject:
    """Read a Training of the API server."""
    return read_workload(content)


def read_workload(content: Object, allowed: OverlayAllowance | None = None) -> AnyObject:
    """Read the object of a workload of any kind.

    Args:
        allowed: What overlays of runs that have not started may do; None checks nothing, as the API server does.
    """
    metadata, status = content["metadata"], content.get("status") or {}
    annotations = metadata.get("annotations") or {}
    created_at = _moment(metadata["creationTimestamp"], annotations.get(SUBMITTED))
    kind = str(content["kind"])
    files = read_files(annotations) if CODE in annotations else RevisionFiles()
    state = _state(status, created_at, kind)
    wish = str(annotations.get(INTENT) or "")[:MOST_WISH]
    is_leaving = "deletionTimestamp" in metadata
    version = int(metadata["resourceVersion"])
    generation = int(metadata.get("generation") or 0)
    is_quiet = (
        state.quiet
        and (state.quiet_wish, state.quiet_leaving) == (wish, is_leaving)
        and state.generation in (0, generation)
    )
    problem, workload = "", None
    edited: tuple[Difference, ...] = ()
    try:
        spec: Any = read_object(content)
        if (unmet := population_problem(spec) or input_problem(spec)) is not None:
            raise InvalidSpec((unmet,))
        if state.gang is None:
            for run in (spec,) if isinstance(spec, Training) else runs_of(spec):
                for unmet in refusals(run.kubernetes, allowed) if allowed is not None else ():
                    raise InvalidSpec((f"kubernetes.{unmet}",))
                if (unplaced := dataset_problem(run)) is not None:
                    raise InvalidSpec((unplaced,))
        if isinstance(spec, Training):
            if (unmet := pod_problem(spec)) is not None:
                raise InvalidSpec((unmet,))
            spec = filled(spec)
        elif isinstance(spec, Serving):
            spec = replace(spec, code=files.code)
        elif isinstance(spec, Pipeline):
            spec = with_driver(spec)
        if state.generation not in (0, generation):
            edited = differences_of_values(state.spec, explicit_values(spec), kind)
        if edited:
            state = replace(state, status=updated_status(state.status))
        if isinstance(spec, Training):
            spec = with_requests(spec, state.status.measured.requests)
        workload = Workload(
            uid=metadata["uid"],
            spec=spec,
            intent=intent_of(state, wish, is_leaving=is_leaving),
            status=state.status,
            version=state.quiet if is_quiet else version,
            created_at=created_at,
            progress=state.progress,
            parent=_parent_of(metadata),
        )
    except InvalidSpec as error:
        problem = error.problems[0]
    return WorkloadObject(
        kind=kind,
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=version,
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        generation=generation,
        finalizers=tuple(metadata.get("finalizers") or ()),
        is_leaving=is_leaving,
        wish=wish,
        workdir=str(annotations.get(WORKDIR) or ""),
        files=files,
        created_at=created_at,
        state=state,
        workload=workload,
        problem=problem,
        edited=edited,
        conditions=tuple(status.get("conditions") or ()),
        is_declared=_is_declared(metadata),
        observed=int(status.get("observedGeneration") or 0),
        shown_phase=str(status.get("phase") or ""),
        cluster=str(status.get("cluster") or ""),
    )


def intent_of(state: RunRecord, wish: str, *, is_leaving: bool) -> Intent:
    """Return the intent: deletion above all, then a wish that was not overridden, then the recorded intent.

    A wish is an intent, with anything after a colon: ``run:2`` repeats the wish ``run``. An unknown one changes
    nothing.
    """
    if is_leaving:
        return Intent.DELETE
    word = _word(wish)
    return state.intent if wish == state.heard or word not in WISHES else Intent(word)


def _is_declared(metadata: Mapping[str, Any]) -> bool:
    """Return whether a tool that keeps a cluster as Git, or a release, has it made the object."""
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return not DECLARED_LABELS.isdisjoint(labels) or not DECLARED_ANNOTATIONS.isdisjoint(annotations)


def _parent_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the uid of an object's parent workload."""
    owners = metadata.get("ownerReferences") or ()
    ours = (owner for owner in owners if owner.get("controller") and owner.get("apiVersion") == API_VERSION)
    return next((str(owner["uid"]) for owner in ours if is_parent_kind(owner.get("kind"))), None)


def recorded(workload_object: AnyObject, effect: Transition[Any], now: float, *, event_id: int) -> RunRecord:
    """Return the state after a change that does not remove the workload."""
    state, after = workload_object.state, effect.after
    if after is None:
        return state
    intent, heard = after.intent, workload_object.wish
    if intent is Intent.DELETE:
        intent, heard = state.intent, state.heard
    state = replace(state, status=after.status, intent=intent, heard=heard)
    if effect.created and (state.gang is None or state.gang.attempt != effect.created[0].attempt):
        state = replace(state, gang=_gang(effect.created, now), ended=(), notices=(), reported_at=0.0)
    elif effect.created and state.gang is not None:
        state = _with_replacements(state, state.gang, effect.created, now)
    if effect.notices:
        notices = {notice.pod_uid: notice for notice in (*state.notices, *effect.notices)}
        state = replace(state, notices=tuple(notices.values()))
    if effect.event is not None:
        state = replace(state, events=_with_event(state.events, effect.event, now, event_id))
    return state


def is_attempt_over(before: RunRecord, after: RunRecord) -> bool:
    """Return whether a change ends an attempt of which nothing is recorded yet: with its run, or with the next one."""
    if before.gang is None or (before.attempts and before.attempts[-1].attempt == before.gang.attempt):
        return False
    is_next = after.gang is not None and after.gang.attempt != before.gang.attempt
    return is_next or (after.status.phase.is_final and not before.status.phase.is_final)


def with_attempt(before: RunRecord, after: RunRecord, members: Sequence[Pod], now: float) -> RunRecord:
    """Return the state after a change that ends an attempt, with that attempt.

    Args:
        before: The state before the change.
        members: The pods of the attempt.
    """
    gang, status = before.gang, before.status
    if gang is None or not members:
        return after
    held = status.phase in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)
    attempt = finished_attempt(
        members,
        until=now if held else status.since,
        placed_at=gang.at,
        first_step_at=None if before.progress is None else before.progress.first_step_at,
        pull=gang.pull,
    )
    return replace(after, attempts=(*before.attempts[1 - MOST_ATTEMPTS :], attempt))


def reported(
    state: RunRecord, attempt: int, events: Iterable[SeenEvent], *, next_event: Callable[[], int]
) -> RunRecord:
    """Return the state with the events that it lacks of those that the ranks of an attempt reported, oldest first."""
    if state.gang is None or state.gang.attempt != attempt:
        return state
    for seen in events:
        if seen.at > state.reported_at:
            newest = _with_event(state.events, seen.event, seen.at, next_event())
            state = replace(state, events=newest, reported_at=seen.at)
    return state


def adopted(workload_object: AnyObject, state: RunRecord, now: float, *, next_event: Callable[[], int]) -> RunRecord:
    """Return the state with the current spec, and events for an edited spec or an unknown wish."""
    if workload_object.workload is None:
        return state
    if workload_object.is_wish_unknown:
        state = replace(
            state,
            heard=workload_object.wish,
            events=_with_event(state.events, _ignored(workload_object), now, next_event()),
        )
    is_fixed = is_parent_kind(workload_object.kind) and not isinstance(workload_object.workload.spec, Sweep)
    if state.generation == workload_object.generation or is_fixed:
        return state  # the spec of most parents stays as it is, or is another revision
    if workload_object.edited:
        state = replace(
            state, events=_with_event(state.events, spec_changed(workload_object.edited), now, next_event())
        )
    return replace(state, spec=explicit_values(workload_object.workload.spec), generation=workload_object.generation)


def stamped(workload_object: AnyObject, state: RunRecord, writer: str, *, is_quiet: bool) -> RunRecord:
    """Return the state as it is about to be written.

    Args:
        is_quiet: It only records observations, so the run's version stays.
    """
    quiet = workload_object.workload.version if is_quiet and workload_object.workload is not None else 0
    return replace(
        state,
        quiet=quiet,
        quiet_wish=workload_object.wish if is_quiet else "",
        quiet_leaving=workload_object.is_leaving and is_quiet,
        written=state.written + 1,
        writer=writer,
    )


def state_plain(state: RunRecord) -> Object:
    """Return the state as plain data."""
    content: Object = _without_empty(plain(state))
    return content


def submitted(workload_object: AnyObject) -> KeptEvent:
    """Return the event of its submission, which no status can hold since an object is created without one."""
    reason = JUST_SUBMITTED
    runs = () if workload_object.workload is None else runs_of(workload_object.workload.spec)
    workdir = next((run.workdir for run in runs if run.workdir is not None), None)
    if workdir is not None and not workload_object.workdir:
        message = (
            f"{reason.message}; no files came with it, so its `workdir` {workdir!r} is a directory of the image: "
            "`fairlead run` takes yours along, `kubectl apply` cannot"
        )
        reason = replace(reason, message=message)
    return KeptEvent(
        id=int(workload_object.created_at * 1e6), at=workload_object.created_at, type="Submitted", reason=reason
    )


def known_events(workload_object: AnyObject) -> tuple[EventRecord, ...]:
    """Return the known events of a workload, oldest first, from its submission unless older ones are forgotten."""
    first = (submitted(workload_object),) if len(workload_object.state.events) < MOST_EVENTS else ()
    return tuple(event_record(workload_object, event) for event in (*first, *workload_object.state.events))


def event_record(workload_object: AnyObject, event: KeptEvent) -> EventRecord:
    """Return an event as the port has it."""
    return EventRecord(
        id=event.id,
        at=event.at,
        workload_uid=workload_object.uid,
        run=workload_object.name,
        type=event.type,
        reason=event.reason,
    )


def _word(wish: str) -> str:
    """Return the intent of a wish, without the part that distinguishes it from the previous wish."""
    return wish.partition(":")[0]


def _ignored(workload_object: AnyObject) -> Event:
    """Return the event of an unknown wish."""
    wish, kind = quote(_word(workload_object.wish)), workload_object.kind.lower()
    message = f"the annotation {INTENT} is {wish}, which changes nothing; it may be {', '.join(WISHES)}"
    remedy = f"`kubectl annotate {kind} {workload_object.name} {INTENT}={Intent.STOP.value} --overwrite` stops it."
    return Event(type="Ignored", reason=Reason(code=Code.INTENT_UNKNOWN, message=message, remedy=remedy))


def _moment(created: str, submitted: str | None) -> float:
    """Return when an object was created: the server knows the second, and the submitter the fraction if the seconds
    agree."""
    at = seconds(created)
    try:
        exact = float(submitted or 0)
    except ValueError:
        return at
    return exact if at <= exact < at + 1 else at


def _state(status: Mapping[str, Any], created_at: float, kind: str) -> RunRecord:
    stored, cluster = status.get("state"), status.get("cluster")
    if stored:
        state = build(RunRecord, stored)
        state = replace(state, status=with_detail(kind, upgraded(state.status)))
    else:
        # Only Karmada writes a message without our state: why a cluster does not take the run.
        reason = replace(JUST_SUBMITTED, message=str(status.get("message") or JUST_SUBMITTED.message))
        state = RunRecord(status=Status(phase=Phase.PENDING, reason=reason, since=created_at))
    if not cluster:
        return state
    reason = replace(state.status.reason, message=f"in cluster {cluster}: {state.status.reason.message}")
    return replace(state, status=replace(state.status, reason=reason))


def filled(spec: Training) -> Training:
    """Return the spec with the amounts that its pods will request, as kube-scheduler counts them."""
    resources, ranks = spec.resources, spec.ranks_on_each_node
    cpu = resources.cpu_milli or 1000 * ranks
    memory = resources.memory_bytes or MEMORY_BYTES_PER_RANK * ranks
    beside = side_requests(spec.kubernetes)
    amounts = replace(resources, cpu_milli=cpu, memory_bytes=memory, beside=beside)
    return replace(spec, ranks_per_node=ranks, resources=amounts)


def _gang(create: tuple[CreatePod, ...], now: float) -> Gang:
    members = sorted(create, key=lambda member: member.index)
    grant = members[0].grant
    return Gang(
        attempt=members[0].attempt,
        at=now,
        cpu_milli=grant.cpu_milli,
        memory_bytes=grant.memory_bytes,
        gpu_milli=grant.gpu_milli,
        nodes=tuple(member.node for member in members),
        gpus=tuple(",".join(member.grant.gpu_uuids) for member in members),
    )


def _with_replacements(state: RunRecord, gang: Gang, create: tuple[CreatePod, ...], now: float) -> RunRecord:
    """Return the state with new pods for lost members; what is known of the lost ones is not needed any more."""
    nodes, gpus = list(gang.nodes), list(gang.gpus)
    known = {replacement.index: replacement for replacement in gang.replaced}
    new = [member for member in create if member.replacement > gang.number(member.index)]
    for member in new:
        nodes[member.index], gpus[member.index] = member.node, ",".join(member.grant.gpu_uuids)
        known[member.index] = Replacement(index=member.index, number=member.replacement, at=now)
    replaced = tuple(known[index] for index in sorted(known))
    gang = replace(gang, nodes=tuple(nodes), gpus=tuple(gpus), replaced=replaced)
    over = {pod.uid for pod in state.ended if not gang.has(pod.attempt, pod.index, pod.replacement)}
    return replace(
        state,
        gang=gang,
        ended=tuple(pod for pod in state.ended if pod.uid not in over),
        notices=tuple(notice for notice in state.notices if notice.pod_uid not in over),
    )


def _with_event(events: tuple[KeptEvent, ...], event: Event, now: float, number: int) -> tuple[KeptEvent, ...]:
    reason = replace(event.reason, detail=event.reason.detail[-DETAIL_LINES:])
    return (*events[1 - MOST_EVENTS :], KeptEvent(id=number, at=now, type=event.type, reason=reason))


def _without_empty(value: Any) -> Any:
    """Return a mapping without None and empty lists, which read back as the default, and without what JSON lacks."""
    if isinstance(value, dict):
        return {name: _without_empty(inner) for name, inner in value.items() if not _is_empty(inner)}
    if isinstance(value, (list, tuple)):
        return [_without_empty(inner) for inner in value]
    return value


def _is_empty(value: Any) -> bool:
    # A program may report NaN as a loss; an API server refuses the status that contains it.
    return value is None or value == () or (type(value) is float and not math.isfinite(value))
