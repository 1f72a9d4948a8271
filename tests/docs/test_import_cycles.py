"""No file of the product imports itself by way of others, also not for types alone."""

from graphlib import TopologicalSorter

import grimp

# A spec's rules for engines are in a file of their own, which names the spec's type and nothing else of it.
FOR_TYPES_ALONE = {
    ("fairlead.specs.engines", "fairlead.specs.training"),
    ("fairlead.specs.endpoint_engines", "fairlead.specs.serving"),
}


def graph(*, for_types: bool = False) -> dict[str, set[str]]:
    """The files that each file of the product imports, within functions too; for types alone where that is asked."""
    found = grimp.build_graph("fairlead", cache_dir=None, exclude_type_checking_imports=not for_types)
    return {name: set(found.find_modules_directly_imported_by(name)) - {name} for name in found.modules}


def test_no_file_imports_itself_by_way_of_others() -> None:
    imports = graph(for_types=True)
    assert len(imports) > 200
    for importer, imported in FOR_TYPES_ALONE:
        imports[importer].remove(imported)
    TopologicalSorter(imports).prepare()
