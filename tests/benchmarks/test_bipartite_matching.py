"""Who gets one of several kinds."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.candidates.mig.bipartite_matching import match

KINDS = ("a", "b", "c")
WANTS = st.lists(st.tuples(st.frozensets(st.sampled_from(KINDS), min_size=1), st.integers(1, 3)), max_size=4)
SUPPLY = st.dictionaries(st.sampled_from(KINDS), st.integers(0, 3))


def test_one_that_would_do_with_another_kind_makes_room() -> None:
    assert match({"a": 1, "b": 1}, [(frozenset("ab"), 1), (frozenset("a"), 1)]) == [1, 1]


def test_earlier_ones_come_first() -> None:
    assert match({"a": 1}, [(frozenset("a"), 1), (frozenset("a"), 1)]) == [1, 0]


def test_room_is_made_along_more_than_one_step() -> None:
    wants = [(frozenset("ab"), 1), (frozenset("bc"), 1), (frozenset("a"), 1), (frozenset("b"), 1)]
    assert match({"a": 1, "b": 1, "c": 1}, wants) == [1, 1, 1, 0]


def can_all_be_met(supply: dict[str, int], wants: list[tuple[frozenset[str], int]]) -> bool:
    """By Hall's theorem."""
    groups = [{kind for i, kind in enumerate(KINDS) if mask >> i & 1} for mask in range(2 ** len(KINDS))]
    return all(
        sum(count for profiles, count in wants if profiles <= group) <= sum(supply.get(kind, 0) for kind in group)
        for group in groups
    )


@given(supply=SUPPLY, wants=WANTS)
def test_each_is_met_as_far_as_those_before_it_leave_it_possible(
    supply: dict[str, int], wants: list[tuple[frozenset[str], int]]
) -> None:
    met = match(supply, wants)
    given_out: list[tuple[frozenset[str], int]] = []
    for (profiles, count), num in zip(wants, met, strict=True):
        best = max(each for each in range(count + 1) if can_all_be_met(supply, [*given_out, (profiles, each)]))
        assert num == best
        given_out.append((profiles, num))
