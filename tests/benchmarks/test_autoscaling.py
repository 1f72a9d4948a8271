"""Replicas for several services: the budget holds, nothing flaps, and room goes where it brings most in time."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import autoscaling
from benchmarks.candidates.replica_scaling import Service, _knapsack, allocate, attainment, forecast, queue_limit


def service(rate: float = 5.0, replicas: int = 1, *, locked: bool = False, slo_s: float = 0.72) -> Service:
    return Service(rates=[rate] * 30, service_s=0.15, service_cv2=0.05, slo_s=slo_s, replicas=replicas, locked=locked)


services = st.builds(
    Service,
    rates=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=100),
    service_s=st.floats(0.01, 0.3),
    service_cv2=st.floats(0.0, 4.0),
    slo_s=st.floats(0.31, 3.0),
    replicas=st.integers(1, 6),
    idle=st.integers(0, 2),
    locked=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(services, min_size=1, max_size=5), st.integers(0, 12), st.booleans())
def test_each_service_has_a_replica_and_the_budget_holds(held: list[Service], spare: int, gate: bool) -> None:
    budget = sum(each.replicas for each in held) + spare
    chosen = allocate(held, budget, gate=gate)
    assert min(chosen) >= 1
    assert sum(chosen) <= budget
    assert [count for count, each in zip(chosen, held, strict=True) if each.locked] == [
        each.replicas for each in held if each.locked
    ]


@settings(max_examples=60, deadline=None)
@given(services, st.booleans())
def test_a_replica_more_or_a_request_less_never_makes_more_late(each: Service, gate: bool) -> None:
    load, counts = np.linspace(0.0, 12.0, 60)[:, None], np.arange(1.0, 12.0)[None, :]
    shares = attainment(load, counts, each, gate=gate)
    assert np.all((shares >= 0.0) & (shares <= 1.0))
    assert np.all(np.diff(shares, axis=1) >= -1e-6)
    assert np.all(np.diff(shares, axis=0) <= 1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(0, 8))
def test_the_split_is_the_best_of_all(worths: list[list[float]], spare: int) -> None:
    chosen = _knapsack([np.array(each) for each in worths], spare)
    assert sum(chosen) <= spare
    best = max(
        sum(each[more] for each, more in zip(worths, mores, strict=True))
        for mores in product(*(range(len(each)) for each in worths))
        if sum(mores) <= spare
    )
    assert sum(each[more] for each, more in zip(worths, chosen, strict=True)) == pytest.approx(best)


@pytest.mark.parametrize("gate", [False, True])
def test_a_steady_load_moves_nothing_once_it_is_served(gate: bool) -> None:
    held = [service(rate) for rate in (2.0, 10.0, 25.0)]
    first = allocate(held, 12, gate=gate)
    again = [service(rate, count) for rate, count in zip((2.0, 10.0, 25.0), first, strict=True)]
    assert allocate(again, 12, gate=gate) == first
    assert first == sorted(first)


def test_a_replica_goes_to_the_service_that_its_rate_overloads() -> None:
    assert allocate([service(1.0, 2), service(9.0, 1)], 3, gate=True) == [1, 2]


def test_an_idle_service_gives_its_replicas_to_one_that_needs_them_and_to_nobody_else() -> None:
    assert allocate([service(0.0, 4), service(0.0, 1)], 5, gate=True) == [4, 1]
    assert allocate([service(0.0, 4), service(30.0, 1)], 5, gate=True) == [1, 4]


def test_a_budget_below_what_is_held_is_an_error() -> None:
    with pytest.raises(ValueError, match="a budget of 3 is below the 4 replicas"):
        allocate([service(replicas=3, locked=True), service()], 3, gate=True)


def test_the_gate_holds_what_ends_in_time() -> None:
    assert queue_limit(0.154, 0.72) == 4
    assert queue_limit(0.5, 0.6) == 1


def test_samples_spread_more_the_further_ahead_around_a_level_that_follows() -> None:
    samples = forecast([1.0] * 60 + [5.0] * 30, 10.0)
    assert samples.shape == (20, 5)
    spread = np.std(samples[:10], axis=0)
    assert np.all(np.diff(spread) > 0.0)
    assert 4.5 < float(samples[:10].mean()) < 5.0
    assert samples[10:].min() == pytest.approx(1.0)


def written(folder: Path, minutes: int = 12) -> Path:
    lines = [
        {"ts": minute, "counts": {"small": {"classifier": 60}, "large": {"classifier": 900 if minute > 3 else 300}}}
        for minute in range(minutes)
    ]
    (folder / "faro").mkdir()
    (folder / "faro" / "arrivals_two.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def test_every_policy_says_its_share_with_and_without_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    autoscaling.main(["--data", str(written(tmp_path)), "--replicas", "5", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["file"], row["policy"], row["gate"], row["replicas"]) for row in rows] == [
        ("arrivals_two.jsonl", name, gate, 5) for name in autoscaling.POLICIES for gate in (False, True)
    ]
    shares = {(row["policy"], row["gate"]): row["attainment"] for row in rows}
    assert all(0.0 <= share <= 1.0 for share in shares.values())
    assert shares["fairlead", True] > shares["fairshare", True]
    assert shares["fairlead", False] > shares["fairshare", False]


def test_no_more_places_are_taken_than_there_are() -> None:
    counts = np.array([[300, 900, 60]] * 8 + [[900, 60, 300]] * 8)

    def watched(services: Sequence[autoscaling.Service], places: int, gate: bool) -> Sequence[int]:
        taken = sum(len(each.live) + len(each.coming) + len(each.idle) for each in services)
        assert taken <= places
        return autoscaling.fairlead(services, places, gate)

    assert 0.3 < autoscaling.simulate(counts, 6, watched, gate=True) < 1.0


def test_a_lone_request_takes_the_proxy_twice_and_a_replica_once() -> None:
    lone = autoscaling.Service([1.0], 1, np.random.default_rng(1), gate=False)
    lone.advance(60.0)
    assert lone.ticks[-1].served == 1
    assert lone.ticks[-1].latency_s == pytest.approx(lone.passes[1] + lone.services[1] + lone.passes[2])
    assert lone.in_time[0] == 1
