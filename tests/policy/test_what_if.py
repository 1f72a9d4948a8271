"""The cost of stragglers, by replaying steps of a pipeline of two stages without one cause at a time."""

import numpy as np
import pytest

from fairlead.policy.health.step_replay import step_graph, step_times
from fairlead.policy.health.what_if import analyse
from fairlead.state.step_operations import StepOperations

KINDS = ("forward-compute", "backward-compute", "forward-send", "forward-recv", "backward-send", "backward-recv",
         "grads-reduce-scatter")  # fmt: skip
DATA_RANKS, STEPS, MICRO_BATCHES = 3, 4, 2


def trace(compute: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> StepOperations:
    """Return GPipe's order of two stages; ``compute`` has the seconds by step, data rank, stage and micro-batch.

    A backward takes twice as long as its forward. Starts matter for the order in a stream and for groups only.
    """
    rows: list[tuple[float, ...]] = []
    for step, rank, stage in np.ndindex(STEPS, DATA_RANKS, 2):
        seconds = compute[step, rank, stage]
        moves = ("forward-send", "backward-recv") if stage == 0 else ("backward-send", "forward-recv")
        for batch in range(MICRO_BATCHES):
            rows.append((rank, stage, step, 0, batch, seconds[batch], batch, stage))
            rows.append((rank, stage, step, 1, 10 + batch, 2 * seconds[batch], batch, stage))
            rows += [(rank, stage, step, KINDS.index(move), batch, 0.1, batch, -1) for move in moves]
        rows.append((rank, stage, step, 6, 50, 0.2, 0, -1))
    columns = np.array(rows).T
    whole = columns.astype(np.int64)
    return StepOperations(
        data_rank=whole[0], stage=whole[1], step=whole[2], kind=whole[3], start_s=columns[4], duration_s=columns[5],
        number=whole[6], chunk=whole[7], kinds=KINDS,
    )  # fmt: skip


def even() -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    return np.ones((STEPS, DATA_RANKS, 2, MICRO_BATCHES))


def test_a_step_without_stragglers_takes_what_the_schedule_takes() -> None:
    graph = step_graph(trace(even()))
    # Two forwards, a transfer and the last forward; backward likewise; then the reduce-scatter.
    assert step_times(graph, graph.own_s) == pytest.approx(np.full(STEPS, 2 + 0.1 + 1 + 4 + 0.1 + 2 + 0.2))
    assert analyse(graph).slowdown == pytest.approx(1)


@pytest.mark.parametrize("cause", ["worker", "stage", "data"])
def test_the_cause_that_was_put_in_is_the_one_that_explains_most(cause: str) -> None:
    compute = even() * (1 + 0.001 * np.random.default_rng(0).standard_normal((STEPS, DATA_RANKS, 1, MICRO_BATCHES)))
    if cause == "worker":
        compute[:, 1, 0] *= 1.5
    elif cause == "stage":
        compute[:, :, 1] *= 1.5
    else:
        compute *= np.random.default_rng(1).lognormal(0, 0.4, (STEPS, DATA_RANKS, 1, MICRO_BATCHES))
    result = analyse(step_graph(trace(compute)))
    assert result.cause == cause
    assert result.shares[cause] > (0.35 if cause == "data" else 0.6)
    if cause == "worker":
        assert result.worst == (1, 0)
