"""Which layouts GPUs should have."""

import pytest

from benchmarks.candidates.mig.layouts import Wish, choose
from benchmarks.candidates.mig.partitions import Device, Held
from fairlead.policy.gpu.mig import MODELS, MigInstance, counts_of

A100 = MODELS["A100-40GB"]
SMALL, MIDDLE, LARGE = "1g.5gb", "2g.10gb", "3g.20gb"


def at(start: int, profile: str) -> MigInstance:
    return MigInstance(start=start, profile=profile)


def held(start: int, profile: str, move_cost: float | None = None) -> Held:
    return Held(instance=at(start, profile), pod=f"pod-{start}", move_cost=move_cost)


def wish(profile: str, count: int = 1, weight: float = 1.0) -> Wish:
    return Wish(profiles=frozenset({profile}), count=count, weight=weight)


def gpu(*inside: Held | MigInstance, name: str = "gpu-0", as_a_whole: bool = False) -> Device:
    return Device(
        id=name,
        model=A100,
        held=tuple(each for each in inside if isinstance(each, Held)),
        free=tuple(each for each in inside if isinstance(each, MigInstance)),
        as_a_whole=as_a_whole,
    )


def test_a_layout_that_serves_all_wishes_is_kept_as_it_is() -> None:
    device = gpu(at(0, LARGE), at(4, LARGE))
    chosen = choose([device], [wish(LARGE, 2)])
    assert chosen.layouts == {"gpu-0": device.layout}
    assert chosen.served == (2,)


def test_the_worthier_wish_comes_first_where_both_have_no_room() -> None:
    chosen = choose([gpu()], [wish("7g.40gb", weight=3.0), wish(SMALL, 7, weight=0.5)])
    assert chosen.served == (0, 7)
    chosen = choose([gpu()], [wish("7g.40gb", weight=4.0), wish(SMALL, 7, weight=0.5)])
    assert chosen.served == (1, 0)


def test_a_wish_with_several_profiles_takes_what_no_other_wants() -> None:
    either = Wish(profiles=frozenset({SMALL, LARGE}), weight=2.0)
    chosen = choose([gpu(at(0, LARGE), at(4, SMALL), as_a_whole=True)], [either, wish(LARGE)])
    assert chosen.served == (1, 1)


def test_an_instance_in_use_that_may_not_move_stays_where_it_is() -> None:
    device = gpu(held(2, SMALL), at(0, MIDDLE))
    chosen = choose([device], [wish("4g.20gb", weight=100.0), wish(LARGE)])
    assert chosen.served == (0, 1)
    assert at(2, SMALL) in chosen.layouts["gpu-0"]
    assert chosen.moved == ()


def test_a_gpu_that_is_emptied_first_stays_as_it_is_while_it_may_not_be() -> None:
    device = gpu(held(2, SMALL), as_a_whole=True)
    chosen = choose([device], [wish(LARGE)])
    assert chosen.layouts == {"gpu-0": device.layout}
    assert chosen.served == (0,)


@pytest.mark.parametrize(("cost", "served"), [(0.9, (1,)), (1.1, (0,))])
def test_a_pod_moves_when_that_costs_less_than_the_wish_is_worth(cost: float, served: tuple[int, ...]) -> None:
    devices = [gpu(held(2, SMALL, cost)), gpu(held(0, MIDDLE), held(2, MIDDLE), at(4, SMALL), name="gpu-1")]
    chosen = choose(devices, [wish("7g.40gb")])
    assert chosen.served == served
    assert [each.pod for each in chosen.moved] == (["pod-2"] if served == (1,) else [])


def test_a_pod_moves_only_where_there_is_an_instance_of_its_profile_for_it() -> None:
    devices = [gpu(held(2, SMALL, 0.0)), gpu(held(0, LARGE), held(4, LARGE), name="gpu-1")]
    chosen = choose(devices, [wish("7g.40gb", weight=100.0)])
    assert chosen.served == (0,)
    assert chosen.moved == ()


def test_a_pod_may_move_within_its_gpu() -> None:
    chosen = choose([gpu(held(0, SMALL, 0.1))], [wish("4g.20gb")])
    assert chosen.served == (1,)
    assert counts_of(chosen.layouts["gpu-0"])[SMALL] >= 1
    assert [each.pod for each in chosen.moved] == ["pod-0"]


def test_nothing_is_wished_for_and_nothing_changes() -> None:
    devices = [gpu(held(0, SMALL, 0.0)), gpu(at(4, LARGE), name="gpu-1")]
    chosen = choose(devices, [])
    assert chosen.layouts == {device.id: device.layout for device in devices}
    assert chosen.value == 0.0


def test_a_profile_that_no_gpu_has_is_not_served() -> None:
    assert choose([gpu()], [wish("1g.6gb", 3)]).served == (0,)


def test_hundreds_of_gpus_are_partitioned_for_a_mix_of_wishes() -> None:
    devices = [gpu(name=f"gpu-{i:03}", as_a_whole=True) for i in range(200)]
    chosen = choose(devices, [wish(SMALL, 700), wish(LARGE, 200, weight=2.5)])
    assert chosen.served == (700, 200)
