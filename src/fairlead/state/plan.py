"""What is to be done next. A plan is complete: whoever applies it has no choice left to make."""

from dataclasses import dataclass

from fairlead.state.reasons import Reason
from fairlead.state.snapshot import Grant, Intent, Status


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
        forget: Remove the workload, its events and its files; only when it has no live pod.
    """

    workload_uid: str
    version: int
    status: Status | None = None
    intent: Intent | None = None
    event: Event | None = None
    create: tuple[CreatePod, ...] = ()
    terminate: tuple[TerminatePod, ...] = ()
    forget: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Changes in the order in which they are to be applied; each stands alone."""

    changes: tuple[Change, ...] = ()
