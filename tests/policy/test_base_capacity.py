"""A base of replicas on on-demand nodes, and the others on spot: the product's own passes in a simulated cluster."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.faults import AddNode, RemoveNode, WarnNode
from fairlead.cluster.simulated.programs import SimulatedProgram
from fairlead.control.loop import run_pass
from fairlead.errors import InvalidSpec
from fairlead.policy.placement.node_eligibility import CAPACITY_TYPE_LABEL
from fairlead.specs.formats.reading import parse
from fairlead.specs.serving import Replica, Serving
from fairlead.specs.training import Tier
from fairlead.state.endpoint_detail import ServingDetail, detail_of
from fairlead.state.snapshot import Node, Workload
from tests.builders import node


def spec(capacity: str = "{base: 2, overflow: spot}", **keys: object) -> Serving:
    given = {"replicas": 5, "run": "serve $PORT", "resources": "{cpu: 1}", "capacity": capacity, **keys}
    (found,) = parse("\n".join(["kind: Serving", "name: chat", *(f"{key}: {value}" for key, value in given.items())]))
    assert isinstance(found, Serving)
    return found


def on_spot(name: str) -> Node:
    return replace(node(name, cpu_milli=2_000), labels={CAPACITY_TYPE_LABEL: "spot"})


def on_demand(name: str, cpu_milli: int = 4_000) -> Node:
    return node(name, cpu_milli=cpu_milli)


class World:
    """An endpoint in a simulated cluster."""

    def __init__(self, serving: Serving, *nodes: Node) -> None:
        self.cluster = SimulatedCluster(
            nodes, behaviour=lambda *_: SimulatedProgram(duration_s=float("inf"), start_s=2.0)
        )
        self.serving = self.cluster.submit(serving)
        self.fewest_ready: Mapping[Tier | None, int] = {}
        self.fewest_in_all = self.most_ready = 0

    def run(self, seconds: float) -> None:
        """Let time pass, a second at a time, and note the fewest replicas of each part that served meanwhile."""
        fewest: dict[Tier | None, int] = {}
        self.fewest_in_all, self.most_ready = 99, 0
        for _ in range(int(seconds)):
            self.cluster.advance(1.0)
            while run_pass(self.cluster, self.cluster.clock.now()):
                pass
            ready = Counter(each for each, _ in self.ready())
            self.fewest_in_all = min(self.fewest_in_all, ready.total())
            self.most_ready = max(self.most_ready, ready.total())
            fewest = {tier: min(fewest.get(tier, 99), ready[tier]) for tier in (Tier.BASE, Tier.OVERFLOW, None)}
        self.fewest_ready = fewest

    @property
    def now(self) -> Workload[Serving]:
        (found,) = (each for each in self.cluster.workloads() if each.uid == self.serving.uid)
        return found

    @property
    def detail(self) -> ServingDetail:
        return detail_of(self.now)

    def change(self, serving: Serving) -> None:
        """Give it another spec, as clusters do that people change endpoints of."""
        self.cluster._state.keep(replace(self.now, spec=serving, version=self.now.version + 1))

    def ready(self) -> list[tuple[Tier | None, str]]:
        """The replicas that serve: of which part, and on which node."""
        seen = self.cluster.snapshot()
        pods = {pod.workload_uid: pod.node for pod in seen.pods if pod.ready and not pod.phase.is_final}
        found = [(each.spec, pods[each.uid]) for each in seen.workloads if each.uid in pods]
        return [(spec.capacity.tier, at) for spec, at in found if isinstance(spec, Replica)]

    @property
    def places(self) -> dict[tuple[Tier | None, str], int]:
        """Count the replicas of each part that serve on each kind of node."""
        return dict(Counter((tier, at.rstrip("0123456789")) for tier, at in self.ready()))

    def told(self, kind: str) -> list[str]:
        return [each.reason.message for each in self.cluster.events(self.serving.uid) if each.type == kind]


def five() -> World:
    world = World(spec(), on_demand("demand1", 8_000), on_spot("spot1"), on_spot("spot2"))
    world.run(20)
    return world


def test_the_base_is_on_on_demand_nodes_and_the_others_are_on_spot() -> None:
    world = five()
    assert world.places == {(Tier.BASE, "demand"): 2, (Tier.OVERFLOW, "spot"): 3}
    assert world.told("OverflowOnDemand") == []


def test_a_mass_reclaim_leaves_the_base_and_has_the_others_replaced_on_on_demand_nodes() -> None:
    world = five()
    for name in ("spot1", "spot2"):
        world.cluster.inject(WarnNode(node=name, why="spot reclaim", within_s=30.0))
    world.run(30)
    for name in ("spot1", "spot2"):
        world.cluster.inject(RemoveNode(node=name))
    world.run(90)
    assert world.fewest_ready[Tier.BASE] == 2
    assert world.places == {(Tier.BASE, "demand"): 2, (Tier.OVERFLOW, "demand"): 3}
    told = "3 of 3 replicas above the base hold on-demand nodes: no spot node had room"
    assert world.told("OverflowOnDemand") == [told]


def test_where_nothing_has_room_the_base_serves_on_and_the_others_come_back_with_spot() -> None:
    world = World(spec(), on_demand("demand1", 2_000), on_spot("spot1"), on_spot("spot2"))
    world.run(20)
    for name in ("spot1", "spot2"):
        world.cluster.inject(RemoveNode(node=name))
    world.run(90)
    assert world.places == {(Tier.BASE, "demand"): 2}
    world.cluster.inject(AddNode(node=on_spot("spot3")))
    world.run(90)
    assert world.places == {(Tier.BASE, "demand"): 2, (Tier.OVERFLOW, "spot"): 2}
    assert world.told("OverflowOnDemand") == []


def test_a_base_never_takes_a_spot_node_and_says_why_it_waits() -> None:
    world = World(spec(replicas=1, capacity="{base: 1, overflow: spot}"), on_spot("spot1"))
    world.run(10)
    assert world.places == {}
    (replica,) = (each for each in world.cluster.snapshot().workloads)
    assert "a spot node, and it is of its endpoint's base" in replica.status.reason.message


def test_a_larger_base_takes_over_replica_by_replica() -> None:
    world = five()
    world.change(spec("{base: 4, overflow: spot}"))
    world.run(60)
    assert world.places == {(Tier.BASE, "demand"): 4, (Tier.OVERFLOW, "spot"): 1}
    assert world.detail.asked == 1, "it is no other revision"


def test_an_endpoint_that_shrinks_lets_go_of_those_above_its_base_first() -> None:
    world = five()
    world.change(spec(replicas=3))
    world.run(30)
    assert world.places == {(Tier.BASE, "demand"): 2, (Tier.OVERFLOW, "spot"): 1}


def test_without_an_overflow_any_more_all_are_alike_again() -> None:
    world = five()
    world.change(spec("{}"))
    world.run(60)
    assert {tier for tier, _ in world.ready()} == {None}
    assert len(world.ready()) == 5


def test_another_revision_has_a_base_too() -> None:
    world = five()
    world.change(spec(run="better $PORT"))
    world.run(90)
    assert world.places == {(Tier.BASE, "demand"): 2, (Tier.OVERFLOW, "spot"): 3}
    assert world.detail.serving == 2


@pytest.mark.parametrize(
    ("capacity", "why"),
    [
        ("{base: 2}", "it needs `overflow`, the capacity beyond `base`; give `overflow: spot` too"),
        ("{base: 6, overflow: spot}", "`base` is 6, and there are at most 5 replicas; give less"),
        ("{spot: true, overflow: spot}", "`overflow` already says which replicas use spot"),
        ("{overflow: on-demand}", "is not one of spot"),
    ],
)
def test_what_cannot_be_meant_is_refused(capacity: str, why: str) -> None:
    with pytest.raises(InvalidSpec, match=why):
        spec(capacity)
