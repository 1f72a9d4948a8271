"""Places for pods that need several devices of one node: what they are worth, and that pods leave them whole."""

import numpy as np
import pytest

from fairlead.policy.fleet import Fleet
from fairlead.policy.gangs import place_gang
from fairlead.policy.packing import Packing
from fairlead.policy.shapes import Shape
from fairlead.policy.task_mix import TaskMix
from fairlead.policy.together import WEIGHT, Together
from tests.policy.fleets import GIB, node, shape

WIDE = shape(gpus=2, cores=16)


def fleet_with_turnover(gpus: int = 2) -> Fleet:
    """Two nodes with 16 cores, idle, where one pod of two has left."""
    fleet = Fleet((node("a", gpus=gpus, cores=16), node("b", gpus=gpus, cores=16)))
    fleet.num_placed, fleet.num_left = 2, 1
    return fleet


def test_places_are_worth_nothing_while_nobody_has_left() -> None:
    fleet = Fleet((node("a", gpus=2),))
    assert Together.of(TaskMix([WIDE]), fleet) is None


def test_a_place_is_worth_what_the_mix_asks_for_in_such_places() -> None:
    together = Together.of(TaskMix([WIDE, shape(gpus=1), shape(gpus=1)]), fleet_with_turnover())
    assert together is not None
    # Half of the devices are asked for in pairs.
    assert together.worth.tolist() == pytest.approx([WEIGHT * 0.5 * 2])


def test_a_place_that_few_nodes_can_hold_is_worth_the_more() -> None:
    fleet = Fleet((node("a", gpus=2, cores=32), node("b", gpus=2), node("c", gpus=2), node("d", gpus=2)))
    fleet.num_placed, fleet.num_left = 2, 1
    together = Together.of(TaskMix([shape(gpus=2, cores=32), shape(gpus=2, cores=16)]), fleet)
    assert together is not None
    assert together.worth.tolist() == pytest.approx([WEIGHT * 0.5 * 4 * 2, WEIGHT * 0.5 * 2])


def test_what_lacks_devices_cores_or_memory_is_part_of_a_place_and_the_last_that_is_lacking_counts_most() -> None:
    together = Together.of(TaskMix([shape(gpus=4, cores=16)]), fleet_with_turnover(gpus=4))
    assert together is not None

    def places(idle: int, cores: int, gib: int = 64) -> float:
        one = np.array([0])
        value = together.value(one, np.array([idle]), np.array([1000 * cores]), np.array([gib * GIB]))
        return float(value[0] / together.worth[0])

    assert [places(4, 16), places(4, 0), places(0, 16), places(4, 16, 0), places(4, -1)] == pytest.approx(
        [1, 0, 0, 0, 0]
    )
    assert places(3, 16) == pytest.approx(places(4, 12))
    gains = [places(idle + 1, 16) - places(idle, 16) for idle in range(4)]
    assert gains == sorted(gains)
    assert gains[0] > 0


def test_a_node_whose_devices_do_not_serve_the_shape_has_no_place_for_it() -> None:
    fleet = Fleet(
        (node("a", gpus=2, model="Tesla T4"), node("b", gpus=2, model="A100"), node("c", gpus=1, model="A100"))
    )
    fleet.num_placed, fleet.num_left = 2, 1
    together = Together.of(TaskMix([shape(gpus=2, model="A100")]), fleet)
    assert together is not None
    assert together.suits[:, 0].tolist() == [False, True, False]


def spots_for_both(fleet: Fleet, mix: TaskMix, first: Shape) -> bool:
    """Whether a pod of the first shape leaves a place for the wide one."""
    packing = Packing(fleet, mix)
    assert place_gang(first, 1, fleet, packing) is not None
    return place_gang(WIDE, 1, fleet, packing) is not None


@pytest.mark.parametrize("first", [shape(cores=4), shape(gpus=1, milli=300, cores=4), shape(gpus=1, cores=4)])
def test_a_pod_goes_where_cores_and_devices_of_a_place_are_broken_already(first: Shape) -> None:
    for broken in ("a", "b"):
        fleet = fleet_with_turnover()
        fleet.take(fleet.index[broken], 1000, 0, (), 0)
        assert spots_for_both(fleet, TaskMix([WIDE, first]), first)


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
