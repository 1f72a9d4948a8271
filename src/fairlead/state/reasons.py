"""Reasons for states: a code for programs, a sentence for people, and a remedy if there is one."""

from enum import StrEnum

from fairlead.frozen import dataclass


class Code(StrEnum):
    """The closed set of reasons."""

    SUBMITTED = "Submitted"
    WAITING_FOR_RESOURCES = "WaitingForResources"
    WAITING_FOR_TURN = "WaitingForTurn"
    WAITING_FOR_NODES = "WaitingForNodes"
    WAITING_FOR_SPOT = "WaitingForSpot"
    NODES_NOT_COMING = "NodesNotComing"
    OVER_QUOTA = "OverQuota"
    OVER_BUDGET = "OverBudget"
    CANNOT_FIT = "CannotFit"
    PREPARING = "Preparing"
    ENVIRONMENT_FAILED = "EnvironmentFailed"
    PLACED = "Placed"
    HANDED_OVER = "HandedOver"
    START_DELAYED = "StartDelayed"
    RANKS_STARTED = "RanksStarted"
    SPLIT_PROBED = "SplitProbed"
    SPLIT_CHOSEN = "SplitChosen"
    COMPLETED = "Completed"
    RANKS_NEVER_MET = "RanksNeverMet"
    PROGRAM_FAILED = "ProgramFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    GPU_OUT_OF_MEMORY = "GpuOutOfMemory"
    LOSS_NOT_FINITE = "LossNotFinite"
    KILLED = "Killed"
    POD_LOST = "PodLost"
    NODE_LOST = "NodeLost"
    NODE_RECLAIMED = "NodeReclaimed"
    START_FAILED = "StartFailed"
    START_TIMED_OUT = "StartTimedOut"
    NODE_SLOW = "NodeSlow"
    GPU_FAULTY = "GpuFaulty"
    END_UNCONFIRMED = "EndUnconfirmed"
    STALLED = "Stalled"
    IDLE = "Idle"
    SLOW_RANK = "SlowRank"
    NODE_SILENT = "NodeSilent"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    STOP_REQUESTED = "StopRequested"
    SUSPEND_REQUESTED = "SuspendRequested"
    PREEMPTED = "Preempted"
    MOVED = "Moved"
    RESIZED = "Resized"
    SUSPENDED = "Suspended"
    STOPPED = "Stopped"
    RESUMED = "Resumed"
    SPEC_CHANGED = "SpecChanged"
    NAME_TAKEN = "NameTaken"
    SIZED = "Sized"
    REPORTED = "Reported"
    CODE_EDITED = "CodeEdited"
    CHECKPOINT_LATE = "CheckpointLate"
    CHECKPOINT_FAILING = "CheckpointFailing"
    LAST_CHECKPOINT_FAILED = "LastCheckpointFailed"
    INTENT_UNKNOWN = "IntentUnknown"
    DELETE_REQUESTED = "DeleteRequested"
    CHILDREN_RUNNING = "ChildrenRunning"
    CHILD_FAILED = "ChildFailed"
    NOT_READY = "NotReady"
    SERVING = "Serving"
    ASLEEP = "Asleep"
    ROLLING_OUT = "RollingOut"
    REVISION_FAILED = "RevisionFailed"
    ADDRESS_REFUSED = "AddressRefused"
    OVERFLOW_ON_DEMAND = "OverflowOnDemand"
    METRIC_UNAVAILABLE = "MetricUnavailable"
    OUT_OF_REACH = "OutOfReach"
    INTERNAL_ERROR = "InternalError"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason.

    Attributes:
        code: The kind of reason.
        message: One sentence that names nodes, quantities and causes.
        remedy: What would fix or unblock it, as one sentence; None if no action is needed.
        detail: Further lines for people, such as the end of a traceback.
    """

    code: Code
    message: str
    remedy: str | None = None
    detail: tuple[str, ...] = ()


JUST_SUBMITTED = Reason(code=Code.SUBMITTED, message="waits to be placed")
"""The reason of a run that has not been considered yet."""
