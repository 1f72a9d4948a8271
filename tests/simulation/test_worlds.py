"""Any world at all: what holds whatever breaks, leaves, comes late or gets in each other's way."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from fairlead.cluster.simulated.accounts import Accounts
from fairlead.cluster.simulated.runs import SimulatedPod
from fairlead.control.outcomes import Outcome, summary
from fairlead.control.simulation import World, simulate
from fairlead.specs.pool import Hardware, Pool, PoolGpu
from fairlead.specs.simulation import Failures, Interference, Programs, Provisioning, Reclaims, Simulation
from fairlead.state.snapshot import Phase
from fairlead.traces.arrivals import Arrival
from tests.simulation.worlds import overlaps, parts, pool, run

FACTORS = st.sampled_from((1.0, 1.25, 2.0))


@st.composite
def traces(draw: st.DrawFn) -> list[Arrival]:
    found = []
    for index in range(draw(st.integers(1, 6))):
        nodes = draw(st.integers(1, 2))
        found.append(
            run(
                f"run-{index}",
                draw(st.integers(0, 3000)),
                draw(st.integers(1, 4000)),
                gpus=draw(st.sampled_from((0.5, 1, 2, 4))),
                nodes=nodes,
                team=draw(st.sampled_from(("red", "blue"))),
                every_s=draw(st.sampled_from((None, 60.0, 700.0))),
            )
        )
    return found


@st.composite
def surroundings(draw: st.DrawFn) -> World:
    failures = st.builds(Failures, mtbf_s=st.integers(2_000, 50_000), repair_s=st.integers(1, 2_000))
    reclaims = st.builds(
        Reclaims, every_s=st.integers(2_000, 50_000), notice_s=st.sampled_from((0, 5, 30, 120)), away_s=st.just(300)
    )
    provisioning = st.builds(
        Provisioning,
        min_nodes=st.integers(0, 1),
        delay_s=st.integers(0, 300),
        delay_p90_s=st.sampled_from((None, 600)),
        idle_s=st.sampled_from((0, 60, 900)),
    )
    programs = st.builds(
        Programs,
        start_up_s=st.integers(0, 200),
        checkpoint_every_s=st.integers(30, 900),
        checkpoint_s=st.integers(0, 40),
        save_s=st.integers(0, 60),
    )
    interference = st.builds(Interference, two=FACTORS, three=FACTORS, four=FACTORS, neighbour=FACTORS)
    general = Simulation(
        name="general",
        failures=draw(st.none() | failures),
        programs=draw(st.none() | programs),
        interference=draw(st.none() | interference),
    )
    spot = Simulation(
        name="spot",
        pools=("s",),
        reclaims=draw(st.none() | reclaims),
        provisioning=draw(st.none() | provisioning),
    )
    return World(simulations=(general, spot), seed=draw(st.integers(0, 3)))


POOLS: list[Pool] = [pool("a", nodes=2), pool("s", nodes=2, spot=True, price=2.0)]


@pytest.fixture(scope="module", autouse=True)
def _slow_imports() -> None:
    """numpy is imported by the first simulation, which would count for one example."""
    simulate([run("a", 0, 1)], POOLS)


@pytest.mark.slow
@given(traces(), surroundings())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_gpu_second_is_accounted_for_and_no_finished_work_is_missing(trace: list[Arrival], world: World) -> None:
    outcome = simulate(trace, POOLS, world)
    event(f"interrupted: {any(run.num_interruptions for run in outcome.runs)}")
    check_accounts(outcome)
    assert not overlaps(outcome)
    for done in outcome.runs:
        if done.phase is Phase.SUCCEEDED:
            # Work is done once, neither more nor less, however often the run started.
            assert done.spent.useful == pytest.approx(done.num_gpus * done.duration_s, abs=1e-3)


def check_accounts(outcome: Outcome) -> None:
    for pod in outcome.pods:
        assert parts(pod) == pytest.approx(pod.ended_at - pod.created_at, abs=1e-4)
        assert min(asdict(pod)[name] for name in asdict(pod) if name.endswith("_s")) >= -1e-6
    gpus = {each.name: each.hardware.gpu.count for each in outcome.pools if each.hardware.gpu is not None}
    figures = summary(outcome)
    capacity = sum(gpus[time.node.rpartition("-")[0]] * (time.until - time.since) for time in outcome.nodes) / 3600
    spent = figures.spent_gpu_hours
    used = spent.useful + spent.redone + spent.start_up + spent.saving + spent.slowed + spent.stopping
    assert used + figures.idle_gpu_hours + figures.down_gpu_hours == pytest.approx(capacity, abs=1e-5)
    assert capacity == pytest.approx(figures.capacity_gpu_hours, abs=1e-6)


@given(traces(), surroundings())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_same_seed_gives_the_same_outcome_to_the_byte(trace: list[Arrival], world: World) -> None:
    def told() -> bytes:
        outcome = simulate(trace, POOLS, world)
        return json.dumps([asdict(outcome), asdict(summary(outcome))], default=str).encode()

    assert told() == told()


@given(traces(), surroundings())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_pod_loses_more_work_than_lies_between_two_checkpoints(trace: list[Arrival], world: World) -> None:
    check_losses(trace, world, simulate(trace, POOLS, world))


def check_losses(trace: list[Arrival], world: World, outcome: Outcome) -> None:
    assumed = next((each.programs for each in world.simulations if each.programs is not None), Programs())
    names = sorted({pod.workload_uid for pod in outcome.pods})
    by_uid = dict(zip(names, [done.name for done in outcome.runs if done.held], strict=True))
    every_s = {each.spec.name: each.spec.checkpoint.every_s or assumed.checkpoint_every_s for each in trace}
    for pod in outcome.pods:
        assert pod.redone_s <= every_s[by_uid[pod.workload_uid]] + 1e-3


BROKEN = World(simulations=(Simulation(name="w", failures=Failures(mtbf_s=3000.0, repair_s=60.0)),), seed=1)
LONG = [run("long", 0, 20_000, nodes=2, every_s=60.0), run("other", 0, 9_000, nodes=2, every_s=60.0)]


def test_a_mutant_that_forgets_checkpoints_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without checkpoints the attempts until a run gets through grow as the exponential of its length.
    trace = [run("long", 0, 6_000, nodes=2, every_s=60.0), run("other", 0, 3_000, nodes=2, every_s=60.0)]
    check_losses(trace, BROKEN, simulate(trace, POOLS, BROKEN))
    monkeypatch.setattr(SimulatedPod, "saved_s", lambda self, now: self.held_s)
    with pytest.raises(AssertionError):
        check_losses(trace, BROKEN, simulate(trace, POOLS, BROKEN))


def test_a_mutant_that_does_not_count_some_time_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    check_accounts(simulate(LONG, POOLS, BROKEN))
    original = Accounts.settled

    def forgetful(self: Accounts, now: float) -> object:
        self.pods = [
            replace(pod, start_up_s=0.0, redone_s=0.0, saving_s=0.0, kept_s=pod.kept_s / 2) for pod in self.pods
        ]
        return original(self, now)

    monkeypatch.setattr(Accounts, "settled", lambda self, now, live=(): forgetful(self, now))
    with pytest.raises(AssertionError):
        check_accounts(simulate(LONG, POOLS, BROKEN))


def test_two_starts_at_once_would_be_seen() -> None:
    outcome = simulate(LONG, POOLS, BROKEN)
    first, *rest = outcome.pods
    assert not overlaps(outcome)
    again = replace(first, attempt=first.attempt + 1, created_at=first.ended_at - 1.0, ended_at=first.ended_at + 1.0)
    assert overlaps(replace(outcome, pods=(first, again, *rest)))


def test_instances_count_as_the_part_of_a_device_that_they_are() -> None:
    gpu = PoolGpu(model="A100", count=2, memory_bytes=80 * 10**9, instances={"1g.10gb": "7"})
    cut = Pool(name="cut", hardware=Hardware(cpu_milli=64_000, memory_bytes=2**38, gpu=gpu), price_per_hour=4.0)
    trace = [run(f"run-{number}", 0, 700, gpus=0.1) for number in range(20)]
    outcome = simulate(trace, [cut])
    check_accounts(outcome)
    # Fourteen sevenths at once, then six.
    assert [done.ended_s for done in outcome.runs].count(700) == 14
    assert summary(outcome).spent_gpu_hours.useful == pytest.approx(20 * 700 * 0.142 / 3600)
