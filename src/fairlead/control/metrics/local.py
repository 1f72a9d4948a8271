"""Takes readings of the local cluster: its database, its supervisor's counters, and its GPUs by NVML."""

import time

from fairlead.cluster.ledger_tables import CostGrouping, month_of
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.nvml import NvmlReader
from fairlead.control.metrics.exposition import MOST_RUNS
from fairlead.control.metrics.readings import GpuReading, Readings, RunUsage, gpu_reading, shown_runs
from fairlead.control.pass_counts import PassCounts
from fairlead.ledger.usage import Use
from fairlead.state.snapshot import Gpu

# The supervisor answers between two passes; a long pass may take this long.
ANSWER_S = 2.0


def read_local(cluster: LocalCluster) -> Readings:
    """Take readings now. Changes nothing, and starts no supervisor."""
    now, seen = time.time(), cluster.snapshot()
    usage = {
        run.uid: RunUsage(goodput=cluster.goodput_of(run), cost_microusd=cluster.cost_of(run))
        for run in shown_runs(seen, MOST_RUNS)[0]
    }
    month: dict[tuple[str, str], int] = {}
    models: dict[str, int] = {}
    since = month_of(now)[1]
    for line in cluster.costs(CostGrouping.TEAM, since=since, until=now).lines:
        key = ("" if line.key is None else line.key[0], line.use.value)
        month[key] = month.get(key, 0) + line.microusd
    for line in cluster.costs(CostGrouping.MODEL, since=since, until=now).lines:
        if line.key is not None and line.use is not Use.IDLE:
            models[line.key[0]] = models.get(line.key[0], 0) + line.microusd
    return Readings(
        now=now,
        seen=seen,
        counts=counts_of(cluster),
        usage=usage,
        month=month,
        models=models,
        gpus=read_gpus(cluster.node().name, cluster.node().gpus),
    )


def counts_of(cluster: LocalCluster) -> PassCounts | None:
    """Request the counters of the supervisor; None if none answers, or one of another version."""
    if not cluster.supervisor_alive():
        return None
    answer = cluster.ask_supervisor(ANSWER_S)
    try:
        return PassCounts.loads(answer) if answer else None
    except (ValueError, KeyError, TypeError):
        return None


def read_gpus(node: str, gpus: tuple[Gpu, ...]) -> tuple[GpuReading, ...]:
    """Read the devices of this machine by NVML; empty without devices or if NVML does not answer."""
    reader = NvmlReader()
    try:
        usages = [reader.read(gpu.uuid) for gpu in gpus]
    finally:
        reader.close()
    return () if reader.problem is not None else tuple(gpu_reading(node, usage) for usage in usages)
