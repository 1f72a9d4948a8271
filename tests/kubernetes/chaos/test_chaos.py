"""Seeded rounds on a real control plane, each with several faults at random instants.

Cheaper tests cover each recovery alone; only this one finds the instants between two steps of any of them.
FAIRLEAD_CHAOS_ROUNDS=200 runs so many of them. Parents of three runs have rounds too, of the kind of ``tests.relay``,
five parents in each.
"""

from collections.abc import Iterator

import pytest

from fairlead.cluster.kubernetes.manifests.roles import OPERATOR
from tests.kubernetes.audit import requests
from tests.kubernetes.chaos.parent_rounds import begin_relay, begin_sweep
from tests.kubernetes.chaos.pipeline_rounds import begin_pipeline
from tests.kubernetes.chaos.rounds import begin
from tests.kubernetes.chaos.world import SYSTEM, World, a_world
from tests.relays import know_relays
from tests.rounds import rounds

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """One for all rounds: operators that live long have more to forget."""
    with pytest.MonkeyPatch.context() as patch, know_relays(patch), a_world() as world:
        yield world


@pytest.mark.parametrize("seed", rounds(few=1, many=4))
def test_no_fault_loses_doubles_or_splits_a_gang(seed: int, world: World) -> None:
    round_ = begin(seed, world)
    round_.storm()
    round_.settle()
    round_.clear()


@pytest.mark.parametrize("seed", rounds(few=0, many=2))
def test_no_fault_loses_doubles_or_orphans_a_child_of_a_parent(seed: int, world: World) -> None:
    round_ = begin_relay(seed, world)
    round_.storm()
    round_.settle()
    round_.clear()


@pytest.mark.parametrize("seed", rounds(few=0, many=1))
def test_no_fault_loses_or_doubles_one_of_forty_trials(seed: int, world: World) -> None:
    round_ = begin_sweep(seed, world)
    round_.storm()
    round_.settle()
    round_.clear()


@pytest.mark.parametrize("seed", rounds(few=0, many=1))
def test_no_fault_loses_or_doubles_a_step_of_twelve(seed: int, world: World) -> None:
    round_ = begin_pipeline(seed, world)
    try:
        round_.storm()
        round_.settle()
        round_.clear()
    finally:
        round_.drivers.stop()


def test_the_operators_asked_for_nothing_that_their_roles_do_not_grant(world: World) -> None:
    asked = {each.right for each in requests(world.plane.audit_log, f"{SYSTEM}:{OPERATOR}")}
    assert asked
    assert asked <= world.granted
