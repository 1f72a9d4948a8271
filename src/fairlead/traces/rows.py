"""Converts rows of any table into arrivals, with quantities read by the parser of specs."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fairlead.errors import InvalidSpec
from fairlead.policy.data.caching import ReadDemand
from fairlead.policy.gpu.stage_interleaving import StageProfile
from fairlead.specs.formats.reading import parse
from fairlead.specs.training import DECADE_S, Training
from fairlead.traces.arrivals import Arrival

Row = Mapping[str, str]
MOST_VERSION = 200


def arrival_of(
    where: str,
    *,
    at_s: float,
    duration_s: float,
    name: str,
    team: str,
    nodes: str,
    resources: Mapping[str, object],
    priority: str,
    max_duration: str = "",
    expected_duration: str = "",
    deadline: str = "",
    spot: str = "",
    max_price: str = "",
    checkpoint_every: str = "",
) -> Arrival:
    """Convert a row by the parser of specs, so that each value means the same as in a spec."""
    if duration_s > DECADE_S:
        raise InvalidSpec(
            (f"{where}: a duration of {duration_s:g} s is too long; give at most {DECADE_S:g}, ten years",)
        )
    document: dict[str, object] = {"name": name, "run": "simulated", "nodes": whole(nodes)}
    capacity: dict[str, object] = {}
    if spot:
        capacity["spot"] = {"true": True, "false": False}.get(spot.lower(), spot)
    if max_price:
        capacity["max_price"] = number(max_price)
    if capacity:
        document["capacity"] = capacity
    if checkpoint_every:
        document["checkpoint"] = {"every": checkpoint_every}
    if resources:
        document["resources"] = dict(resources)
    if team:
        document["team"] = team
    if max_duration:
        document["max_duration"] = max_duration
    if expected_duration:
        document["expected_duration"] = expected_duration
    if deadline:
        document["deadline"] = deadline
    if priority:
        document["priority"] = whole(priority)
    try:
        (spec,) = parse(json.dumps(document), source="row")
    except InvalidSpec as error:
        problems = (problem.removeprefix("row:1: ") for problem in error.problems)
        raise InvalidSpec(tuple(f"{where}: {problem}" for problem in problems)) from None
    assert isinstance(spec, Training)
    return Arrival(at_s=at_s, duration_s=duration_s, spec=spec)


def profile_of(measured_s: Sequence[float], where: str) -> StageProfile:
    """Split an iteration into its stages: the whole, loading, computing and communicating, in seconds.

    Raises:
        InvalidSpec: A part is missing, or an iteration takes no time.
    """
    if len(measured_s) != 4 or measured_s[0] <= 0:
        raise InvalidSpec(
            (f"{where}: iteration_s, load_s, compute_s and communicate_s: give all four, iteration_s above 0, or none",)
        )
    iteration_s, load_s, compute_s, communicate_s = measured_s
    return StageProfile(iteration_s=iteration_s, stages_s=(load_s, compute_s, communicate_s))


def reads_of(row: Row, where: str) -> ReadDemand:
    """Return what a run reads: version, GB of the version, and MB/s of the gang at full speed.

    Raises:
        InvalidSpec: One of the three is missing, or a number is not above 0.
    """
    version = row.get("data", "")
    size_gb, mb_s = (seconds(row, column, where) if row.get(column) else 0.0 for column in ("data_gb", "data_mb_s"))
    if not version or len(version) > MOST_VERSION or size_gb <= 0.0 or mb_s <= 0.0:
        raise InvalidSpec(
            (
                f"{where}: data, data_gb and data_mb_s: give all three, a name of at most {MOST_VERSION} characters "
                "and two numbers above 0, or none",
            )
        )
    return ReadDemand(version=version, size_gb=size_gb, gb_s=mb_s / 1e3)


def refuse_unlike_sizes(arrivals: Iterable[Arrival], path: Path) -> None:
    """Refuse a trace in which one version of data has two sizes.

    Raises:
        InvalidSpec: It has.
    """
    sizes: dict[str, float] = {}
    for reads in (arrival.reads for arrival in arrivals if arrival.reads is not None):
        size_gb = sizes.setdefault(reads.version, reads.size_gb)
        if size_gb != reads.size_gb:
            raise InvalidSpec(
                (
                    f"{path}: data_gb: {reads.version} has {size_gb:g} GB in one row and {reads.size_gb:g} in another; "
                    "give the same size, or another name to another version",
                )
            )


_GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
_TIME = re.compile(r"\d{4}-\d\d-\d\d|\d+:\d\d")


def seconds(row: Row, column: str, where: str) -> float:
    """Return the number of 0 or more in a column.

    Raises:
        InvalidSpec: It is anything else; the message names file, line and column.
    """
    try:
        value = float(row[column])
    except (KeyError, ValueError):
        value = -1.0
    if not 0 <= value < float("inf"):
        text = row.get(column, "")
        hint = ""
        if _GROUPED.fullmatch(text.strip()):
            hint = f"; write {text.strip().replace(',', '')}"
        elif _TIME.match(text.strip()):
            hint = "; give seconds since any moment, such as the first submission, or as Unix time"
        raise InvalidSpec((f"{where}: {column}: {text!r} is not a number of 0 or more{hint}",))
    return value


def number(text: str) -> object:
    """Return a number if the text is one; otherwise the text, for which the parser raises the error."""
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text


def whole(text: str) -> object:
    """Return an integer if the text is one; otherwise the text, for which the parser raises the error."""
    return int(text) if text.strip().lstrip("-").isdigit() else text
