"""A trace through the production decisions: small worlds whose outcome can be told by hand."""

from dataclasses import replace

import pytest

from fairlead.control.outcomes import gpus_held, percentile, queue_length, summary
from fairlead.control.simulation import World, never_fits, simulate
from fairlead.runtime.save_interval import SaveInterval
from fairlead.specs.pool import Hardware, Pool, PoolGpu
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.simulation import Failures, Programs, Simulation
from fairlead.specs.training import Checkpoint, Training
from fairlead.state.snapshot import Phase
from fairlead.traces.arrivals import Arrival

POOL = Pool(
    name="a",
    nodes=2,
    hardware=Hardware(cpu_milli=64_000, memory_bytes=2**38, gpu=PoolGpu(model="A100", count=4)),
    price_per_hour=10.0,
)


def arrival(name: str, at_s: float, duration_s: float, *, gpus: int = 4, nodes: int = 1, team: str = "t") -> Arrival:
    resources = Resources(gpu=GpuRequest(milli=1000 * gpus))
    return Arrival(
        at_s=at_s,
        duration_s=duration_s,
        spec=Training(name=name, team=team, run="x", nodes=nodes, resources=resources),
    )


def test_runs_wait_for_room_and_hold_it_for_their_time() -> None:
    outcome = simulate([arrival("a", 0, 100), arrival("b", 10, 50), arrival("c", 20, 30)], [POOL])
    assert [(run.name, run.started_s, run.ended_s) for run in outcome.runs] == [
        ("a", 0, 100),
        ("b", 10, 60),
        ("c", 60, 90),
    ]
    assert all(run.phase is Phase.SUCCEEDED for run in outcome.runs)
    figures = summary(outcome)
    assert figures.makespan_s == 100
    assert figures.gpu_utilisation == pytest.approx((4 * 100 + 4 * 50 + 4 * 30) / (8 * 100))
    assert figures.whole.average_wait_s == pytest.approx(40 / 3)
    assert figures.cost == pytest.approx(2 * 10 * 100 / 3600)
    assert figures.idle_cost == pytest.approx((1 - 720 / 800) * 2 * 10 * 100 / 3600)


def test_steps_over_time_tell_what_was_held_and_who_waited() -> None:
    outcome = simulate([arrival("a", 0, 100), arrival("b", 10, 50), arrival("c", 20, 30)], [POOL])
    assert gpus_held(outcome) == [(0, 4), (10, 8), (60, 8), (90, 4), (100, 0)]
    assert queue_length(outcome) == [(0, 0), (10, 0), (20, 1), (60, 0)]


def test_who_starts_when_it_arrives_has_waited_for_nothing_at_any_time_of_day() -> None:
    times = [0.001, 0.1 + 0.2, 1.017, 123.456, 86_399.999, 1_000_000.003]
    outcome = simulate([arrival(f"run-{n}", at_s, 0.25, gpus=1) for n, at_s in enumerate(times)], [POOL])
    assert [run.waited_s for run in outcome.runs] == [0.0] * len(times)
    assert [run.completion_s for run in outcome.runs] == pytest.approx([0.25] * len(times), abs=2e-6)


def test_a_gang_starts_whole_or_waits() -> None:
    outcome = simulate([arrival("a", 0, 100), arrival("wide", 1, 10, nodes=2)], [POOL])
    assert [(run.name, run.started_s, run.num_gpus) for run in outcome.runs] == [("a", 0, 4), ("wide", 100, 8)]


def test_start_up_is_time_that_is_held() -> None:
    (run,) = simulate(
        [arrival("a", 0, 100)], [POOL], World(simulations=(Simulation(name="w", programs=Programs(start_up_s=7)),))
    ).runs
    assert run.held == ((0, 107),)


def test_failures_restart_from_the_checkpoint_and_the_same_seed_gives_the_same() -> None:
    breaking = Simulation(
        name="w", failures=Failures(mtbf_s=10_000, repair_s=100), programs=Programs(checkpoint_every_s=60)
    )
    world = World(simulations=(breaking,), seed=3)
    trace = [arrival("a", 0, 20_000, nodes=2), arrival("b", 5, 100)]
    first, again = simulate(trace, [POOL], world), simulate(trace, [POOL], world)
    assert first == again
    run = first.runs[0]
    assert run.phase is Phase.SUCCEEDED
    lost = len(run.held) - 1
    assert lost >= 1
    worked = run.gpu_s / run.num_gpus
    assert 20_000 < worked <= 20_000 + lost * 60
    assert simulate(trace, [POOL], replace(world, seed=4)) != first


def test_a_run_that_chooses_its_interval_saves_as_it_would_before_it_has_failed() -> None:
    programs = Programs(checkpoint_every_s=60, checkpoint_s=5)
    world = World(simulations=(Simulation(name="w", programs=programs),))
    run = arrival("a", 0, 20_000)
    chosen = SaveInterval(ranks=run.spec.world_size, blocked_s=5.0).seconds
    auto = replace(run, spec=replace(run.spec, checkpoint=Checkpoint(every_auto=True)))
    given = replace(run, spec=replace(run.spec, checkpoint=Checkpoint(every_s=chosen)))
    (held,) = simulate([auto], [POOL], world).runs[0].held
    assert chosen > 600
    assert held == simulate([given], [POOL], world).runs[0].held[0]
    assert held[1] < simulate([run], [POOL], world).runs[0].held[0][1]


def test_a_run_that_has_had_its_time_is_stopped_and_others_follow() -> None:
    long = arrival("a", 0, 1_000)
    limited = replace(long, spec=replace(long.spec, nodes=2, max_duration_s=100.0))
    outcome = simulate([limited, arrival("b", 1, 10)], [POOL])
    first, second = outcome.runs
    # It saves its work for ten seconds after the stop notice.
    assert (first.phase, first.ended_s) == (Phase.FAILED, 110)
    assert (second.phase, second.started_s) == (Phase.SUCCEEDED, 110)
    whole = summary(outcome).whole
    assert (whole.unfinished, whole.average_completion_s) == (1, 119)


def test_what_can_never_fit_is_told_before() -> None:
    (reason,) = never_fits([arrival("a", 0, 1), arrival("huge", 0, 1, gpus=16)], [POOL])
    assert "huge needs 1 node with 16 GPU" in reason.message


def test_percentile_is_the_nearest_rank() -> None:
    assert percentile([], 0.99) is None
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile(list(range(1, 101)), 0.99) == 99
