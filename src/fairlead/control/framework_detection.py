"""Detects the framework of a run whose spec names none, from its command and the imports of its script.

The script is parsed but never run, and imports of its own modules are not followed.

See decisions 56 and 158.
"""

import ast
import itertools
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.deferred import deferred
from fairlead.errors import InvalidSpec
from fairlead.frozen import dataclass
from fairlead.runtime.launching import simple_words
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.training import SET_BY_FRAMEWORK, Framework, Launch, Training

if TYPE_CHECKING:
    from fairlead.cluster import preflight
else:
    preflight = deferred("fairlead.cluster.preflight")

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
# Programs that run the rest of their command line.
WRAPPERS = frozenset(
    {
        "conda", "env", "exec", "hatch", "ionice", "mamba", "micromamba", "nice", "nohup", "numactl", "pdm", "pipenv",
        "pixi", "poetry", "rye", "setsid", "stdbuf", "taskset", "time", "timeout", "uv", "xvfb-run",
    }
)  # fmt: skip
# Options by which launchers other than torchrun are told of other nodes.
HOST_OPTIONS = frozenset({"-H", "-f", "--host", "--hosts", "--hostfile", "-hostfile", "--machinefile", "-machinefile"})
SHELLS = ("bash", "sh", "zsh", "dash", "source", ".")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
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

    Raises:
        InvalidSpec: The command is a launcher whose processes would not find each other.
    """
    if spec.framework is not None or spec.engine is not None or type(spec) is not Training:
        return Detected(spec=spec)
    words = simple_words(spec.run) or []
    launcher = launcher_of(words)
    if launcher is not None:
        check_launcher(spec, launcher, words)
        return _launched(spec, launcher)
    for words, where in hidden_commands(spec.run, workdir):
        launcher = launcher_of(words)
        if launcher is not None:
            check_launcher(replace(spec, ranks_per_node=spec.ranks_on_each_node), launcher, words, where)
    if spec.launch is Launch.TORCHRUN or (spec.world_size == 1 and spec.most_nodes is None):
        return Detected(spec=spec)
    script = _script(spec.run, workdir)
    source = None if script is None else _read(script)
    if script is None or source is None:
        return Detected(spec=spec)
    framework, why = framework_of(source)
    if framework is None:
        note = f"framework: torchrun's variables alone, since {script.name} {why}; name one with `framework`"
        return Detected(spec=spec, notes=(note,) if why else ())
    if any(name in spec.env for name in SET_BY_FRAMEWORK.get(framework, ())):
        return Detected(spec=spec)  # the spec sets the rendezvous variables itself
    try:
        # Ranks get the variables that torch needs in any case.
        chosen = spec if framework is Framework.TORCH else replace(spec, framework=framework)
    except BrokenRules:
        return Detected(spec=spec)
    return Detected(spec=chosen, notes=(f"framework: {framework} ({script.name} {why})",))


def launcher_of(words: list[str]) -> str | None:
    """Return the launcher with which a command begins, perhaps behind a wrapper such as `env`; None without one."""
    is_wrapped = bool(words) and os.path.basename(words[0]) in WRAPPERS
    for at in range(len(words) if is_wrapped else min(len(words), 1)):
        if words[at].endswith(".py"):
            return None
        name = os.path.basename(words[at])
        plain = ["python" if name.startswith("python") else name, *words[at + 1 : at + 3]]
        launcher = next((" ".join(first) for first in LAUNCHERS if plain[: len(first)] == list(first)), None)
        if launcher is not None:
            return launcher
    return None


def hidden_commands(command: str, workdir: Path) -> Iterator[tuple[list[str], str]]:
    """Yield the words of the simple commands that a command or its shell script runs in any case, and their place.

    Lines of a script that are indented may be in a branch that is not taken, and are passed over.
    """
    for words in _simple_commands(command):
        yield words, ""
        script = next((word for word in words[1:] if not word.startswith("-")), "") if words[0] in SHELLS else words[0]
        path = workdir / script
        source = _read(path) if script.endswith(".sh") and path.is_file() else None
        if source is not None:
            for inner in _simple_commands("\n".join(line for line in _joined(source) if line[:1].strip())):
                yield inner, f" in {script}"


def _joined(text: str) -> list[str]:
    """Return the lines of a script up to a text in it (`<<`), with those that go on in the next one joined."""
    return text.partition("<<")[0].replace("\\\n", " ").splitlines()


def _simple_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command between `&&`, `;`, pipes and line ends, without the variables set before it."""
    for line in _joined(text):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            tokens = list(lexer)
        except ValueError:  # a quotation over several lines
            continue
        for is_operator, group in itertools.groupby(tokens, lambda token: not token.strip("();<>|&")):
            words = list(itertools.dropwhile(_ASSIGNMENT.match, group))
            if words and not is_operator:
                yield words


def check_launcher(spec: Training, launcher: str, words: list[str], where: str = "") -> None:
    """Refuse a launcher whose processes on several nodes would not find each other, and train several times alone.

    torchrun reads where the others are from its variables (`PET_NNODES` and others), which Fairlead sets; the rest
    connects to the other nodes by ssh, or takes the number of the node as an option.

    Args:
        where: Place of a launcher that is not the first command, such as `` in run.sh``.

    Raises:
        InvalidSpec: They would not, with the lines to write instead.
    """
    known = next(framework for first, framework in LAUNCHERS.items() if " ".join(first) == launcher)
    script = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
    line = "python " + shlex.join(words[script:]) if script is not None else "python YOUR_SCRIPT.py"
    plain = f"write `run: {line}`" + (f" and `framework: {known}`" if known not in (None, Framework.TORCH) else "")
    problem = None
    if (spec.ranks_per_node or 1) > 1:
        ranks = spec.ranks_per_node
        problem = (
            f"starts the processes of a node itself, so {ranks} of it on a node would each train alone; {plain}, which "
            f"Fairlead starts {ranks} times on a node, or give `ranks_per_node: 1`"
        )
    elif spec.nodes == 1 and spec.most_nodes is None:
        return
    elif known is Framework.TORCH:
        option = next(filter(None, map(_alone, words[:script], [*words[1:], ""])), None)
        if option is not None:
            problem = (
                f"has {option}, with which each node would train alone; leave it out: torchrun gets the nodes and "
                "where they meet from its variables"
            )
    elif not any(word.split("=")[0] in HOST_OPTIONS for word in words[:script]):
        problem = (
            f"does not find the other nodes, so each would train alone; {plain} and, for several processes on a node, "
            "`ranks_per_node`"
        )
    if problem is not None:
        raise InvalidSpec((f"run: {launcher}{where} {problem}",))


def _alone(word: str, following: str) -> str | None:
    """Return an option of torchrun by which a node trains alone; None if this word is none."""
    name, _, value = word.replace("_", "-").partition("=")
    value = value or following
    if name == "--standalone":
        return name
    if name == "--nnodes" and value in ("1", "1:1"):
        return f"{name} {value}"
    if name in ("--rdzv-endpoint", "--master-addr") and value.split(":")[0] in ("localhost", "127.0.0.1"):
        return f"{name} {value}"
    return None


def framework_of(source: str) -> tuple[Framework | None, str]:
    """Return the framework that a script's processes use for rendezvous, and the evidence as a clause.

    Return None with a clause if several are possible, and None with an empty one without evidence.
    """
    try:
        names = _names(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError):
        return None, ""
    for table, verb in ((MEETS, "names"), (IMPORTS, "imports")):
        reasons: dict[Framework, str] = {}
        for key, framework in table.items():
            if key in names:
                reasons.setdefault(framework, key)
        of_torch = [framework for framework in OF_TORCH if framework in reasons]
        rest = [framework for framework in reasons if framework not in OF_TORCH]
        choices = [*of_torch[:1], *rest]
        if len(choices) == 1:
            return choices[0], f"{verb} {reasons[choices[0]]}"
        if choices:
            return None, f"{verb} {' and '.join(reasons[choice] for choice in choices)}"
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
    argv = preflight.read_command(command)
    if argv is None:
        return None
    if argv.module is not None:
        base = workdir.joinpath(*argv.module.split("."))
        places: Iterable[Path] = (base.with_suffix(".py"), base / "__main__.py")
        return next((place for place in places if place.is_file()), None)
    if argv.script is None or not argv.script.endswith(".py"):
        return None
    return workdir / argv.script


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
            for name in node.names:
                used.add(name.name)
                first = name.name.partition(".")[0]
                aliases[name.asname or first] = name.name if name.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            used.add(node.module)
            for name in node.names:
                used.add(f"{node.module}.{name.name}")
                aliases[name.asname or name.name] = f"{node.module}.{name.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            path, at = [node.attr], node.value
            while isinstance(at, ast.Attribute):
                path.append(at.attr)
                at = at.value
            if isinstance(at, ast.Name) and at.id in aliases:
                used.add(".".join((aliases[at.id], *reversed(path))))
    return {
        ".".join(parts[:end]) for module in used for parts in [module.split(".")] for end in range(1, len(parts) + 1)
    }
