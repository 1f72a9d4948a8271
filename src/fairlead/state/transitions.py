"""The effect of a change on its workload, pods and children, as one pure function.

Clusters guard and store what it returns: each has its own way to keep two writers apart and names unique. Worlds of
tests and benchmarks call it too, so that a change means the same everywhere.

See decision 220.
"""

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar, cast

from fairlead.frozen import dataclass, replace
from fairlead.specs.training import Training
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.plan import Change, ChildIntent, CreatePod, Event, child_uid
from fairlead.state.snapshot import Intent, Workload, with_requests

Spec = TypeVar("Spec", bound=WorkloadSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A pod was told to stop at ``since``, and is killed at ``kill_at``."""

    pod_uid: str
    since: float
    kill_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePod:
    """A pod that has not ended.

    Attributes:
        notice: Its stop notice; None before the first.
    """

    uid: str
    notice: Notice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A child of the workload, as the cluster has it.

    Attributes:
        name: The name of its spec.
        intent: Its intent; None where it cannot be read, so that any other one is written.
    """

    uid: str
    name: str
    intent: Intent | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewChild:
    """A child to submit, with its name within its parent."""

    uid: str
    name: str
    spec: WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition(Generic[Spec]):
    """The effect of a change, to be stored at once or not at all.

    Attributes:
        after: The workload at its next version; None if it is removed, with its events and files.
        event: The event to record.
        created: Pods to create; one that exists already is left as it is.
        notices: Stop notices of live pods that are new, or whose pod is now killed earlier.
        submitted: The children that the workload does not have yet.
        requested: New intents of children that have another one.
    """

    after: Workload[Spec] | None
    event: Event | None = None
    created: tuple[CreatePod, ...] = ()
    notices: tuple[Notice, ...] = ()
    submitted: tuple[NewChild, ...] = ()
    requested: tuple[ChildIntent, ...] = ()


def transition(
    workload: Workload[Spec],
    change: Change,
    now: float,
    *,
    pods: Iterable[LivePod] = (),
    children: Iterable[Child] = (),
) -> Transition[Spec] | None:
    """Return the effect of a change; None if it is stale, and nothing of it may be stored.

    It is stale if the workload is at another version, or is to be removed while it has a live pod or a child. Whether
    another workload has taken its name, or that of a child, is for the cluster to guard.

    Args:
        workload: The workload as it is stored.
        now: The time of its events and notices, in Unix seconds.
        pods: The live pods of the workload; needed if the change removes it or tells pods to stop.
        children: The children of the workload; needed if the change removes it, submits children or asks some of them.
    """
    if workload.uid != change.workload_uid or workload.version != change.version:
        return None
    if change.forget:
        return None if any(True for _ in pods) or any(True for _ in children) else Transition(after=None)
    spec = workload.spec
    if change.status is not None and isinstance(spec, Training):
        spec = cast("Spec", with_requests(spec, change.status.measured.requests))
    after = replace(
        workload,
        spec=spec,
        status=change.status or workload.status,
        intent=change.intent or workload.intent,
        # Raised by every change, or the same plan could be applied twice.
        version=workload.version + 1,
    )
    known = tuple(children) if change.submit or change.children else ()
    return Transition(
        after=after,
        event=change.event,
        created=change.create,
        notices=_notices(change, {pod.uid: pod.notice for pod in pods} if change.terminate else {}, now),
        submitted=_submitted(change, {child.name for child in known}),
        requested=_requested(change, {child.uid: child.intent for child in known}),
    )


def _notices(change: Change, before: Mapping[str, Notice | None], now: float) -> tuple[Notice, ...]:
    """Return the notices that differ from those before; a grace period only ever gets shorter."""
    notices: dict[str, Notice] = {}
    for order in change.terminate:
        if order.pod_uid not in before:
            continue
        notice = notices.get(order.pod_uid) or before[order.pod_uid]
        kill_at = now + max(0.0, order.grace_s)
        if notice is None or kill_at < notice.kill_at:
            since = now if notice is None else notice.since
            notices[order.pod_uid] = Notice(pod_uid=order.pod_uid, since=since, kill_at=kill_at)
    return tuple(notices.values())


def _submitted(change: Change, names: set[str]) -> tuple[NewChild, ...]:
    return tuple(
        NewChild(uid=child_uid(change.workload_uid, order.name), name=order.name, spec=order.spec)
        for order in change.submit
        if order.spec.name not in names
    )


def _requested(change: Change, intents: Mapping[str, Intent | None]) -> tuple[ChildIntent, ...]:
    return tuple(order for order in change.children if order.uid in intents and intents[order.uid] != order.intent)
