"""Estimates spending while the ledger is unreachable, from the last known amounts and the pods alive since.

Limits are enforced by this estimate until the ledger is reachable again, which then counts exactly. A pod that ended
between two observations is counted up to the earlier one.
"""

from collections import defaultdict

from fairlead.ledger.usage import WHOLE, share_of, whole_holders
from fairlead.specs.team import PROJECT_LABEL
from fairlead.state.snapshot import Snapshot, Spending
from fairlead.text.money import MICROUSD

HOUR_S = 3600.0


def carried_on(known: Spending, seen: Snapshot, since: float, now: float) -> Spending:
    """Return the spending up to now, given the last known spending and the pods that hold resources now.

    Args:
        since: Unix time at which ``known`` was read.
    """
    nodes = {node.name: node for node in seen.nodes}
    specs = {run.uid: run.spec for run in seen.workloads}
    by_team, by_project = defaultdict(int, known.by_team), defaultdict(int, known.by_project)
    by_run = defaultdict(int, known.by_run)
    held = whole_holders(seen.pods)
    for pod in seen.pods:
        node, spec = nodes.get(pod.node), specs.get(pod.workload_uid)
        if pod.phase.is_final or node is None or node.price_per_hour is None or spec is None:
            continue
        held_s = max(0.0, now - max(since, pod.created_at))
        amount = round(node.price_per_hour * MICROUSD * held_s / HOUR_S * share_of(pod.grant, node, held) / WHOLE)
        by_run[pod.workload_uid] += amount
        by_team[spec.team] += amount
        by_project[spec.team, spec.labels.get(PROJECT_LABEL, "")] += amount
    return Spending(by_team=dict(by_team), by_project=dict(by_project), by_run=dict(by_run))
