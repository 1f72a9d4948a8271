"""Gangs stay together: in the narrowest domain that holds them, spread over no more of its parts than they need."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.policy.decide import decide
from fairlead.policy.placement import gang_placement as gangs
from fairlead.policy.placement.fleet_arrays import FleetArrays, Spot
from fairlead.policy.placement.gang_placement import members, place_gang
from fairlead.policy.placement.packing import Packing
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.placement.task_mix import TaskMix
from fairlead.policy.placement.topology import FARTHEST_BYTES_PER_S, LEVELS, Fabric, describe_where, domains_of
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.state.snapshot import Gpu, Intent, Node, Snapshot, Workload
from tests.builders import GIB, status, training
from tests.policy.fleets import shape

ZONE, RACK, ISLAND = "topology.kubernetes.io/zone", "topology.kubernetes.io/rack", "nvidia.com/gpu.clique"
ONE = shape(gpus=1)


def ring_all_reduce_s(num_ranks: int, num_bytes: float, bytes_per_s: float) -> float:
    """Seconds that a ring all-reduce takes over its slowest link; the latency of its steps is not counted."""
    return 2 * (num_ranks - 1) / num_ranks * num_bytes / bytes_per_s


def at(name: str, *, gpus: int = 4, more: Mapping[str, str] | None = None, **places: str) -> Node:
    """A node in a zone, a rack and an island, as far as they are given, with more labels."""
    keys = {"zone": ZONE, "rack": RACK, "island": ISLAND}
    devices = tuple(Gpu(uuid=f"{name}-{i}", model="A100", memory_bytes=40 * GIB) for i in range(gpus))
    said = {keys[key]: value for key, value in places.items()} | dict(more or {})
    return Node(name=name, cpu_milli=64_000, memory_bytes=256 * GIB, gpus=devices, labels=said)


def placed(nodes: Sequence[Node], count: int, wanted: Shape = ONE, taken: Sequence[tuple[int, int]] = ()) -> list[str]:
    """Names of the nodes of the members, in their order; empty when they do not fit."""
    fleet = FleetArrays(nodes)
    for node, number in taken:
        fleet.take(node, 0, 0, range(number), 1000)
    spots = place_gang(wanted, count, fleet, Packing(fleet, TaskMix()))
    return [fleet.names[spot.node] for spot in spots or ()]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Node, ...]:
    """Up to seven nodes; some are silent on a level, and racks of two zones may have one name."""
    zones, racks, islands = (None, "a", "b"), (None, "1", "2"), (None, "x", "y")
    found = []
    for number in range(draw(st.integers(2, 7))):
        drawn = {
            "zone": draw(st.sampled_from(zones)),
            "rack": draw(st.sampled_from(racks)),
            "island": draw(st.sampled_from(islands)),
        }
        said = {key: value for key, value in drawn.items() if value is not None}
        found.append(at(f"n{number}", gpus=draw(st.integers(0, 4)), more=None, **said))
    return tuple(found)


def cheapest(nodes: Sequence[Node], count: int) -> tuple[float, int]:
    """The fastest slowest link of any ring of so many members, and the fewest domains just below that level."""
    fleet, fabric = FleetArrays(nodes), Fabric.of(nodes)
    room = members(ONE, count, fleet)
    names = [fleet.names[i] for i in np.flatnonzero(room)]
    most = {fleet.names[i]: int(room[i]) for i in np.flatnonzero(room)}
    possible = (
        chosen
        for chosen in combinations_with_replacement(names, count)
        if all(chosen.count(name) <= most[name] for name in set(chosen))
    )
    return min(_cost(fabric, chosen) for chosen in possible)


def _cost(fabric: Fabric, names: Sequence[str]) -> tuple[float, int]:
    shared = fabric.shared(names)
    below = fabric.crossings(names)[shared] if shared < len(fabric.levels) else 1
    return ring_all_reduce_s(len(names) + 1, 1e9, fabric.slowest_bytes_per_s(names)), below


def strays(nodes: Sequence[Node], count: int) -> Iterator[str]:
    """What is wrong with where a gang was put: its ring could be faster, or leave fewer domains."""
    names = placed(nodes, count)
    if names and _cost(Fabric.of(nodes), names) > cheapest(nodes, count):
        yield f"{count} members on {names} cost {_cost(Fabric.of(nodes), names)}, not {cheapest(nodes, count)}"


@settings(deadline=None, max_examples=150)
@given(clusters(), st.integers(2, 5))
def test_no_ring_of_the_gang_could_be_faster_or_leave_fewer_domains(nodes: tuple[Node, ...], count: int) -> None:
    assert list(strays(nodes, count)) == []


RACKS = (at("a", gpus=2, rack="r1"), at("b", gpus=3, rack="r2"), at("c", gpus=2, rack="r1"))


def anywhere(wanted: Shape, count: int, fleet: FleetArrays, chooser: Packing) -> tuple[Spot, ...]:
    """Wherever each member packs best."""
    spots = []
    for _ in range(count):
        spot = chooser.choose(wanted)
        assert spot is not None
        fleet.take(spot.node, wanted.cpu_milli, wanted.memory_bytes, spot.devices, wanted.gpu_milli)
        spots.append(spot)
    return tuple(spots)


def nodes_only(wanted: Shape, count: int, fleet: FleetArrays, chooser: Packing) -> tuple[Spot, ...] | None:
    """With no level but that of nodes."""
    fleet.frame = copy.copy(fleet.frame)
    fleet.frame.domains = fleet.domains[-1:]
    return gangs.place_gang(wanted, count, fleet, chooser)


@pytest.mark.parametrize("mutant", [anywhere, nodes_only])
def test_a_gang_that_strays_is_caught(mutant: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(strays(RACKS, 4)) == []
    monkeypatch.setattr("tests.policy.test_topology.place_gang", mutant)
    assert list(strays(RACKS, 4))


def test_a_gang_stays_in_the_rack_that_holds_it_and_packing_chooses_among_equals() -> None:
    assert set(placed(RACKS, 4)) == {"a", "c"}
    assert placed(RACKS, 3) == ["b"] * 3


def test_the_fullest_rack_that_holds_the_gang_is_taken_so_that_wide_gangs_find_others_whole() -> None:
    nodes = [at(f"{rack}{number}", gpus=2, rack=rack) for rack in "xy" for number in range(3)]
    assert set(placed(nodes, 4, taken=[(3, 2)])) == {"y1", "y2"}


def test_members_next_to_each_other_in_the_ring_are_next_to_each_other_on_the_ground() -> None:
    nodes = [at(f"n{number}", gpus=2, zone="z", rack=f"r{number % 2}") for number in range(4)]
    racks = [int(name[1]) % 2 for name in placed(nodes, 8)]
    assert racks in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4)


def test_within_an_island_links_are_as_fast_as_within_a_node_so_packing_chooses() -> None:
    nodes = [at("a", gpus=4, island="x"), at("b", gpus=4, island="x"), at("c", gpus=4, rack="r")]
    assert [level.name for level in Fabric.of(nodes).levels] == ["rack", "island"]
    assert set(placed(nodes, 6)) == {"a", "b"}


def test_a_cluster_says_its_own_domains_and_speeds() -> None:
    nodes = [
        at("a", gpus=1, rack="r1", more={"topology.fairlead.dev/rack": "own", "bandwidth.fairlead.dev/rack": "20"}),
        at(
            "b",
            gpus=1,
            rack="r2",
            more={"topology.fairlead.dev/rack": "own", "bandwidth.fairlead.dev/rack": "no number"},
        ),
    ]
    assert describe_where(nodes, ["a", "b"]) == "2 nodes in rack own"
    assert Fabric.of(nodes).slowest_bytes_per_s(["a", "b"]) == 20e9


def test_a_level_inside_of_which_nothing_is_faster_makes_no_difference() -> None:
    nodes = [at("a", zone="z", rack="r", more={"bandwidth.fairlead.dev/rack": "5"}), at("b", zone="z", rack="s")]
    assert [level.name for level in Fabric.of(nodes).levels] == ["zone", "node"]


def test_clusters_without_such_labels_have_nodes_only() -> None:
    fabric = Fabric.of([at("a"), at("b", more={"kubernetes.io/hostname": "b"})])
    assert [level.name for level in fabric.levels] == ["node"]
    assert fabric.slowest_bytes_per_s(["a", "b"]) == FARTHEST_BYTES_PER_S
    assert describe_where([at("a"), at("b")], ["a", "b"]) is None


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("ab", "2 nodes in rack 1"),
        ("ac", "2 nodes in 2 racks of zone z"),
        ("abc", "3 nodes in 2 racks of zone z"),
        ("ad", "2 nodes in 2 zones"),
        ("aa", None),
    ],
)
def test_it_is_said_in_which_narrowest_domain_a_gang_lies(names: str, said: str | None) -> None:
    nodes = [at("a", zone="z", rack="1"), at("b", zone="z", rack="1"), at("c", zone="z", rack="2"),
             at("d", zone="y", rack="1")]  # fmt: skip
    assert describe_where(nodes, list(names)) == said


def test_the_reason_of_a_start_says_where_the_gang_lies() -> None:
    nodes = tuple(at(f"n{number}", gpus=4, zone="z", rack=f"r{number // 2}") for number in range(4))
    spec = training("gang", nodes=2, resources=Resources(gpu=GpuRequest(milli=4000)))
    run = Workload(uid="gang", spec=spec, intent=Intent.RUN, status=status(), version=1, created_at=0.0)
    change = decide(Snapshot(nodes=nodes, workloads=(run,), pods=()), 1_000_000_000.0).changes[0]
    assert change.status is not None
    assert "2 nodes in rack r" in change.status.reason.message


def test_levels_get_faster_from_wide_to_narrow() -> None:
    speeds = [FARTHEST_BYTES_PER_S, *(level.bytes_per_s for level in LEVELS)]
    assert speeds == sorted(set(speeds))


def test_the_domains_of_a_node_are_those_of_its_labels_wide_to_narrow() -> None:
    labels = {
        "topology.fairlead.dev/rack": "r7", "topology.kubernetes.io/rack": "other", "disk": "fast",
        "topology.kubernetes.io/zone": "z1",
    }  # fmt: skip
    assert list(domains_of(labels).items()) == [("zone", "z1"), ("rack", "r7")]
    assert domains_of({}) == {}
