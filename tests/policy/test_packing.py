"""Safety of placement, each property with a mutant that it must catch; and that pods pack."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.policy.placement.capacity_value import (
    CORES,
    FORCED_WEIGHT,
    LEVELS,
    NUM_SAMPLES,
    PRICES,
    DeviceDemand,
    _fewest_cores,
    table,
)  # fmt: skip
from fairlead.policy.placement.device_matching import matches
from fairlead.policy.placement.fleet_arrays import FleetArrays, Spot
from fairlead.policy.placement.gang_placement import Chooser, members, place_gang, release
from fairlead.policy.placement.node_arrays import Ints, Mask
from fairlead.policy.placement.packing import Packing
from fairlead.policy.placement.placement import NodeCapacity, grant_of
from fairlead.policy.placement.pod_shapes import WHOLE_GPU, Shape
from fairlead.policy.placement.task_mix import TaskMix
from fairlead.state.snapshot import Node
from tests.policy.fleets import node, nodes, shape, shapes

Request = tuple[Shape, int]
Place = Callable[[Shape, int, FleetArrays, Chooser], tuple[Spot, ...] | None]
REQUESTS = st.lists(st.tuples(shapes(), st.integers(1, 4)), min_size=1, max_size=12)


MOST_MEMBERS = 12


class Held:
    """What came of requests: who holds what, by our own count."""

    def __init__(self, machines: Sequence[Node], requests: Sequence[Request], place: Place = place_gang) -> None:
        self.fleet = FleetArrays(machines)
        packing = Packing(self.fleet, TaskMix())
        self.placed: list[tuple[Shape, int, tuple[Spot, ...] | None]] = []
        for wanted, count in requests:
            packing.observe(wanted)
            self.placed.append((wanted, count, place(wanted, count, self.fleet, packing)))

    @property
    def spots(self) -> list[tuple[Shape, Spot]]:
        return [(wanted, spot) for wanted, _, spots in self.placed for spot in spots or ()]


def nothing_is_held_twice(held: Held) -> None:
    """No device, core or byte of memory is given to more than it has room for."""
    devices: dict[tuple[int, int], int] = defaultdict(int)
    cpu: dict[int, int] = defaultdict(int)
    memory: dict[int, int] = defaultdict(int)
    for wanted, spot in held.spots:
        cpu[spot.node] += wanted.cpu_milli
        memory[spot.node] += wanted.memory_bytes
        for device in spot.devices:
            devices[spot.node, device] += wanted.gpu_milli
    machines = held.fleet.nodes
    assert all(milli <= WHOLE_GPU for milli in devices.values())
    assert all(milli <= machines[i].cpu_milli for i, milli in cpu.items())
    assert all(size <= machines[i].memory_bytes for i, size in memory.items())


def every_pod_is_where_it_matches(held: Held) -> None:
    """Each pod is on a ready node, on as many different devices of the kind asked for."""
    for wanted, spot in held.spots:
        machine = held.fleet.nodes[spot.node]
        assert machine.ready
        assert len(set(spot.devices)) == len(spot.devices) == wanted.num_gpus
        for device in spot.devices:
            gpu = machine.gpus[device]
            assert matches(gpu.model, gpu.memory_bytes, wanted.gpu_model, wanted.min_gpu_memory_bytes)


def no_gang_is_partial(held: Held) -> None:
    """A gang has all of its members, or nothing is held for it."""
    for _, count, spots in held.placed:
        assert spots is None or len(spots) == count
    taken = sum(wanted.cpu_milli for wanted, _ in held.spots)
    total = sum(machine.cpu_milli for machine in held.fleet.nodes)
    assert int(held.fleet.cpu_milli.sum()) == total - taken


@settings(deadline=None, max_examples=25)
@given(nodes(), REQUESTS)
def test_nothing_is_held_twice_every_pod_matches_and_no_gang_is_partial(
    machines: tuple[Node, ...], requests: list[Request]
) -> None:
    held = Held(machines, requests)
    nothing_is_held_twice(held)
    every_pod_is_where_it_matches(held)
    no_gang_is_partial(held)


@settings(deadline=None, max_examples=25)
@given(nodes(), REQUESTS)
def test_a_shape_fits_by_the_arrays_just_where_it_fits_by_the_room_of_one_node(
    machines: tuple[Node, ...], requests: list[Request]
) -> None:
    fleet = Held(machines, requests).fleet
    for wanted, _ in requests:
        everywhere = np.arange(len(fleet))
        fits = fleet.fits(everywhere, wanted, fleet.usable(everywhere, wanted))
        for i, machine in enumerate(machines):
            free = {gpu.uuid: int(fleet.gpu_milli[i, j]) for j, gpu in enumerate(machine.gpus)}
            room = NodeCapacity(machine, int(fleet.cpu_milli[i]), int(fleet.memory_bytes[i]), free)
            assert (room.fit(wanted) is not None) == bool(fits[i])


@settings(deadline=None, max_examples=25)
@given(nodes(), REQUESTS, shapes())
def test_a_gang_is_said_to_fit_just_when_its_members_find_places_one_by_one(
    machines: tuple[Node, ...], requests: list[Request], wanted: Shape
) -> None:
    fleet = Held(machines, requests).fleet
    most = len(one_by_one(wanted, fleet))
    for count in range(1, MOST_MEMBERS + 1):
        assert (int(members(wanted, count, fleet).sum()) >= count) == (count <= most)


def one_by_one(wanted: Shape, fleet: FleetArrays) -> list[Spot]:
    """Places for as many members as find one, up to ``MOST_MEMBERS``; nothing is taken after it."""
    packing = Packing(fleet, TaskMix())
    spots: list[Spot] = []
    while len(spots) < MOST_MEMBERS and (spot := packing.choose(wanted)) is not None:
        fleet.take(spot.node, wanted.cpu_milli, wanted.memory_bytes, spot.devices, wanted.gpu_milli)
        spots.append(spot)
    for spot in spots:
        fleet.release(spot.node, wanted.cpu_milli, wanted.memory_bytes, spot.devices, wanted.gpu_milli)
    return spots


@settings(deadline=None, max_examples=15)
@given(nodes(), REQUESTS)
def test_the_same_requests_give_the_same_plan(machines: tuple[Node, ...], requests: list[Request]) -> None:
    assert repr(Held(machines, requests).placed) == repr(Held(machines, requests).placed)


@settings(deadline=None, max_examples=15)
@given(nodes(), REQUESTS)
def test_what_is_refused_fits_nowhere_and_all_that_is_released_is_free_again(
    machines: tuple[Node, ...], requests: list[Request]
) -> None:
    held = Held(machines, [(wanted, 1) for wanted, _ in requests])
    wanted, _, spots = held.placed[-1]
    everywhere = np.arange(len(machines))
    if spots is None:
        assert not held.fleet.fits(everywhere, wanted, held.fleet.usable(everywhere, wanted)).any()
    for given_to, spot in held.spots:
        release(given_to, spot, held.fleet)
    empty = FleetArrays(machines)
    assert (held.fleet.gpu_milli == empty.gpu_milli).all()
    assert (held.fleet.cpu_milli == empty.cpu_milli).all()
    assert held.fleet.free_gpu_milli == empty.free_gpu_milli


@settings(deadline=None, max_examples=30)
@given(nodes(), REQUESTS)
def test_many_grants_held_at_once_are_held_as_one_by_one(machines: tuple[Node, ...], requests: list[Request]) -> None:
    grants = [
        (spot.node, grant_of(wanted, tuple(machines[spot.node].gpus[i].uuid for i in spot.devices)))
        for wanted, spot in Held(machines, requests).spots
    ]
    together, apart = FleetArrays(machines), FleetArrays(machines)
    # Twice, so that more is held than there is.
    together.hold([*grants, *grants])
    for index, grant in [*grants, *grants]:
        devices = apart.frame.devices(index, grant)
        apart.take(index, grant.cpu_milli, grant.memory_bytes, devices, grant.gpu_milli)
    assert (together.gpu_milli == apart.gpu_milli).all()
    assert (together.cpu_milli == apart.cpu_milli).all()
    assert (together.memory_bytes == apart.memory_bytes).all()
    assert (together.free_gpu_milli, together.changes) == (apart.free_gpu_milli, apart.changes)


class AnyDevice(FleetArrays):
    """A mutant: room is there whatever is held, and whatever the device."""

    def usable(self, nodes: Ints, shape: Shape) -> Mask:
        return np.ones((len(nodes), self.gpu_milli.shape[1]), dtype=np.bool_)


def keep_the_rest(wanted: Shape, count: int, fleet: FleetArrays, chooser: Chooser) -> tuple[Spot, ...] | None:
    """A mutant: a gang that does not fit whole leaves its first members where they are."""
    spots: list[Spot] = []
    for _ in range(count):
        spots.extend(place_gang(wanted, 1, fleet, chooser) or ())
    return tuple(spots)


def test_a_mutant_that_looks_at_no_device_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FleetArrays, "usable", AnyDevice.usable)
    twice = Held((node("a", gpus=1), node("b")), [(shape(gpus=1), 1)] * 3)
    with pytest.raises(AssertionError):
        nothing_is_held_twice(twice)
    other = Held([node(name, gpus=1, model="Tesla T4") for name in "ab"], [(shape(gpus=1, model="A100"), 1)])
    with pytest.raises(AssertionError):
        every_pod_is_where_it_matches(other)


def test_a_mutant_that_sends_pods_to_nodes_that_are_not_ready_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = (node("a", ready=False), node("b", ready=False))
    assert Held(machines, [(shape(), 1)]).spots == []
    monkeypatch.setattr(FleetArrays, "fits", lambda fleet, nodes, wanted, usable: np.ones(len(nodes), dtype=np.bool_))
    with pytest.raises(AssertionError):
        every_pod_is_where_it_matches(Held(machines, [(shape(), 1)]))


def test_a_mutant_that_keeps_half_a_gang_is_caught() -> None:
    machines = (node("a", cores=2), node("b", cores=2))
    no_gang_is_partial(Held(machines, [(shape(cores=2), 3)]))
    with pytest.raises(AssertionError):
        no_gang_is_partial(Held(machines, [(shape(cores=2), 3)], keep_the_rest))


def test_a_mutant_with_its_own_dice_gives_another_plan() -> None:
    machines = tuple(node(f"n{i}") for i in range(6))
    dice = np.random.default_rng()

    def anywhere(wanted: Shape, count: int, fleet: FleetArrays, chooser: Chooser) -> tuple[Spot, ...] | None:
        return tuple(Spot(node=int(dice.integers(len(fleet))), devices=()) for _ in range(count))

    requests = [(shape(), 4)] * 12
    assert repr(Held(machines, requests, anywhere).placed) != repr(Held(machines, requests, anywhere).placed)


def test_shares_that_fill_a_device_together_come_together() -> None:
    mix = [shape(gpus=1, milli=700), shape(gpus=1, milli=300), shape(gpus=1, milli=500)] * 20
    fleet = FleetArrays((node("a", gpus=2), node("b", gpus=2)))
    packing = Packing(fleet, TaskMix(mix))
    for wanted in mix[:6]:
        assert place_gang(wanted, 1, fleet, packing) is not None
    # Two of each: 700 with 300 twice, and 500 with 500, leave one of four devices untouched.
    assert sorted(fleet.gpu_milli.ravel().tolist()) == [0, 0, 0, 1000]


def test_cores_are_left_where_devices_need_them() -> None:
    fleet = FleetArrays((node("much", gpus=1, cores=32), node("little", gpus=1, cores=16)))
    packing = Packing(fleet, TaskMix([shape(gpus=1, cores=12)] * 20))
    spots = place_gang(shape(cores=8), 1, fleet, packing)
    assert spots is not None
    assert fleet.names[spots[0].node] == "much"


def test_once_pods_leave_devices_stay_together_for_those_that_need_several() -> None:
    mix = [shape(gpus=2), shape(gpus=1)] * 10
    fleet = FleetArrays(tuple(node(name, gpus=2) for name in "abcd"))
    packing = Packing(fleet, TaskMix(mix))
    first = place_gang(shape(gpus=1), 8, fleet, packing)
    assert first is not None
    left = {(spot.node, spot.devices[0]): spot for spot in first}
    for spot in (left[2, 0], left[2, 1], left[0, 0], left[3, 1]):
        release(shape(gpus=1), spot, fleet)
    assert fleet.turnover == 0.5
    for _ in range(2):
        assert place_gang(shape(gpus=1), 1, fleet, packing) is not None
    assert place_gang(shape(gpus=2), 1, fleet, packing) is not None


def test_a_gang_that_did_not_fit_counts_neither_as_placed_nor_as_over() -> None:
    fleet = FleetArrays((node("a", cores=2), node("b", cores=2)))
    assert place_gang(shape(cores=2), 3, fleet, Packing(fleet, TaskMix())) is None
    assert (fleet.num_placed, fleet.turnover) == (0, 0.0)


@pytest.mark.parametrize("num_left", [0, 1])
def test_a_pod_without_devices_goes_where_there_are_none(num_left: int) -> None:
    for names in (("a", "b"), ("b", "a")):
        fleet = FleetArrays((node(names[0], gpus=1, cores=16), node(names[1], cores=64)))
        fleet.num_placed, fleet.num_left = 2, num_left
        fleet.take(0, 14_000, 0, (0,), WHOLE_GPU)
        spots = place_gang(shape(), 1, fleet, Packing(fleet, TaskMix()))
        assert spots is not None
        assert fleet.names[spots[0].node] == names[1]


def test_a_model_is_not_another_whose_name_begins_alike() -> None:
    assert matches("NVIDIA A10", 0, "A10", None)
    assert not matches("NVIDIA A100-SXM4-40GB", 0, "A10", None)
    assert matches("NVIDIA A100-SXM4-40GB", 0, "H100|a100", None)


@settings(deadline=None, max_examples=10)
@given(st.lists(st.sampled_from((7, 19, 33, 50, 81, 100)), max_size=4, unique=True), st.floats(5.0, 30.0))
def test_worth_is_that_of_looking_at_every_level(widths: list[int], candidates: float) -> None:
    demand = DeviceDemand(widths=tuple(widths), cores=(4.0,) * len(widths), rates=(0.5,) * len(widths))
    fewest, steps = _fewest_cores(demand, candidates), np.arange(LEVELS, dtype=np.uint8)[:, None, None]
    used = np.maximum.accumulate(np.where(fewest[:, None, :] <= CORES[:, None], steps, np.uint8(0)))
    within = used.sum(axis=2, dtype=np.uint32) / (NUM_SAMPLES * (LEVELS - 1))
    looked_at = (within[:, :, None] - CORES[:, None] * PRICES).max(axis=1)
    assert (table(demand, candidates, 0.0) == looked_at).all()


def test_an_idle_device_is_worth_less_if_a_pod_that_leaves_a_dead_rest_may_come_first() -> None:
    spoiling = DeviceDemand(widths=(50, 81), cores=(1.0, 1.0), rates=(1.0, 1.0))
    forced, free = table(spoiling, 20.0, 1.0)[:, 0], table(spoiling, 20.0, 0.0)[:, 0]
    assert free[100] > 0.99
    assert forced[100] == pytest.approx(free[100] - FORCED_WEIGHT * 0.19 * 81 / 131, abs=0.01)
    assert forced[60] == free[60]


def gathers(wanted: Shape, taken: int, turnover: bool = True) -> bool:
    """Whether a pod goes to whichever of two like nodes has so many devices and as many cores in use."""
    for used in (0, 1):
        fleet = FleetArrays([node(name, gpus=16, cores=16) for name in ("a", "b")])
        fleet.num_placed, fleet.num_left = 10, int(turnover)
        fleet.take(used, 1000 * taken, 0, range(taken if wanted.num_gpus else 0), WHOLE_GPU)
        spot = Packing(fleet, TaskMix([wanted])).choose(wanted)
        assert spot is not None
        if spot.node != used:
            return False
    return True


@given(st.sampled_from((shape(), shape(gpus=1), shape(gpus=1, milli=500))), st.integers(2, 15))
def test_where_pods_leave_they_gather_on_the_fuller_of_two_nodes(wanted: Shape, taken: int) -> None:
    assert gathers(wanted, taken)


def test_a_mutant_that_takes_like_nodes_by_their_order_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not gathers(shape(), 8, turnover=False)
    monkeypatch.setattr(Packing, "_emptiness", lambda own, nodes, scarce: np.zeros(len(nodes)))
    assert not gathers(shape(), 8)
    assert not gathers(shape(gpus=1), 8)


def goes_to_fewer_cores(cores: int, gpus: int) -> bool:
    """Whether a pod goes where few cores are free, not where few devices are, with so many in use on all others."""
    found = set()
    for few in (0, 1):
        fleet = FleetArrays([node(f"n{i}", gpus=16, cores=16) for i in range(8)])
        fleet.num_placed, fleet.num_left = 10, 1
        fleet.take(few, 6000, 0, (), 0)
        fleet.take(1 - few, 0, 0, range(8), WHOLE_GPU)
        for other in range(2, 8):
            fleet.take(other, 1000 * cores, 0, range(gpus), WHOLE_GPU)
        spot = Packing(fleet, TaskMix([shape()])).choose(shape(), np.array([0, 1]))
        assert spot is not None
        found.add(spot.node == few)
    assert len(found) == 1
    return found.pop()


def test_pods_gather_by_what_is_scarce() -> None:
    assert goes_to_fewer_cores(cores=16, gpus=0)
    assert not goes_to_fewer_cores(cores=0, gpus=16)


def test_a_mutant_that_takes_cores_for_as_scarce_as_devices_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FleetArrays, "free_devices", property(lambda own: own.free_cores))
    assert goes_to_fewer_cores(cores=0, gpus=16)
