"""Which jobs go to the cloud: waits stay within what is allowed, and nothing holds more than there is."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import burst
from fairlead.policy.fleet.bursting import Held, WaitingJob, Waits, book, choose_leaving


def drawn(seed: int, num: int = 120) -> list[burst.Arrival]:
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(0.06, num))
    sizes = [1, 2, 4, 8]
    jobs = [
        WaitingJob(
            name=i, arrived_h=float(at[i]), hours=float(rng.exponential(0.8) + 0.05), units=int(rng.choice(sizes))
        )
        for i in range(num)
    ]
    return [burst.Arrival(job=job, hours=job.hours) for job in jobs]


def test_bookings_never_overlap_beyond_a_node() -> None:
    jobs = [each.job for each in drawn(1, 30)]
    held = [Held(node=0, until_h=10.0, units=8), Held(node=1, until_h=9.5, units=3)]
    found = book(jobs, held, 9.0, sizes=(8, 8))
    assert len(found) == len(jobs)
    for each in found:
        at = each.start_h + 1e-6
        others = sum(b.job.units for b in found if b.nodes == each.nodes and b.start_h <= at < b.start_h + b.job.hours)
        assert others + sum(h.units for h in held if h.node == each.nodes[0] and at < h.until_h) <= 8


def test_waits_stay_near_what_is_allowed_and_cost_less_than_waiting_for_nothing() -> None:
    arrivals = drawn(2)
    found, none = burst.replay(arrivals, 0.1), burst.replay(arrivals, None)
    assert none.average_wait_h == 0.0
    assert found.average_wait_h <= 0.12
    assert found.cloud_cost_usd < none.cloud_cost_usd


@pytest.mark.parametrize("seed", range(6))
def test_waits_of_a_crowded_trace_stay_within_what_is_allowed(seed: int) -> None:
    arrivals = drawn(seed, 300)
    assert burst.replay(arrivals, 0.1).average_wait_h <= 0.1


def test_waits_that_are_booked_count_before_they_are_over() -> None:
    held = [Held(node=0, until_h=2.0, units=8)]
    jobs = [WaitingJob(name=number, arrived_h=0.0, hours=2.0, units=2) for number in range(4)]
    rich, poor = (Waits(allowed_h=0.1, num_jobs=num, waited_h=0.0) for num in (4000, 4))
    assert choose_leaving(jobs, held, 0.0, rich, sizes=(8,)) == []
    assert len(choose_leaving(jobs, held, 0.0, poor, sizes=(8,))) >= 2


def test_a_job_that_is_not_worth_its_wait_leaves_and_one_that_is_stays() -> None:
    waits = Waits(allowed_h=0.05, num_jobs=10, waited_h=0.0)
    held = [Held(node=0, until_h=1.0, units=8)]
    small = WaitingJob(name=0, arrived_h=0.0, hours=0.1, units=1)
    large = WaitingJob(name=1, arrived_h=0.0, hours=8.0, units=8)
    assert choose_leaving([small, large], held, 0.0, waits, sizes=(8,)) == [small]


def test_rows_say_cost_and_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{i},{each.job.arrived_h},{each.hours},{each.job.units}" for i, each in enumerate(drawn(3, 25))]
    (tmp_path / "load1.csv").write_text("\n".join(["job,arrival_h,runtime_h,gpus", *lines]))
    burst.main(["--data", str(tmp_path), "--allowed", "0.05", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["policy"] for row in rows] == ["fairlead", "fairlead, within 2x", "no-wait"]
    assert set(rows[0]) == {"file", "policy", "cloud_cost_usd", "average_wait_h"}
