"""A new revision is judged by pairs of requests, as often as one likes, with the error rates that are stated."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.policy.serving.canary import MOST_PAIRS, CanaryVerdict, fails_mostly, judge_canary, log_wealth, step_at
from fairlead.state.endpoint_detail import Comparison

MARGINS = {"failed": 0.01, "slow": 0.05}


def seen(name: str = "failed", *, pairs: int = 0, worse: int = 0, better: int = 0) -> dict[str, Comparison]:
    return {
        each: Comparison(name=each, pairs=pairs, **({"worse": worse, "better": better} if each == name else {}))
        for each in MARGINS
    }


@pytest.mark.parametrize("bad", [0.01, 0.2, 0.5])
def test_a_fair_wealth_does_not_grow_on_average(bad: float) -> None:
    chances = {1: bad * (1 - bad), -1: bad * (1 - bad), 0: 1 - 2 * bad * (1 - bad)}
    mean = 0.0
    for drawn in itertools.product(chances, repeat=5):
        found = Comparison(name="failed", pairs=5, worse=drawn.count(1), better=drawn.count(-1))
        mean += math.exp(log_wealth(found, 0.0, above=True)) * math.prod(chances[each] for each in drawn)
    assert mean == pytest.approx(1.0)


@given(st.integers(0, 500), st.integers(0, 500), st.sampled_from([0.0, 0.05, 0.5]), st.booleans())
def test_a_bet_never_loses_more_than_there_is(worse: int, better: int, bound: float, above: bool) -> None:
    found = Comparison(name="failed", pairs=worse + better, worse=worse, better=better)
    assert math.isfinite(log_wealth(found, bound, above=above))


def test_a_revision_that_fails_where_the_old_one_does_not_is_rolled_back_and_told_why() -> None:
    found = judge_canary(seen(pairs=40, worse=20), MARGINS, 0.95)
    assert (found.verdict, found.blamed) == (CanaryVerdict.ROLL_BACK, ("failed",))
    assert judge_canary(seen("slow", pairs=40, worse=20), MARGINS, 0.95).blamed == ("slow",)


def test_a_surer_judge_needs_more_to_be_sure() -> None:
    few = seen(pairs=16, worse=10)
    assert judge_canary(few, MARGINS, 0.9).verdict is CanaryVerdict.ROLL_BACK
    assert judge_canary(few, MARGINS, 0.9999).verdict is CanaryVerdict.GO_ON


def test_one_that_does_as_well_is_promoted_once_there_is_evidence_by_every_criterion() -> None:
    evidence = [judge_canary(seen(pairs=pairs), MARGINS, 0.95) for pairs in (0, 200, 400, 600)]
    assert [each.verdict for each in evidence] == [CanaryVerdict.GO_ON] * 3 + [CanaryVerdict.PROMOTE]
    assert [each.evidence for each in evidence] == sorted(each.evidence for each in evidence)
    assert evidence[0].evidence == 0.0
    slow_too = seen(pairs=600) | {"slow": Comparison(name="slow")}
    assert judge_canary(slow_too, MARGINS, 0.95).verdict is CanaryVerdict.GO_ON


def test_of_what_stays_unknown_the_old_one_stays() -> None:
    between = seen(pairs=MOST_PAIRS, worse=2_100, better=2_000)
    assert judge_canary(between, MARGINS, 0.95).verdict is CanaryVerdict.UNDECIDED


def test_each_step_ends_with_its_part_of_the_evidence() -> None:
    assert [step_at(3, evidence) for evidence in (0.0, 0.33, 0.34, 0.66, 0.67, 1.0)] == [0, 0, 1, 1, 2, 2]


def test_one_that_is_judged_alone_is_blamed_only_for_failing_most_of_its_requests() -> None:
    assert [fails_mostly(requests, requests, 0.95) for requests in (0, 8, 9)] == [False, False, True]
    assert not any(fails_mostly(requests, requests // 2, 0.95) for requests in range(2_000))
    assert fails_mostly(200, 140, 0.95)


def test_one_that_fails_half_is_blamed_no_more_often_than_stated_however_often_it_is_looked_at() -> None:
    blamed = 0
    for seed in range(200):
        rng, errors = random.Random(seed), 0
        for requests in range(1, 301):
            errors += rng.random() < 0.5
            if fails_mostly(requests, errors, 0.95):
                blamed += 1
                break
    assert blamed <= 0.05 * 200
