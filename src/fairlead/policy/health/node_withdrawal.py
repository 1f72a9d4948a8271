"""Decides which nodes are taken out: those whose expected failures cost more than their repair.

A node is taken out if

    chance of a lemon * (its rate - that of a healthy node) * node days that a failure costs * horizon > days of repair,

after ``LEAST_FAILURES`` failures at least, one of them known to be its own, and while no more than ``MOST_SHARE`` of
the nodes of its hardware are away for any reason: more of them mean that something else is wrong (NVSentinel's circuit
breaker, Amazon EKS' node repair).

See decision 234.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable

from fairlead.policy.health.node_risk import (
    DAY_S,
    HEALTHY_PER_DAY,
    failures_at,
    lemon_chance,
    lemon_rate,
)
from fairlead.state.node_health import NodeHistory, NodeWithdrawal
from fairlead.state.snapshot import Node, Snapshot, Workload
from fairlead.text.quantities import describe_dollars, plural

HORIZON_DAYS = 30.0
"""The time for which an unreliable node would otherwise fail runs."""
REPAIR_DAYS = 5.0
"""The time for which a node is away, as the decision expects it."""
RESTART_S = 600.0
"""From the failure of a gang until it works again."""
CHECKPOINT_S = 3600.0
"""The assumed time between checkpoints of a run that has reported none; half of it is lost in the mean."""
MOST_SHARE = 0.2
LEAST_FAILURES = 1.5
OWN_SHARE = 0.5
"""A node with a larger share in a failure caused it; in a gang that shares it, each node is more likely to be well."""


def withdrawals(snapshot: Snapshot, now: float) -> tuple[NodeWithdrawal, ...]:
    """Return the nodes to take out now, the worst first."""
    if not snapshot.withdraws_nodes or not snapshot.rules.withdraws_nodes:
        return ()
    suspects = [
        history
        for history in snapshot.node_health.values()
        if history.out is None and history.failures >= LEAST_FAILURES and failures_at(history, now) >= LEAST_FAILURES
    ]
    if not suspects:
        return ()
    nodes = {node.name: node for node in snapshot.nodes}
    cost_days = failure_cost_days(snapshot)
    candidates = []
    for history in suspects:
        node = nodes.get(history.node)
        if node is None or (node.closed is not None and not node.full) or not _is_own(history):
            continue
        lost_days = _expected_loss(history, cost_days, now)
        if lost_days > REPAIR_DAYS:
            candidates.append((lost_days, node, history))
    num_left = _num_withdrawable(snapshot.nodes)
    chosen = []
    for lost_days, node, history in sorted(candidates, key=lambda item: (-item[0], item[1].name)):
        kind = hardware_of(node)
        if num_left[kind] < 1 and node.ready:
            continue
        num_left[kind] -= node.ready
        chosen.append(NodeWithdrawal(node=node.name, why=_why(history, node, lost_days, now)))
    return tuple(chosen)


def _is_own(history: NodeHistory) -> bool:
    """Return whether one of the failures since its last repair was surely the node's own."""
    return any(failure.share > OWN_SHARE and failure.at >= history.since for failure in history.recent)


def failure_cost_days(snapshot: Snapshot) -> float:
    """Return the node days that the failure of a busy node costs its gang, in the mean of all busy nodes."""
    lost = total_pods = 0.0
    pods_of_run = Counter(pod.workload_uid for pod in snapshot.pods if pod.workload_uid and not pod.phase.is_final)
    for run in snapshot.workloads:
        num_pods = pods_of_run[run.uid]
        lost += num_pods * num_pods * _lost_s(run) / DAY_S
        total_pods += num_pods
    return lost / total_pods if total_pods else 0.0


def _lost_s(run: Workload) -> float:
    """Return the seconds that a failure costs a run: since its last checkpoint, and until it works again."""
    reported_interval_s = None if run.progress is None else run.progress.checkpoint_interval_s
    return RESTART_S + (reported_interval_s or run.spec.checkpoint.every_s or CHECKPOINT_S) / 2


def _expected_loss(history: NodeHistory, cost_days: float, now: float) -> float:
    excess = lemon_rate(history, now) - HEALTHY_PER_DAY
    return lemon_chance(history, now) * excess * cost_days * HORIZON_DAYS


def _num_withdrawable(nodes: Iterable[Node]) -> dict[Hashable, int]:
    """Return how many nodes of each hardware may still be taken out."""
    total, away = Counter[Hashable](), Counter[Hashable]()
    for node in nodes:
        kind = hardware_of(node)
        total[kind] += 1
        away[kind] += is_away(node)
    num_left: defaultdict[Hashable, int] = defaultdict(int)
    num_left.update({kind: int(MOST_SHARE * num) - away[kind] for kind, num in total.items()})
    return num_left


def is_away(node: Node) -> bool:
    """Return whether a node takes no pods for any other reason than being full."""
    return not node.ready or (node.closed is not None and not node.full)


def hardware_of(node: Node) -> Hashable:
    """Return what nodes of a pool have in common, whatever the provider calls the pool."""
    return node.cpu_milli, len(node.gpus), node.gpus[0].model if node.gpus else None


def _why(history: NodeHistory, node: Node, lost_days: float, now: float) -> str:
    failures = [failure for failure in history.recent if failure.share > 0 and failure.at >= history.since]
    days = (now - min((failure.at for failure in failures), default=history.since)) / DAY_S
    price = ""
    if node.price_per_hour is not None:
        lost_dollars, repair_dollars = (24 * days_ * node.price_per_hour for days_ in (lost_days, REPAIR_DAYS))
        price = f", {describe_dollars(lost_dollars)} against {describe_dollars(repair_dollars)}"
    return (
        f"{plural(len(failures), 'failure')} in {max(days, 0.1):.1f} days: unreliable with a probability of "
        f"{lemon_chance(history, now):.0%}; it would cost {lost_days:.0f} node days in the next "
        f"{HORIZON_DAYS:.0f}, and a repair {REPAIR_DAYS:.0f}{price}"
    )
