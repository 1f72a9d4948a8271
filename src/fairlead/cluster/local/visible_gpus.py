"""Limits the GPUs of this machine to those that CUDA_VISIBLE_DEVICES leaves to its user, as where several share it.

The value belongs to the state directory: the first submission while no run with GPUs is unfinished sets it. The
supervisor may be started by any shell, and by a pod whose own variable names the GPUs that it got.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from fairlead.errors import Conflict
from fairlead.runtime.podfiles import write_private
from fairlead.state.snapshot import Gpu

VARIABLE = "CUDA_VISIBLE_DEVICES"
OF_RUNS = "FAIRLEAD_RUN_UID"
"""A variable of programs of runs, whose CUDA_VISIBLE_DEVICES is Fairlead's own."""
MOST_CHARACTERS = 4_000


def visible(gpus: tuple[Gpu, ...], value: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that a value of CUDA_VISIBLE_DEVICES leaves, as CUDA reads it; all without one.

    Numbers are those of ``nvidia-smi``, in the order of PCI. What follows the first entry that names no GPU is hidden.
    """
    if value is None:
        return gpus
    named: list[Gpu] = []
    for word in (word.strip() for word in value.split(",")):
        if word.isdecimal():
            matches = list(gpus[int(word) : int(word) + 1])
        else:
            matches = [gpu for gpu in gpus if word and gpu.uuid.startswith(word)]
        if len(matches) != 1 or matches[0] in named:
            break
        named.append(matches[0])
    return tuple(gpu for gpu in gpus if gpu in named)


class VisibleGpus:
    """The value of a state directory, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> str | None:
        """Return the value; None if all GPUs are visible."""
        try:
            with self._path.open(encoding="utf-8", errors="replace") as file:
                return file.read(MOST_CHARACTERS)
        except FileNotFoundError:
            return None

    def write(self, value: str | None) -> None:
        """Set the value.

        Raises:
            OSError: It cannot be written.
        """
        if value is None:
            self._path.unlink(missing_ok=True)
        else:
            whole = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            write_private(whole, value)
            whole.replace(self._path)


def value_of(environ: Mapping[str, str], known: str | None) -> str | None:
    """Return the value that a submission with an environment asks for; ``known`` for one by a program of a run."""
    return known if OF_RUNS in environ else environ.get(VARIABLE)


def refusal(value: str | None, known: str | None, home: Path) -> Conflict:
    """Return the answer to a submission with another value than that of runs which are unfinished."""
    wanted, had = (f"{VARIABLE}={shown}" if shown is not None else f"{VARIABLE} unset" for shown in (value, known))
    own = "all" if value is None else "-".join(filter(None, "".join(c if c.isalnum() else " " for c in value).split()))
    return Conflict(
        f"This shell has {wanted}, and unfinished runs with GPUs were submitted with {had}; the runs of one state "
        "directory share one set of GPUs. Wait until they are over, or give these GPUs a state directory of their own: "
        f"`export FAIRLEAD_HOME={home}-gpus-{own or 'none'}`."
    )
