"""The zip files in pods import nothing at their start that neither of them has."""

import ast
import io
import zipfile
from collections.abc import Iterator

import pytest

from fairlead.cluster.kubernetes.manifests import driver_bundle, runtime_bundle


def sources(archive: bytes) -> dict[str, str]:
    """The modules of Fairlead in an archive, by their names."""
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        return {
            name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): files.read(name).decode()
            for name in files.namelist()
            if name.startswith("fairlead/") and name.endswith(".py")
        }


def imported_at_start(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Modules that code imports outside of functions, each also with a name that is imported from it."""
    for statement in body:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from imported_at_start(statement.orelse)
        elif isinstance(statement, ast.ImportFrom) and statement.module is not None:
            yield from ((statement.module, f"{statement.module}.{alias.name}") for alias in statement.names)
        elif isinstance(statement, ast.Import):
            yield from ((alias.name, alias.name) for alias in statement.names)
        elif isinstance(statement, ast.If | ast.With):
            yield from imported_at_start([*statement.body, *getattr(statement, "orelse", [])])


def missing(modules: dict[str, str], present: set[str]) -> list[str]:
    return [
        f"{name} imports {module}"
        for name, source in modules.items()
        for module, attribute in imported_at_start(ast.parse(source).body)
        if module.startswith("fairlead") and module not in present and attribute not in present
    ]


def test_the_runtime_imports_at_its_start_nothing_but_itself() -> None:
    modules = sources(runtime_bundle.bundle())
    assert len(modules) > 100
    assert not missing(modules, set(modules))


def test_the_driver_of_pipelines_imports_at_its_start_nothing_but_itself_and_the_runtime() -> None:
    modules = sources(driver_bundle.bundle())
    assert len(modules) > 50
    present = {*modules, *sources(runtime_bundle.bundle())}
    assert not missing(modules, present)


@pytest.mark.parametrize("source", ["from fairlead.cluster.local import home", "if x:\n    import fairlead.web"])
def test_an_import_of_what_is_not_there_is_seen(source: str) -> None:
    assert missing({"fairlead.a": source}, {"fairlead.a", "fairlead"}) != []
    assert missing({"fairlead.a": f"def f():\n    {source.splitlines()[-1].strip()}"}, {"fairlead.a"}) == []
