"""The way from the layouts that GPUs have to those they should have."""

from benchmarks.candidates.mig.partitions import Device, Held
from benchmarks.candidates.mig.repartitioning import (
    Await,
    Cordon,
    Drain,
    MigConfig,
    MigNode,
    Relabel,
    Uncordon,
    mig_config,
    repartition,
    say,
)
from fairlead.policy.gpu.mig import MODELS, Layout, MigInstance

A100, A30 = MODELS["A100-40GB"], MODELS["A30-24GB"]
SMALL, MIDDLE, LARGE, WHOLE = "1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"


def layout(*places: tuple[int, str]) -> Layout:
    return tuple(MigInstance(start=start, profile=profile) for start, profile in places)


SEVEN = layout(*((i, SMALL) for i in range(7)))
TWO = layout((0, LARGE), (4, LARGE))


def held(start: int, profile: str, move_cost: float | None, pod: str = "pod") -> Held:
    return Held(instance=MigInstance(start=start, profile=profile), pod=pod, move_cost=move_cost)


def node(name: str, *inside: Held | MigInstance, gpus: int = 1) -> MigNode:
    """What is inside is inside the first GPU; further ones are empty."""
    users = tuple(each for each in inside if isinstance(each, Held))
    free = tuple(each for each in inside if isinstance(each, MigInstance))
    first = Device(id=f"{name}/0", model=A100, held=users, free=free)
    return MigNode(name=name, devices=(first, *(Device(id=f"{name}/{i}", model=A100) for i in range(1, gpus))))


def test_a_free_gpu_is_partitioned_anew_without_anybody_leaving() -> None:
    plan = repartition([node("a", *TWO)], {"a/0": SEVEN})
    config = MigConfig(name="all-1g.5gb", counts=(((0,), ((SMALL, 7),)),))
    assert plan.actions == (
        Cordon(node="a"),
        Relabel(node="a", config=config),
        Await(node="a"),
        Uncordon(node="a"),
    )
    assert (plan.move_cost, plan.steps[0].num_gpus) == (0.0, 1)


def test_who_uses_a_gpu_that_is_emptied_leaves_before_it_is() -> None:
    busy = node("a", held(0, SMALL, 2.5, "trains"), gpus=2)
    plan = repartition([busy, node("b", *SEVEN)], {"a/0": TWO, "a/1": TWO})
    (step,) = plan.steps
    assert step.actions[1] == Drain(node="a", pods=("trains",))
    assert (step.leaving, step.without, step.move_cost, step.num_gpus) == (("trains",), (), 2.5, 2)


def test_a_pod_on_a_gpu_that_stays_as_it_is_is_left_alone() -> None:
    plan = repartition([node("a", held(0, SMALL, None), gpus=2)], {"a/1": TWO})
    assert plan.refused == {}
    assert plan.steps[0].leaving == ()
    assert plan.steps[0].actions[1] == Relabel(
        node="a", config=mig_config((), (layout((0, SMALL)), TWO))
    )  # fmt: skip


def test_a_gpu_that_is_in_use_by_a_pod_that_may_not_move_is_refused_and_the_others_go_on() -> None:
    plan = repartition([node("a", held(0, SMALL, None, "serves")), node("b")], {"a/0": TWO, "b/0": TWO})
    assert plan.refused == {"a": "a/0 has a 1g.5gb in use by serves, which may not be moved"}
    assert [step.node for step in plan.steps] == ["b"]


def test_an_illegal_layout_is_refused_with_what_is_wrong() -> None:
    plan = repartition([node("a")], {"a/0": layout((2, LARGE))})
    assert plan.steps == ()
    why = "a/0 (A100-40GB) has no 3g.20gb that begins at slice 2; one may begin at 0, 4"
    assert plan.refused == {"a": why}


def test_the_same_number_of_each_profile_in_other_places_is_no_change() -> None:
    other = layout((0, SMALL), (4, LARGE))
    assert repartition([node("a", *layout((1, SMALL), (4, LARGE)))], {"a/0": other}).steps == ()


def test_nodes_that_nobody_leaves_come_first_as_they_make_room_for_the_others() -> None:
    nodes = [
        node("a", held(0, SMALL, 1.0, "dear")),
        node("b", held(0, SMALL, 0.5, "cheap")),
        node("c", *TWO),
    ]
    plan = repartition(nodes, {"a/0": TWO, "b/0": TWO, "c/0": layout((0, SMALL), (4, LARGE))})
    assert [step.node for step in plan.steps] == ["c", "b", "a"]
    assert [step.without for step in plan.steps] == [(), (), ("dear",)]
    assert plan.move_cost == 1.5
    assert say(plan.steps[1]) == (
        "b is partitioned as all-3g.20gb: 1 GPU out of use meanwhile; cheap moves, at a cost of 0.5"
    )
    assert say(plan.steps[2]).endswith("dear moves, at a cost of 1; dear waits for an instance until then, or longer")


def test_a_configuration_is_named_by_what_it_says() -> None:
    devices = node("a", gpus=2).devices
    mixed = mig_config(devices, [TWO, SEVEN])
    assert mixed.counts == (((0,), ((LARGE, 2),)), ((1,), ((SMALL, 7),)))
    assert not mixed.is_built_in
    assert mixed.name == mig_config(devices, [TWO, SEVEN]).name != mig_config(devices, [SEVEN, TWO]).name
    assert mig_config(devices, [TWO, TWO]).name == "all-3g.20gb"
    assert not mig_config(devices, [SEVEN[:6], SEVEN[:6]]).is_built_in
    small = (Device(id="a30", model=A30),)
    assert mig_config(small, [layout((0, "1g.6gb+me"))]).name == "all-1g.6gb.me"
