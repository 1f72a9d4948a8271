"""MIG layouts and the ways to them, held against random GPUs, and each property against a wrong idea."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.candidates.mig.layouts import Wish
from benchmarks.candidates.mig.legality import why_illegal
from benchmarks.candidates.mig.partitions import Device, Held
from benchmarks.candidates.mig.repartitioning import MigNode
from fairlead.policy.gpu import mig
from fairlead.policy.gpu.mig import MODELS, MigInstance
from tests.benchmarks.slice_mutants import SLICE_MUTANTS, SliceMutant
from tests.benchmarks.slice_properties import SLICE_PROPERTIES, partition

COSTS = st.one_of(st.none(), st.sampled_from((0.0, 0.5, 2.0)))


@st.composite
def devices(draw: Callable[..., object], name: str) -> Device:
    """A GPU with some instances, in use or not."""
    model = MODELS[draw(st.sampled_from(("A30-24GB", "A100-40GB", "H100-80GB")))]  # type: ignore[index]
    places = [MigInstance(start=start, profile=each.name) for each in model.profiles.values() for start in each.starts]
    held: list[Held] = []
    free: list[MigInstance] = []
    for place in draw(st.lists(st.sampled_from(places), max_size=7)):  # type: ignore[attr-defined]
        there = [*(each.instance for each in held), *free]
        if why_illegal(model, [*there, place]) is not None:
            continue
        if draw(st.booleans()):
            free.append(place)
        else:
            cost = draw(COSTS)
            assert cost is None or isinstance(cost, float)
            held.append(Held(instance=place, pod=f"{name}-{place.start}", move_cost=cost))
    as_a_whole = bool(draw(st.booleans()))
    return Device(id=name, model=model, held=tuple(held), free=tuple(sorted(free)), as_a_whole=as_a_whole)


NAMES = sorted({name for model in ("A30-24GB", "A100-40GB", "H100-80GB") for name in MODELS[model].profiles})
WISHES = st.lists(
    st.builds(
        Wish,
        profiles=st.frozensets(st.sampled_from(NAMES), min_size=1, max_size=3),
        count=st.integers(1, 8),
        weight=st.sampled_from((0.5, 1.0, 1.5, 4.0)),
    ),
    max_size=4,
)
NODES = st.tuples(devices("gpu-0"), devices("gpu-1"), devices("gpu-2")).map(
    lambda three: (MigNode(name="a", devices=three[:2]), MigNode(name="b", devices=three[2:]))
)


@settings(max_examples=150, deadline=None)
@given(nodes=NODES, wishes=WISHES)
def test_every_property_holds_whatever_the_gpus_hold(nodes: tuple[MigNode, ...], wishes: list[Wish]) -> None:
    record = partition(nodes, tuple(wishes))
    broken = {holds.__name__: list(holds(record)) for holds in SLICE_PROPERTIES}
    assert broken == {holds.__name__: [] for holds in SLICE_PROPERTIES}


@settings(max_examples=30, deadline=None)
@given(nodes=NODES, wishes=WISHES, seed=st.integers(0, 100))
def test_the_same_gpus_and_wishes_give_the_same_plan_in_any_order_of_nodes(
    nodes: tuple[MigNode, ...], wishes: list[Wish], seed: int
) -> None:
    first, shuffled = partition(nodes, tuple(wishes)), list(nodes)
    Random(seed).shuffle(shuffled)
    assert partition(nodes, tuple(wishes)) == first
    assert partition(tuple(shuffled), tuple(wishes)).chosen.value == pytest.approx(first.chosen.value, rel=0.2)


@pytest.mark.parametrize("mutant", SLICE_MUTANTS, ids=str)
def test_a_property_catches_its_mutant(mutant: SliceMutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mig._filled.cache_clear()
    assert not list(mutant.breaks(partition(mutant.nodes, mutant.wishes)))
    monkeypatch.setattr(mutant.module, mutant.what, mutant.by)
    mig._filled.cache_clear()
    assert list(mutant.breaks(partition(mutant.nodes, mutant.wishes)))
    mig._filled.cache_clear()


def test_every_property_has_a_mutant() -> None:
    assert {mutant.breaks for mutant in SLICE_MUTANTS} == set(SLICE_PROPERTIES)
