"""The next actions. A plan is complete: applying it requires no further decisions."""

import hashlib
from dataclasses import field
from typing import TYPE_CHECKING

from fairlead.frozen import dataclass
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.reasons import Reason
from fairlead.state.snapshot import Grant, Intent, Status

if TYPE_CHECKING:  # few clusters have pools, and few plans a failure
    from fairlead.state.node_health import Incident, NodeWithdrawal
    from fairlead.state.partitions import PartitionStep
    from fairlead.state.pool_demand import Standby


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePod:
    """Start a pod of the gang on a node; its uid follows from workload, attempt, index and replacement.

    Attributes:
        replacement: How often a pod of that index was lost in this attempt; 0 for the pod that the gang starts with.
    """

    attempt: int
    index: int
    node: str
    grant: Grant
    replacement: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminatePod:
    """Send the stop notice to a pod, and SIGKILL after ``grace_s`` seconds. Repeating it only shortens the grace."""

    pod_uid: str
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitChild:
    """Submit a child of the workload, unless the workload has a child of that name.

    Attributes:
        name: The child's name within its parent.
        spec: The child's spec, with the name ``<parent>-<name>`` and the parent's team.
    """

    name: str
    spec: WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildIntent:
    """A new intent for a child; no effect if the child is gone or already has it."""

    uid: str
    intent: Intent


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a workload.

    Attributes:
        type: A phase, or the kind of event, in CamelCase.
        reason: The cause.
    """

    type: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """All actions for one workload, applied atomically if it is still at ``version``.

    Attributes:
        status: The new status; None leaves it as it is.
        intent: The new intent; None leaves it. A run that ends gets STOP, so that a later RUN is a request to resume
            it.
        event: The event to record; None records nothing.
        forget: Remove the workload, its events and its files; only when it has no live pod and no child.
        submit: Children to submit.
        children: New intents of existing children.
        incident: A failure to add to the history of nodes.
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
    incident: "Incident | None" = None

    @property
    def needs_pods(self) -> bool:
        """Return whether its effect depends on the live pods of the workload."""
        return self.forget or bool(self.terminate)

    @property
    def needs_children(self) -> bool:
        """Return whether its effect depends on the children of the workload."""
        return self.forget or bool(self.submit or self.children)


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalFailure:
    """An unexpected error while one workload was observed or judged.

    Attributes:
        workload_uid: Empty if it is not known whose it is.
        problem: The error in a few words.
        error: The error itself; None if it was raised while the snapshot was taken.
    """

    workload_uid: str
    problem: str
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRoom:
    """The free capacity that is held for a pending run with a promised start.

    Attributes:
        start: The promised start as Unix time; None if it is unknown.
    """

    uid: str
    team: str
    name: str
    gpu_milli: int
    cpu_milli: int
    start: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Changes in the order in which they are applied; each stands alone.

    Attributes:
        standby: The standby nodes that pools should have; None leaves them as they are.
        partitioning: Steps of nodes whose GPUs are repartitioned, at most one per node.
        withdrawn: Nodes to take out.
        held: What is held free for pending runs.
        contending: Teams of which a run has found no room.
        failures: Failures of Fairlead itself while it judged, each already shown by a change of its workload.
        is_last: Whether it is known that a pass at the same time changes nothing more, once every change is applied.
    """

    changes: tuple[Change, ...] = ()
    standby: "tuple[Standby, ...] | None" = None
    partitioning: "tuple[PartitionStep, ...]" = ()
    withdrawn: "tuple[NodeWithdrawal, ...]" = ()
    held: tuple[HeldRoom, ...] = ()
    contending: frozenset[str] = frozenset()
    failures: tuple[InternalFailure, ...] = ()
    is_last: bool = field(default=False, compare=False)


def child_uid(parent_uid: str, name: str) -> str:
    """Return the uid of a child, derived from its parent and its name there, so that submitting is idempotent."""
    return hashlib.sha256(f"{parent_uid}/{name}".encode()).hexdigest()[:11]
