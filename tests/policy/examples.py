"""Examples that show a mistake, looked for so long that one is found, and the same way each time."""

from collections.abc import Callable
from random import Random
from typing import TypeVar

from hypothesis import Phase, find, settings
from hypothesis import strategies as st

# Hypothesis' own 100 missed one of which one draw in dozens is an example, once in some hundred runs.
MOST_DRAWS = 5000

Example = TypeVar("Example")


def example_of(strategy: st.SearchStrategy[Example], condition: Callable[[Example], bool]) -> Example:
    """The first that is found, and none simpler; raises where the strategy has none."""
    long = settings(deadline=None, max_examples=MOST_DRAWS, database=None, phases=[Phase.generate])
    return find(strategy, condition, settings=long, random=Random(0))
