"""Every property catches what it is for, and holds of the same story when nothing is wrong."""

import pytest

from fairlead.policy import training
from tests.policy.mutants import MUTANTS, Mutant
from tests.policy.properties import PROPERTIES
from tests.policy.world import play


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_property_catches_its_mutant(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(mutant.breaks(play(mutant.story)))
    monkeypatch.setattr(training, mutant.what, mutant.by, raising=False)
    assert list(mutant.breaks(play(mutant.story)))


def test_every_property_has_a_mutant() -> None:
    assert {mutant.breaks for mutant in MUTANTS} == set(PROPERTIES)
