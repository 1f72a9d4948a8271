"""Canaries are promoted and rolled back with the error rates that are stated."""

import json

import pytest

from benchmarks import canaries
from fairlead.policy.serving.canary import CanaryVerdict

FEW = 10


def verdicts(case: str) -> list[CanaryVerdict]:
    return [canaries.judged(canaries.CASES[case], seed)[0] for seed in range(FEW)]


@pytest.mark.parametrize("case", ["broken", "slow", "slightly slower", "worse scores"])
def test_a_version_that_is_worse_is_rolled_back(case: str) -> None:
    assert verdicts(case) == [CanaryVerdict.ROLL_BACK] * FEW


def test_a_version_that_is_better_is_promoted() -> None:
    assert verdicts("better") == [CanaryVerdict.PROMOTE] * FEW


def test_rows_say_how_often_each_case_ended_how(capsys: pytest.CaptureFixture[str]) -> None:
    canaries.main(["--seeds", "1", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["case"] for row in rows] == list(canaries.CASES)
    assert all(row["promoted"] + row["rolled_back"] + row["undecided"] == 1 for row in rows)
