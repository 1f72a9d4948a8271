"""Docstrings say what something does, or name it. None begins as a question does."""

import ast
from collections.abc import Iterator
from pathlib import Path

import fairlead

SOURCE = Path(fairlead.__file__).parent
QUESTIONS = {"What", "Whatever", "When", "Where", "Whether", "Which", "Who", "Whoever", "Whose", "Why", "How"}


def begun_as_questions(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first, *_ = (ast.get_docstring(node) or "-").split(maxsplit=1)
            if first in QUESTIONS:
                yield f"{getattr(node, 'name', 'the module')} begins with {first}"


def test_no_docstring_begins_as_a_question_does() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 400
    found = {file.relative_to(SOURCE): tuple(begun_as_questions(file.read_text())) for file in files}
    assert {file: names for file, names in found.items() if names} == {}


def test_a_question_is_found_wherever_it_stands() -> None:
    source = '"""What."""\nclass A:\n    """A thing."""\n    def f(self):\n        """Whether it is."""\n'
    assert list(begun_as_questions(source)) == ["f begins with Whether"]
    assert list(begun_as_questions('"""How it goes."""\n')) == ["the module begins with How"]
