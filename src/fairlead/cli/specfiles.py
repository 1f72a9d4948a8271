"""Spec files as arguments of commands; ``-`` is the standard input."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.api import only_workloads, read
from fairlead.errors import InvalidSpec
from fairlead.specs.workload import WorkloadSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.specs import Spec
    from fairlead.specs.pipeline import Pipeline

STDIN = "-"
STDIN_SOURCE = "<stdin>"
# Of a run whose spec comes through a pipe and gives no name.
STDIN_NAME = "run"
ENDINGS = (".yaml", ".yml", ".json")

files_type = click.Path(readable=False, allow_dash=True)


def is_spec_file(argument: str) -> bool:
    """Return whether an argument names a spec file, by its ending, or the standard input."""
    return argument == STDIN or argument.endswith(ENDINGS)


def directory_of(file: str) -> Path:
    """The directory to which paths in a file are relative: of the standard input, the current one."""
    return Path.cwd() if file == STDIN else Path(file).parent


def workloads(file: str, changed: "Callable[[Pipeline], Pipeline] | None" = None) -> tuple[WorkloadSpec, ...]:
    """The workloads in a file or in the standard input; of each pipeline the run that carries it out.

    Args:
        changed: What to make of each pipeline first; None for nothing.

    Raises:
        InvalidSpec: Something in it is wrong.
        NotFound: There is no such file.
        Conflict: It holds something that this cluster has no use for.
    """
    return only_workloads(load(file), STDIN_SOURCE, changed) if file == STDIN else read(file, changed)


def load(file: str) -> "tuple[Spec, ...]":
    """The specs in a file or in the standard input.

    Raises:
        InvalidSpec: It cannot be read or something in it is wrong.
    """
    from fairlead.specs.formats.reading import load_file, load_stream

    if file != STDIN:
        return load_file(file)
    if sys.stdin is None:
        raise InvalidSpec((f"{STDIN_SOURCE}: cannot be read: there is no standard input",))
    return load_stream(sys.stdin.buffer, source=STDIN_SOURCE, default_name=STDIN_NAME)


def refuse_twice(files: tuple[str, ...]) -> None:
    """Refuse the standard input where it is named more than once: it can be read only once.

    Raises:
        click.UsageError: It is.
    """
    if files.count(STDIN) > 1:
        raise click.UsageError("`-` is the standard input, which can be read only once: give it once.")
