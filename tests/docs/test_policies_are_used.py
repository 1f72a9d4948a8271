"""Every decision in ``policy/`` is one that the product comes to: what nothing calls is no policy of Fairlead."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import fairlead
from fairlead.policy.kinds.table import KINDS
from tests.docs.test_import_cycles import graph

SOURCE = Path(fairlead.__file__).parent
POLICY = SOURCE / "policy"


def words_of(tree: ast.AST) -> Iterator[str]:
    """Every name that a piece of code reads, imports or looks up."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value  # an annotation in quotes


def defined(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """The names that a module defines, with what defines them."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (
                (each.id, node) for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)
            )


def unused(roots: Iterable[str], policies: Iterable[tuple[str, str]]) -> list[str]:
    """What no way of names leads to from the roots: ``file: name``, of functions and classes without an underscore.

    A name counts wherever it stands, so that two things of one name are taken for one. Imports alone lead nowhere.
    """
    known = {word for text in roots for word in words_of(ast.parse(text))}
    left = [(file, name, node) for file, text in policies for name, node in defined(ast.parse(text))]
    while reached := [each for each in left if each[1] in known]:
        left = [each for each in left if each[1] not in known]
        known |= {word for _, _, node in reached for word in words_of(node)}
    return [f"{file}: {name}" for file, name, node in left if not name.startswith("_") and hasattr(node, "name")]


def test_the_product_imports_every_file_of_policy() -> None:
    needs = graph()
    kinds = {f"fairlead.policy.kinds.{kind.lower()}" for kind in KINDS}  # which a table imports by their names
    known = {name for name in needs if not name.startswith("fairlead.policy")} | kinds
    while more := {needed for name in known for needed in needs.get(name, ())} - known:
        known |= more
    assert sorted(name for name in needs.keys() - known if not needs_nothing(name)) == []


def needs_nothing(name: str) -> bool:
    """A folder's own file, that says what belongs there."""
    return (SOURCE.parent / Path(*name.split(".")) / "__init__.py").is_file()


def test_the_product_comes_to_every_public_function_and_class_of_policy() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    policies = [(str(file.relative_to(POLICY)), file.read_text()) for file in files if file.is_relative_to(POLICY)]
    assert len(policies) > 80
    roots = [file.read_text() for file in files if not file.is_relative_to(POLICY)]
    assert unused(roots, policies) == []


def test_what_is_imported_and_never_called_is_found() -> None:
    policy = (
        "from b import other\ndef used():\n    return _helper()\ndef _helper():\n    return 1\ndef idle():\n    pass\n"
    )
    assert unused(["from a import used\n"], [("a.py", policy), ("b.py", "def other():\n    pass\n")]) == [
        "a.py: idle",
        "b.py: other",
    ]
