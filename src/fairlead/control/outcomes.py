"""Summarizes a simulation: waits, completion times, goodput, cost. All times are in seconds."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from fairlead.cluster.simulated.accounts import NodeTime, PodTime
from fairlead.cluster.simulated.node_failures import TakenOut
from fairlead.control.spending import Spent, Uses, prices_of, spent_by, uses_of
from fairlead.frozen import dataclass
from fairlead.specs.pool import Pool
from fairlead.state.reasons import Reason
from fairlead.state.snapshot import Phase

Steps = list[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The outcome of one run. Times are seconds since the start of the trace.

    Attributes:
        held: Spans in which it held its nodes, as (start, end).
        ended_s: Time at which it reached a final phase; None if it never did.
        spent: Uses of the GPU time that it held.
        num_failures: How often it failed and was restarted.
    """

    name: str
    team: str
    num_gpus: float
    arrived_s: float
    duration_s: float
    phase: Phase
    reason: Reason
    held: tuple[tuple[float, float], ...]
    ended_s: float | None
    spent: Spent
    num_failures: int = 0

    @property
    def started_s(self) -> float | None:
        """Return the time at which it was first placed."""
        return self.held[0][0] if self.held else None

    @property
    def waited_s(self) -> float | None:
        """Return the seconds from its arrival to its first placement."""
        return self.held[0][0] - self.arrived_s if self.held else None

    @property
    def completion_s(self) -> float | None:
        """Return the seconds from its arrival to its end."""
        return None if self.ended_s is None else self.ended_s - self.arrived_s

    @property
    def num_interruptions(self) -> int:
        """Return how often it lost its nodes and was placed again."""
        return max(0, len(self.held) - 1)

    @property
    def gpu_s(self) -> float:
        """Return the GPU-seconds that it held."""
        return self.spent.allocated


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a simulation. Times are seconds since the start of the trace.

    Attributes:
        runs: In order of arrival.
        pods: The lifetime of every pod, up to the end of the simulation.
        nodes: Spans in which each node existed, up or down.
        pools: Pools of the nodes; a node is named after its pool.
        ended_s: Time at which the last run ended, or nothing changed any more.
        taken_out: Nodes that were taken out because they failed too often.
        store_gb: Gigabytes that left the store; None where reading was not simulated.
    """

    runs: tuple[Simulated, ...]
    pods: tuple[PodTime, ...]
    nodes: tuple[NodeTime, ...]
    pools: tuple[Pool, ...]
    ended_s: float
    num_decisions: int
    taken_out: tuple[TakenOut, ...] = ()
    store_gb: float | None = None

    @property
    def num_nodes(self) -> int:
        """Return the maximum number of nodes."""
        return sum(pool.nodes for pool in self.pools)

    @property
    def num_gpus(self) -> int:
        """Return the maximum number of GPUs."""
        return sum(pool.nodes * pool.hardware.gpu.count for pool in self.pools if pool.hardware.gpu is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Statistics of a set of runs. A mean or percentile of no values is None.

    Attributes:
        unfinished: Runs that did not complete their work: they could not start, reached their ``max_duration``, or
            failed repeatedly before saving anything.
        average_completion_s: Mean time from arrival to end of the others, the JCT of the literature.
        interruptions: How often runs lost their nodes and were placed again.
        gpu_hours: GPU-hours that the runs held.
        redone_gpu_hours: The part of them whose work was lost.
        goodput: Share of the held GPU time spent on work that was not lost; None if no GPU time was held.
        cost: Dollars for the GPUs while they were held; None if a pool has no price.
    """

    num_runs: int
    unfinished: int
    average_wait_s: float | None
    p50_wait_s: float | None
    p99_wait_s: float | None
    average_completion_s: float | None
    p99_completion_s: float | None
    interruptions: int
    gpu_hours: float
    redone_gpu_hours: float
    goodput: float | None
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Statistics of a simulation.

    Attributes:
        gpu_utilisation: Share of the GPU time of nodes that were up which runs held; None without GPUs.
        capacity_gpu_hours: GPU time of the nodes while they existed, the sum of held, idle and down time.
        spent_gpu_hours: Uses of the held time.
        cost: Dollars for all nodes while they existed; None if a pool has no price.
        idle_cost: The part of it for GPUs that were not held.
        pools: Uses by name of the pool.
    """

    makespan_s: float
    gpu_utilisation: float | None
    goodput: float | None
    capacity_gpu_hours: float
    idle_gpu_hours: float
    down_gpu_hours: float
    spent_gpu_hours: Spent
    cost: float | None
    idle_cost: float | None
    whole: Figures
    teams: dict[str, Figures]
    pools: dict[str, Uses]


def summary(outcome: Outcome) -> Summary:
    """Compute the statistics of a simulation."""
    uses = uses_of(outcome.pools, outcome.nodes, outcome.pods)
    hours = spent_by(outcome.pods, prices_of(outcome.pools)).scaled(1 / 3600)
    up_hours = sum(use.gpu_hours - use.down_gpu_hours for use in uses.values())
    idle_costs = [use.idle_cost for use in uses.values() if use.idle_cost is not None]
    return Summary(
        makespan_s=outcome.ended_s,
        gpu_utilisation=hours.allocated / up_hours if up_hours else None,
        goodput=hours.goodput,
        capacity_gpu_hours=sum(use.gpu_hours for use in uses.values()),
        idle_gpu_hours=sum(use.idle_gpu_hours for use in uses.values()),
        down_gpu_hours=sum(use.down_gpu_hours for use in uses.values()),
        spent_gpu_hours=hours,
        cost=_total(use.cost for use in uses.values()),
        idle_cost=sum(idle_costs) if idle_costs else None,
        whole=figures(outcome, outcome.runs),
        teams={
            team: figures(outcome, [run for run in outcome.runs if run.team == team])
            for team in sorted({run.team for run in outcome.runs})
        },
        pools=uses,
    )


def time_spent(summary: Summary) -> dict[str, float]:
    """Return the GPU-hours by use; their sum is all GPU time."""
    spent = summary.spent_gpu_hours
    return {
        "useful": spent.useful,
        "redone": spent.redone,
        "start-up": spent.start_up,
        "saving": spent.saving,
        "slowed": spent.slowed,
        "stopping": spent.stopping,
        "idle": summary.idle_gpu_hours,
        "down": summary.down_gpu_hours,
    }


def figures(outcome: Outcome, runs: Sequence[Simulated]) -> Figures:
    """Compute the statistics of some runs of a simulation."""
    waits = [run.waited_s for run in runs if run.waited_s is not None]
    finished = [run for run in runs if run.phase is Phase.SUCCEEDED]
    completions = [run.completion_s for run in finished if run.completion_s is not None]
    spent = Spent.total(run.spent for run in runs)
    is_priced = all(pool.price_per_hour is not None for pool in outcome.pools)
    return Figures(
        num_runs=len(runs),
        unfinished=len(runs) - len(finished),
        average_wait_s=_mean(waits),
        p50_wait_s=percentile(waits, 0.5),
        p99_wait_s=percentile(waits, 0.99),
        average_completion_s=_mean(completions),
        p99_completion_s=percentile(completions, 0.99),
        interruptions=sum(run.num_interruptions for run in runs),
        gpu_hours=spent.allocated / 3600,
        redone_gpu_hours=spent.redone / 3600,
        goodput=spent.goodput,
        cost=spent.cost if is_priced else None,
    )


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least this share of the values does not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def gpus_held(outcome: Outcome) -> Steps:
    """Return the GPUs held over time, as steps (start, count)."""
    spans = ((pod.created_at, pod.ended_at, pod.num_gpus) for pod in outcome.pods if pod.ended_at > pod.created_at)
    return _steps(spans)


def gpus_up(outcome: Outcome) -> Steps:
    """Return the GPUs of nodes that are up over time, as steps (start, count)."""
    gpus = {pool.name: 0 if pool.hardware.gpu is None else pool.hardware.gpu.count for pool in outcome.pools}
    return _steps(
        (time.since, time.until, float(gpus[time.node.rpartition("-")[0]])) for time in outcome.nodes if time.up
    )


def queue_length(outcome: Outcome) -> Steps:
    """Return the runs that await their first placement over time, as steps (start, count)."""
    return _steps(
        (run.arrived_s, outcome.ended_s if run.started_s is None else run.started_s, 1.0) for run in outcome.runs
    )


def wait_shares(waits: Sequence[float | None]) -> Steps:
    """Return the share of runs that waited no longer than a time, as steps (seconds, share); None never started."""
    known = sorted(wait for wait in waits if wait is not None)
    return [(wait, (index + 1) / len(waits)) for index, wait in enumerate(known)]


def thinned(steps: Sequence[tuple[float, float]], most: int) -> Sequence[tuple[float, float]]:
    """Reduce steps to at most so many: the last one, and the highest of each stretch before, from its beginning on."""
    if len(steps) <= most:
        return steps
    edges = [(len(steps) - 1) * part // (most - 1) for part in range(most)]
    return [
        *((steps[first][0], max(level for _, level in steps[first:last])) for first, last in pairwise(edges)),
        steps[-1],
    ]


def averaged(steps: Sequence[tuple[float, float]], span_s: float, num: int) -> Steps:
    """Return the mean levels of equal stretches of the time from 0 to ``span_s``, as steps (start, mean)."""
    length_s = span_s / num
    sums = [0.0] * num
    for (at, level), (until, _) in pairwise([*steps, (span_s, 0.0)]):
        low, high = at, min(until, span_s)
        place = min(int(low / length_s), num - 1) if length_s else num
        while low < high and place < num:
            end = min(high, (place + 1) * length_s) if place < num - 1 else high
            sums[place] += level * (end - low)
            low, place = end, place + 1
    return [(place * length_s, total / length_s if length_s else 0.0) for place, total in enumerate(sums)]


def _steps(spans: Iterable[tuple[float, float, float]]) -> Steps:
    """Sum levels, each of which lasts from one time to another."""
    changes = sorted(change for since, until, level in spans for change in ((since, level), (until, -level)))
    steps: Steps = [(0.0, 0.0)]
    level = 0.0
    for at, change in changes:
        level += change
        if at - steps[-1][0] < 1e-6:
            steps[-1] = (steps[-1][0], level)
        else:
            steps.append((at, level))
    return [(at, max(0.0, round(level, 6))) for at, level in steps]


def _total(values: Iterable[float | None]) -> float | None:
    numbers = list(values)
    known = [value for value in numbers if value is not None]
    return sum(known) if len(known) == len(numbers) else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
