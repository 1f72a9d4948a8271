"""Figures of a simulation: waits, completion times, utilisation, cost. All times in seconds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.control.simulation import Outcome, Simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is said of a set of runs. A mean or a percentile of nothing is None.

    Attributes:
        unfinished: Runs that never ended, because nothing could start them.
        average_completion_s: Mean of arrival to end, as JCT in the literature.
        interruptions: How often runs lost their nodes and got some again.
        gpu_hours: GPU-hours that the runs held.
    """

    num_runs: int
    unfinished: int
    average_wait_s: float | None
    p99_wait_s: float | None
    average_completion_s: float | None
    p99_completion_s: float | None
    interruptions: int
    gpu_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A whole simulation in numbers.

    Attributes:
        gpu_utilisation: Share of the cluster's GPU time, from 0 to the end, that runs held; None without GPUs.
        cost: Dollars for all nodes from 0 to the end; None when a pool has no price.
        idle_cost: The part of it for GPUs that nobody held.
    """

    makespan_s: float
    gpu_utilisation: float | None
    cost: float | None
    idle_cost: float | None
    whole: Figures
    teams: dict[str, Figures]


def summary(outcome: Outcome) -> Summary:
    """The figures of a simulation."""
    held_s = sum(run.gpu_s for run in outcome.runs)
    capacity_s = outcome.num_gpus * outcome.ended_s
    utilisation = held_s / capacity_s if capacity_s else None
    cost = None if outcome.price_per_hour is None else outcome.price_per_hour * outcome.ended_s / 3600
    return Summary(
        makespan_s=outcome.ended_s,
        gpu_utilisation=utilisation,
        cost=cost,
        idle_cost=None if cost is None or utilisation is None else cost * (1 - utilisation),
        whole=figures(outcome.runs),
        teams={
            team: figures([run for run in outcome.runs if run.team == team])
            for team in sorted({run.team for run in outcome.runs})
        },
    )


def figures(runs: Sequence[Simulated]) -> Figures:
    """The figures of some runs."""
    waits = [run.waited_s for run in runs if run.waited_s is not None]
    completions = [run.completion_s for run in runs if run.completion_s is not None]
    return Figures(
        num_runs=len(runs),
        unfinished=sum(run.ended_s is None for run in runs),
        average_wait_s=_mean(waits),
        p99_wait_s=percentile(waits, 0.99),
        average_completion_s=_mean(completions),
        p99_completion_s=percentile(completions, 0.99),
        interruptions=sum(run.num_interruptions for run in runs),
        gpu_hours=sum(run.gpu_s for run in runs) / 3600,
    )


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of the values does not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def gpus_held(outcome: Outcome) -> list[tuple[float, float]]:
    """GPUs held over time, as steps (from when, how many)."""
    return _steps([(at, sign * run.num_gpus) for run in outcome.runs for span in run.held for at, sign in _ends(span)])


def queue_length(outcome: Outcome) -> list[tuple[float, float]]:
    """Runs that wait for their first placement over time, as steps (from when, how many)."""
    changes = []
    for run in outcome.runs:
        changes.append((run.arrived_s, 1.0))
        if run.started_s is not None:
            changes.append((run.started_s, -1.0))
    return _steps(changes)


def _ends(span: tuple[float, float]) -> tuple[tuple[float, float], tuple[float, float]]:
    return (span[0], 1.0), (span[1], -1.0)


def _steps(changes: list[tuple[float, float]]) -> list[tuple[float, float]]:
    steps: list[tuple[float, float]] = [(0.0, 0.0)]
    level = 0.0
    for at, change in sorted(changes):
        level += change
        if at == steps[-1][0]:
            steps[-1] = (at, level)
        else:
            steps.append((at, level))
    return [(at, max(0.0, round(level, 6))) for at, level in steps]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
