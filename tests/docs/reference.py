"""The parts of the guide that follow from the code, so that they cannot lag behind it.

    python -m tests.docs.reference        writes them into docs/

Between `<!-- begin: NAME -->` and `<!-- end: NAME -->` a page holds what the function of that name gives.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING
from pathlib import Path

import click

from fairlead.cli.main import COMMANDS, group
from fairlead.specs.field_types import ListField, MapField, OverlayField, Section, SectionKey, SectionMap
from fairlead.specs.formats.rendering import default_of
from fairlead.specs.keys import KINDS
from tests.docs import decisions

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = DOCS.parent / "src" / "fairlead"


def keys_of(section: Section, prefix: str = "") -> Iterator[tuple[str, SectionKey, Section]]:
    """Dotted name, key and section of every key, those of a mapping just after it."""
    for key in section.keys:
        yield prefix + key.name, key, section
        if isinstance(key.kind, Section):
            yield from keys_of(key.kind, f"{prefix}{key.name}.")
        if isinstance(key.kind, SectionMap):
            yield from keys_of(key.kind.item, f"{prefix}{key.name}.NAME.")


def table(section: Section, *, told_elsewhere: tuple[str, ...] = (), within: tuple[str, ...] = ()) -> str:
    """Every key with its type, default and example; of a mapping that is told elsewhere only itself.

    Args:
        within: Tell only the keys in these mappings; all of them when it is empty.
    """
    lines = ["| key | type | default | example | |", "|---|---|---|---|---|"]
    for name, key, owner in keys_of(section):
        if name.startswith(tuple(f"{each}." for each in told_elsewhere)):
            continue
        if within and not name.startswith(tuple(f"{each}." for each in within)):
            continue
        cells = (f"`{name}`", describe_type(key), describe_default(key, owner), f"`{key.name}: {key.example}`", key.doc)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def describe_type(key: SectionKey) -> str:
    """What may be given, as a person says it."""
    if isinstance(key.kind, Section):
        lone = key.kind.key(key.kind.shorthand) if key.kind.shorthand else None
        return "mapping" if lone is None else f"mapping, or {describe_type(lone)}"
    if isinstance(key.kind, SectionMap):
        return "mapping of names to mappings"
    if isinstance(key.kind, MapField):
        return "mapping of names to texts"
    if isinstance(key.kind, OverlayField):
        return "mapping in Kubernetes' words"
    return f"list; each {key.kind.item.what}" if isinstance(key.kind, ListField) else key.kind.what


def describe_default(key: SectionKey, owner: Section) -> str:
    """The default as it would be written; what an absent value means is in the key's sentence."""
    if key.required:
        return "required"
    if isinstance(key.kind, (Section, SectionMap, MapField, ListField, OverlayField)):
        return "-"
    values = default_of(key, owner.type)
    assert MISSING not in values, key.name
    if values[0] is None and not any(values):
        return "-"
    told = key.kind.render(values[0] if len(values) == 1 else values)
    return f"`{str(told).lower() if isinstance(told, bool) else told}`"


def commands() -> str:
    """The help of every command."""
    context = click.Context(group, info_name="fairlead", **group.context_settings)
    blocks = []
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        with click.Context(command, info_name=name, parent=context, terminal_width=100) as own:
            blocks.append(f"## {name}\n\n```text\n{command.get_help(own)}\n```")
            for word, below in command.commands.items() if isinstance(command, click.Group) else ():
                with click.Context(below, info_name=word, parent=own, terminal_width=100) as inner:
                    blocks.append(f"## {name} {word}\n\n```text\n{below.get_help(inner)}\n```")
    return "\n\n".join(blocks)


def files() -> str:
    """Every file of the source by folder, with the first sentence of its docstring."""
    blocks = []
    for folder in sorted({file.parent for file in SOURCE.rglob("*.py")}):
        about = first_sentence(folder / "__init__.py") if (folder / "__init__.py").exists() else ""
        names = sorted(file for file in folder.glob("*.py") if file.name != "__init__.py")
        lines = [f"- `{file.name}`: {first_sentence(file)}" for file in names]
        title = f"## `{folder.relative_to(SOURCE.parent)}/`"
        blocks.append("\n\n".join(filter(None, [title, about, "\n".join(lines)])))
    return "\n\n".join(blocks)


def first_sentence(file: Path) -> str:
    """The first sentence of a file's docstring, or of its first function's where it has none: a command's help."""
    tree = ast.parse(file.read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    text = ast.get_docstring(tree) or next(filter(None, map(ast.get_docstring, functions)), "")
    whole = " ".join(text.partition("\n\n")[0].split()).replace("``", "`")
    return re.split(r"(?<=\.) (?=[A-Z])", whole, maxsplit=1)[0]


PIPELINE_PARTS = ("steps.NAME.training", "steps.NAME.sweep", "schedule", "on")
PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "specs.md": {
        "Training": lambda: table(KINDS["Training"]),
        "Team": lambda: table(KINDS["Team"]),
        "Pool": lambda: table(KINDS["Pool"]),
        "Simulation": lambda: table(KINDS["Simulation"]),
    },
    "pipelines.md": {"Pipeline": lambda: table(KINDS["Pipeline"], told_elsewhere=PIPELINE_PARTS)},
    "retraining.md": {"on": lambda: table(KINDS["Pipeline"], within=("schedule", "on"))},
    "tuning.md": {"Sweep": lambda: table(KINDS["Sweep"], told_elsewhere=("trial",))},
    "serving.md": {"Serving": lambda: table(KINDS["Serving"], told_elsewhere=("data", "canary", "sites", "waves"))},
    "canaries.md": {"canary": lambda: table(KINDS["Serving"], within=("canary",))},
    "edge.md": {"sites": lambda: table(KINDS["Serving"], within=("sites", "waves"))},
    "workspaces.md": {"Workspace": lambda: table(KINDS["Workspace"])},
    "fleets.md": {"Fleet": lambda: table(KINDS["Fleet"])},
    "datasets.md": {"Dataset": lambda: table(KINDS["Dataset"])},
    "federated.md": {"Federation": lambda: table(KINDS["Federation"])},
    "commands.md": {"commands": commands},
    "files.md": {"files": files},
    "decisions/README.md": {"decisions": decisions.index},
}
OF_KINDS = (
    "specs.md", "pipelines.md", "tuning.md", "serving.md", "workspaces.md", "fleets.md", "federated.md",
    "datasets.md",
)  # fmt: skip
assert {kind for page in OF_KINDS for kind in PARTS[page]} == set(KINDS)


def up_to_date(page: str) -> str:
    """The page with its parts as the code says today."""
    text = (DOCS / page).read_text()
    for name, make in PARTS[page].items():
        begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->"
        found = re.search(re.escape(begin) + ".*?" + re.escape(end), text, re.DOTALL)
        assert found is not None, f"{page} has no part {name}"
        text = text.replace(found[0], f"{begin}\n{make()}\n\n{end}")
    return text


if __name__ == "__main__":
    for page in PARTS:
        (DOCS / page).write_text(up_to_date(page))
