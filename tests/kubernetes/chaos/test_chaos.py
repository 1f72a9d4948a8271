"""Seeded rounds on a real control plane, each with several faults at random instants.

Cheaper tests cover each recovery alone; only this one finds the instants between two steps of any of them.
FAIRLEAD_CHAOS_ROUNDS=200 runs more of them, FAIRLEAD_CHAOS_FIRST=50 begins with another seed.
"""

import os
from collections.abc import Iterator

import pytest

from tests.kubernetes.chaos.rounds import begin
from tests.kubernetes.chaos.world import World, a_world
from tests.kubernetes.testcluster.errors import Unavailable

FIRST = int(os.environ.get("FAIRLEAD_CHAOS_FIRST", "0"))
ROUNDS = int(os.environ.get("FAIRLEAD_CHAOS_ROUNDS", "8"))

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """One for all rounds: operators that live long have more to forget."""
    try:
        with a_world() as world:
            yield world
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + ROUNDS))
def test_no_fault_loses_doubles_or_splits_a_gang(seed: int, world: World) -> None:
    round_ = begin(seed, world)
    round_.storm()
    round_.settle()
    round_.clear()
