"""The status of an object for users and tools: columns, conditions, and the operator's own state.

``state`` belongs to the operator: it contains data that a later pass needs, and its form is not an interface. All other
fields are derived from it, so that no reader has to parse it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, cast

from fairlead.cluster.kubernetes.api.objects import seconds
from fairlead.cluster.kubernetes.kinds import DESCRIBED, is_parent_kind
from fairlead.cluster.kubernetes.manifests.conditions import (
    CONDITION,
    MESSAGE_MOST,
    OF_PARENTS,
    UNOBSERVED,
    conditions_of,
    moment,
)
from fairlead.cluster.kubernetes.names import SERVICE
from fairlead.ledger.run_cost import RunCost
from fairlead.policy.kinds.table import parent_of
from fairlead.policy.queue.dominant_shares import Amounts, capacity
from fairlead.policy.queue.quotas import Ledger
from fairlead.specs.quantities import format_cpu, format_gpu_count, format_size
from fairlead.specs.serving import Serving
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.snapshot import AnyWorkload, Phase, Pod, PodPhase, Progress, Snapshot, Workload

PHASE_MOST = 32


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
            "items": CONDITION,
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
    if kind == "Team":
        properties["held"] = _HELD
    properties["state"] = {
        "type": "object",
        "description": "Internal state of the operator; its form may change with any version.",
        "x-kubernetes-preserve-unknown-fields": True,
    }
    return {
        "type": "object",
        "description": "Observed state, written by the operator.",
        "properties": properties,
        "default": {"conditions": [UNOBSERVED]},
    }


def team_holdings(seen: Snapshot) -> dict[str, dict[str, Any]]:
    """Return what the runs of each team hold, as its status has it, for all described teams."""
    holding = {pod.workload_uid for pod in seen.pods if not pod.phase.is_final}
    runs = [workload for workload in seen.workloads if workload.uid in holding]
    ledger = Ledger.of(seen.teams, capacity(seen.nodes), runs)
    counts = Counter(run.spec.team for run in runs)
    return {team.name: _held(ledger.bound.get(team.name, Amounts()), counts[team.name]) for team in seen.teams}


def _held(amounts: Amounts, runs: int) -> dict[str, Any]:
    return {
        "gpu": str(format_gpu_count(amounts.gpu_milli)),
        "cpu": str(format_cpu(amounts.cpu_milli)),
        "memory": str(format_size(amounts.memory_bytes)),
        "runs": runs,
    }


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
    fields: dict[str, Any] = {
        **_phase(workload, generation),
        "ranks": f"{running}/{workload.gang.world_size}",
        "attempt": status.attempt,
        "conditions": conditions_of(workload, generation, before),
    }
    if status.warning.reason is not None:
        remedy = f". {status.warning.reason.remedy}" if status.warning.reason.remedy else ""
        fields["warning"] = f"{status.warning.reason.message}{remedy}"[:MESSAGE_MOST]
    if workload.progress is not None:
        fields |= _progress(workload.progress)
    if cost is not None:
        fields["cost"] = _cost(cost)
    return fields


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
    fields = {
        **_phase(workload, generation),
        "progress": record.progress(workload),
        "conditions": conditions_of(workload, generation, before, OF_PARENTS),
    }
    if record.best is not None:
        fields["best"] = record.best(workload)
    if isinstance(workload.spec, Serving):
        fields["replicas"] = detail_of(cast("Workload[Serving]", workload)).wanted
        fields["selector"] = f"{SERVICE}={workload.spec.name}"
    return fields


def _phase(workload: AnyWorkload, generation: int) -> dict[str, Any]:
    """Return the fields of the phase and its reason."""
    status = workload.status
    fields: dict[str, Any] = {
        "observedGeneration": generation,
        "phase": status.phase.value,
        "reason": status.reason.code.value,
        "message": status.reason.message[:MESSAGE_MOST],
    }
    return fields if status.reason.remedy is None else {**fields, "remedy": status.reason.remedy}


def _cost(cost: RunCost) -> dict[str, Any]:
    """Return the cost rounded for readers; the ledger is exact."""
    fields: dict[str, Any] = {
        "at": moment(cost.at),
        "microusdPerHour": cost.microusd_per_hour,
        "seconds": {use: round(amount, 3) for use, amount in cost.seconds.items()},
        "waitingSeconds": round(cost.waiting_s, 3),
    }
    if cost.microusd is not None:
        fields["microusd"] = cost.microusd
    if cost.goodput is not None:
        fields["goodput"] = round(cost.goodput, 6)
    return fields


def _progress(progress: Progress) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if progress.step is not None:
        fields["step"] = progress.step
        fields["progress"] = f"{progress.step}"
        if progress.total_steps:
            share = 100 * progress.step // progress.total_steps
            fields["progress"] = f"{progress.step}/{progress.total_steps} ({share}%)"
    if progress.loss is not None and math.isfinite(progress.loss):  # JSON has no NaN, and API servers take none
        fields["loss"] = progress.loss
    if progress.checkpoint_step is not None:
        fields["checkpointStep"] = progress.checkpoint_step
    return fields


_HELD: dict[str, Any] = {
    "type": "object",
    "description": "Amounts that the team's runs hold, counted as its quota counts them.",
    "properties": {
        "gpu": {"type": "string", "description": "GPUs."},
        "cpu": {"type": "string", "description": "Cores."},
        "memory": {"type": "string", "description": "Memory."},
        "runs": {"type": "integer", "description": "Number of runs that have pods."},
    },
}

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
