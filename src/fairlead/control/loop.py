"""Runs one pass of the control loop over any cluster: load, decide, apply."""

import time

from fairlead.cluster.port import Cluster
from fairlead.control.pass_counts import PassCounts
from fairlead.policy.decide import decide
from fairlead.policy.pass_cache import PassCache


def run_pass(cluster: Cluster, now: float, counts: PassCounts | None = None, cache: PassCache | None = None) -> bool:
    """Bring the cluster one step closer to its desired state; return whether anything changed.

    Args:
        counts: Records the decisions and their duration.
        cache: State that this loop keeps between passes; None keeps none.
    """
    seen = cluster.snapshot()
    begun = time.perf_counter()
    plan = decide(seen, now, cache)
    if counts is not None:
        counts.decisions.add(time.perf_counter() - begun)
        counts.seen = seen
    if not plan.changes and plan.standby is None and not plan.partitioning:
        return False
    applied = cluster.apply(plan)
    if counts is not None:
        counts.note(seen, plan, applied, now)
    return any(applied) or plan.standby is not None or bool(plan.partitioning)
