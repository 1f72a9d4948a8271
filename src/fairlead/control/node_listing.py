"""Lists the nodes of a cluster with their risk, their failures, who uses them and why they are closed. Pure."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from enum import StrEnum

from fairlead.control.metrics.readings import pool_of
from fairlead.frozen import dataclass
from fairlead.policy.health.node_faults import describe
from fairlead.policy.health.node_risk import LISTED_S, failure_rate, lemon_chance
from fairlead.state.node_health import NodeFailure
from fairlead.state.snapshot import Node, Snapshot


class NodeState(StrEnum):
    """The state of a node for runs."""

    READY = "ready"
    CORDONED = "cordoned"
    FAULTY = "faulty"
    LEAVING = "leaving"
    TAKEN_OUT = "taken out"
    IN_REPAIR = "under repair"
    NOT_READY = "not ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node.

    Attributes:
        chance: The probability that it is unreliable; None if it has no history.
        failures_per_day: The expected failures; None if it has no history.
        causes: The failures of the last 30 days that its history lists, by cause.
        failures: Those failures, the newest first.
        runs: The names of the runs with pods there.
        reason: Why it is in its state, with the price if it was taken out; empty if it is ready.
    """

    node: str
    pool: str
    gpus: int
    gpu_model: str | None
    price_per_hour: float | None
    chance: float | None
    failures_per_day: float | None
    causes: Mapping[str, int]
    failures: tuple[NodeFailure, ...]
    runs: tuple[str, ...]
    state: NodeState
    reason: str


def node_rows(seen: Snapshot, now: float) -> tuple[NodeRow, ...]:
    """Return a row for each node, in order of names."""
    names = {run.uid: run.spec.name for run in seen.workloads}
    runs = defaultdict[str, dict[str, None]](dict)
    for pod in seen.pods:
        if not pod.phase.is_final and pod.workload_uid in names:
            runs[pod.node][names[pod.workload_uid]] = None
    return tuple(_row(seen, node, tuple(runs[node.name]), now) for node in sorted(seen.nodes, key=lambda one: one.name))


def _row(seen: Snapshot, node: Node, runs: tuple[str, ...], now: float) -> NodeRow:
    history = seen.node_health.get(node.name)
    failures = () if history is None else tuple(one for one in history.recent if one.at >= now - LISTED_S)
    state, reason = _state(seen, node)
    return NodeRow(
        node=node.name,
        pool=pool_of(node),
        gpus=len(node.gpus),
        gpu_model=node.gpus[0].model if node.gpus else None,
        price_per_hour=node.price_per_hour,
        chance=None if history is None else lemon_chance(history, now),
        failures_per_day=None if history is None else failure_rate(history, now),
        causes=dict(Counter(one.cause.value for one in failures).most_common()),
        failures=tuple(sorted(failures, key=lambda one: -one.at)),
        runs=runs,
        state=state,
        reason=reason,
    )


def _state(seen: Snapshot, node: Node) -> tuple[NodeState, str]:
    history, faults = seen.node_health.get(node.name), seen.node_faults.get(node.name)
    if history is not None and history.out is not None:
        return NodeState.TAKEN_OUT if node.ready else NodeState.IN_REPAIR, history.out.why
    if not node.ready:
        return NodeState.NOT_READY, "it does not answer"
    if faults:
        stays = "" if node.leaving is not None else "; runs stay, as too many nodes of its kind are away already"
        return NodeState.FAULTY, describe(faults[0]) + stays
    if node.closed is not None and node.closed.startswith("cordoned"):
        return NodeState.CORDONED, node.closed
    if node.leaving is not None:
        return NodeState.LEAVING, node.leaving.why
    return NodeState.READY, node.closed or ""
