"""Passes that keep what they know come to the same plans beside sweeps, endpoints, and runs that they leave alone."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.faults import LosePod
from fairlead.cluster.simulated.programs import OnTerm, SimulatedProgram
from fairlead.errors import FairleadError
from fairlead.policy import decide as deciding
from fairlead.policy import pass_cache
from fairlead.policy.decide import decide
from fairlead.policy.pass_cache import PassCache, only_waits, quiet_until
from fairlead.specs.resources import Resources
from fairlead.specs.serving import Serving
from fairlead.specs.sweep import Sweep, Trial
from fairlead.specs.team import Budget, Quota, Team, WhenSpent
from fairlead.specs.training import Training
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Snapshot, Spending, Workload, is_replica
from tests.builders import node, training
from tests.rounds import rounds

NODES = tuple(node(f"n{number}", cpu_milli=4_000, price_per_hour=1.0) for number in range(3))
TEAMS = (Team(name="t", weight=3), Team(name="u", quota=Quota(cpu_milli=6_000)))
# Time alone takes teams t and v, and each run with a limit, to what they may spend; v may go on.
BUDGETED = (
    Team(name="t", weight=3, budget=Budget(monthly=1.0, when_spent=WhenSpent.STOP)),
    TEAMS[1],
    Team(name="v", budget=Budget(monthly=1.2), project_budgets={"p": Budget(monthly=0.4, when_spent=WhenSpent.STOP)}),
)
NUM_MOVES = 60


def behave(spec: Training, attempt: int) -> SimulatedProgram:
    if is_replica(spec):
        return SimulatedProgram(duration_s=1e9, start_s=3.0, on_term=OnTerm.EXIT)
    chance = random.Random(f"{spec.name}-{attempt}")
    return SimulatedProgram(
        duration_s=chance.choice((2.0, 20.0, 200.0)), start_s=0.5, on_term=OnTerm.EXIT,
        exit_code=chance.choice((0, 0, 0, 1)),
    )  # fmt: skip


class Passes:
    """A cluster on which each pass is made from what was kept, and from scratch.

    Attributes:
        kinds: How often passes met parents, waiting replicas, and runs that were left alone, or stopped for a limit.
    """

    def __init__(self, seed: str, *, costs: bool = False) -> None:
        self.chance = random.Random(seed)
        self.costs = costs
        self.cluster = SimulatedCluster(NODES, behave)
        self.began, self.cache = self.cluster.clock.now(), PassCache()
        self.kinds = Counter[str]()
        self.num_submitted = 0
        self.is_left_alone = False

    def move(self) -> None:
        """Something that a user, or the cluster, does."""
        chance = self.chance
        kind = chance.choice(("run", "run", "run", "sweep", "serving", "rollout", "intent", "intent", "lose", "alone"))
        if kind == "run":
            spec = self.run()
            for number in range(chance.choice((1, 1, 6))):
                self.cluster.submit(replace(spec, name=f"{spec.name}-{number}"))
        elif kind == "sweep":
            self.cluster.submit(self.sweep())
        elif kind == "serving":
            self.cluster.submit(self.serving())
        elif kind == "rollout":
            for parent in self.cluster.snapshot().parents:
                if isinstance(parent.spec, Serving) and chance.random() < 0.5:
                    changed = replace(parent.spec, run=f"serve $PORT {self.num_submitted}")
                    self.cluster.update(parent.uid, changed, version=parent.version)
        elif kind == "intent":
            workload = chance.choice(self.cluster.workloads() or (None,))
            intent = chance.choice((Intent.RUN, Intent.RUN, Intent.SUSPEND, Intent.STOP, Intent.DELETE))
            if workload is not None and not workload.status.phase.is_final:
                self.cluster.set_intent(workload.uid, intent)
        elif kind == "lose":
            live = [pod.uid for pod in self.cluster.snapshot().pods if not pod.phase.is_final]
            if live:
                self.cluster.inject(LosePod(pod_uid=chance.choice(live)))
        elif kind == "alone":
            self.is_left_alone = not self.is_left_alone
        self.cluster.advance(chance.choice((0.0, 0.5, 5.0, 20.0)))

    def run(self) -> Training:
        chance = self.chance
        self.num_submitted += 1
        run = training(
            f"run-{self.num_submitted}", run="x", team=chance.choice("tuv"), nodes=chance.choice((1, 1, 1, 2)),
            priority=chance.choice((0, 0, 0, 3, -1)), labels=chance.choice(({}, {"project": "p"})),
            max_cost=chance.choice((None, None, 0.05)) if self.costs else None,
        )  # fmt: skip
        return replace(run, resources=self.resources())

    def sweep(self) -> Sweep:
        self.num_submitted += 1
        trial = Trial(run="x", resources=self.resources())
        name, team = f"sweep-{self.num_submitted}", self.chance.choice("tuv")
        return Sweep(name=name, team=team, trial=trial, parameters={"shard": "0..4"}, parallel=3)

    def serving(self) -> Serving:
        self.num_submitted += 1
        name, replicas = f"serving-{self.num_submitted}", self.chance.choice((1, 2, 3))
        team = self.chance.choice("tuv")
        return Serving(name=name, team=team, run="serve $PORT", replicas=replicas, resources=self.resources())

    def resources(self) -> Resources:
        return Resources(cpu_milli=self.chance.choice((500, 1_000, 1_000, 2_000, 9_000)))

    def run_pass(self) -> bool:
        snapshot, now = self.seen(), self.cluster.clock.now()
        plan = decide(snapshot, now, self.cache)
        assert plan == decide(snapshot, now)
        for change in plan.changes:
            if change.status is not None and change.status.reason.code is Code.OVER_BUDGET:
                self.kinds[f"over budget, {change.status.phase}"] += 1
        self.kinds["parents"] += bool(snapshot.parents)
        self.kinds["left alone"] += bool(snapshot.deferred or snapshot.unreadable)
        waiting = [run for run in snapshot.workloads if run.status.phase is Phase.PENDING]
        self.kinds["waiting replicas"] += any(is_replica(run.spec) for run in waiting)
        self.kinds["waiting trials"] += any(run.parent is not None and not is_replica(run.spec) for run in waiting)
        self.kinds["skipped"] += bool(self.cache.lists.alike) and bool(snapshot.parents)
        return any(self.cluster.apply(plan))

    def seen(self) -> Snapshot:
        snapshot = replace(self.cluster.snapshot(), teams=BUDGETED if self.costs else TEAMS)
        if self.costs:
            snapshot = replace(snapshot, spending=spent(snapshot, self.began, self.cluster.clock.now()))
        if not self.is_left_alone:
            return snapshot
        uids = [workload.uid for workload in (*snapshot.workloads, *snapshot.parents)]
        chosen = self.chance.sample(uids, len(uids) // 3)
        unreadable = dict.fromkeys(chosen[::4], "it has a value that nobody foresaw")
        return replace(snapshot, deferred=frozenset(chosen) - unreadable.keys(), unreadable=unreadable)


def spent(snapshot: Snapshot, began: float, now: float) -> Spending:
    """What all have spent, in months of four minutes."""
    of_team = int(5_000 * ((now - began) % 240.0))
    return Spending(
        by_team={"t": of_team, "v": of_team},
        by_project={("v", "p"): of_team // 2},
        by_run={run.uid: int(500 * (now - run.created_at)) for run in snapshot.workloads},
    )


def history(seed: int, *, costs: bool = False) -> Counter[str]:
    passes = Passes(f"beside-{seed}", costs=costs)
    for _ in range(NUM_MOVES):
        try:
            passes.move()
        except FairleadError:
            passes.kinds["refused"] += 1
        for _ in range(4):
            if not passes.run_pass():
                break
    return passes.kinds


def histories(number: int, *, costs: bool = False) -> Counter[str]:
    return sum((history(seed, costs=costs) for seed in range(number)), Counter[str]())


@pytest.mark.parametrize("seed", rounds(few=8, many=200))
def test_a_pass_beside_parents_equals_the_one_from_scratch(seed: int) -> None:
    kinds = history(seed)
    assert kinds["parents"] > 20
    assert kinds["left alone"] > 5 or seed % 4


@pytest.mark.slow
def test_these_histories_have_what_a_pass_may_leave_out() -> None:
    kinds = histories(6)
    assert min(kinds[kind] for kind in ("waiting replicas", "waiting trials", "left alone", "skipped")) > 20, kinds


def test_these_histories_catch_a_pass_that_decides_what_it_is_to_leave_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    look = PassCache.look
    monkeypatch.setattr(PassCache, "look", lambda cache, snapshot, _=None: look(cache, snapshot, frozenset()))
    with pytest.raises(AssertionError):
        histories(6)


@pytest.mark.parametrize("seed", rounds(few=6, many=200))
def test_a_pass_with_budgets_equals_one_that_judges_every_run(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "only_waits", lambda run: False)
    monkeypatch.setattr(deciding, "_is_quiet", lambda run, pods, now: False)
    history(seed, costs=True)


@pytest.mark.slow
def test_these_histories_have_runs_that_a_limit_stops_fails_and_holds_back() -> None:
    kinds = histories(6, costs=True)
    assert min(kinds[f"over budget, {phase}"] for phase in (Phase.STOPPING, Phase.FAILED, Phase.PENDING)) > 5, kinds


def test_these_histories_catch_a_pass_that_lets_runs_of_a_spent_budget_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PassCache, "with_pods", lambda cache, teams: {})
    with pytest.raises(AssertionError):
        histories(6, costs=True)


def test_these_histories_catch_a_pass_that_forgets_the_limit_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_limit(run: Workload) -> Workload:
        return replace(run, spec=replace(run.spec, max_cost=None))

    monkeypatch.setattr(pass_cache, "only_waits", lambda run: only_waits(without_limit(run)))
    monkeypatch.setattr(pass_cache, "quiet_until", lambda run, pods: quiet_until(without_limit(run), pods))
    with pytest.raises(AssertionError):
        histories(6, costs=True)
