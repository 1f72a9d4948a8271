"""No file of Fairlead needs another that needs it, not even by an import within a function."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import fairlead

SOURCE = Path(fairlead.__file__).parent


def modules(source: Path) -> dict[str, Path]:
    found = {}
    for file in source.rglob("*.py"):
        parts = (source.name, *file.relative_to(source).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(tree: ast.AST, package: str) -> Iterator[tuple[str, str]]:
    """The module and the name of every import, but for those that only the type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                yield from imported(other, package)
        elif isinstance(node, ast.Import):
            yield from ((each.name, "") for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((base, each.name) for each in node.names)
        else:
            yield from imported(node, package)


def graph(source: Path) -> dict[str, set[str]]:
    files = modules(source)
    found: dict[str, set[str]] = {}
    for name, file in files.items():
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        meant = set()
        for module, attribute in imported(ast.parse(file.read_text()), package):
            meant.add(f"{module}.{attribute}" if f"{module}.{attribute}" in files else module)
        found[name] = meant & files.keys() - {name}
    return found


def a_cycle(needs: Mapping[str, set[str]]) -> list[str]:
    """One cycle, from a module to itself; empty when there is none."""
    done: set[str] = set()
    for start in sorted(needs):
        path, rest = [start], [iter(sorted(needs[start]))]
        while path:
            following = next(rest[-1], None)
            if following in path:
                return [*path[path.index(following) :], following]
            if following is None:
                done.add(path.pop())
                rest.pop()
            elif following not in done:
                path.append(following)
                rest.append(iter(sorted(needs[following])))
    return []


def test_no_file_needs_another_that_needs_it() -> None:
    needs = graph(SOURCE)
    assert len(needs) > 200
    assert a_cycle(needs) == []


def test_a_cycle_is_found_also_where_one_of_the_imports_is_within_a_function(tmp_path: Path) -> None:
    package = tmp_path / "p"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from p import b\n")
    (package / "b.py").write_text("def late():\n    from p.c import that\n")
    (package / "c.py").write_text("import typing\nif typing.TYPE_CHECKING:\n    from p import a\n")
    assert a_cycle(graph(package)) == []
    (package / "c.py").write_text(
        "def late():\n    try:\n        from . import a\n    except ImportError:\n        pass\n"
    )
    assert a_cycle(graph(package)) == ["p.a", "p.b", "p.c", "p.a"]
