"""Runs that share their GPUs on the whole loop: who is beside whom, that it pays, and that the queue comes to rest."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.control import loop
from fairlead.control.outcomes import Outcome, summary
from fairlead.control.simulation import World, simulate
from fairlead.policy.decide import decide
from fairlead.policy.gpu.stage_interleaving import StageProfile
from fairlead.policy.pass_cache import PassCache
from fairlead.policy.selection import rounds, selection
from fairlead.policy.selection.slowdowns import pace_kind
from fairlead.specs.pool import Hardware, Pool, PoolGpu
from fairlead.specs.resources import GpuRequest
from fairlead.specs.simulation import Interference, Programs
from fairlead.specs.training import Capacity
from fairlead.state.plan import Plan
from fairlead.state.reasons import Code
from fairlead.state.scheduling_policy import POLICIES
from fairlead.state.snapshot import Phase, Snapshot
from fairlead.traces.arrivals import Arrival
from tests.simulation import test_incremental_passes as mixed
from tests.simulation.test_one_instant import bounded
from tests.simulation.worlds import pool, run, world

LOADING = StageProfile(iteration_s=1.0, stages_s=(0.9, 0.05, 0.0))
COMPUTING = StageProfile(iteration_s=1.0, stages_s=(0.02, 0.95, 0.02))
GB = 10**9
MOST = 4
NUM_WORLDS = 20
REPORTING = world(
    programs=Programs(step_s=10.0, checkpoint_every_s=300.0, save_s=0.0, start_up_s=5.0), interference=Interference()
)


def machines(nodes: int = 2) -> Pool:
    gpu = PoolGpu(model="A100", count=4, memory_bytes=40 * GB)
    return Pool(name="a", nodes=nodes, hardware=Hardware(cpu_milli=64_000, memory_bytes=2**38, gpu=gpu))


def drawn(seed: int, num_runs: int = 18) -> list[Arrival]:
    """Runs of few sizes and kinds, most of which may share; some say how much memory they need."""
    chance = random.Random(seed)
    found = []
    for number in range(num_runs):
        kind, profile = chance.choice((("load", LOADING), ("compute", COMPUTING)))
        gpus, length_s = chance.choice((1, 2, 4)), chance.choice((300.0, 2000.0, 9000.0))
        made = run(f"{kind}-{number}", float(chance.randrange(6000)), length_s, gpus=gpus, profile=profile)
        gpu = GpuRequest(milli=1000 * gpus, min_memory_bytes=chance.choice((None, None, 15 * GB)))
        resources = replace(made.spec.resources, gpu=gpu, colocate=chance.random() < 0.8)
        spec = replace(made.spec, resources=resources, expected_duration_s=chance.choice((None, length_s)))
        found.append(replace(made, spec=spec))
    return found


def of_all_sorts(seed: int, num_runs: int = 20) -> list[Arrival]:
    """Gangs, elastic ones, ones with priority and scavengers of three teams, of which whoever can may share."""
    found = []
    for each in mixed.drawn(seed, num_runs):
        spec = replace(each.spec, capacity=Capacity())
        if spec.most_nodes is None:
            spec = replace(spec, resources=replace(spec.resources, colocate=True))
        profile = (LOADING, COMPUTING)[spec.name.startswith("a")]
        found.append(replace(each, spec=spec, profile=profile))
    return found


def declared(runs: list[Arrival], *, colocate: bool) -> list[Arrival]:
    return [
        replace(
            each,
            spec=replace(
                each.spec,
                expected_duration_s=each.duration_s,
                resources=replace(each.spec.resources, colocate=colocate),
            ),
        )
        for each in runs
    ]


class Breach(Exception):
    """A device is held by runs that may not share it."""


def check_devices(snapshot: Snapshot) -> int:
    """Return how many devices are shared, after a look whether all who share one may."""
    runs = {workload.uid: workload for workload in snapshot.workloads}
    held: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for pod in snapshot.pods:
        for uuid in pod.grant.gpu_uuids if not pod.phase.is_final else ():
            held[pod.node, uuid].add(pod.workload_uid)
    shared = [[runs[uid].spec.resources for uid in uids] for uids in held.values() if len(uids) > 1]
    for together in shared:
        gpus = [each.gpu for each in together if each.gpu is not None]
        if not all(each.colocate for each in together):
            raise Breach("one of them does not allow it")
        if len(together) > MOST:
            raise Breach(f"{len(together)} on one device")
        if len({gpu.milli for gpu in gpus}) > 1:
            raise Breach("of unlike sizes")
        if sum(gpu.min_memory_bytes or 0 for gpu in gpus) > 40 * GB:
            raise Breach("more memory than there is")
    return len(shared)


@contextmanager
def watched() -> Iterator[tuple[list[int], list[Plan]]]:
    """Have each pass made from scratch as well, after a look at who holds what; devices shared, and the plans."""
    seen: list[int] = []
    plans: list[Plan] = []

    def both(snapshot: Snapshot, now: float, cache: PassCache | None = None) -> Plan:
        seen.append(check_devices(snapshot))
        plan = decide(snapshot, now, cache)
        assert plan == decide(snapshot, now)
        plans.append(plan)
        return plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "decide", both)
        yield seen, plans


def played(arrivals: Sequence[Arrival], nodes: int = 2, assumed: World = REPORTING) -> Outcome:
    return simulate(arrivals, (machines(nodes),), assumed, rules=POLICIES["least-work"])


def mean_s(outcome: Outcome) -> float:
    assert all(each.phase is Phase.SUCCEEDED for each in outcome.runs)
    return sum(each.completion_s or 0.0 for each in outcome.runs) / len(outcome.runs)


@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1000))
def test_only_runs_that_all_allow_it_share_and_passes_are_as_from_scratch(seed: int) -> None:
    with watched() as (shared, _):
        outcome = played(drawn(seed))
    assert all(each.phase is Phase.SUCCEEDED for each in outcome.runs)
    assert max(shared) > 0, "nobody shared, so that nothing was looked at"


def test_that_property_catches_a_run_that_joins_whoever_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "may_share", lambda gang, slowdowns: slowdowns.knows(pace_kind(gang)))
    with watched(), pytest.raises(Breach):
        _ = [played(drawn(seed)) for seed in range(10)]


def test_nobody_is_stopped_for_a_choice_between_two_rounds() -> None:
    with watched() as (_, plans):
        played(drawn(3))
    stopped_at = sorted(
        {
            change.status.since
            for plan in plans
            for change in plan.changes
            if change.status is not None and change.terminate and change.status.reason.code is Code.PREEMPTED
        }
    )
    assert len(stopped_at) > 3, "too few were stopped to tell"
    apart_s = [later - earlier for earlier, later in pairwise(stopped_at)]
    assert min(apart_s) >= rounds.ROUND_S


def test_runs_that_fill_each_others_gaps_are_done_sooner_together() -> None:
    kinds = {"load": LOADING, "compute": COMPUTING}
    runs = [run(f"{kind}-{n}", 0.0, 4000.0, gpus=4, profile=kinds[kind]) for n in range(6) for kind in kinds]
    apart, together = declared(runs, colocate=False), declared(runs, colocate=True)
    assert mean_s(played(together)) < 0.85 * mean_s(played(apart))


def test_runs_that_hold_each_other_up_are_soon_apart() -> None:
    slow = replace(REPORTING.simulations[0], interference=Interference(two=4.0, three=6.0, four=8.0))
    runs = [run(f"same-{number}", 0.0, 4000.0, gpus=4) for number in range(6)]
    apart, together = declared(runs, colocate=False), declared(runs, colocate=True)
    assumed = World(simulations=(slow,))
    assert mean_s(played(together, assumed=assumed)) < 1.2 * mean_s(played(apart, assumed=assumed))


def test_gpus_that_several_hold_are_counted_once() -> None:
    outcome = played(drawn(5))
    gpu_s = sum(pod.num_gpus * (pod.ended_at - pod.created_at) for pod in outcome.pods)
    whole_s = sum(each.num_gpus * (until - since) for each in outcome.runs for since, until in each.held)
    assert whole_s > 1.2 * gpu_s, "too few shared to tell"
    assert gpu_s <= outcome.ended_s * 8
    utilisation = summary(outcome).gpu_utilisation
    assert utilisation is not None
    assert utilisation <= 1.0


def test_a_round_that_is_carried_out_in_part_is_made_good(monkeypatch: pytest.MonkeyPatch) -> None:
    chance, whole = random.Random(0), SimulatedCluster.apply

    def in_part(self: SimulatedCluster, plan: Plan) -> tuple[bool, ...]:
        return tuple(chance.random() < 0.7 and whole(self, replace(plan, changes=(each,)))[0] for each in plan.changes)

    monkeypatch.setattr(SimulatedCluster, "apply", in_part)
    outcome = played(drawn(7))
    assert all(each.phase is Phase.SUCCEEDED for each in outcome.runs)


def test_the_queue_comes_to_rest_where_runs_share() -> None:
    with bounded():
        played(drawn(0))
        simulate(of_all_sorts(0), (pool("a", nodes=4),), REPORTING, teams=mixed.TEAMS, rules=POLICIES["least-work"])


@pytest.mark.long
@pytest.mark.parametrize("with_teams", [False, True])
def test_the_queue_comes_to_rest_in_many_worlds_where_runs_share(with_teams: bool) -> None:
    teams = mixed.TEAMS if with_teams else ()
    with bounded():
        for seed in range(NUM_WORLDS):
            outcome = simulate(
                of_all_sorts(seed), (pool("a", nodes=4),), REPORTING, teams=teams, rules=POLICIES["least-work"]
            )
            # A gang that is wider than its team may ever hold waits for good.
            assert all(each.phase.is_final or "at most" in each.reason.message for each in outcome.runs)
