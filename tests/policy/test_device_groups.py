"""Places for pods that need several devices of one node: what they are worth, when, and that pods leave them whole."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.policy.placement import packing
from fairlead.policy.placement.device_groups import WEIGHT, Together
from fairlead.policy.placement.fleet_arrays import FleetArrays
from fairlead.policy.placement.gang_placement import place_gang
from fairlead.policy.placement.packing import Packing
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.policy.placement.task_mix import TaskMix
from tests.policy.fleets import GIB, node, shape

WIDE = shape(gpus=2, cores=16)


def fleet_with_turnover(gpus: int = 2) -> FleetArrays:
    """Two nodes with 16 cores, idle, where one pod of two has left."""
    fleet = FleetArrays((node("a", gpus=gpus, cores=16), node("b", gpus=gpus, cores=16)))
    fleet.num_placed, fleet.num_left = 2, 1
    return fleet


def pairs(num_whole: int, num_broken: int, cores: int = 16) -> FleetArrays:
    """Nodes of two devices, where a pod has left: so many idle, and so many with one idle device."""
    fleet = FleetArrays(tuple(node(f"n{i}", gpus=2, cores=cores) for i in range(num_whole + num_broken)))
    for broken in range(num_whole, num_whole + num_broken):
        fleet.take(broken, 0, 0, (0,), 1000)
    fleet.num_placed, fleet.num_left = 2, 1
    return fleet


@pytest.fixture
def scattered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods do not gather on full nodes, so that only places keep nodes whole."""
    monkeypatch.setattr(packing, "GATHER_WEIGHT", 0.0)


def together(mix: list[Shape], fleet: FleetArrays) -> Together:
    found = Together.of(TaskMix(mix), fleet)
    assert found is not None
    return found


def test_nothing_is_known_of_places_where_no_pod_needs_several_devices() -> None:
    assert Together.of(TaskMix([shape(gpus=1)]), fleet_with_turnover()) is None


def test_a_place_is_worth_what_the_mix_asks_for_in_such_places() -> None:
    # Half of the devices are asked for in pairs.
    half = together([WIDE, shape(gpus=1), shape(gpus=1)], fleet_with_turnover())
    assert half.most.tolist() == pytest.approx([WEIGHT * 0.5 * 2])


def test_a_place_that_few_nodes_can_hold_is_worth_the_more() -> None:
    fleet = FleetArrays((node("a", gpus=2, cores=32), node("b", gpus=2), node("c", gpus=2), node("d", gpus=2)))
    most = together([shape(gpus=2, cores=32), shape(gpus=2, cores=16)], fleet).most
    assert most.tolist() == pytest.approx([WEIGHT * 0.5 * 4 * 2, WEIGHT * 0.5 * 2])


def test_as_many_places_are_expected_as_are_asked_for_by_what_needs_as_much_or_more() -> None:
    fleet = pairs(16, 0, cores=32)
    # Of 32 devices a quarter each is asked for in pairs with 8 cores and in pairs with 16.
    expected = together([shape(gpus=2, cores=8), shape(gpus=2, cores=16), *[shape(gpus=1)] * 4], fleet).expected
    assert expected.tolist() == pytest.approx([8, 4])


@given(st.integers(0, 63))
def test_a_place_is_needed_the_less_the_more_there_are(num_whole: int) -> None:
    mix = [shape(gpus=2), *[shape(gpus=1)] * 30]
    # As many devices are idle in both.
    fewer, more = pairs(num_whole, 64 - num_whole), pairs(num_whole + 1, 63 - num_whole)
    more.take(num_whole + 1 if num_whole < 63 else 0, 0, 0, (1,), 1000)
    assert together(mix, fewer).need[0] >= together(mix, more).need[0]


def test_a_place_is_surely_needed_where_none_is_left_and_not_at_all_where_most_are() -> None:
    mix = [shape(gpus=2), *[shape(gpus=1)] * 30]
    assert together(mix, pairs(0, 64)).need.tolist() == [1.0]
    many = together(mix, pairs(64, 0))
    assert many.need.tolist() == [0.0]
    assert not many.is_needed


def test_before_any_pod_has_left_places_count_while_there_is_room() -> None:
    mix = [shape(gpus=2), shape(gpus=1)]
    needs = []
    for num_taken in range(16):
        fleet = FleetArrays([node(f"n{i}", gpus=1, cores=16) for i in range(16)] + [node("wide", gpus=2, cores=0)])
        for i in range(num_taken):
            fleet.take(i, 16_000, 0, (0,), 1000)
        needs.append(float(together(mix, fleet).need[0]))
    assert needs == sorted(needs, reverse=True)
    assert (needs[0] > 0.5, needs[-1]) == (True, 0.0)


def test_what_lacks_devices_cores_or_memory_is_part_of_a_place_and_the_last_that_is_lacking_counts_most() -> None:
    found = replace(together([shape(gpus=4, cores=16)], fleet_with_turnover(gpus=4)), need=np.array([1.0]))

    def places(idle: int, cores: int, gib: int = 64) -> float:
        one = np.array([0])
        value = found.value(one, np.array([idle]), np.array([1000 * cores]), np.array([gib * GIB]))
        return float(value[0] / found.most[0])

    assert [places(4, 16), places(4, 0), places(0, 16), places(4, 16, 0), places(4, -1)] == pytest.approx(
        [1, 0, 0, 0, 0]
    )
    assert places(3, 16) == pytest.approx(places(4, 12))
    gains = [places(idle + 1, 16) - places(idle, 16) for idle in range(4)]
    assert gains == sorted(gains)
    assert gains[0] > 0


def test_a_node_whose_devices_do_not_serve_the_shape_has_no_place_for_it() -> None:
    fleet = FleetArrays(
        (node("a", gpus=2, model="Tesla T4"), node("b", gpus=2, model="A100"), node("c", gpus=1, model="A100"))
    )
    assert together([shape(gpus=2, model="A100")], fleet).suits[:, 0].tolist() == [False, True, False]


def spots_for_both(fleet: FleetArrays, mix: TaskMix, first: Shape) -> bool:
    """Whether a pod of the first shape leaves a place for the wide one."""
    chooser = Packing(fleet, mix)
    assert place_gang(first, 1, fleet, chooser) is not None
    return place_gang(WIDE, 1, fleet, chooser) is not None


@pytest.mark.usefixtures("scattered")
@pytest.mark.parametrize("first", [shape(cores=4), shape(gpus=1, milli=300, cores=4), shape(gpus=1, cores=4)])
def test_a_pod_goes_where_cores_and_devices_of_a_place_are_broken_already(first: Shape) -> None:
    for broken in ("a", "b"):
        fleet = fleet_with_turnover()
        fleet.take(fleet.index[broken], 1000, 0, (), 0)
        assert spots_for_both(fleet, TaskMix([WIDE, first]), first)


@pytest.mark.usefixtures("scattered")
def test_a_mutant_that_counts_devices_without_their_cores_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    by_cores = Together.value
    monkeypatch.setattr(
        Together, "value", lambda own, nodes, idle, cores, memory: by_cores(own, nodes, idle, cores + 10**6, memory)
    )
    spoiled = []
    for broken in ("a", "b"):
        fleet = fleet_with_turnover()
        fleet.take(fleet.index[broken], 1000, 0, (), 0)
        spoiled.append(not spots_for_both(fleet, TaskMix([WIDE, shape(cores=4)]), shape(cores=4)))
    assert any(spoiled)


def spares_the_cores_of_a_device(fleet: FleetArrays) -> bool:
    """Whether a pod without devices goes where cores are over, and not where the last idle device needs them."""
    wide, single = shape(gpus=2, cores=32), shape(gpus=1, cores=8)
    chooser = Packing(fleet, TaskMix([wide, *[single] * 6]))
    fleet.take(fleet.index["n0"], 22_000, 0, (0,), 1000)
    spots = place_gang(shape(cores=4), 1, fleet, chooser)
    assert spots is not None
    return fleet.names[spots[0].node] != "n0"


@pytest.mark.usefixtures("scattered")
def test_where_there_are_places_enough_one_is_given_up_to_waste_nothing() -> None:
    assert spares_the_cores_of_a_device(pairs(64, 0, cores=32))
    assert not spares_the_cores_of_a_device(pairs(2, 0, cores=32))


@pytest.mark.usefixtures("scattered")
def test_a_mutant_that_keeps_every_node_whole_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Together, "now", lambda own, fleet: replace(own, need=np.ones(len(own.most))))
    assert not spares_the_cores_of_a_device(pairs(64, 0, cores=32))
    assert together([shape(gpus=2), *[shape(gpus=1)] * 30], pairs(64, 0)).is_needed


def test_the_need_for_places_is_looked_at_again_when_they_have_gone() -> None:
    fleet = pairs(64, 0, cores=32)
    packing = Packing(fleet, TaskMix([shape(gpus=2, cores=32), *[shape(gpus=1, cores=8)] * 6]))
    before = packing.choose(shape(cores=4))
    assert before is not None
    # Only that node stays whole, and less than what a mix is learnt again for is taken.
    for i in set(range(64)) - {before.node}:
        fleet.take(i, 8_000, 0, (), 0)
    after = packing.choose(shape(cores=4))
    assert after is not None
    assert after.node != before.node
