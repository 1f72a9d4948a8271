"""Seeds of tests that are repeated: a few for every day, more with ``-m long``."""

import os
from collections.abc import Sequence

import pytest
from _pytest.mark import ParameterSet

ASKED = "FAIRLEAD_CHAOS_ROUNDS"
"""So many rounds of each such test, and all of them without ``-m long``."""


def parents_per_storm() -> int:
    """Return how many sweeps or pipelines meet the kills of one storm: four where rounds are asked for, else one."""
    return 4 if ASKED in os.environ else 1


def rounds(few: int, many: int) -> list[int | ParameterSet]:
    """Seeds below ``many``, of which those from ``few`` on are long; or as many as somebody has asked for."""
    if ASKED in os.environ:
        return list(range(int(os.environ[ASKED])))
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(few, many))]


def first_of(cases: Sequence[object]) -> list[object]:
    """Cases of one kind, of which the first is looked at always and the others with ``-m long``."""
    rest = (each if isinstance(each, tuple) else (each,) for each in cases[1:])
    return [cases[0], *(pytest.param(*each, marks=pytest.mark.long) for each in rest)]
