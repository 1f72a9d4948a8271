"""Computes what stragglers cost a training, and why, by replaying its steps without one cause of slowness at a time.

The slowdown S is the mean step over the mean step in which every operation has the ideal duration of its kind: the
mean of computation, the median of communication (Lin et al., OSDI 2025, section 3.2). Shares of causes come from
undoing one cause alone, not from making all else equal: two causes then share what they explain together.

See decision 215.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from fairlead.frozen import dataclass
from fairlead.policy.health.step_replay import BACKWARD, COMPUTATION, FORWARD, StepGraph, step_times

if TYPE_CHECKING:
    from numpy.typing import NDArray

CAUSES = ("worker", "stage", "data")
WORST_PART = 0.03
"""The part of the workers of which M_W says how much they explain, rounded up."""
LEAST_FACTOR = 1.03
"""A worker counts as slow if it was slower than its peers by this factor in nearly all steps that are looked at."""
MOST_EXCEPTIONS = 0.1
"""The part of the steps in which a slow worker may be faster than that."""
COMBINED = {"forward-send": "forward-pp-comm", "forward-recv": "forward-pp-comm",
            "backward-send": "backward-pp-comm", "backward-recv": "backward-pp-comm"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The cost of stragglers in a trace; slowdowns are ratios to the ideal step.

    Attributes:
        slowdown: S of all causes.
        by_kind, by_data_rank, by_stage: S of one kind of operation, data rank or stage: all others are ideal.
        worst_workers: Part of the lost time that the slowest 3 % of the workers explain (M_W).
        last_stage: Part of the lost time that the last stage explains (M_S); more than 1 if the others then wait less
            than in the ideal step.
        cause: The cause that explains most, of ``CAUSES``; None if nothing is lost.
        shares: The part of the lost time that undoing each cause alone wins back.
        worst: The slowest worker, as (data rank, stage).
        step_s, ideal_s: Mean seconds of a step.
    """

    slowdown: float
    by_kind: dict[str, float]
    by_data_rank: dict[int, float]
    by_stage: dict[int, float]
    worst_workers: float
    last_stage: float
    cause: str | None
    shares: dict[str, float]
    worst: tuple[int, int]
    step_s: float
    ideal_s: float


def analyse(graph: StepGraph) -> WhatIf:
    """Return the slowdown of a trace by kind, data rank and stage, its cause and its worst worker."""
    own = graph.own_s
    ideal = ideal_times(graph, own)
    kinds = [COMBINED.get(name, name) for name in graph.kinds]
    of_kind = np.array([kinds[kind] for kind in graph.kind.tolist()])
    names = sorted(set(of_kind.tolist()))
    data_ranks, stages = np.unique(graph.data_rank).tolist(), np.unique(graph.stage).tolist()
    scopes = [
        *(of_kind == name for name in names),
        *(graph.data_rank == rank for rank in data_ranks),
        *(graph.stage == stage for stage in stages),
    ]
    everything = np.ones(len(own), bool)
    masks = np.stack([everything, ~everything, *scopes, graph.stage != stages[-1]], axis=1)
    means = step_times(graph, np.where(masks[:, :, None], own[:, None], ideal[:, None])).mean(axis=1)
    step_s, ideal_s = float(means[0]), float(means[1])
    slowdowns = (means[2:-1] / ideal_s).tolist()
    by_kind = dict(zip(names, slowdowns, strict=False))
    by_data_rank = dict(zip(data_ranks, slowdowns[len(names) :], strict=False))
    by_stage = dict(zip(stages, slowdowns[len(names) + len(data_ranks) :], strict=False))
    workers = sorted(
        ((min(by_data_rank[rank], by_stage[stage]), rank, stage) for rank in data_ranks for stage in stages),
        key=lambda worker: -worker[0],
    )
    slowest = np.zeros(len(own), bool)
    for _, rank, stage in workers[: math.ceil(WORST_PART * len(workers))]:
        slowest |= (graph.data_rank == rank) & (graph.stage == stage)
    without_slowest = float(step_times(graph, np.where(slowest[:, None], ideal, own)).mean())
    lost = step_s - ideal_s
    shares = dict(zip(CAUSES, cause_shares(graph, own[:, None])[0].tolist(), strict=True))
    return WhatIf(
        slowdown=step_s / ideal_s,
        by_kind=by_kind,
        by_data_rank=by_data_rank,
        by_stage=by_stage,
        worst_workers=(step_s - without_slowest) / lost if lost else 0.0,
        last_stage=(step_s - float(means[-1])) / lost if lost else 0.0,
        cause=max(CAUSES, key=lambda cause: shares[cause]) if lost > 0 else None,
        shares=shares,
        worst=workers[0][1:],
        step_s=step_s,
        ideal_s=ideal_s,
    )


def ideal_times(graph: StepGraph, own: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return own times in which every kind of operation has one duration.

    Args:
        own: Operations, and then any axes of scenarios, of which the last are steps; each scenario is by itself.
    """
    ideal = np.empty_like(own)
    for kind, name in enumerate(graph.kinds):
        rows = graph.kind == kind
        if rows.any():
            average = np.mean if name in COMPUTATION else np.median
            ideal[rows] = average(own[rows], axis=(0, -1), keepdims=True)
    return ideal


def cause_shares(graph: StepGraph, own: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return the part of the lost time that each of ``CAUSES`` explains, for each of several samples of steps.

    Args:
        own: Operations x samples x steps.
    """
    undone = [own, ideal_times(graph, own), _without_workers(graph, own), _without_stages(graph, own),
              _without_data(graph, own)]  # fmt: skip
    means = step_times(graph, np.concatenate(undone, axis=1)).mean(axis=-1).reshape(len(undone), -1)
    lost = np.maximum(means[0] - means[1], 1e-12)
    result: NDArray[np.float64] = ((means[0] - means[2:]) / lost).T
    return result


def computations(graph: StepGraph) -> "NDArray[np.bool_]":
    """Return which operations are forwards or backwards."""
    return np.isin(graph.kind, [kind for kind, name in enumerate(graph.kinds) if name in (FORWARD, BACKWARD)])


def own_of_workers(graph: StepGraph, own: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return the seconds that each worker computes: data ranks x stages x the axes of ``own`` after the first."""
    rows = computations(graph)
    total = np.zeros((graph.data_rank.max() + 1, graph.stage.max() + 1, *own.shape[1:]))
    np.add.at(total, (graph.data_rank[rows], graph.stage[rows]), own[rows])
    return total


def _without_workers(graph: StepGraph, own: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return own times in which a worker that is slow in nearly every step is like the others of its stage.

    It is divided by its factor, and then all are scaled so that each kind keeps the mean, which the ideal step has too.
    """
    logs = np.log(np.maximum(own_of_workers(graph, own), 1e-12))
    excess = _less_median_of_others(logs, 0) if len(logs) > 1 else np.zeros_like(logs)
    if excess.shape[1] > 1:
        excess = _less_median_of_others(excess, 1)
    least = np.quantile(excess, MOST_EXCEPTIONS, axis=-1, keepdims=True)
    factor = np.where(least > math.log(LEAST_FACTOR), np.median(excess, axis=-1, keepdims=True), 0.0)
    rows = computations(graph)
    result = own.copy()
    result[rows] /= np.exp(factor)[graph.data_rank[rows], graph.stage[rows]]
    for kind, name in enumerate(graph.kinds):
        if name in (FORWARD, BACKWARD):
            of_kind = graph.kind == kind
            result[of_kind] *= own[of_kind].mean(axis=(0, -1))[:, None] / result[of_kind].mean(axis=(0, -1))[:, None]
    return result


def _less_median_of_others(values: "NDArray[np.float64]", axis: int) -> "NDArray[np.float64]":
    result = np.empty_like(values)
    for index in range(values.shape[axis]):
        others = np.median(np.delete(values, index, axis), axis=axis)
        place = (slice(None),) * axis + (index,)
        result[place] = values[place] - others
    return result


def _without_stages(graph: StepGraph, own: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return own times in which all stages compute as long as they do in the mean."""
    result = own.copy()
    for kind, name in enumerate(graph.kinds):
        if name not in (FORWARD, BACKWARD):
            continue
        of_kind = graph.kind == kind
        mean = own[of_kind].mean(axis=(0, -1))
        for stage in np.unique(graph.stage):
            rows = of_kind & (graph.stage == stage)
            result[rows] *= (mean / own[rows].mean(axis=(0, -1)))[:, None]
    return result


def _without_data(graph: StepGraph, own: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return own times in which every micro-batch of every step takes its worker as long as its median one."""
    result = own.copy()
    for kind, name in enumerate(graph.kinds):
        if name not in (FORWARD, BACKWARD):
            continue
        rows = np.flatnonzero(graph.kind == kind)
        rows = rows[np.lexsort((graph.number[rows], graph.stage[rows], graph.data_rank[rows]))]
        num_workers = len(np.unique(np.stack([graph.data_rank[rows], graph.stage[rows]]), axis=1).T)
        by_worker = own[rows].reshape(num_workers, -1, *own.shape[1:])
        typical = np.median(by_worker, axis=(1, -1), keepdims=True)
        result[rows] = np.broadcast_to(typical, by_worker.shape).reshape(own[rows].shape)
    return result
