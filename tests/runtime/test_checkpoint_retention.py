"""Which checkpoints go."""

from hypothesis import given
from hypothesis import strategies as st

from fairlead.runtime.checkpoint.retention import outdated

STEPS = st.sets(st.integers(0, 50), max_size=12)


def test_newest_stay() -> None:
    assert outdated([10, 20, 30, 40], newest=40, keep=2, unusable=[]) == [10, 20]


def test_damaged_ones_go_and_count_for_nothing() -> None:
    assert outdated([10, 20, 30, 40], newest=40, keep=2, unusable=[30]) == [10, 30]


def test_what_was_saved_again_from_an_earlier_step_replaces_what_came_after() -> None:
    assert outdated([10, 15, 20, 30], newest=15, keep=3, unusable=[20, 30]) == [20, 30]


@given(complete=STEPS, newest=st.integers(0, 50), keep=st.integers(1, 6), unusable=STEPS)
def test_newest_always_stays_and_no_more_than_asked_for(
    complete: set[int], newest: int, keep: int, unusable: set[int]
) -> None:
    there = complete | {newest}
    kept = there - set(outdated(there, newest=newest, keep=keep, unusable=unusable))
    assert newest in kept
    usable = (there - unusable) | {newest}
    assert len(kept) == min(keep, len(usable))
