"""Measures how the source reads: words that say nothing, repeated names, imports that point back.

    python -m tests.tree_measures            # print all figures
    python -m tests.tree_measures --lower    # store today's counts, after some have fallen or files have moved

`tree_measures.json` holds counts for each folder of `src/fairlead`, which may only fall (`test_tree_measures.py`).
`--lower` accepts a rise in one folder if the sum over all of them does not rise, as where files move; `--force` any.
"""

import argparse
import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fairlead"
STORED = Path(__file__).with_suffix(".json")
EMPTY_WORDS = frozenset(["found", "told", "given", "asked", "there", "said", "kept", "handed"])
"""Names of variables and parameters that do not say what is held."""
CLUSTERS = frozenset(("LocalCluster", "UserClient", "KubernetesCluster", "SimulatedCluster"))
KINDS = frozenset(("Training", "Serving", "Replica", "Sweep", "Pipeline", "Federation", "Team", "Pool"))
FLOORS = (
    ("decide", "next_decision", "pass_cache", "start_outlook"), ("kinds", "serving", "search", "workloads"),
    ("queue", "selection", "disruption", "scaling", "capacity", "scheduling"), ("placement", "gpu"),
)  # fmt: skip
"""Rooms of `policy/`, the upper floors first; `strategy` and `fleet` stand beside them."""
CHANGE_FIELDS = frozenset(["status", "intent", "event", "create", "terminate", "forget", "submit", "children"])
_PUBLIC_CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)
Table = dict[str, dict[str, int]]


def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def modules(folder: Path = SOURCE) -> list[Path]:
    """Return the Python files of a folder and of those below it."""
    return sorted(folder.rglob("*.py"))


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Yield the name of each parameter, assignment, loop variable and capture; a name assigned twice comes twice."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name is not None:
            yield node.name


def named_members(tree: ast.AST) -> Iterator[str]:
    """Yield the name of each function, class and assigned attribute, without the underscores around it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name.strip("_").lower()
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr.strip("_")


def folder_of(path: Path) -> str:
    """Return the folder of a module below the package, and `.` for the package itself."""
    return path.parent.relative_to(SOURCE).as_posix()


def words_by_folder() -> Table:
    """Return for each folder how many variables, and how many members, have an empty word as name, or are `each`."""
    table: Table = defaultdict(lambda: {"words": 0, "each": 0, "members": 0})
    for path in modules():
        tree = parsed(path)
        for name in bound_names(tree):
            if name in EMPTY_WORDS:
                table[folder_of(path)]["words"] += 1
            elif name == "each":
                table[folder_of(path)]["each"] += 1
        if num_members := sum(name in EMPTY_WORDS for name in named_members(tree)):
            table[folder_of(path)]["members"] += num_members
    return dict(sorted(table.items()))


def repeated_classes() -> dict[str, list[str]]:
    """Return the public classes that two or more modules define, with those modules."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for name in _PUBLIC_CLASS.findall(path.read_text(encoding="utf-8")):
            homes[name].append(path.relative_to(SOURCE).as_posix())
    return {name: paths for name, paths in sorted(homes.items()) if len(paths) > 1}


def late_imports() -> int:
    """Return how many imports of Fairlead's own modules stand inside functions."""
    count = 0
    for path in modules():
        late = set()
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                late |= {inner for inner in ast.walk(node) if isinstance(inner, ast.Import | ast.ImportFrom)}
        count += sum(any(name.startswith("fairlead") for name in _imported(node)) for node in late)
    return count


def _imported(node: ast.AST) -> list[str]:
    """Return the modules that an import names; of `from fairlead.a import b` both `fairlead.a` and `fairlead.a.b`."""
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return []


def upward_arrows() -> set[tuple[str, str]]:
    """Return the pairs of a room of `policy/` and one on a floor above it that it imports."""
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    arrows = set()
    for path in modules(SOURCE / "policy"):
        room = path.relative_to(SOURCE / "policy").parts[0].removesuffix(".py")
        for node in ast.walk(parsed(path)):
            for name in _imported(node):
                above = name.removeprefix("fairlead.policy.").split(".")[0]
                if name.startswith("fairlead.policy.") and floor.get(above, 99) < floor.get(room, -1):
                    arrows.add((room, above))
    return arrows


def operator_imports() -> int:
    """Return how many imports lead from the Kubernetes client into the operator."""
    below = "fairlead.cluster.kubernetes.operator"
    imports = [
        node
        for path in modules(SOURCE / "cluster" / "kubernetes" / "client")
        for node in ast.walk(parsed(path))
        if any(name == below or name.startswith(f"{below}.") for name in _imported(node))
    ]
    return len(imports)


def cluster_checks() -> int:
    """Return how many `isinstance` in `cli` and `web` ask which cluster it is."""
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and any(isinstance(part, ast.Name) and part.id in CLUSTERS for part in ast.walk(node.args[1]))
        for folder in ("cli", "web")
        for path in modules(SOURCE / folder)
        for node in ast.walk(parsed(path))
    )


def kinds_by_class_name() -> int:
    """Return how many comparisons tell a kind by the text of its class's name."""
    return sum(
        isinstance(node, ast.Compare)
        and any(isinstance(part, ast.Attribute) and part.attr == "__name__" for part in ast.walk(node))
        and any(isinstance(part, ast.Constant) and part.value in KINDS for part in ast.walk(node))
        for path in modules()
        if "__name__" in path.read_text(encoding="utf-8")
        for node in ast.walk(parsed(path))
    )


def status_fields() -> int:
    """Return the number of fields of `Status` of a workload."""
    (status,) = (
        node
        for node in parsed(SOURCE / "state" / "snapshot.py").body
        if isinstance(node, ast.ClassDef) and node.name == "Status"
    )
    return sum(isinstance(node, ast.AnnAssign) for node in status.body)


def longest_constructor() -> tuple[int, str]:
    """Return the lines of the longest `__init__`, with its class."""
    return max(
        (node.end_lineno - node.lineno + 1, owner.name)
        for path in modules()
        for owner in ast.walk(parsed(path))
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef) and node.name == "__init__" and node.end_lineno is not None
    )


def change_effects() -> list[str]:
    """Return the functions that carry a `Change` out: they read four of its fields from one variable, `policy/` aside.

    Small worlds of tests read fewer, so that this is a lower bound.
    """
    places = []
    folders = (SOURCE, ROOT / "tests", ROOT / "benchmarks")
    for path in (path for folder in folders for path in modules(folder) if SOURCE / "policy" not in path.parents):
        for function in ast.walk(parsed(path)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            reads: dict[str, set[str]] = defaultdict(set)
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in CHANGE_FIELDS:
                    reads[node.value.id].add(node.attr)
            if any(len(fields) >= 4 for fields in reads.values()):
                places.append(f"{path.relative_to(ROOT).as_posix()}:{function.name}")
    return places


def total_counts() -> dict[str, int]:
    """Return the figures of the whole tree that may only fall."""
    return {
        "repeated_classes": len(repeated_classes()),
        "upward_arrows": len(upward_arrows()),
        "operator_imports": operator_imports(),
        "cluster_checks": cluster_checks(),
        "kinds_by_class_name": kinds_by_class_name(),
        "late_imports": late_imports(),
        "status_fields": status_fields(),
    }


def measured() -> Table:
    """Return all counts that may only fall, by folder, with those of the whole tree under `*`."""
    return {"*": total_counts(), **words_by_folder()}


def stored() -> Table:
    """Return the stored counts."""
    table: Table = json.loads(STORED.read_text(encoding="utf-8"))
    return table


def risen(now: Table, before: Table) -> list[str]:
    """Return a line for each count that is above its stored value; a folder that is not stored has zero."""
    return [
        f"{folder}: {count} {name}, stored {before.get(folder, {}).get(name, 0)}"
        for folder, counts in now.items()
        for name, count in counts.items()
        if count > before.get(folder, {}).get(name, 0)
    ]


def sums(table: Table) -> Counter[str]:
    """Return each count summed over all folders."""
    total: Counter[str] = Counter()
    for counts in table.values():
        total.update(counts)
    return total


def written(table: Table) -> str:
    """Return counts as JSON with a line for each folder, so that changes of two folders merge."""
    lines = ",\n".join(f"  {json.dumps(folder)}: {json.dumps(counts)}" for folder, counts in table.items() if counts)
    return f"{{\n{lines}\n}}\n"


def store(now: Table, *, is_forced: bool) -> None:
    """Store counts.

    Raises:
        SystemExit: A sum has risen, and `is_forced` is false.
    """
    totals, before = sums(now), sums(stored()) if STORED.exists() else Counter[str]()
    higher = [f"{name}: {count}, stored {before[name]}" for name, count in totals.items() if count > before[name]]
    if higher and not is_forced:
        sys.exit("tree_measures: counts may only fall: " + "; ".join(higher) + " (`--force` stores them all the same)")
    STORED.write_text(written(now), encoding="utf-8")


def main() -> None:
    """Print the figures, or store the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.tree_measures", description=__doc__)
    parser.add_argument("--lower", action="store_true", help="store the counts, none of whose sums may have risen")
    parser.add_argument("--force", action="store_true", help="with --lower: store them even if sums have risen")
    arguments = parser.parse_args()
    table = measured()
    if arguments.lower:
        store(table, is_forced=arguments.force)
        return
    total = sums(table)
    lines, owner = longest_constructor()
    effects = change_effects()
    for title, figure in (
        ("lines of src", sum(path.read_text(encoding="utf-8").count("\n") for path in modules(ROOT / "src"))),
        (f"variables named {' '.join(sorted(EMPTY_WORDS))}", total["words"]),
        ("variables named each", total["each"]),
        ("functions, classes and attributes named so", total["members"]),
        ("public class names in more than one module", total["repeated_classes"]),
        ("late imports of own modules inside functions", late_imports()),
        ("upward arrows between rooms of policy", total["upward_arrows"]),
        ("imports of operator from client", total["operator_imports"]),
        ("isinstance of clusters in cli and web", total["cluster_checks"]),
        ("kinds told by class name", total["kinds_by_class_name"]),
        ("fields of Status", status_fields()),
        (f"lines of the longest constructor ({owner})", lines),
        (f"places where a Change takes effect ({', '.join(effects)})", len(effects)),
    ):
        print(f"{figure:>8,}  {title}")
    for folder, counts in table.items():
        if folder != "*":
            print(f"{folder:<45}  words {counts['words']:>4}  each {counts['each']:>4}  members {counts['members']:>4}")


if __name__ == "__main__":
    main()
