"""Seeds of tests that are repeated: a few for every day, more with ``-m long``."""

import os

import pytest
from _pytest.mark import ParameterSet

ASKED = "FAIRLEAD_CHAOS_ROUNDS"
"""So many rounds of each such test, and all of them without ``-m long``."""


def rounds(few: int, many: int) -> list[int | ParameterSet]:
    """Seeds below ``many``, of which those from ``few`` on are long; or as many as somebody has asked for."""
    if ASKED in os.environ:
        return list(range(int(os.environ[ASKED])))
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(few, many))]
