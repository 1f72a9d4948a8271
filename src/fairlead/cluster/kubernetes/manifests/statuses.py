"""The status of an object for users and tools: columns, conditions, and the operator's own state.

``state`` belongs to the operator: it contains data that a later pass needs, and its form is not an interface. All other
fields are derived from it, so that no reader has to parse it.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from fairlead.cluster.kubernetes.api.objects import seconds
from fairlead.cluster.kubernetes.kinds import DESCRIBED, is_parent_kind
from fairlead.cluster.kubernetes.names import SERVICE
from fairlead.ledger.run_cost import RunCost
from fairlead.policy.kinds.serving import detail_of
from fairlead.policy.kinds.table import parent_of
from fairlead.specs.serving import Serving
from fairlead.state.snapshot import AnyWorkload, Phase, Pod, PodPhase, Progress, Workload

MESSAGE_MOST = 32_768  # the limit of a condition's message
PHASE_MOST = 32
CONDITIONS = ("Placed", "Running", "Suspended", "Complete", "Failed")
PARENT_CONDITIONS = CONDITIONS[1:]
"""A parent is never placed itself."""


def status_schema(kind: str) -> dict[str, Any]:
    """Return the structural schema of a kind's status."""
    properties: dict[str, Any] = {
        "observedGeneration": {
            "type": "integer",
            "description": "Generation of the object that this status is for.",
        },
        "conditions": {
            "type": "array",
            "description": "Current conditions, in Kubernetes' conventional form.",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": _CONDITION,
        },
    }
    if kind not in DESCRIBED:
        phases = ", ".join(Phase)
        properties |= {
            "phase": {
                "type": "string",
                "maxLength": PHASE_MOST,
                "description": f"Phase of the run: {phases}.",
            },
            "reason": {"type": "string", "description": "Reason for the phase, as one word for programs."},
            "message": {"type": "string", "description": "Reason for the phase, as a sentence."},
            "remedy": {"type": "string", "description": "What would fix or unblock it."},
        }
    if kind == "Training":
        properties["cluster"] = {
            "type": "string",
            "description": "On a control plane of Karmada: the member cluster that has the run.",
        }
    if is_parent_kind(kind):
        properties |= {
            "progress": {"type": "string", "description": "How far it is, by its children."},
            "best": {"type": "string", "description": "The best value so far and the child that has it."},
        }
        if kind == "Serving":
            properties |= {
                "replicas": {"type": "integer", "description": "Desired number of replicas."},
                "selector": {"type": "string", "description": "Labels of their pods, as a cluster's autoscaler asks."},
            }
    elif kind not in DESCRIBED:
        properties |= {
            "warning": {"type": "string", "description": "What is wrong while it runs, as a sentence."},
            "ranks": {"type": "string", "description": "Running ranks, of all ranks."},
            "progress": {"type": "string", "description": "Steps done, of the total where it is known."},
            "step": {"type": "integer", "description": "Steps done.", "format": "int64"},
            "loss": {"type": "number", "description": "Last reported loss."},
            "checkpointStep": {"type": "integer", "description": "Steps in the newest checkpoint.", "format": "int64"},
            "attempt": {"type": "integer", "description": "Number of earlier starts of the gang."},
            "cost": _COST,
        }
    properties["state"] = {
        "type": "object",
        "description": "Internal state of the operator; its form may change with any version.",
        "x-kubernetes-preserve-unknown-fields": True,
    }
    return {"type": "object", "description": "Observed state, written by the operator.", "properties": properties}


def training_status(
    workload: Workload,
    pods: Iterable[Pod],
    *,
    generation: int,
    before: Iterable[Mapping[str, Any]] = (),
    cost: RunCost | None = None,
) -> dict[str, Any]:
    """Return the status of a Training without ``state``.

    Args:
        pods: Pods of the current attempt.
        generation: ``metadata.generation`` of the object that was read.
        before: Its present conditions, which keep their time if they do not change.
        cost: Its cost so far; None if costs are not kept.
    """
    spec, status = workload.spec, workload.status
    of_pod = spec.ranks_on_each_node
    running = sum(of_pod for pod in pods if pod.attempt == status.attempt and pod.phase is PodPhase.RUNNING)
    found: dict[str, Any] = {
        **_phase(workload, generation),
        "ranks": f"{running}/{workload.gang.world_size}",
        "attempt": status.attempt,
        "conditions": _conditions(workload, generation, before),
    }
    if status.warning is not None:
        remedy = f". {status.warning.remedy}" if status.warning.remedy else ""
        found["warning"] = f"{status.warning.message}{remedy}"[:MESSAGE_MOST]
    if workload.progress is not None:
        found |= _progress(workload.progress)
    if cost is not None:
        found["cost"] = _cost(cost)
    return found


def read_cost(status: Mapping[str, Any]) -> RunCost | None:
    """Read the cost in a run's status; None if it has none."""
    cost = status.get("cost")
    if not cost:
        return None
    return RunCost(
        at=seconds(cost["at"]),
        microusd=cost.get("microusd"),
        microusd_per_hour=cost.get("microusdPerHour", 0),
        goodput=cost.get("goodput"),
        seconds=dict(cost.get("seconds") or {}),
        waiting_s=cost.get("waitingSeconds", 0.0),
    )


def parent_status(
    workload: AnyWorkload, *, generation: int, before: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the status of a parent without ``state``; see ``training_status`` for the arguments."""
    record = parent_of(workload.spec)
    assert record is not None, "a run with pods has the other status"
    found = {
        **_phase(workload, generation),
        "progress": record.progress(workload),
        "conditions": _conditions(workload, generation, before, PARENT_CONDITIONS),
    }
    if record.best is not None:
        found["best"] = record.best(workload)
    if isinstance(workload.spec, Serving):
        found["replicas"] = detail_of(cast("Workload[Serving]", workload)).wanted
        found["selector"] = f"{SERVICE}={workload.spec.name}"
    return found


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


def _phase(workload: AnyWorkload, generation: int) -> dict[str, Any]:
    """Return the fields of the phase and its reason."""
    status = workload.status
    found: dict[str, Any] = {
        "observedGeneration": generation,
        "phase": status.phase.value,
        "reason": status.reason.code.value,
        "message": status.reason.message[:MESSAGE_MOST],
    }
    return found if status.reason.remedy is None else {**found, "remedy": status.reason.remedy}


def _conditions(
    workload: AnyWorkload, generation: int, before: Iterable[Mapping[str, Any]], names: tuple[str, ...] = CONDITIONS
) -> list[dict[str, Any]]:
    phase, reason = workload.status.phase, workload.status.reason
    known = tuple(before)
    truths = {
        "Placed": phase in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING),
        "Running": phase is Phase.RUNNING,
        "Suspended": phase is Phase.SUSPENDED,
        "Complete": phase is Phase.SUCCEEDED,
        "Failed": phase is Phase.FAILED,
    }
    return [
        condition(
            name,
            truths[name],
            reason=reason.code.value,
            message=reason.message,
            at=workload.status.since,
            generation=generation,
            before=known,
        )
        for name in names
    ]


def _cost(cost: RunCost) -> dict[str, Any]:
    """Return the cost rounded for readers; the ledger is exact."""
    found: dict[str, Any] = {
        "at": moment(cost.at),
        "microusdPerHour": cost.microusd_per_hour,
        "seconds": {use: round(amount, 3) for use, amount in cost.seconds.items()},
        "waitingSeconds": round(cost.waiting_s, 3),
    }
    if cost.microusd is not None:
        found["microusd"] = cost.microusd
    if cost.goodput is not None:
        found["goodput"] = round(cost.goodput, 6)
    return found


def _progress(progress: Progress) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if progress.step is not None:
        found["step"] = progress.step
        found["progress"] = f"{progress.step}"
        if progress.total_steps:
            share = 100 * progress.step // progress.total_steps
            found["progress"] = f"{progress.step}/{progress.total_steps} ({share}%)"
    if progress.loss is not None:
        found["loss"] = progress.loss
    if progress.checkpoint_step is not None:
        found["checkpointStep"] = progress.checkpoint_step
    return found


_COST: dict[str, Any] = {
    "type": "object",
    "description": "Cost of the run up to a moment, where a ledger is kept.",
    "required": ["at"],
    "properties": {
        "at": {"type": "string", "format": "date-time", "description": "That moment."},
        "microusd": {"type": "integer", "format": "int64", "description": "Cost so far, in millionths of a dollar."},
        "microusdPerHour": {
            "type": "integer",
            "format": "int64",
            "description": "Cost of an hour of what it holds since then, in millionths of a dollar.",
        },
        "goodput": {"type": "number", "description": "Productive part of what it held, from 0 to 1."},
        "seconds": {
            "type": "object",
            "description": "Seconds of its pods by use.",
            "additionalProperties": {"type": "number"},
        },
        "waitingSeconds": {"type": "number", "description": "Seconds in which it held nothing."},
    },
}
_CONDITION: dict[str, Any] = {
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
