"""Lists of names are cut after the first few, and say how many more there are."""

import pytest

from fairlead.text.lists import listed


@pytest.mark.parametrize(
    ("names", "text"),
    [([], ""), (["a"], "a"), (["a", "b"], "a, b"), (["a", "b", "c"], "a, b and 1 more"), ("abcde", "a, b and 3 more")],
)
def test_a_list_has_at_most_so_many_names_and_the_number_of_the_others(names: list[str], text: str) -> None:
    assert listed(list(names), 2) == text


def test_clauses_have_a_separator_of_their_own() -> None:
    assert listed(["a is up", "b", "c"], 2, separator="; ", joint="; and ") == "a is up; b; and 1 more"
