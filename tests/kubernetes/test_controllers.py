"""A controller is a class with the hooks that it needs, and an entry in a list."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairlead.cluster.isolation import Isolation
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.controller import ControlledCluster, Controller, PassStage, Turn, act_all
from fairlead.state.plan import Plan
from fairlead.state.snapshot import Snapshot
from tests.kubernetes.turns import NOTHING, a_turn


class Toy(Controller):
    """Adds the address problem of an endpoint to the snapshot, and asks the agent to look at it."""

    name = "toys"

    def extend(self, snapshot: Snapshot, now: float) -> Snapshot:
        return replace(snapshot, unaddressed={**snapshot.unaddressed, "toy": f"at {now > 0}"})

    def act(self, turn: Turn) -> None:
        turn.agent.submit("toy", f"look at {turn.snapshot.unaddressed['toy']}", lambda: None)


class Broken(Controller):
    name = "broken"

    def extend(self, snapshot: Snapshot, now: float) -> Snapshot:
        raise ValueError("no")

    def act(self, turn: Turn) -> None:
        raise ValueError("no")


class Later(Toy):
    stage = PassStage.CHANGES


def a_cluster(isolation: Isolation, plans: list[Plan]) -> Any:
    def apply(plan: Plan, meanwhile: Any) -> tuple[bool, ...]:
        plans.append(plan)
        meanwhile()
        return ()

    view = SimpleNamespace(isolation=isolation)
    return SimpleNamespace(view=view, snapshot=lambda: NOTHING, apply=apply, shown=None)


def test_a_toy_controller_is_one_entry_of_the_list() -> None:
    controllers = [Toy()]
    cluster = a_cluster(Isolation(), [])
    controlled = ControlledCluster(cast(KubernetesCluster, cluster), controllers, lambda: None)
    snapshot = controlled.snapshot()
    assert snapshot.unaddressed == {"toy": "at True"}
    assert cluster.shown is snapshot
    queued: list[str] = []
    agent = SimpleNamespace(submit=lambda queue, name, job: queued.append(name))
    act_all(controllers, PassStage.EVERY_PASS, a_turn(agent, snapshot=snapshot), Isolation())
    act_all([Later()], PassStage.EVERY_PASS, a_turn(agent, snapshot=snapshot), Isolation())
    assert queued == ["look at at True"]


def test_a_broken_controller_leaves_the_others_working(caplog: pytest.LogCaptureFixture) -> None:
    isolation, queued = Isolation(), list[str]()
    controllers = [Broken(), Toy()]
    snapshot = ControlledCluster(a_cluster(isolation, []), controllers, lambda: None).snapshot()
    assert snapshot.unaddressed == {"toy": "at True"}
    agent = SimpleNamespace(submit=lambda queue, name, job: queued.append(name))
    act_all(controllers, PassStage.EVERY_PASS, a_turn(agent, snapshot=snapshot), isolation)
    assert queued == ["look at at True"]
    assert {record.message.split(" in ")[0] for record in caplog.records} == {"broken: internal error: ValueError"}


def test_a_controller_takes_the_plan_before_its_changes_are_written() -> None:
    order: list[str] = []

    class Taker(Controller):
        name = "taker"

        def take(self, plan: Plan) -> None:
            order.append("taken")

    plans: list[Plan] = []
    ControlledCluster(a_cluster(Isolation(), plans), [Taker()], lambda: order.append("followed")).apply(Plan())
    assert (order, plans) == (["taken", "followed"], [Plan()])
