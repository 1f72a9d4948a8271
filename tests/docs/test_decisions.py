"""Decisions are found by the part of the tree that they govern; the index itself is checked with the reference."""

import ast
import re

import pytest

from tests.docs.decisions import PARTS, Decision, decisions, index
from tests.docs.reference import SOURCE

NOTES = decisions()
REFERENCE = re.compile(r"\bdecisions?[ /]([0-9]{1,4}(?:(?:, | and )[0-9]{1,4})*)")
HEADED_LATER = ("policy/", "specs/", "cli/", "cluster/local/", "cluster/kubernetes/operator/")


def numbers_in(text: str) -> set[int]:
    """Return the numbers of the decisions to which a text refers."""
    return {int(number) for match in REFERENCE.finditer(text) for number in re.findall("[0-9]+", match[1])}


def is_headed(note: Decision) -> bool:
    """Return whether the module of a note has to name it; modules of some folders do not yet."""
    return note.module != "-" and not note.module.startswith(HEADED_LATER) and "replaced" not in note.status


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.path.stem)
def test_a_note_names_a_part_a_status_and_a_module_that_exist(note: Decision) -> None:
    assert note.part in PARTS
    assert note.module == "-" or (SOURCE / note.module).is_file(), f"there is no {note.module}"
    status = re.fullmatch(r"in force(?:; [\w ]+)?|(?:changed|replaced) by ([0-9]+)(?: and ([0-9]+))?", note.status)
    assert status is not None, f"the status is `in force`, or `changed by N`, or `replaced by N`; not {note.status!r}"
    assert {int(number) for number in status.groups() if number} <= {other.number for other in NOTES}


def test_every_note_is_in_the_index_once() -> None:
    rows = re.findall(r"^\| \[([0-9]+)\]", index(), re.MULTILINE)
    assert sorted(map(int, rows)) == [note.number for note in NOTES]


@pytest.mark.parametrize("note", [note for note in NOTES if is_headed(note)], ids=lambda note: note.path.stem)
def test_the_head_of_a_module_has_the_numbers_of_the_notes_that_govern_it(note: Decision) -> None:
    tree = ast.parse((SOURCE / note.module).read_text(encoding="utf-8"))
    assert note.number in numbers_in(ast.get_docstring(tree) or "")


def test_modules_refer_to_notes_that_exist() -> None:
    known = {note.number for note in NOTES}
    for path in SOURCE.rglob("*.py"):
        unknown = numbers_in(path.read_text(encoding="utf-8")) - known
        assert not unknown, f"{path.relative_to(SOURCE)} refers to decisions that do not exist: {unknown}"
