"""Renders the operator's metrics from its last snapshot and counters. Only the leader exports metrics of runs."""

import time
from collections.abc import Sequence

from fairlead.cluster.kubernetes.operator.runs.gpu_telemetry import HeldGpu
from fairlead.control.pass_counts import PassCounts

MISSING = "# Metrics of runs need prometheus-client: install `fairlead[serve]` in the operator's image.\n"
FOLLOWS = (
    "# HELP fairlead_loop_running 1 while a loop that can be asked looks after the cluster.\n"
    "# TYPE fairlead_loop_running gauge\n"
    "fairlead_loop_running 0.0\n"
)


def operator_metrics(counts: PassCounts, *, is_leader: bool, gpus: Sequence[HeldGpu] = ()) -> str:
    """Return the metrics in the text format 0.0.4; safe in any thread.

    A follower exports only that it is one: two operators with the same runs would count them twice.
    """
    seen = counts.seen
    if not is_leader or seen is None:
        return FOLLOWS
    try:
        from fairlead.control.metrics.exposition import exposition
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        return MISSING
    from fairlead.control.metrics.readings import Readings, gpu_reading

    told = tuple(gpu_reading(each.node, each.usage) for each in gpus)
    held = {(each.node, each.usage.name): each.run for each in gpus}
    return exposition(Readings(now=time.time(), seen=seen, counts=counts, gpus=told, held=held)).decode()
