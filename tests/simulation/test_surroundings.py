"""Nodes that break, are taken away, come and go: small worlds whose outcome can be told by hand."""

from dataclasses import replace

import pytest

from fairlead.cluster.simulated.groups import groups_of
from fairlead.control.outcomes import summary
from fairlead.control.simulation import World, simulate
from fairlead.policy.gpu.stage_interleaving import StageProfile, speeds
from fairlead.specs.simulation import Failures, Interference, Programs, Provisioning, Reclaims, Simulation
from fairlead.state.snapshot import Phase
from tests.simulation.worlds import pool, run, world

INSTANT = Provisioning(min_nodes=0, delay_s=100, idle_s=50)


def test_nodes_come_when_they_are_asked_for_and_go_when_they_are_idle() -> None:
    outcome = simulate(
        [run("a", 0, 300), run("b", 1000, 10)], [pool(nodes=2)], world(provisioning=INSTANT, programs=Programs())
    )
    assert [(done.started_s, done.ended_s) for done in outcome.runs] == [(100, 400), (1100, 1110)]
    assert [(time.node, time.since, time.until) for time in outcome.nodes] == [
        ("a-0", 100, 450),
        ("a-0", 1100, 1110),
    ]
    figures = summary(outcome)
    assert figures.cost == pytest.approx(8.0 * 360 / 3600)
    assert figures.pools["a"].held_gpu_hours == pytest.approx(4 * 310 / 3600)
    assert figures.idle_gpu_hours == pytest.approx(4 * 50 / 3600)


def test_a_gang_gets_all_its_nodes_or_none_and_never_more_than_the_pool_has() -> None:
    trace = [run("wide", 0, 100, nodes=3), run("more", 1, 100, nodes=2)]
    outcome = simulate(trace, [pool(nodes=3)], world(provisioning=INSTANT))
    assert [(done.started_s, done.phase) for done in outcome.runs] == [
        (100, Phase.SUCCEEDED),
        (200, Phase.SUCCEEDED),
    ]
    assert max(int(time.node.rpartition("-")[2]) for time in outcome.nodes) == 2


def test_the_least_nodes_are_always_there_and_the_cheapest_pool_grows_first() -> None:
    pools = [pool("dear", nodes=2, price=9.0), pool("cheap", nodes=1, price=2.0)]
    always = replace(INSTANT, min_nodes=1)
    outcome = simulate([run(f"r{n}", 0, 100) for n in range(4)], pools, World(
        simulations=(
            Simulation(name="x", pools=("dear",), provisioning=always),
            Simulation(name="y", pools=("cheap",), provisioning=INSTANT),
        )
    ))  # fmt: skip
    assert sorted((pod.node, pod.created_at) for pod in outcome.pods)[:2] == [("cheap-0", 100), ("dear-0", 0)]
    assert [done.ended_s for done in outcome.runs] == [100, 200, 200, 200]


def test_delays_are_as_long_as_their_median_and_ninth_decile_say() -> None:
    slow = Provisioning(min_nodes=0, delay_s=100, delay_p90_s=300, idle_s=1e6)
    outcome = simulate([run("wide", 0, 10, nodes=80)], [pool(nodes=80)], world(provisioning=slow))
    came = sorted(time.since for time in outcome.nodes)
    assert 75 < came[40] < 130
    assert 200 < came[72] < 450


def test_a_spot_node_gives_notice_and_the_work_until_then_is_saved() -> None:
    reclaims = Reclaims(every_s=2000, notice_s=30, away_s=100)
    programs = Programs(checkpoint_every_s=3600, save_s=20)
    spot = [pool(nodes=1, spot=True)]
    outcome = simulate([run("a", 0, 6000)], spot, world(reclaims=reclaims, programs=programs, seed=1))
    (done,) = outcome.runs
    assert done.num_interruptions >= 1
    assert done.spent.redone == 0
    assert done.spent.saving == pytest.approx(4 * 20 * done.num_interruptions)
    assert done.spent.useful == pytest.approx(4 * 6000)
    # Where the notice is too short to save, all since the newest checkpoint is lost.
    hasty = replace(reclaims, notice_s=10)
    (lost,) = simulate([run("a", 0, 6000)], spot, world(reclaims=hasty, programs=programs, seed=1)).runs
    assert lost.spent.redone > 0
    assert lost.spent.useful == pytest.approx(4 * 6000)


def test_nodes_that_are_no_spot_are_never_taken_away() -> None:
    both = groups_of(
        [pool("a"), pool("s", spot=True)], [Simulation(name="x", reclaims=Reclaims(every_s=1))]
    )  # fmt: skip
    assert [group.reclaims is None for group in both] == [True, False]


def test_a_failed_node_is_down_for_its_repair_and_what_ran_there_starts_again() -> None:
    failures = Failures(mtbf_s=5000, repair_s=700)
    outcome = simulate([run("a", 0, 9000, every_s=60)], [pool(nodes=1)], world(failures=failures, seed=2))
    down = [time for time in outcome.nodes if not time.up]
    assert down
    assert all(time.until - time.since == pytest.approx(700) for time in down)
    (done,) = outcome.runs
    assert done.phase is Phase.SUCCEEDED
    assert done.num_interruptions == len(down)
    assert summary(outcome).down_gpu_hours == pytest.approx(4 * 700 * len(down) / 3600)


def test_a_run_that_always_fails_before_it_saves_is_given_up() -> None:
    failures = Failures(mtbf_s=1000, repair_s=1)
    (done,) = simulate([run("a", 0, 15_000, every_s=9e4)], [pool(nodes=1)], world(failures=failures)).runs
    assert done.ended_s is None or done.phase is Phase.FAILED


def test_start_up_and_checkpoints_take_the_time_that_is_said() -> None:
    programs = Programs(start_up_s=7, checkpoint_every_s=30, checkpoint_s=2)
    first, second = simulate(
        [run("a", 0, 100), replace(run("b", 0, 100), start_up_s=1.0, checkpoint_s=5.0)],
        [pool()],
        world(programs=programs),
    ).runs
    # Three checkpoints, at 30, 60 and 90.
    assert (first.ended_s, second.ended_s) == (7 + 100 + 3 * 2, 1 + 100 + 3 * 5)
    assert (first.spent.start_up, first.spent.saving, first.spent.useful) == (28, 24, 400)


def test_runs_that_share_a_device_slow_each_other_while_they_do() -> None:
    measured = Interference(two=1.25)
    trace = [run("a", 0, 100, gpus=0.5), run("b", 0, 20, gpus=0.5), run("alone", 0, 100, gpus=1)]
    first, second, alone = simulate(trace, [pool(nodes=1, gpus=2)], world(interference=measured)).runs
    assert second.ended_s == 25
    # 25 s at four fifths of its pace, then the rest alone.
    assert first.ended_s == 25 + 80
    assert first.spent.slowed == pytest.approx(0.5 * 5)
    assert alone.ended_s == 100


def test_neighbours_on_a_node_slow_whole_gangs() -> None:
    trace = [run("wide", 0, 110, gpus=3, nodes=2), run("beside", 0, 55, gpus=1)]
    wide, beside = simulate(trace, [pool(nodes=2)], world(interference=Interference(neighbour=1.1))).runs
    assert beside.ended_s == pytest.approx(55 * 1.1)
    assert wide.ended_s == pytest.approx(110 + 55 * 0.1)


def test_measured_stages_tell_how_fast_two_runs_go_on_one_device() -> None:
    loads = StageProfile(iteration_s=1.0, stages_s=(0.8, 0.1, 0.1))
    computes = StageProfile(iteration_s=1.0, stages_s=(0.1, 0.8, 0.1))
    trace = [
        run("loads", 0, 1000, gpus=0.5, profile=loads),
        run("computes", 0, 1000, gpus=0.5, profile=computes),
    ]
    both = simulate(trace, [pool(nodes=1, gpus=1)], world(interference=Interference(two=2.0))).runs
    slowest = min(speeds([loads, computes]))
    assert slowest < 1
    assert max(done.ended_s or 0.0 for done in both) == pytest.approx(1000 / slowest, rel=0.05)
    assert simulate(trace, [pool(nodes=1, gpus=1)], World()).ended_s == 1000
