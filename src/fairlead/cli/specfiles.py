"""Loads spec files given as arguments; ``-`` is the standard input."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.api import only_workloads, read
from fairlead.deferred import deferred
from fairlead.errors import InvalidSpec
from fairlead.specs.workload import WorkloadSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.specs import Spec
    from fairlead.specs.formats import reading
    from fairlead.specs.pipeline import Pipeline
else:
    reading = deferred("fairlead.specs.formats.reading")

STDIN = "-"
STDIN_SOURCE = "<stdin>"
# Default name of a run whose spec comes from the standard input.
STDIN_NAME = "run"
ENDINGS = (".yaml", ".yml", ".json")

files_type = click.Path(readable=False, allow_dash=True)


def is_spec_file(argument: str) -> bool:
    """Return whether an argument is a spec file, by its extension, or the standard input."""
    return argument == STDIN or argument.lower().endswith(ENDINGS)


def directory_of(file: str) -> Path:
    """Return the base of relative paths in a file: for the standard input, the current directory."""
    return Path.cwd() if file == STDIN else Path(file).parent


def workloads(file: str, changed: "Callable[[Pipeline], Pipeline] | None" = None) -> tuple[WorkloadSpec, ...]:
    """Return the workloads in a file or the standard input; for each pipeline, the workload that runs it.

    Args:
        changed: Transforms each pipeline first; None for no change.

    Raises:
        InvalidSpec: The file is invalid.
        NotFound: The file does not exist.
        Conflict: It contains a kind that this cluster cannot use.
    """
    return only_workloads(load(file), STDIN_SOURCE, changed) if file == STDIN else read(file, changed)


def load(file: str) -> "tuple[Spec, ...]":
    """Return the specs in a file or the standard input.

    Raises:
        InvalidSpec: The file cannot be read or is invalid.
    """
    if file != STDIN:
        return reading.load_file(file)
    if sys.stdin is None:
        raise InvalidSpec((f"{STDIN_SOURCE}: cannot be read: there is no standard input",))
    return reading.load_stream(sys.stdin.buffer, source=STDIN_SOURCE, default_name=STDIN_NAME)


def refuse_twice(files: tuple[str, ...]) -> None:
    """Refuse more than one ``-``, since the standard input can be read only once.

    Raises:
        click.UsageError: ``-`` is given more than once.
    """
    if files.count(STDIN) > 1:
        raise click.UsageError("`-` is the standard input, which can be read only once: give it once.")
