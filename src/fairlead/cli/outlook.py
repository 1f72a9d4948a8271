"""When a run that waits will start, as far as that can be told."""

import time

from fairlead.cli.show import describe_time
from fairlead.cluster.client import ClusterClient
from fairlead.errors import NotAllowed
from fairlead.state.snapshot import Intent, Phase, Workload
from fairlead.text.quantities import describe_duration


def latest_start(cluster: ClusterClient, workload: Workload) -> float | None:
    """When it starts at the latest, as Unix time; None when it does not wait, or nobody can tell."""
    if workload.intent is not Intent.RUN or workload.status.phase not in (Phase.PENDING, Phase.RESTARTING):
        return None
    # Here and not above: only what waits needs it.
    from fairlead.policy.queue.start_forecast import expected_starts

    try:
        snapshot = cluster.snapshot()
    except NotAllowed:
        return None
    return expected_starts(snapshot, time.time()).get(workload.uid)


def describe_start(at: float) -> str:
    """The time, and how long it is until then."""
    left_s = at - time.time()
    return f"{describe_time(at)} at the latest, in {describe_duration(left_s)}" if left_s > 1 else "at once"
