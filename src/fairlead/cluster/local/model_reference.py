"""The model that an endpoint of this machine serves: where it is on disk, however its spec calls it."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from fairlead.errors import Conflict, InvalidSpec
from fairlead.runtime.checkpoint.directory import Directory
from fairlead.runtime.checkpoint.store import step_name
from fairlead.runtime.errors import StoreUnavailable
from fairlead.state.series import Point, continued

SCHEME = "run://"
# What chooses among a run's checkpoints; `best` goes by this metric.
WHICH = ("best", "latest")
METRIC = "loss"


def is_of_a_run(given: str) -> bool:
    """Return whether a model is named by the run that trained it."""
    return given.startswith(SCHEME)


def split_reference(service: str, given: str) -> tuple[str, str]:
    """Return the run that ``run://NAME@best`` names, and which of its checkpoints; the latest where none is said.

    Raises:
        InvalidSpec: It is written otherwise.
    """
    found = re.fullmatch(rf"{SCHEME}([a-z0-9-]+)(?:@({'|'.join(WHICH)}))?", given)
    if found is None:
        raise InvalidSpec(
            (f"{service}: model: {given!r} names no run's checkpoint. Give run://NAME@best or run://NAME@latest.",)
        )
    return found[1], found[2] or "latest"


def checkpoint_path(service: str, run: str, place: str, which: str, series: Mapping[str, tuple[Point, ...]]) -> str:
    """Return the directory of the checkpoint that is meant, among those that are there.

    Args:
        place: Of the run's checkpoints.
        which: ``latest``, or ``best`` for that of the step with the least loss.
        series: The run's metrics over time.

    Raises:
        Conflict: There is none, or none is best.
    """
    said = f"{service}: model:"
    if "://" in place:
        raise Conflict(f"{said} the checkpoints of {run} are at {place}; copy one to this machine and give its path.")
    try:
        steps = Directory(Path(place)).steps()
    except (OSError, StoreUnavailable):
        steps = []
    if not steps:
        raise Conflict(f"{said} the run {run} has no complete checkpoint. Give a run that has, or a path.")
    if which == "latest":
        return os.path.join(place, step_name(max(steps)))
    losses = {step: _value_at(series.get(METRIC, ()), step) for step in steps}
    known = {step: value for step, value in losses.items() if value is not None}
    if not known:
        raise Conflict(f"{said} the run {run} reports no {METRIC}, by which one checkpoint is best. Give @latest.")
    return os.path.join(place, step_name(min(known, key=lambda step: (known[step], -step))))


def model_path(service: str, given: str, directory: Path) -> str:
    """Return the path of a model that is on disk.

    Args:
        directory: To which a relative path is relative.

    Raises:
        InvalidSpec: Nothing is there, or it is elsewhere.
    """
    if "://" in given:
        scheme = given.partition("://")[0]
        raise InvalidSpec(
            (f"{service}: model: {scheme}:// is not read here. Give a path, or run://NAME@best of a run.",)
        )
    path = os.path.normpath(directory / Path(given).expanduser())
    if not os.path.exists(path):
        raise InvalidSpec((f"{service}: model: {path} is not there. Correct the path, or train it first.",))
    return path


def _value_at(points: tuple[Point, ...], step: int) -> float | None:
    """The last value up to a step."""
    known = [point.value for point in continued(points) if point.step is not None and point.step <= step]
    return known[-1] if known else None
