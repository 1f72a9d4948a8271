"""Spot under a deadline: never late, whatever spot does, and as cheap as what is known allows."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import spot
from fairlead.policy.capacity.spot_schedule import CapacityUse, SpotProblem, solve

JOB = spot.Variant(deadline_h=52.0, changeover_h=0.20)
HOUR_TICKS = 6


def _cost(up: np.ndarray, variant: spot.Variant = JOB, policy: str = "fairlead") -> tuple[float, bool]:
    window = np.atleast_2d(up)
    return spot.run(window, 10.0, variant, spot.POLICIES[policy](variant, 10.0, window))


def _flickering(seed: int, ends: float, returns: float, num_zones: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    up = np.empty((num_zones, 52 * HOUR_TICKS), dtype=bool)
    for zone in up:
        there = bool(rng.random() < 0.5)
        for t in range(zone.size):
            there = bool(rng.random() >= ends) if there else bool(rng.random() < returns)
            zone[t] = there
    return up


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    ends=st.floats(0.0, 1.0),
    returns=st.floats(0.0, 1.0),
    changeover_h=st.sampled_from((0.05, 0.20, 0.80)),
    num_zones=st.integers(1, 2),
)
def test_no_job_is_late_whatever_spot_does(
    seed: int, ends: float, returns: float, changeover_h: float, num_zones: int
) -> None:
    variant = replace(JOB, changeover_h=changeover_h)
    assert not _cost(_flickering(seed, ends, returns, num_zones), variant)[1]


def test_spot_that_stays_is_all_that_is_used() -> None:
    cost, late = _cost(np.ones(52 * HOUR_TICKS, dtype=bool))
    ticks = -(-(48.0 + 0.20) * HOUR_TICKS // 1)
    assert not late
    assert cost == pytest.approx(ticks / HOUR_TICKS * JOB.spot_price)


def test_spot_that_never_comes_costs_what_on_demand_costs() -> None:
    cost, late = _cost(np.zeros(52 * HOUR_TICKS, dtype=bool))
    ticks = -(-(48.0 + 0.20) * HOUR_TICKS // 1)
    assert not late
    assert cost == pytest.approx(ticks / HOUR_TICKS * JOB.on_demand_price)


def test_no_run_is_much_dearer_than_on_demand() -> None:
    whole = (48.0 + 0.20) * JOB.on_demand_price
    worst = max(_cost(_flickering(seed, 0.5, 0.5))[0] for seed in range(10))
    assert worst <= 1.1 * whole


def test_it_costs_less_than_the_published_rules_where_spot_comes_and_goes() -> None:
    ups = [_flickering(seed, 0.05, 0.05) for seed in range(12)]
    mean = {name: np.mean([_cost(up, policy=name)[0] for up in ups]) for name in spot.POLICIES}
    assert mean["optimum"] <= mean["fairlead"] < mean["uniform-progress"]


def test_spot_is_not_worth_a_change_that_costs_more_than_it_saves() -> None:
    problem = SpotProblem(
        tick_s=600.0, step_s=60.0, changeover_s=720.0, spot_price=2.9, on_demand_price=3.0, num_ticks=60, slack_s=7200.0
    )
    schedule = solve(problem)
    use = schedule.use(ticks_left=50, slack_s=7200.0, now=CapacityUse.ON_DEMAND, pending_s=0.0, spot=True, age=1)
    assert use is CapacityUse.ON_DEMAND


def test_no_slack_is_on_demand_whatever_is_there() -> None:
    problem = _problem(slack_s=900.0)
    for spot_there in (False, True):
        use = solve(problem).use(
            ticks_left=60, slack_s=900.0, now=CapacityUse.NOTHING, pending_s=0.0, spot=spot_there, age=1
        )  # fmt: skip
        assert use is CapacityUse.ON_DEMAND


def _problem(slack_s: float) -> SpotProblem:
    return SpotProblem(
        tick_s=600.0,
        step_s=60.0,
        changeover_s=720.0,
        spot_price=1.0,
        on_demand_price=3.0,
        num_ticks=60,
        slack_s=slack_s,
    )


def test_rows_have_zones_their_halves_and_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "spot"
    folder.mkdir()
    for zone, seed in (("a", 1), ("b", 2)):
        up = [int(each) for each in np.tile(_flickering(seed, 0.1, 0.1)[0], 2)]
        (folder / f"{zone}.json").write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": up}))
    spot.main(["--data", str(tmp_path), "--json", "--policies", "greedy"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["zone"] for row in rows} == {"a", "b", "low", "high", "mixed", "a+b", "two zones"}
    assert {row["variant"] for row in rows} == {"52h/0.05h", "52h/0.20h", "70h/0.05h", "70h/0.20h"}
    assert set(rows[0]) == {"policy", "zone", "variant", "score", "missed"}
