"""Forecasts of when a run ends and what it costs: by its steps, by others of its kind, by any; how sure they are."""

import random
from dataclasses import replace

import pytest

from fairlead.policy.queue.run_forecast import LEAST_SAMPLES, forecast
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training
from fairlead.state.snapshot import Completed, Grant, Intent, Phase, Pod, PodPhase, Progress, Snapshot, Workload
from tests.builders import node, status, training

NOW = 1_000_000_000.0


def run(spec: Training | None = None, *, ran_s: float | None = None, progress: Progress | None = None) -> Workload:
    """A run that has run so long, or waits."""
    began = None if ran_s is None else NOW - ran_s
    found = status(Phase.PENDING) if began is None else status(Phase.RUNNING, since=began, started_at=began)
    return Workload(
        uid="run", spec=spec or training("net-7"), intent=Intent.RUN, version=1, created_at=NOW, status=found,
        progress=progress,
    )  # fmt: skip


def seen(*took_s: float, name: str = "net", going: tuple[Workload, ...] = ()) -> Snapshot:
    completed = tuple(Completed(team="default", name=f"{name}-{n}", took_s=each) for n, each in enumerate(took_s))
    return Snapshot(nodes=(), workloads=going, pods=(), completed=completed)


def test_nothing_is_said_where_little_is_known() -> None:
    assert forecast(run(), seen(), NOW) is None
    assert forecast(run(), seen(*range(100, 100 + LEAST_SAMPLES - 1)), NOW) is None
    over = replace(run(), status=status(Phase.SUCCEEDED))
    assert forecast(over, seen(*range(100, 200)), NOW) is None


def test_steps_tell_what_is_left_with_the_pace_of_all_and_of_the_last_moments() -> None:
    told = Progress(step=100, total_steps=400, throughput=0.5, throughput_unit="steps/s", updated_at=NOW)
    found = forecast(run(ran_s=100.0, progress=told), seen(), NOW)
    assert found is not None
    assert (found.low_s, found.likely_s, found.high_s) == pytest.approx((270.0, 450.0, 660.0))
    assert found.basis == "by its steps, 100 of 400"
    resumed = replace(told, resumed_step=90, throughput=None)
    found = forecast(run(ran_s=100.0, progress=resumed), seen(), NOW)
    assert found is not None
    assert found.likely_s == pytest.approx(3000.0)


def test_many_of_its_kind_tell_it_by_themselves() -> None:
    found = forecast(run(), seen(*range(100, 200)), NOW)
    assert found is not None
    assert (found.low_s, found.likely_s, found.high_s) == (102, 149, 196)
    assert found.basis == "by 100 earlier runs"


def test_only_those_count_that_took_longer_than_it_has() -> None:
    found = forecast(run(ran_s=150.0), seen(*range(100, 200)), NOW)
    assert found is not None
    assert 0 <= found.low_s < found.likely_s < found.high_s < 50
    assert forecast(run(ran_s=190.0), seen(*range(100, 200)), NOW) is None


def test_few_of_its_kind_are_told_by_how_far_others_were_from_theirs_and_none_are_not() -> None:
    others = tuple(
        Completed(team="default", name=f"kind{kind}x-{n}", took_s=1000.0 * kind * factor)
        for kind in range(1, 11)
        for n, factor in enumerate((0.5, 0.9, 1.0, 1.1, 2.0))
    )
    few = Snapshot(
        nodes=(), workloads=(), pods=(), completed=(*others, Completed(team="default", name="net", took_s=60.0))
    )
    found = forecast(run(), few, NOW)
    assert found is not None
    assert found.low_s == pytest.approx(60.0 * 0.5, rel=0.3)
    assert found.high_s == pytest.approx(60.0 * 2.0, rel=0.3)
    assert found.basis == "by 1 earlier run"
    assert forecast(run(training("other")), replace(few, completed=others), NOW) is None
    told = forecast(run(training("other", expected_duration_s=60.0)), replace(few, completed=others), NOW)
    assert told is not None
    assert told.basis == "by its `expected_duration`"


def test_runs_that_are_under_way_count_as_longer_than_they_are_by_now() -> None:
    short = [100.0 + n for n in range(60)]
    before = forecast(run(), seen(*short), NOW)
    going = tuple(replace(run(ran_s=5000.0), uid=f"other-{n}") for n in range(20))
    after = forecast(run(), seen(*short, going=going), NOW)
    assert before is not None
    assert after is None, "a quarter of them lasts, and nobody knows for how long"
    few = forecast(run(), seen(*short, *[9000.0] * 3, going=going[:2]), NOW)
    assert few is not None
    assert few.high_s == 9000.0
    assert before.high_s < 160.0


def test_nothing_is_said_of_one_of_a_crowd_that_began_together() -> None:
    short, crowd = [100.0 + n for n in range(60)], tuple(replace(run(ran_s=101.0), uid=f"r{n}") for n in range(200))
    assert forecast(run(ran_s=100.0), seen(*short), NOW) is not None
    assert forecast(run(ran_s=100.0), seen(*short, going=crowd), NOW) is None


def test_a_limit_bounds_what_is_said() -> None:
    found = forecast(run(training("net", max_duration_s=120.0, grace_s=5.0)), seen(*range(100, 200)), NOW)
    assert found is not None
    assert found.high_s == 125.0
    assert found.basis.endswith("its `max_duration` ends it at the latest")


def test_the_cost_follows_from_where_it_runs() -> None:
    spec = training("net", resources=Resources(gpu=GpuRequest(milli=1000)))
    pod = Pod(
        uid="run-0-0", workload_uid="run", attempt=0, index=0, node="node-0", phase=PodPhase.RUNNING, created_at=NOW,
        grant=Grant(gpu_uuids=("node-0-gpu-0",), gpu_milli=1000),
    )  # fmt: skip
    there = replace(seen(*range(3600, 3700)), nodes=(node(gpus=4, price_per_hour=8.0),), pods=(pod,))
    found = forecast(run(spec, ran_s=0.0), there, NOW, 500_000)
    assert found is not None
    assert found.microusd_per_hour == 2_000_000
    assert found.microusd(1800.0) == 1_500_000
    assert forecast(run(spec, ran_s=0.0), replace(there, nodes=()), NOW) is not None


def test_nine_of_ten_runs_end_within_the_bounds_of_what_came_before_them() -> None:
    rng = random.Random(11)
    took = [rng.lognormvariate(6, 1.5) for _ in range(700)]
    held = said = 0
    for index in range(200, 700):
        found = forecast(run(), seen(*took[index - 200 : index]), NOW)
        assert found is not None
        said += 1
        held += found.low_s <= took[index] <= found.high_s
    assert 0.9 <= held / said <= 0.97
