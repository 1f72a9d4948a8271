"""Decisions read of a run what ``GangSpec`` lists, and no more; so any kind that has that can be placed."""

import ast
from collections.abc import Iterator
from pathlib import Path

import fairlead.policy
from fairlead.specs.gang import GangSpec, ProgramSpec
from fairlead.specs.training import Training

FOLDERS = ("queue", "placement", "disruption", "scaling", "capacity", "gpu")
POLICY = Path(fairlead.policy.__file__).parent
SOURCE = POLICY.parent


def attributes(protocol: type) -> set[str]:
    return {name for name in vars(protocol) if not name.startswith("_")}


def read_of_specs(*folders: Path) -> Iterator[tuple[str, str]]:
    """Where what is read of anything called ``spec`` or ``gang``."""
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            if file.name == "gang_placement.py":  # a gang there is a group of pods and no spec
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Attribute):
                    of = node.value
                    name = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
                    if name in ("spec", "gang"):
                        yield f"{file.name}:{node.lineno}", node.attr


def test_decisions_read_of_a_run_only_what_every_gang_has() -> None:
    others = [(where, what) for where, what in read_of_specs(*(POLICY / each for each in FOLDERS))]
    assert [each for each in others if each[1] not in attributes(GangSpec)] == []


def test_decisions_read_all_that_a_gang_has_to_have() -> None:
    read = {what for _, what in read_of_specs(*(POLICY / each for each in FOLDERS))}
    assert attributes(GangSpec) - read == set()


def test_agents_read_all_that_a_program_has_to_have() -> None:
    read = {what for _, what in read_of_specs(SOURCE / "cluster")}
    assert attributes(ProgramSpec) - read == set()


def test_decisions_do_not_name_a_kind() -> None:
    files = [file for each in FOLDERS for file in (POLICY / each).rglob("*.py")]
    assert len(files) > 40
    assert [file.name for file in files if "import Training" in file.read_text()] == []


def test_a_training_is_a_gang_that_has_a_program() -> None:
    spec = Training(name="t", run="python train.py", nodes=2, most_nodes=4)
    program: ProgramSpec = spec
    gang: GangSpec = program.at(3)
    assert (gang.nodes, gang.most_nodes) == (3, None)
    assert all(hasattr(spec, name) for name in attributes(GangSpec) | attributes(ProgramSpec))
