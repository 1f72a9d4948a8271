"""No file of the product imports itself by way of others, also not for types alone."""

import re
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

import fairlead

SOURCE = Path(fairlead.__file__).parent
DEFERRED = re.compile(r'deferred\("(fairlead[\w.]+)"\)')
# A spec's rules for engines are in a file of their own, which names the spec's type and nothing else of it.
FOR_TYPES_ALONE = {
    ("fairlead.specs.engines", "fairlead.specs.training"),
    ("fairlead.specs.endpoint_engines", "fairlead.specs.serving"),
}


def graph(*, for_types: bool = False) -> dict[str, set[str]]:
    """The files that each file of the product imports, within functions too; for types alone where that is asked."""
    found = grimp.build_graph("fairlead", cache_dir=None, exclude_type_checking_imports=not for_types)
    imports = {name: set(found.find_modules_directly_imported_by(name)) - {name} for name in found.modules}
    if not for_types:
        for name, imported in imports.items():
            imported |= deferred_by(name)
    return imports


def deferred_by(module: str) -> set[str]:
    """The files whose import a file defers to their first use."""
    place = SOURCE.parent.joinpath(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return set(DEFERRED.findall(path.read_text()))


def test_no_file_imports_itself_by_way_of_others() -> None:
    imports = graph(for_types=True)
    assert len(imports) > 200
    for importer, imported in FOR_TYPES_ALONE:
        imports[importer].remove(imported)
    TopologicalSorter(imports).prepare()
