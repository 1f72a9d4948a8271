"""Trace files into arrivals: our own table, those of public traces by their headers, and spec files.

Our own table is CSV with a header. `submit_s` and `duration_s` are required, both in seconds; `name team nodes gpu cpu
memory priority max_duration` are as in a spec, empty where the spec's default holds. Lines that begin with # say
nothing.
"""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairlead.errors import InvalidSpec
from fairlead.specs.keys import Spec
from fairlead.specs.reading import load_file, parse
from fairlead.specs.training import Training
from fairlead.traces.arrivals import Arrival

GPUS_PER_NODE = 8
"""Public traces of whole-GPU jobs say how many GPUs, not how many nodes; theirs had eight GPUs each."""

Row = Mapping[str, str]

_OWN = ("submit_s", "duration_s", "name", "team", "nodes", "gpu", "cpu", "memory", "priority", "max_duration")


def read_trace(path: Path) -> tuple[Arrival, ...]:
    """The runs of a file in order of arrival.

    A spec file (.yaml, .yml) is a trace whose runs all arrive at once, each as long as its `max_duration`.

    Raises:
        InvalidSpec: It cannot be read, or something in it is wrong; at most 20 problems are told.
    """
    if path.suffix in (".yaml", ".yml"):
        return tuple(_of_spec(spec, path) for spec in load_file(path))
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = [(number, line) for number, line in enumerate(file, 1) if not line.startswith("#")]
        table = csv.DictReader(line for _, line in lines)
        columns = tuple(table.fieldnames or ())
        rows = [{key: value or "" for key, value in row.items() if key} for row in table]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidSpec((f"{path}: cannot be read as a trace: {reason}",)) from error
    convert = _converter(columns, path)
    arrivals: list[Arrival] = []
    problems: list[str] = []
    for index, row in enumerate(rows):
        try:
            arrivals.append(convert(row, index, f"{path}:{lines[index + 1][0]}"))
        except InvalidSpec as error:
            problems.extend(error.problems)
            if len(problems) >= 20:
                break
    if problems:
        raise InvalidSpec(tuple(problems[:20]))
    if not arrivals:
        raise InvalidSpec((f"{path}: there is no run in it, only a header",))
    return tuple(sorted(_with_own_names(arrivals), key=lambda arrival: arrival.at_s))


def _converter(columns: tuple[str, ...], path: Path) -> Callable[[Row, int, str], Arrival]:
    known = set(columns)
    if {"submit_time", "duration", "num_gpu", "resource_time_0"} <= known:
        return _of_muri
    if {"submit_time", "duration", "num_gpu"} <= known:
        return _of_philly
    if {"submit_s", "duration_s"} <= known:
        surplus = sorted(known - set(_OWN))
        if surplus:
            raise InvalidSpec((f"{path}:1: {surplus[0]}: unknown column; allowed are {', '.join(_OWN)}",))
        return _of_own
    raise InvalidSpec(
        (
            f"{path}:1: the header is {', '.join(columns) or 'empty'}; a trace of ours has submit_s and duration_s, "
            "those of Philly and Muri have num_gpu, submit_time and duration",
        )
    )


def _of_own(row: Row, index: int, where: str) -> Arrival:
    resources = {key: row[key] for key in ("gpu", "cpu", "memory") if row.get(key)}
    return _arrival(
        where,
        at_s=_seconds(row, "submit_s", where),
        duration_s=_seconds(row, "duration_s", where),
        name=row.get("name") or f"run-{index + 1}",
        team=row.get("team", ""),
        nodes=row.get("nodes") or "1",
        resources=resources,
        priority=row.get("priority", ""),
        max_duration=row.get("max_duration", ""),
    )


def _of_philly(row: Row, index: int, where: str, *, unit_s: float = 1.0) -> Arrival:
    """Jobs as in the tables made of Microsoft's Philly: num_gpu, submit_time and duration, in seconds."""
    gpus = int(_seconds(row, "num_gpu", where))
    nodes = max(1, -(-gpus // GPUS_PER_NODE))
    return _arrival(
        where,
        at_s=_seconds(row, "submit_time", where) * unit_s,
        duration_s=_seconds(row, "duration", where) * unit_s,
        name=f"job-{row.get('job_id') or index + 1}".lower(),
        team="",
        nodes=str(nodes),
        resources={"gpu": gpus // nodes} if gpus else {},
        priority="",
    )


def _of_muri(row: Row, index: int, where: str) -> Arrival:
    """The tables of Muri (SIGCOMM'22): as Philly's, in milliseconds."""
    return _of_philly(row, index, where, unit_s=0.001)


def _of_spec(spec: Spec, path: Path) -> Arrival:
    if not isinstance(spec, Training):
        raise InvalidSpec((f"{path}: {spec.name} is a {type(spec).__name__}; a simulation replays Trainings only",))
    if spec.max_duration_s is None:
        raise InvalidSpec(
            (
                f"{path}: {spec.name}: max_duration is missing, so nothing says how long it runs; "
                "add it, such as `max_duration: 2h`, or give a CSV table with submit_s and duration_s",
            )
        )
    # Its own limit would end it at the very moment at which its work is done.
    return Arrival(at_s=0.0, duration_s=spec.max_duration_s, spec=replace(spec, max_duration_s=None))


def _arrival(
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
) -> Arrival:
    """A row through the parser of specs, so that it means what the same words mean there."""
    document: dict[str, object] = {"name": name, "run": "simulated", "nodes": _whole(nodes)}
    if resources:
        document["resources"] = dict(resources)
    if team:
        document["team"] = team
    if max_duration:
        document["max_duration"] = max_duration
    if priority:
        document["priority"] = _whole(priority)
    try:
        (spec,) = parse(json.dumps(document), source="row")
    except InvalidSpec as error:
        told = (problem.removeprefix("row:1: ") for problem in error.problems)
        raise InvalidSpec(tuple(f"{where}: {problem}" for problem in told)) from None
    assert isinstance(spec, Training)
    return Arrival(at_s=at_s, duration_s=duration_s, spec=spec)


def _seconds(row: Row, column: str, where: str) -> float:
    try:
        value = float(row[column])
    except (KeyError, ValueError):
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InvalidSpec((f"{where}: {column}: {row.get(column, '')!r} is not a number of 0 or more",))
    return value


def _whole(text: str) -> object:
    """A whole number where it is one; anything else goes on to the parser, which says what is wrong with it."""
    return int(text) if text.strip().lstrip("-").isdigit() else text


def _with_own_names(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """A name that comes again gets a number that no other has: in a trace runs of one name may overlap."""
    taken = {(arrival.spec.team, arrival.spec.name) for arrival in arrivals}
    seen: dict[tuple[str, str], int] = {}
    named = []
    for arrival in arrivals:
        spec = arrival.spec
        number = seen.get((spec.team, spec.name), 0)
        name = spec.name
        while number and (spec.team, name) in taken:
            number += 1
            name = f"{spec.name[:40]}-{number}"
        seen[spec.team, spec.name] = max(number, 1)
        taken.add((spec.team, name))
        named.append(replace(arrival, spec=replace(spec, name=name)))
    return named
