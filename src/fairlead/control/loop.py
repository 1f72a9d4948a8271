"""One pass of the loop over any cluster: load, decide, apply."""

from fairlead.cluster.port import Cluster
from fairlead.policy.decide import decide


def run_pass(cluster: Cluster, now: float) -> bool:
    """Bring the cluster one step nearer to what is wanted; whether anything was changed."""
    plan = decide(cluster.snapshot(), now)
    return any(cluster.apply(plan)) if plan.changes else False
