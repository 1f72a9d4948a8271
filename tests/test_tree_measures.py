"""Words that say nothing and repeated names only get fewer, counted for each folder."""

import ast
import textwrap
from pathlib import Path

import pytest

from tests import tree_measures
from tests.tree_measures import EMPTY_WORDS, bound_names, measured, named_members, risen, store, stored, written

BEFORE = {"*": {"repeated_classes": 3}, "gateway": {"words": 2, "each": 4}, "web": {"words": 1, "each": 0}}


def test_no_count_of_a_folder_rises() -> None:
    higher = risen(measured(), stored())
    assert not higher, (
        "these counts may only fall:\n  " + "\n  ".join(higher) + "\nName variables by the noun of what they hold "
        "(`pods`, `route`, `reply`; a loop variable `pod`, `key`) and functions by what they "
        "return or do, give a class a name of its own, and import at the "
        "top what start-up can bear (`python -m benchmarks.cli_startup`). "
        "Where only files moved, `python -m tests.tree_measures --lower` stores the new places."
    )  # fmt: skip


def test_the_stored_counts_are_written_one_folder_a_line() -> None:
    assert tree_measures.STORED.read_text() == written(stored())


def test_assignments_parameters_loops_and_captures_are_counted_and_reads_are_not() -> None:
    tree = ast.parse(
        textwrap.dedent(
            """
            def f(told, *, given: int = 0):
                found = told
                for each, (there, _) in given.asked:
                    found += each
                match there:
                    case [kept]:
                        return kept
                return [said for said in there if (handed := said)]
            """
        )
    )
    assert sorted(bound_names(tree)) == sorted(
        ["told", "given", "found", "each", "there", "_", "found", "kept", "said", "handed"]
    )


def test_functions_classes_and_attributes_are_counted_by_their_whole_name() -> None:
    tree = ast.parse(
        textwrap.dedent(
            """
            class Asked:
                told: int
                kept_at = given.there

                def _said(self):
                    self._found, self.kept_lines = self._handed, told()
            """
        )
    )
    assert [name for name in named_members(tree) if name in EMPTY_WORDS] == ["asked", "said", "found"]


def test_a_higher_count_is_reported_and_a_lower_one_is_not() -> None:
    now = {"*": {"repeated_classes": 3}, "gateway": {"words": 3, "each": 0}, "traces": {"words": 1, "each": 0}}
    assert risen(now, BEFORE) == ["gateway: 3 words, stored 2", "traces: 1 words, stored 0"]


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_sum_that_has_risen_is_stored_only_by_force(
    is_forced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "counts.json"
    path.write_text(written(BEFORE))
    monkeypatch.setattr(tree_measures, "STORED", path)
    now = {"gateway": {"words": 4, "each": 0}}
    if is_forced:
        store(now, is_forced=True)
        assert stored() == now
    else:
        with pytest.raises(SystemExit, match="words: 4, stored 3"):
            store(now, is_forced=False)
        assert stored() == BEFORE


def test_counts_that_moved_to_another_folder_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "counts.json"
    path.write_text(written(BEFORE))
    monkeypatch.setattr(tree_measures, "STORED", path)
    moved = {"*": {"repeated_classes": 3}, "gateway/http": {"words": 3, "each": 4}}
    store(moved, is_forced=False)
    assert stored() == moved
