"""What passes keep from one to the next: traces of all kinds go as they would with every pass from scratch."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.programs import SimulatedProgram
from fairlead.control import loop, simulation
from fairlead.control.simulation import World, simulate
from fairlead.policy import pass_cache
from fairlead.policy.decide import decide
from fairlead.policy.pass_cache import PassCache, differences
from fairlead.policy.queue.idle_pass import is_same_to_queue
from fairlead.policy.queue.occupancy import Occupancy
from fairlead.policy.queue.scheduling import SchedulingPass
from fairlead.policy.queue.team_debts import TeamDebts
from fairlead.specs.simulation import Failures, Programs, Provisioning, Reclaims
from fairlead.specs.team import Quota, Team
from fairlead.specs.training import Capacity
from fairlead.state.plan import Change, Plan
from fairlead.state.scheduling_policy import DEFAULT, POLICIES, Backfill, SchedulingPolicy
from fairlead.state.snapshot import Phase, Progress, Snapshot, Workload
from fairlead.traces.arrivals import Arrival
from tests.builders import changed, node
from tests.policy.test_scheduling import NOW, look, running
from tests.rounds import rounds
from tests.simulation.worlds import pool, run, world

TEAMS = (
    Team(name="t", weight=3, guaranteed=Quota(gpu_milli=4000)),
    Team(name="u", quota=Quota(gpu_milli=8000)),
)
WORLDS = (
    World(),
    world(failures=Failures(mtbf_s=20_000.0, repair_s=900.0)),
    world(reclaims=Reclaims(every_s=5_000.0), programs=Programs(start_up_s=30.0)),
    world(provisioning=Provisioning(delay_s=120.0, idle_s=300.0)),
    world(programs=Programs(step_s=5.0, checkpoint_every_s=120.0)),
)


class Differs(Exception):
    """A pass came to another plan than one from scratch."""


@contextmanager
def compared() -> Iterator[list[Plan]]:
    """Have each pass of the loop made from scratch as well."""
    plans: list[Plan] = []

    def both(snapshot: Snapshot, now: float, cache: PassCache | None = None) -> Plan:
        assert cache is not None
        plan, anew = decide(snapshot, now, cache), decide(snapshot, now)
        if plan != anew:
            raise Differs(f"{plan}\n{anew}")
        plans.append(plan)
        return plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "decide", both)
        yield plans


def drawn(seed: int, num_runs: int = 20) -> list[Arrival]:
    """Runs of all sizes that come faster than they can run, so that many wait."""
    chance = random.Random(seed)
    found = []
    for number in range(num_runs):
        made = run(
            f"{chance.choice('abc')}-{number}",
            at_s=float(chance.randrange(6000)),
            duration_s=chance.choice((20.0, 300.0, 2000.0, 9000.0)),
            gpus=chance.choice((1, 1, 1, 2, 4)),
            nodes=chance.choice((1, 1, 1, 2, 3)),
            team=chance.choice("tuv"),
            every_s=chance.choice((None, None, 60.0)),
        )
        spec = replace(
            made.spec,
            priority=chance.choice((0, 0, 0, 5, -1)),
            max_duration_s=chance.choice((None, 2.0 * made.duration_s + 600.0)),
            expected_duration_s=chance.choice((None, made.duration_s)),
            most_nodes=made.spec.nodes + 2 if made.spec.checkpoint.every_s and chance.random() < 0.3 else None,
            capacity=Capacity(spot=chance.random() < 0.5),
        )
        found.append(replace(made, spec=spec))
    return found


@pytest.mark.slow
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 1000),
    policy=st.sampled_from(sorted(POLICIES)),
    assumed=st.sampled_from(WORLDS),
    with_teams=st.booleans(),
)
# A gang that begins anew with more nodes in the pass that stops others for another run.
@example(seed=600, policy="finish-time", assumed=WORLDS[0], with_teams=True)
def test_the_incremental_pass_equals_the_one_from_scratch(
    seed: int, policy: str, assumed: World, with_teams: bool
) -> None:
    pools = (pool("a", nodes=2), pool("b", nodes=2, spot=True))
    with compared() as plans:
        simulate(drawn(seed), pools, assumed, teams=TEAMS if with_teams else (), rules=POLICIES[policy])
    assert sum(len(plan.changes) for plan in plans) > 60


def queued(seed: int, num_runs: int = 40) -> list[Arrival]:
    """Many runs that are much alike and come at once, so that nearly all of them wait for long."""
    chance = random.Random(seed)
    made = [
        run(
            f"{chance.choice('ab')}-{number}",
            at_s=float(chance.randrange(1500)),
            duration_s=chance.choice((300.0, 900.0, 2000.0)),
            gpus=chance.choice((1, 1, 2, 4)),
            nodes=chance.choice((1, 1, 1, 2)),
            team=chance.choice("tuv"),
        )
        for number in range(num_runs)
    ]
    return [replace(each, spec=replace(each.spec, priority=chance.choice((0, 0, 0, 0, 3, -1)))) for each in made]


@pytest.mark.parametrize("num_examples", [5, pytest.param(20, marks=pytest.mark.long)])
def test_a_pass_that_leaves_out_who_waits_on_equals_the_one_that_looks_at_all(num_examples: int) -> None:
    @settings(max_examples=num_examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        seed=st.integers(0, 1000),
        rules=st.sampled_from(
            (DEFAULT, replace(DEFAULT, backfill=Backfill.CONSERVATIVE), replace(DEFAULT, preempts=False, moves=False))
        ),
        assumed=st.sampled_from((WORLDS[0], WORLDS[1], WORLDS[4])),
        teams=st.sampled_from(((), TEAMS, (Team(name="t", weight=3),))),
    )
    def equal(seed: int, rules: SchedulingPolicy, assumed: World, teams: tuple[Team, ...]) -> None:
        with compared() as plans:
            simulate(queued(seed), (pool("a", nodes=2),), assumed, teams=teams, rules=rules)
        assert sum(len(plan.changes) for plan in plans) > 100

    equal()


def test_that_property_catches_a_list_that_is_left_out_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SchedulingPass, "_is_idle", lambda queue, alike: queue.first is not None)
    with compared(), pytest.raises(Differs):
        simulate(queued(1), (pool("a", nodes=2),))


@contextmanager
def repeated() -> Iterator[list[float]]:
    """Have each pass that is known to be the last at its time followed by one from scratch, and return their times."""
    at = list[float]()

    def checked(cluster: SimulatedCluster, now: float, *, cache: PassCache, debts: TeamDebts) -> loop.PassResult:
        result = loop.make_pass(cluster, now, cache=cache, debts=debts)
        if result.has_changed and result.is_last:
            at.append(now)
            if loop.make_pass(cluster, now, debts=debts).has_changed:
                raise Differs(f"something changed at {now} after the last pass")
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "make_pass", checked)
        yield at


@pytest.mark.parametrize("seed", rounds(few=4, many=100))
def test_nothing_changes_after_a_pass_that_is_known_to_be_the_last_at_its_time(seed: int) -> None:
    chance = random.Random(seed)
    policy, assumed = chance.choice(sorted(POLICIES)), chance.choice(WORLDS)
    with repeated():
        simulate(drawn(seed), (pool("a", nodes=2), pool("b", nodes=2, spot=True)), assumed, rules=POLICIES[policy])
    with repeated() as times:
        simulate(queued(seed), (pool("a", nodes=2),), teams=TEAMS if seed % 2 else ())
    assert len(times) > 15


def test_that_property_catches_a_pass_that_takes_any_change_for_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PassCache, "is_last", lambda cache, plan, snapshot, now: True)
    with repeated(), pytest.raises(Differs):
        simulate(queued(1), (pool("a", nodes=2),))


def backlog(seed: int, num_runs: int = 40, *, teams: str = "tuvw") -> list[Arrival]:
    """Runs of several teams for one node, most of which wait for long, some of them for nodes that are not there."""
    chance = random.Random(seed)
    return [
        run(
            f"{chance.choice('ab')}-{number}",
            at_s=chance.choice((0.0, float(chance.randrange(3000)))),
            duration_s=chance.choice((300.0, 900.0, 2000.0)),
            gpus=chance.choice((1, 1, 2, 4, 8)),
            nodes=chance.choice((1, 1, 1, 1, 3)),
            team=chance.choice(teams),
        )
        for number in range(num_runs)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("policy", ["default", "best-effort"])
def test_a_backlog_goes_as_with_every_pass_from_scratch(seed: int, nodes: int, policy: str) -> None:
    with compared() as plans:
        simulate(backlog(seed), (pool("a", nodes=nodes),), rules=POLICIES[policy])
    assert sum(len(plan.changes) for plan in plans) > 100


def test_that_property_catches_a_pass_that_is_over_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SchedulingPass, "_is_over", lambda queue, lists, singles: queue.first is not None)
    limited = [replace(each, spec=replace(each.spec, max_duration_s=3000.0)) for each in backlog(1)]
    with compared(), pytest.raises(Differs):
        simulate(limited, (pool("a", nodes=2),))


# Of four teams all gangs are wider than their team's share, so that none of them is promised a start at first.
@pytest.mark.parametrize("teams", ["t", "tuvw"])
@pytest.mark.parametrize("num_runs", [40, 160])
def test_the_runs_looked_at_in_a_pass_do_not_grow_with_those_that_wait(
    num_runs: int, teams: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = list[str]()
    look_at = SchedulingPass.look_at

    def counted(queue: SchedulingPass, workload: Workload) -> list[Change]:
        looked.append(workload.uid)
        return look_at(queue, workload)

    monkeypatch.setattr(SchedulingPass, "look_at", counted)
    outcome = simulate(backlog(2, num_runs, teams=teams), (pool("a", nodes=1),))
    assert len(outcome.runs) == num_runs
    assert len(looked) < 9 * num_runs


def full() -> tuple[SimulatedCluster, PassCache, float]:
    """A node that one of three runs holds, after the first pass that changed nothing."""
    cluster = SimulatedCluster([node("n", gpus=4)], lambda spec, attempt: SimulatedProgram(duration_s=900.0))
    cache, now = PassCache(), cluster.clock.now()
    for number in range(3):
        cluster.submit(run(f"a-{number}", 0.0, 900.0, gpus=4).spec)
    while loop.run_pass(cluster, now, cache=cache):
        pass
    return cluster, cache, now


def test_a_pass_at_the_same_instant_with_nothing_new_considers_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, cache, now = full()
    monkeypatch.setattr(SchedulingPass, "of", lambda *arguments: 1 / 0)
    assert not decide(cluster.snapshot(), now, cache).changes
    with pytest.raises(ZeroDivisionError):
        decide(cluster.snapshot(), now + 1.0, cache)
    cluster.submit(run("b", 0.0, 900.0, gpus=4).spec)
    with pytest.raises(ZeroDivisionError):
        decide(cluster.snapshot(), now, cache)


@pytest.mark.parametrize(
    "other", [{"debts": {"t": 0.5}}, {"teams": (Team(name="t"),)}, {"rules": POLICIES["best-effort"]}]
)
def test_a_pass_under_other_conditions_at_the_same_instant_is_made_anew(other: dict[str, Any]) -> None:
    cluster, cache, now = full()
    idle, snapshot = cache.idle_pass, cluster.snapshot()
    assert idle is not None
    assert idle.is_repeated(snapshot, now, cache.queue_version, cache.runs)
    assert not idle.is_repeated(replace(snapshot, **other), now, cache.queue_version, cache.runs)


def test_a_reason_that_was_not_recorded_is_given_again() -> None:
    cluster, cache, now = full()
    cluster.submit(run("b", 0.0, 900.0, gpus=4).spec)
    told = decide(cluster.snapshot(), now, cache).changes
    assert told == decide(cluster.snapshot(), now, cache).changes != ()


def test_a_run_that_ends_or_moves_on_is_another_to_the_queue() -> None:
    workload = full()[1].runs["00000001"]
    status = workload.status
    reason = replace(status.reason, message="another")
    assert is_same_to_queue(workload, replace(workload, status=replace(status, reason=reason), version=9))
    others = ({"phase": Phase.STOPPING}, {"started_at": 5.0}, {"attempt": 3}, {"taken_by": "another"})
    assert not any(is_same_to_queue(workload, replace(workload, status=changed(status, **fields))) for fields in others)


def test_that_property_catches_a_cache_that_does_not_see_what_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_cache, "differences", lambda old, new: ([], differences(old, new)[1]))
    with compared(), pytest.raises((Differs, AssertionError)):
        simulate(drawn(1), (pool("a", nodes=2),))


def test_that_property_catches_a_cache_that_lets_no_time_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PassCache, "due", lambda cache, now: None)
    slow = run("slow", 0.0, 900.0)
    slow = replace(slow, spec=replace(slow.spec, max_duration_s=300.0))
    with compared(), pytest.raises(Differs):
        simulate([slow], (pool("a", nodes=2),))


def test_that_property_catches_holdings_that_are_not_kept_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Occupancy, "changed", lambda kept, uids: None)
    with compared(), pytest.raises((Differs, KeyError)):
        simulate(drawn(1), (pool("a", nodes=2),))


def test_a_look_that_breaks_off_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = run("a", 0.0, 60.0).spec
    cluster = SimulatedCluster([node("n", gpus=4)], lambda spec, attempt: SimulatedProgram())
    cluster.submit(spec)
    cache = PassCache()
    with monkeypatch.context() as patch:
        patch.setattr(PassCache, "_note", lambda cache, uid: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cache.look(cluster.snapshot())
    now = cluster.clock.now()
    assert decide(cluster.snapshot(), now, cache) == decide(cluster.snapshot(), now)


def test_a_run_that_reports_for_days_leaves_nothing_behind() -> None:
    seen = look((running("there", "n0", range(4), max_duration_s=1e6),), nodes=(node("n0", gpus=4),))
    (there,), cache = seen.workloads, PassCache()
    for step in range(1000):
        progress = Progress(updated_at=NOW + step, step=step)
        cache.look(replace(seen, workloads=(replace(there, progress=progress),)))
    assert list(cache._until) == [there.uid]
    assert len(cache._quiet_until) <= pass_cache.LEAST_TIMES
    cache.due(NOW + 2e6)
    assert list(cache.judged) == [there.uid]


@given(
    old=st.lists(st.integers(300, 320), max_size=60),
    edits=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3), st.lists(st.integers(400, 420), max_size=3))),
)
def test_differences_lead_from_one_sequence_to_the_other(
    old: list[int], edits: list[tuple[int, int, list[int]]]
) -> None:
    new = list(old)
    for at, length, by in edits:
        new[at : at + length] = by
    gone, come = differences(tuple(old), tuple(new))
    left = sorted(old)
    for each in gone:
        left.remove(each)
    assert sorted([*left, *come]) == sorted(new)


def test_a_change_among_many_is_found_alone() -> None:
    old = tuple(range(1000, 3000))
    assert differences(old, (*old[:700], -7, *old[701:])) == ([1700], [-7])
    assert differences(old, (*old[:700], *old[701:], -7)) == ([1700], [-7])
    assert differences(old, old[1:]) == ([1000], [])
