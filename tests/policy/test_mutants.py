"""Every property catches what it is for, and holds of the same story when nothing is wrong."""

import pytest

from fairlead.policy import decide as deciding
from fairlead.policy.disruption import defragmentation, preemption
from fairlead.policy.disruption import eviction as making_room
from fairlead.policy.kinds import lost_pods, training
from fairlead.policy.queue import ageing, changes, quotas, replacements, timeline
from fairlead.policy.queue import fair_order as turns
from fairlead.policy.queue import scheduling as starting
from fairlead.policy.scaling import elastic
from tests.policy.mutants import MUTANTS, Mutant
from tests.policy.properties import PROPERTIES
from tests.policy.world import play

MODULES = (
    deciding,
    training,
    lost_pods,
    replacements,
    starting,
    changes,
    turns,
    ageing,
    quotas,
    timeline,
    preemption,
    defragmentation,
    elastic,
    making_room,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_property_catches_its_mutant(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(mutant.breaks(play(mutant.story)))
    knowing = [module for module in MODULES if hasattr(module, mutant.what)] or MODULES
    for module in knowing:
        monkeypatch.setattr(module, mutant.what, mutant.by, raising=False)
    assert list(mutant.breaks(play(mutant.story)))


def test_every_property_has_a_mutant() -> None:
    assert {mutant.breaks for mutant in MUTANTS} == set(PROPERTIES)
