"""Conditions in the status of objects, in Kubernetes' conventional form.

Each condition has a reason and a message of its own: one that is False says what does not hold, and no more. ``Ready``,
``Reconciling`` and ``Stalled`` follow kstatus, by which Flux and others judge any kind: the last two exist only while
they are True.

See decision 173.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from fairlead.policy.kinds.readiness import SpecProgress, readiness
from fairlead.state.snapshot import AnyWorkload, Phase

MESSAGE_MOST = 32_768  # the limit of a condition's message
OF_RUNS = ("Placed", "Running", "Suspended", "Complete", "Failed")
OF_PARENTS = OF_RUNS[1:]
"""A parent is never placed itself."""
READY, RECONCILING, STALLED = "Ready", "Reconciling", "Stalled"
INVALID = "InvalidSpec"
CONDITION: dict[str, Any] = {
    "type": "object",
    "required": ["type", "status", "lastTransitionTime", "reason", "message"],
    "properties": {
        "type": {"type": "string", "maxLength": 316},
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": {"type": "string", "maxLength": 1024},
        "message": {"type": "string", "maxLength": MESSAGE_MOST},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
    },
}
"""The schema of a condition."""
UNOBSERVED = {
    "type": READY,
    "status": "Unknown",
    "reason": "NotObserved",
    "message": "The operator has not considered the object yet.",
    "lastTransitionTime": "1970-01-01T00:00:00Z",
}
"""The default of a new object's status: without any, tools would take it for ready."""
_TRUE_IN = {
    "Placed": (Phase.STARTING, Phase.RUNNING, Phase.STOPPING),
    "Running": (Phase.RUNNING,),
    "Suspended": (Phase.SUSPENDED,),
    "Complete": (Phase.SUCCEEDED,),
    "Failed": (Phase.FAILED,),
}
_NEGATIONS = {
    "Placed": "no nodes are assigned to it",
    "Running": "it does not run",
    "Suspended": "it is not suspended",
    "Complete": "it has not succeeded",
    "Failed": "it has not failed",
}


def conditions_of(
    workload: AnyWorkload, generation: int, before: Iterable[Mapping[str, Any]], types: tuple[str, ...] = OF_RUNS
) -> list[dict[str, Any]]:
    """Return all conditions of a workload.

    Args:
        before: Its present conditions, which keep their time if they do not change.
    """
    phase, known, at = workload.status.phase, tuple(before), workload.status.since
    conditions = []
    for type_ in types:
        is_true = phase in _TRUE_IN[type_]
        reason = workload.status.reason.code.value if is_true else f"Not{type_}"
        message = workload.status.reason.message if is_true else f"{_NEGATIONS[type_]}: it is {phase.value}"
        conditions.append(condition(type_, is_true, reason=reason, message=message, at=at, generation=generation,
            before=known))  # fmt: skip
    state = readiness(workload)
    return conditions + ready_conditions(
        state.progress, reason=state.reason.code.value, message=state.reason.message, at=at, generation=generation,
        before=known,
    )  # fmt: skip


def ready_conditions(
    progress: SpecProgress, *, reason: str, message: str, at: float, generation: int,
    before: Iterable[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """Return ``Ready``, and beside it ``Reconciling`` or ``Stalled`` while they are true."""
    types = {SpecProgress.RECONCILING: RECONCILING, SpecProgress.STALLED: STALLED}
    values = [(READY, progress is SpecProgress.READY), *([(types[progress], True)] if progress in types else [])]
    known = tuple(before)
    return [
        condition(type_, is_true, reason=reason, message=message, at=at, generation=generation, before=known)
        for type_, is_true in values
    ]


def invalid_conditions(problem: str, *, at: float, generation: int) -> list[dict[str, Any]]:
    """Return the conditions of an object whose spec breaks a rule that the API server lacks."""
    failed = condition("Failed", True, reason=INVALID, message=problem, at=at, generation=generation)
    return [
        failed,
        *ready_conditions(SpecProgress.STALLED, reason=INVALID, message=problem, at=at, generation=generation),
    ]


def condition(
    type_: str, is_true: bool, *, reason: str, message: str, at: float, generation: int,
    before: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return one condition; its time is that of its last change."""
    value = "True" if is_true else "False"
    changed = moment(at)
    for known in before:
        if known.get("type") == type_ and known.get("status") == value:
            changed = str(known.get("lastTransitionTime", changed))
    return {
        "type": type_,
        "status": value,
        "reason": reason,
        "message": message[:MESSAGE_MOST],
        "lastTransitionTime": changed,
        "observedGeneration": generation,
    }


def moment(at: float) -> str:
    """Return a time in Kubernetes' format, in whole seconds."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
