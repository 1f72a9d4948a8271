"""The oracle is the best there is, and the product's rule is far ahead of never training and of training always."""

import itertools
import json

import numpy as np
import pytest

from benchmarks import retraining
from benchmarks.retraining import ROWS, History, oracle, spent


def test_the_oracle_is_as_good_as_the_best_of_all_ways() -> None:
    rng = np.random.default_rng(3)
    mistakes = {look: (rng.random((7 - look) * ROWS) < 0.1 + 0.05 * look).astype(float) for look in range(7)}
    history = History(mistakes=mistakes, first=0, looks=7)

    def cost(trainings: tuple[int, ...]) -> float:
        ends = (*trainings[1:], 7)
        lost = [mistakes[begin][: (end - begin) * ROWS].sum() for begin, end in zip(trainings, ends, strict=True)]
        return float(sum(lost)) + 9.0 * (len(trainings) - 1)

    ways = [(0, *later) for few in range(7) for later in itertools.combinations(range(1, 7), few)]
    assert oracle(history, 9.0) == pytest.approx(min(map(cost, ways)))


def test_the_rule_by_cost_is_near_the_oracle_where_a_model_grows_stale() -> None:
    rng = np.random.default_rng(5)
    chances = [0.02 + 0.01 * (row // ROWS) for row in range(60 * ROWS)]
    drawn = rng.random(60 * ROWS) < np.array(chances)
    history = History(
        mistakes={look: drawn[: (60 - look) * ROWS].astype(float) for look in range(60)}, first=0, looks=60
    )
    best = oracle(history, 50.0)
    ours, trainings = spent(history, 50.0, retraining.by_cost)
    never, none = spent(history, 50.0, retraining.POLICIES["never"])
    assert trainings > none == 0
    assert best <= ours < 1.1 * best < 0.7 * never


def test_every_policy_is_printed_for_every_stream_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    retraining.main(["--seeds", "1", "--looks", "8", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 5 * len(retraining.COSTS) * len(retraining.POLICIES)
    assert all(row["cost"] >= row["oracle"] for row in rows)
