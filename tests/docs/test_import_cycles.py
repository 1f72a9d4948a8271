"""No file of the product imports itself by way of others, also not for types alone."""

from graphlib import TopologicalSorter

import grimp

# A spec's rules for engines are in a file of their own, which names the spec's type and nothing else of it.
FOR_TYPES_ALONE = {
    ("fairlead.specs.engines", "fairlead.specs.training"),
    ("fairlead.specs.endpoint_engines", "fairlead.specs.serving"),
}


def test_no_file_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph("fairlead", cache_dir=None)
    imports = {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}
    for importer, imported in FOR_TYPES_ALONE:
        imports[importer].remove(imported)
    TopologicalSorter({name: found - {name} for name, found in imports.items()}).prepare()
