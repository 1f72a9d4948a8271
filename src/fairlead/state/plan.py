"""The next things to do. A plan is complete: whoever applies it has no choice left to make."""

import hashlib
from typing import TYPE_CHECKING

from fairlead.frozen import dataclass
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.reasons import Reason
from fairlead.state.snapshot import Grant, Intent, Status

if TYPE_CHECKING:  # few clusters have pools
    from fairlead.state.partitions import PartitionStep
    from fairlead.state.pool_demand import Standby


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePod:
    """Start a member of the gang on a node; its uid follows from workload, attempt and index."""

    attempt: int
    index: int
    node: str
    grant: Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminatePod:
    """Send the stop notice to a pod, and SIGKILL after ``grace_s`` seconds. Repeating it only shortens the grace."""

    pod_uid: str
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitChild:
    """Submit a child of the workload, unless the workload has a child of that name.

    Attributes:
        name: Of the child within its parent.
        spec: Of the child, whose own name is ``<parent>-<name>`` and whose team is the parent's.
    """

    name: str
    spec: WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildIntent:
    """A new intent for a child; nothing happens when the child is gone or wants it already."""

    uid: str
    intent: Intent


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a workload.

    Attributes:
        type: A phase, or what happened, in CamelCase.
        reason: Why.
    """

    type: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Everything to do for one workload, all or nothing, if it is still at ``version``.

    Attributes:
        status: The new status; None leaves it as it is.
        intent: The new intent; None leaves it. A run that ends gets STOP, so that a later RUN is a wish to resume it.
        event: What to record; None records nothing.
        forget: Remove the workload, its events and its files; only when it has no live pod and no child.
        submit: Children to submit.
        children: What is wanted of children that are there.
    """

    workload_uid: str
    version: int
    status: Status | None = None
    intent: Intent | None = None
    event: Event | None = None
    create: tuple[CreatePod, ...] = ()
    terminate: tuple[TerminatePod, ...] = ()
    forget: bool = False
    submit: tuple[SubmitChild, ...] = ()
    children: tuple[ChildIntent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Changes in the order in which they are to be applied; each stands alone.

    Attributes:
        standby: The nodes that pools are to have ahead of time; None leaves that as it is.
        partitioning: Steps of nodes whose GPUs are partitioned anew, one a node at most.
    """

    changes: tuple[Change, ...] = ()
    standby: "tuple[Standby, ...] | None" = None
    partitioning: "tuple[PartitionStep, ...]" = ()


def child_uid(parent_uid: str, name: str) -> str:
    """Return the uid of a child, which follows from its parent and its name there, so that submitting twice is one."""
    return hashlib.sha256(f"{parent_uid}/{name}".encode()).hexdigest()[:11]
