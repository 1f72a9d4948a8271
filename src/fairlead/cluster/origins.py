"""Checks the checkpoints of another run, or of a place, from which a run is to start."""

from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.deferred import deferred
from fairlead.errors import Conflict
from fairlead.runtime.errors import StoreUnavailable
from fairlead.runtime.places import is_url
from fairlead.specs.constraints import NAME
from fairlead.specs.training import Training
from fairlead.state.snapshot import Workload

if TYPE_CHECKING:
    from fairlead.runtime.checkpoint import directory
else:
    directory = deferred("fairlead.runtime.checkpoint.directory")

MOST_NAMED = 3


def is_run_name(origin: str) -> bool:
    """Return whether ``checkpoint.from`` names a run; a directory has a slash, or is written as ``./NAME``."""
    return NAME.problem(origin) is None


def refuse_empty(spec: Training, place: str, run: Workload | None) -> None:
    """Refuse a place without a complete checkpoint, as far as it can be checked from here: a directory.

    Args:
        run: The run whose place it is; None where a place was given.

    Raises:
        Conflict: There is no complete checkpoint.
    """
    prefix = f"{spec.name}: checkpoint.from: "
    whose = f"the run {run.spec.name}" if run is not None else place
    if is_url(place):
        if run is not None:
            refuse_unsaved(spec, run)
        return

    root = Path(place.removeprefix("file://"))
    try:
        if directory.Directory(root).steps():
            return
        inner = sorted(path.name for path in root.iterdir() if path.is_dir() and directory.Directory(path).steps())
    except (OSError, StoreUnavailable):
        inner = []
    if inner:
        named = ", ".join(f"{place}/{name}" for name in inner[:MOST_NAMED])
        raise Conflict(f"{prefix}{place} has no checkpoint itself, but runs have theirs in it. Give one: {named}.")
    raise Conflict(f"{prefix}{whose} has no complete checkpoint. Give a run, a directory or a URL that has one.")


def refuse_unsaved(spec: Training, run: Workload) -> None:
    """Refuse a run that has reported no checkpoint.

    Raises:
        Conflict: The run has reported none.
    """
    if run.progress is None or run.progress.checkpoint_step is None:
        name = run.spec.name
        raise Conflict(f"{spec.name}: checkpoint.from: the run {name} has no complete checkpoint. Give one that has.")
