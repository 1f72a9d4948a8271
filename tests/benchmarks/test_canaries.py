"""Canaries are promoted and rolled back with the error rates that are stated."""

import itertools
import json

import pytest

from benchmarks import canaries
from benchmarks.candidates.canary_test import ALPHA, CanaryTest, Verdict, Wealth

FEW = 10


def rolled_back(case: str) -> list[Verdict]:
    return [canaries.judged(canaries.CASES[case], seed)[0] for seed in range(FEW)]


@pytest.mark.parametrize("case", ["broken", "slow", "slightly slower"])
def test_a_version_that_is_worse_is_rolled_back(case: str) -> None:
    assert rolled_back(case) == [Verdict.ROLL_BACK] * FEW


def test_a_version_that_is_better_is_promoted() -> None:
    assert rolled_back("better") == [Verdict.PROMOTE] * FEW


@pytest.mark.parametrize("bad", [0.01, 0.2, 0.5])
def test_a_fair_wealth_does_not_grow_on_average(bad: float) -> None:
    values = {1.0: bad * (1 - bad), -1.0: bad * (1 - bad), 0.0: 1 - 2 * bad * (1 - bad)}
    mean = 0.0
    for drawn in itertools.product(values, repeat=5):
        wealth, chance = Wealth(0.0, above=True), 1.0
        for value in drawn:
            wealth.bet(value)
            chance *= values[value]
        mean += chance * sum(wealth.parts) / len(wealth.parts)
    assert mean == pytest.approx(1.0)


def test_a_bet_never_loses_more_than_there_is() -> None:
    for bound, above in ((0.0, True), (0.05, False), (0.9, False)):
        wealth = Wealth(bound, above=above)
        for _ in range(100):
            wealth.bet(-1.0 if above else 1.0)
        assert min(wealth.parts) >= 0.0


def test_it_says_by_which_criterion_a_version_is_worse() -> None:
    test = CanaryTest({"failed": 0.01, "slow": 0.05})
    while test.verdict is Verdict.GO_ON:
        test.add({"failed": False, "slow": True}, {"failed": False, "slow": False})
    assert (test.verdict, test.blamed) == (Verdict.ROLL_BACK, ["slow"])
    assert test.num_pairs < 2 / ALPHA


def test_rows_say_how_often_each_case_ended_how(capsys: pytest.CaptureFixture[str]) -> None:
    canaries.main(["--seeds", "1", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["case"] for row in rows] == list(canaries.CASES)
    assert all(row["promoted"] + row["rolled_back"] + row["undecided"] == 1 for row in rows)
