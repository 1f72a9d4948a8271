"""Replicas of an endpoint go to different nodes and zones, where that takes nothing from other runs."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.policy.placement import spread
from fairlead.policy.placement.fleet_arrays import FleetArrays, Spot
from fairlead.policy.placement.packing import Packing
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.policy.placement.task_mix import TaskMix
from fairlead.state.snapshot import Node
from tests.builders import node as machine
from tests.policy.fleets import node, nodes, shape, shapes
from tests.policy.test_base_capacity import World, spec
from tests.policy.test_packing import REQUESTS, Held, Request
from tests.policy.test_rollout_turns import waits

APART = """
  metadata: {labels: {app: x}}
  spec:
    affinity:
      podAntiAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: x}}}
"""
ZONE = "topology.kubernetes.io/zone"


def taken(fleet: FleetArrays, wanted: Shape, spot: Spot) -> FleetArrays:
    after = fleet.copy()
    after.take(spot.node, wanted.cpu_milli, wanted.memory_bytes, spot.devices, wanted.gpu_milli)
    return after


def num_held(fleet: FleetArrays) -> int:
    """Nodes on which something is held."""
    full = (fleet.cpu_milli == fleet.frame.cpu_milli) & (fleet.memory_bytes == fleet.frame.memory_bytes)
    return int((~(full & (fleet.gpu_milli == fleet.frame.capacity_milli).all(axis=1))).sum())


def places(fleet: FleetArrays) -> list[int]:
    """The number of nodes with at least one, two, ... idle devices."""
    idle = (fleet.gpu_milli == WHOLE_GPU).sum(axis=1)
    return [int((idle >= number).sum()) for number in range(1, fleet.gpu_milli.shape[1] + 1)]


def both(
    machines: Sequence[Node], requests: Sequence[Request], wanted: Shape, peers: Sequence[str]
) -> list[FleetArrays]:
    """The fleet after one more pod, without and with the preference; nothing if it fits nowhere."""
    fleet = Held(machines, requests).fleet
    chooser = Packing(fleet, TaskMix())
    chooser.learn()
    packed, spreading = chooser.pick(wanted), chooser.pick(wanted, None, peers)
    assert (packed is None) == (spreading is None)
    return [] if packed is None or spreading is None else [taken(fleet, wanted, spot) for spot in (packed, spreading)]


ZONES = st.lists(st.sampled_from(("a", "b", "")), min_size=6, max_size=6)
PEERS = st.lists(st.sampled_from([f"n{i}" for i in range(7)]), max_size=6)


def costs_nothing(
    machines: Sequence[Node], requests: Sequence[Request], wanted: Shape, peers: Sequence[str], zones: Sequence[str]
) -> None:
    placed = [replace(each, labels={ZONE: zone} if zone else {}) for each, zone in zip(machines, zones, strict=False)]
    for packed, spreading in [found] if (found := both(placed, requests, wanted, peers)) else []:
        assert num_held(spreading) <= num_held(packed)
        assert all(more >= less for more, less in zip(places(spreading), places(packed), strict=True))


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(nodes(), REQUESTS, shapes(), PEERS, ZONES)
def test_no_more_nodes_are_held_and_no_fewer_places_are_left_than_without_the_preference(
    machines: tuple[Node, ...], requests: list[Request], wanted: Shape, peers: list[str], zones: list[str]
) -> None:
    costs_nothing(machines, requests, wanted, peers, zones)


def test_the_property_catches_a_preference_that_counts_for_more_than_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "_are_equal", lambda *args: args[3] > -np.inf)
    machines = tuple(node(f"n{i}", cores=16) for i in range(3))
    one = shape(cores=1)
    held = Held(machines, [(one, 1)])
    (first,) = (held.fleet.names[spot.node] for _, spot in held.spots)
    with pytest.raises(AssertionError):
        costs_nothing(machines, [(one, 1)], one, [first], ("", "", ""))


def placed_beside(machines: Sequence[Node], busy: Sequence[str], peers: Sequence[str]) -> str:
    """The node of one more replica with one GPU, where one GPU of each of the busy nodes is held."""
    fleet, one = FleetArrays(machines), shape(gpus=1)
    for name in busy:
        fleet.take(fleet.index[name], one.cpu_milli, one.memory_bytes, [0], one.gpu_milli)
    chooser = Packing(fleet, TaskMix())
    chooser.learn()
    spot = chooser.pick(one, None, peers)
    assert spot is not None
    return fleet.names[spot.node]


def test_of_equal_nodes_the_one_with_the_fewest_replicas_is_taken_then_the_zone_with_the_fewest() -> None:
    machines = [
        replace(node(name, gpus=4), labels={ZONE: zone}) for name, zone in (("n0", "a"), ("n1", "a"), ("n2", "b"))
    ]
    busy = ["n0", "n1", "n2"]
    for name in busy:
        others = [each for each in busy if each != name]
        assert placed_beside(machines, busy, others) == name
    assert placed_beside(machines, busy, ["n0"]) == "n2", "the other zone"
    assert placed_beside(machines, busy, ["n2", "gone"]) in ("n0", "n1")


def test_a_node_that_is_empty_stays_empty_for_a_run_that_needs_it() -> None:
    machines, one = [node(f"n{i}") for i in range(3)], shape(cores=1)
    fleet = Held(machines, [(one, 1)]).fleet
    (used,) = (name for name, free in zip(fleet.names, fleet.cpu_milli, strict=True) if free < 16_000)
    chooser = Packing(fleet, TaskMix())
    chooser.learn()
    spot = chooser.pick(one, None, [used])
    assert spot is not None
    assert fleet.names[spot.node] == used


def test_the_replicas_of_an_endpoint_start_on_different_nodes_that_are_in_use_anyway() -> None:
    world = World(spec("{}", replicas=3), *(machine(name) for name in "abc"))
    world.cluster.submit(waits(nodes=3, resources="{cpu: 2}", kubernetes=APART))
    world.run(20)
    assert sorted(at for _, at in world.ready()) == ["a", "b", "c"]
