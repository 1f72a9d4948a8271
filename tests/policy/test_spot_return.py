"""Replicas above a base that hold on-demand nodes go back to spot once that pays, and none that serves is missed."""

import math
from dataclasses import replace

import pytest

from fairlead.cluster.simulated.faults import AddNode, RemoveNode, WarnNode
from fairlead.policy.kinds.parents import families_of
from fairlead.policy.kinds.serving import next_at
from fairlead.policy.serving.spot_return import SpotRoom
from fairlead.specs.training import Tier
from fairlead.state.snapshot import Node
from tests.policy.test_base_capacity import World, on_demand, on_spot, spec

DEAR, CHEAP = 4.0, 0.3  # for 8 cores, and for 2


def priced(each: Node, price: float | None) -> Node:
    return replace(each, price_per_hour=price)


def reclaimed(**keys: str) -> World:
    """Five replicas, the three above the base on on-demand nodes after spot was reclaimed."""
    world = World(spec(**keys), priced(on_demand("demand1", 8_000), DEAR), priced(on_spot("spot1"), CHEAP),
                  priced(on_spot("spot2"), CHEAP))  # fmt: skip
    world.run(20)
    for name in ("spot1", "spot2"):
        world.cluster.inject(WarnNode(node=name, why="spot reclaim", within_s=30.0))
    world.run(30)
    for name in ("spot1", "spot2"):
        world.cluster.inject(RemoveNode(node=name))
    world.run(30)
    assert world.places == {(Tier.BASE, "demand"): 2, (Tier.OVERFLOW, "demand"): 3}
    return world


def spot_comes_back(world: World, price: float | None = CHEAP) -> None:
    for name in ("spot3", "spot4"):
        world.cluster.inject(AddNode(node=priced(on_spot(name), price)))


def test_they_go_back_one_by_one_and_as_many_serve_all_the_time() -> None:
    world = reclaimed()
    spot_comes_back(world)
    world.run(50)
    assert world.places[Tier.OVERFLOW, "demand"] == 3, "spot has yet to show that it stays"
    due = next_at(world.now, families_of(world.cluster.snapshot())[world.serving.uid], world.cluster.clock.now())
    assert due == world.detail.return_at is not None, "whoever looks only when there is cause looks then"
    world.run(120)
    assert world.places == {(Tier.BASE, "demand"): 2, (Tier.OVERFLOW, "spot"): 3}
    assert world.fewest_ready[Tier.OVERFLOW] == 3
    assert world.most_ready <= 6, "one at a time"
    told = world.told("OverflowReturns")
    assert len(told) == 3
    assert "which has had room for 1m, at $0.15 an hour instead of $0.5; it serves until another one does" in told[0]
    assert world.told("OverflowOnSpot") == ["no replica above the base holds an on-demand node any more"]
    world.run(60)
    assert len(world.told("OverflowReturns")) == 3, "and stay there"


@pytest.mark.parametrize(
    ("keys", "spot"), [({"rollout": "{max_surge: 0}"}, CHEAP), ({}, 1.2)], ids=["no surge", "spot is no cheaper"]
)
def test_they_stay_where_it_pays_not_or_no_other_may_be_there_meanwhile(keys: dict[str, str], spot: float) -> None:
    world = reclaimed(**keys)
    spot_comes_back(world, spot)
    world.run(200)
    assert world.places == {(Tier.BASE, "demand"): 2, (Tier.OVERFLOW, "demand"): 3}
    assert world.told("OverflowReturns") == []


def test_a_spot_node_that_is_gone_before_the_other_serves_costs_nothing() -> None:
    world = reclaimed()
    spot_comes_back(world)
    while not world.told("OverflowReturns"):
        world.run(1)
    for name in ("spot3", "spot4"):
        world.cluster.inject(RemoveNode(node=name))
    world.run(120)
    assert world.places == {(Tier.BASE, "demand"): 2, (Tier.OVERFLOW, "demand"): 3}
    assert world.fewest_ready[Tier.OVERFLOW] == 3
    assert world.detail.returning is None
    assert len(world.told("OverflowReturns")) == 1, "spot counts anew"


def test_another_revision_goes_before_a_return() -> None:
    world = reclaimed()
    spot_comes_back(world)
    while not world.told("OverflowReturns"):
        world.run(1)
    world.change(spec(run="better $PORT"))
    world.run(200)
    assert world.detail.serving == 2
    assert world.places == {(Tier.BASE, "demand"): 2, (Tier.OVERFLOW, "spot"): 3}
    assert world.fewest_in_all == 5


@pytest.mark.parametrize(
    ("spot", "now", "start_s", "after_s"),
    [
        (0.5, 1.0, 600.0, 600.0),
        (0.2, 1.0, 600.0, 150.0),
        (0.9, 1.0, 600.0, 5400.0),
        (0.2, 1.0, 10.0, 60.0),
        (1.0, 1.0, 1.0, math.inf),
        (None, 1.0, 600.0, 600.0),
    ],
)
def test_staying_has_cost_as_much_as_a_move_by_then(
    spot: float | None, now: float, start_s: float, after_s: float
) -> None:
    assert SpotRoom(price=spot, price_now=now).pays_after_s(start_s) == pytest.approx(after_s)
