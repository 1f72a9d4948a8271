"""Detects the framework of a run whose spec names none, from its command and the imports of its script.

The script is parsed but never run, and imports of its own modules are not followed.
"""

import ast
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fairlead.frozen import dataclass
from fairlead.runtime.launching import simple_words
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.training import SET_BY_FRAMEWORK, Framework, Launch, Training

MOST_BYTES = 1_000_000
"""Maximum size of a script that is read."""

# Launchers that start the processes of a node themselves, by their first words.
LAUNCHERS = {
    ("torchrun",): Framework.TORCH,
    ("python", "-m", "torch.distributed.run"): Framework.TORCH,
    ("python", "-m", "torch.distributed.launch"): Framework.TORCH,
    ("accelerate", "launch"): Framework.ACCELERATE,
    ("python", "-m", "accelerate.commands.launch"): Framework.ACCELERATE,
    ("deepspeed",): Framework.DEEPSPEED,
    ("fabric", "run"): Framework.LIGHTNING,
    ("lightning", "run"): Framework.LIGHTNING,
    ("mpirun",): Framework.MPI,
    ("mpiexec",): Framework.MPI,
    ("horovodrun",): None,
}
# Names used for rendezvous; they decide if a script imports several frameworks.
MEETS = {
    "torch.distributed": Framework.TORCH,
    "torch.nn.parallel": Framework.TORCH,
    "jax.distributed": Framework.JAX,
    "tensorflow.distribute": Framework.TENSORFLOW,
    "xgboost.collective": Framework.XGBOOST,
    "fairlead.xgboost": Framework.XGBOOST,
    "fairlead.lightgbm": Framework.LIGHTGBM,
    "mpi4py": Framework.MPI,
    "ray": Framework.RAY,
    "deepspeed": Framework.DEEPSPEED,
    "accelerate": Framework.ACCELERATE,
    "lightning": Framework.LIGHTNING,
    "pytorch_lightning": Framework.LIGHTNING,
    "fairlead.lightning": Framework.LIGHTNING,
}
# Imports of compute frameworks.
IMPORTS = {
    "torch": Framework.TORCH,
    "jax": Framework.JAX,
    "flax": Framework.JAX,
    "tensorflow": Framework.TENSORFLOW,
    "xgboost": Framework.XGBOOST,
    "lightgbm": Framework.LIGHTGBM,
}
# Frameworks on top of torch; the first one found is the one that initializes it.
OF_TORCH = (Framework.DEEPSPEED, Framework.ACCELERATE, Framework.LIGHTNING, Framework.TORCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """A spec with the detected framework, and sentences for the plan."""

    spec: Training
    notes: tuple[str, ...] = ()


def detect(spec: Training, workdir: Path) -> Detected:
    """Fill in the framework of a run of several ranks, or one process per node if the command is a launcher.

    Args:
        workdir: Directory in which the command starts, if its files are on this machine.
    """
    if spec.framework is not None or spec.engine is not None or type(spec) is not Training:
        return Detected(spec=spec)
    words = simple_words(spec.run) or []
    launcher = launcher_of(words)
    if launcher is not None:
        return _launched(spec, launcher)
    if spec.launch is Launch.TORCHRUN or (spec.world_size == 1 and spec.most_nodes is None):
        return Detected(spec=spec)
    script = _script(spec.run, workdir)
    source = None if script is None else _read(script)
    if script is None or source is None:
        return Detected(spec=spec)
    found, why = framework_of(source)
    if found is None:
        told = f"framework: torchrun's variables alone, since {script.name} {why}; name one with `framework`"
        return Detected(spec=spec, notes=(told,) if why else ())
    if any(name in spec.env for name in SET_BY_FRAMEWORK.get(found, ())):
        return Detected(spec=spec)  # the spec sets the rendezvous variables itself
    try:
        # Ranks get the variables that torch needs in any case.
        chosen = spec if found is Framework.TORCH else replace(spec, framework=found)
    except BrokenRules:
        return Detected(spec=spec)
    return Detected(spec=chosen, notes=(f"framework: {found} ({script.name} {why})",))


def launcher_of(words: list[str]) -> str | None:
    """Return the launcher with which a command begins; None without one."""
    if not words:
        return None
    name = os.path.basename(words[0])
    plain = ["python" if name.startswith("python") else name, *words[1:3]]
    return next((" ".join(first) for first in LAUNCHERS if plain[: len(first)] == list(first)), None)


def framework_of(source: str) -> tuple[Framework | None, str]:
    """Return the framework that a script's processes use for rendezvous, and the evidence as a clause.

    Return None with a clause if several are possible, and None with an empty one without evidence.
    """
    try:
        names = _names(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError):
        return None, ""
    for table, verb in ((MEETS, "names"), (IMPORTS, "imports")):
        found: dict[Framework, str] = {}
        for key, framework in table.items():
            if key in names:
                found.setdefault(framework, key)
        of_torch = [each for each in OF_TORCH if each in found]
        rest = [each for each in found if each not in OF_TORCH]
        choices = [*of_torch[:1], *rest]
        if len(choices) == 1:
            return choices[0], f"{verb} {found[choices[0]]}"
        if choices:
            return None, f"{verb} {' and '.join(found[each] for each in choices)}"
    return None, ""


def _launched(spec: Training, launcher: str) -> Detected:
    """Set one process per node, which starts the others."""
    known = next(framework for first, framework in LAUNCHERS.items() if " ".join(first) == launcher)
    notes = [f"framework: {'horovod' if known is None else known} ({launcher} starts the processes of a node itself)"]
    if spec.ranks_per_node is None and spec.ranks_on_each_node > 1:
        notes.append(f"ranks_per_node: 1 ({launcher} starts the processes of a node itself)")
        spec = replace(spec, ranks_per_node=1)
    return Detected(spec=spec, notes=tuple(notes))


def _script(command: str, workdir: Path) -> Path | None:
    from fairlead.cluster.preflight import read_command  # here, since it imports the specs of all kinds

    asked = read_command(command)
    if asked is None:
        return None
    if asked.module is not None:
        base = workdir.joinpath(*asked.module.split("."))
        places: Iterable[Path] = (base.with_suffix(".py"), base / "__main__.py")
        return next((each for each in places if each.is_file()), None)
    if asked.script is None or not asked.script.endswith(".py"):
        return None
    return workdir / asked.script


def _read(script: Path) -> str | None:
    try:
        if script.stat().st_size > MOST_BYTES:
            return None
        return script.read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return None  # the check of the command reports unreadable scripts


def _names(tree: ast.Module) -> set[str]:
    """Return all dotted names that a script uses of its imports, and their prefixes."""
    aliases: dict[str, str] = {}
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                used.add(each.name)
                first = each.name.partition(".")[0]
                aliases[each.asname or first] = each.name if each.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            used.add(node.module)
            for each in node.names:
                used.add(f"{node.module}.{each.name}")
                aliases[each.asname or each.name] = f"{node.module}.{each.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            path, at = [node.attr], node.value
            while isinstance(at, ast.Attribute):
                path.append(at.attr)
                at = at.value
            if isinstance(at, ast.Name) and at.id in aliases:
                used.add(".".join((aliases[at.id], *reversed(path))))
    return {".".join(parts[:end]) for each in used for parts in [each.split(".")] for end in range(1, len(parts) + 1)}
