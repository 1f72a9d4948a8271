"""Sums up a simulation, and its figures: waits, completion times, goodput, cost. All times in seconds."""

import math
from collections.abc import Iterable, Sequence

from fairlead.cluster.simulated.accounts import NodeTime, PodTime
from fairlead.control.spending import Spent, Uses, prices_of, spent_by, uses_of
from fairlead.frozen import dataclass
from fairlead.specs.pool import Pool
from fairlead.state.reasons import Reason
from fairlead.state.snapshot import Phase

Steps = list[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The outcome of one run. Times are seconds after the beginning of the trace.

    Attributes:
        held: When it held its nodes, as (from, to).
        ended_s: When it came to a final phase; None when it never did.
        spent: What became of the GPU time that it held.
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

    @property
    def started_s(self) -> float | None:
        """Return the time at which it was first placed."""
        return self.held[0][0] if self.held else None

    @property
    def waited_s(self) -> float | None:
        """From its arrival to its first placement."""
        return self.held[0][0] - self.arrived_s if self.held else None

    @property
    def completion_s(self) -> float | None:
        """From its arrival to its end."""
        return None if self.ended_s is None else self.ended_s - self.arrived_s

    @property
    def num_interruptions(self) -> int:
        """Count how often it lost its nodes and got some again."""
        return max(0, len(self.held) - 1)

    @property
    def gpu_s(self) -> float:
        """GPU-seconds that it held."""
        return self.spent.allocated


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A whole simulation. Times are seconds after the beginning of the trace.

    Attributes:
        runs: In order of arrival.
        pods: The life of every pod, as far as it came.
        nodes: When each node was there, up or down.
        pools: Whose nodes they are; a node is named after its pool.
        ended_s: When the last run ended, or the trace stopped moving.
    """

    runs: tuple[Simulated, ...]
    pods: tuple[PodTime, ...]
    nodes: tuple[NodeTime, ...]
    pools: tuple[Pool, ...]
    ended_s: float
    num_decisions: int

    @property
    def num_nodes(self) -> int:
        """The most that there can be."""
        return sum(pool.nodes for pool in self.pools)

    @property
    def num_gpus(self) -> int:
        """The most that there can be."""
        return sum(pool.nodes * pool.hardware.gpu.count for pool in self.pools if pool.hardware.gpu is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a set of runs. A mean or a percentile of nothing is None.

    Attributes:
        unfinished: Runs whose work was not done in the end: nothing could start them, they came to their
            ``max_duration`` before, or they failed again and again before they had saved anything.
        average_completion_s: Mean of arrival to end of the others, as JCT in the literature.
        interruptions: How often runs lost their nodes and got some again.
        gpu_hours: GPU-hours that the runs held.
        redone_gpu_hours: Those of them whose work was lost.
        goodput: Share of the held GPU time in which work was done that lasted; None when none was held.
        cost: Dollars for the GPUs while they were held; None when a pool has no price.
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
    """A whole simulation in numbers.

    Attributes:
        gpu_utilisation: Share of the GPU time that was there and up which runs held; None without GPUs.
        capacity_gpu_hours: GPU time of the nodes while they were there, down ones included: what was held, idle and
            down together.
        spent_gpu_hours: What became of what was held.
        cost: Dollars for all nodes while they were there; None when a pool has no price.
        idle_cost: The part of it for GPUs that nobody held.
        pools: By name.
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
    """The figures of a simulation."""
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
    """GPU-hours by what became of them; together they are all that there were."""
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
    """The figures of some runs of a simulation."""
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
    """The smallest value that at least this share of the values does not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def gpus_held(outcome: Outcome) -> Steps:
    """GPUs held over time, as steps (from when, how many)."""
    spans = ((pod.created_at, pod.ended_at, pod.num_gpus) for pod in outcome.pods if pod.ended_at > pod.created_at)
    return _steps(spans)


def gpus_there(outcome: Outcome) -> Steps:
    """GPUs of nodes that are up over time, as steps (from when, how many)."""
    gpus = {pool.name: 0 if pool.hardware.gpu is None else pool.hardware.gpu.count for pool in outcome.pools}
    return _steps(
        (time.since, time.until, float(gpus[time.node.rpartition("-")[0]])) for time in outcome.nodes if time.up
    )


def queue_length(outcome: Outcome) -> Steps:
    """Runs that wait for their first placement over time, as steps (from when, how many)."""
    return _steps(
        (run.arrived_s, outcome.ended_s if run.started_s is None else run.started_s, 1.0) for run in outcome.runs
    )


def _steps(spans: Iterable[tuple[float, float, float]]) -> Steps:
    """The sum of levels, each held from one time to another."""
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
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if len(known) == len(found) else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
