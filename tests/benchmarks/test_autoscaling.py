"""The simulated data plane of several services, and what every policy makes of it."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks import autoscaling


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


def test_aiad_orders_no_replica_that_the_budget_has_no_place_for() -> None:
    counts = np.array([[900, 900, 900]] * 3)
    rule, orders = autoscaling.Aiad(), list[int]()

    def watched(services: Sequence[autoscaling.Service], places: int, gate: bool) -> Sequence[int]:
        chosen = rule(services, places, gate)
        orders.append(sum(chosen))
        return chosen

    autoscaling.simulate(counts, 5, watched, gate=False)
    assert max(orders) == 5
