"""A parent of three runs, one after another, on the virtual clock, while loops and pods are killed."""

import random
from itertools import pairwise

import pytest

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.faults import LosePod
from fairlead.cluster.simulated.programs import OnTerm, SimulatedProgram, by_command
from fairlead.policy.decide import decide
from fairlead.specs.training import Retry
from fairlead.state.plan import Plan
from fairlead.state.snapshot import AnyWorkload, Intent, Node, Phase
from tests import builders
from tests.relay import LEGS, Ran, Relay
from tests.relays import relays
from tests.rounds import rounds

__all__ = ["relays"]

NODES = tuple(Node(name=f"node-{number}", cpu_milli=4000, memory_bytes=32 * 1024**3) for number in range(2))
PROGRAM = SimulatedProgram(duration_s=10.0, start_s=0.5, on_term=OnTerm.EXIT)
STEP_S, MOST_STEPS = 0.5, 4000


class Loop:
    """A loop that may die at any instant: before it applies its plan, within it, or after it."""

    def __init__(self, rng: random.Random) -> None:
        self.cluster = SimulatedCluster(NODES, by_command({"leg": PROGRAM}))
        self._rng = rng

    def run_pass(self, *, dies: bool) -> None:
        plan = decide(self.cluster.snapshot(), self.cluster.clock.now())
        changes = plan.changes[: self._rng.randint(0, len(plan.changes))] if dies else plan.changes
        self.cluster.apply(Plan(changes=changes))
        if dies:
            self.cluster = SimulatedCluster.load(self.cluster.save(), by_command({"leg": PROGRAM}))

    def lose_pods(self) -> None:
        """All of them at once, or one."""
        pods = [pod.uid for pod in self.cluster.snapshot().pods if not pod.phase.is_final]
        for uid in pods if self._rng.random() < 0.5 else pods[:1]:
            self.cluster.inject(LosePod(pod_uid=uid))


def now_of(cluster: SimulatedCluster, uid: str) -> AnyWorkload:
    return next(each for each in cluster.workloads() if each.uid == uid)


@pytest.mark.parametrize("seed", rounds(few=10, many=100))
def test_a_parent_survives_kills_of_everything_is_suspended_and_deleted(seed: int) -> None:
    rng = random.Random(f"relay-{seed}")
    loop = Loop(rng)
    leg = builders.training("leg", run="leg", retry=Retry(infrastructure=1000, program=0, backoff_s=0.1))
    parent = loop.cluster.submit(Relay(name="relay", leg=leg))
    intent, is_disturbed = Intent.RUN, True
    most_live = 0
    for step in range(MOST_STEPS):
        is_disturbed = step < 60
        loop.run_pass(dies=is_disturbed and rng.random() < 0.5)
        if is_disturbed and rng.random() < 0.1:
            loop.lose_pods()
        if rng.random() < 0.1 and not now_of(loop.cluster, parent.uid).status.phase.is_final:
            intent = rng.choice((Intent.SUSPEND, Intent.RUN)) if is_disturbed else Intent.RUN
            loop.cluster.set_intent(parent.uid, intent)
        most_live = max(most_live, sum(not pod.phase.is_final for pod in loop.cluster.snapshot().pods))
        if now_of(loop.cluster, parent.uid).status.phase.is_final:
            break
        loop.cluster.advance(STEP_S)
    ended = now_of(loop.cluster, parent.uid)
    assert (ended.status.phase, ended.status.detail) == (Phase.SUCCEEDED, Ran(legs=LEGS)), ended
    children = loop.cluster.children(parent.uid)
    assert [child.spec.name for child in children] == [f"relay-{leg}" for leg in LEGS]
    assert {child.status.phase for child in children} == {Phase.SUCCEEDED}
    assert most_live == 1, "two of its runs had pods at once"
    for before, after in pairwise(children):
        assert (before.status.finished_at or 0.0) <= (after.status.started_at or 0.0), "one began too early"
    loop.cluster.set_intent(parent.uid, Intent.DELETE)
    for _ in range(MOST_STEPS):
        loop.run_pass(dies=rng.random() < 0.5)
        if not loop.cluster.workloads():
            return
        loop.cluster.advance(STEP_S)
    raise AssertionError(loop.cluster.workloads())


@pytest.mark.parametrize("seed", rounds(few=10, many=100))
def test_a_parent_that_is_deleted_at_any_instant_leaves_nothing(seed: int) -> None:
    rng = random.Random(f"deleted-{seed}")
    loop = Loop(rng)
    parent = loop.cluster.submit(Relay(name="relay", leg=builders.training("leg", run="leg")))
    deleted_at = rng.randint(0, 70)
    for step in range(MOST_STEPS):
        if step == deleted_at:
            loop.cluster.set_intent(parent.uid, Intent.DELETE)
        loop.run_pass(dies=rng.random() < 0.5)
        if not loop.cluster.workloads():
            break
        loop.cluster.advance(STEP_S)
    assert step >= deleted_at
    assert loop.cluster.workloads() == ()
    assert loop.cluster.snapshot().pods == ()
