"""Renders the operator's metrics from its last snapshot and counters. Only the leader exports metrics of runs."""

import time
from collections.abc import Sequence

from fairlead.cluster.kubernetes.operator.ledger.ledger_keeper import LedgerKeeper
from fairlead.cluster.kubernetes.operator.ledger.month_costs import MonthCosts
from fairlead.cluster.kubernetes.operator.runs.gpu_telemetry import HeldGpu
from fairlead.control.metrics.exposition import MOST_RUNS, exposition
from fairlead.control.metrics.readings import Readings, RunUsage, gpu_reading, shown_runs
from fairlead.control.pass_counts import PassCounts
from fairlead.ledger.goodput import Goodput
from fairlead.state.snapshot import Workload, is_leaf

FOLLOWS = (
    "# HELP fairlead_loop_running 1 while a loop that can be asked looks after the cluster.\n"
    "# TYPE fairlead_loop_running gauge\n"
    "fairlead_loop_running 0.0\n"
)


def operator_metrics(
    counts: PassCounts,
    *,
    is_leader: bool,
    gpus: Sequence[HeldGpu] = (),
    ledger: LedgerKeeper | None = None,
    month: MonthCosts | None = None,
) -> str:
    """Return the metrics in the text format 0.0.4; safe in any thread.

    A follower exports only that it is one: two operators with the same runs would count them twice.

    Args:
        ledger: Knows cost and goodput of runs; None where none is kept.
        month: The costs of this month, by the same ledger.
    """
    seen = counts.seen
    if not is_leader or seen is None:
        return FOLLOWS
    gpu_readings = tuple(gpu_reading(gpu.node, gpu.usage) for gpu in gpus)
    held = {(gpu.node, gpu.usage.name): gpu.run for gpu in gpus}
    now = time.time()
    usage = {} if ledger is None else _usage(ledger, shown_runs(seen, MOST_RUNS)[0], now)
    sums = None if month is None else month.read(now)
    readings = Readings(
        now=now,
        seen=seen,
        counts=counts,
        usage=usage,
        month={} if sums is None else sums.by_use,
        models={} if sums is None else sums.by_model,
        gpus=gpu_readings,
        held=held,
    )
    return exposition(readings).decode()


def _usage(ledger: LedgerKeeper, runs: Sequence[Workload], now: float) -> dict[str, RunUsage]:
    """Return cost and goodput of each run that the ledger knows."""
    usage_of = {}
    for run in runs:
        cost = ledger.cost_of(run, now) if is_leaf(run) else None
        if cost is not None:
            useful = Goodput(ratio=cost.goodput, seconds=cost.seconds, waiting_s=cost.waiting_s)
            usage_of[run.uid] = RunUsage(goodput=useful, cost_microusd=cost.microusd)
    return usage_of
