"""Reads trace files: our own table, those of public traces (found by their headers), and spec files.

Our own table is CSV with a header. `submit_s` and `duration_s` are required, both in seconds; `name team nodes gpu cpu
memory priority max_duration expected_duration deadline spot max_price checkpoint_every` are as in a spec, empty where
the spec's default holds. The rest are seconds, empty where the simulation's defaults hold: the durations of the run's
start and of its checkpoints, and the stages of its iterations; or say what the run reads: a version of data, its size
in GB, and the MB/s of the whole gang at full speed. Lines that begin with # are comments.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairlead.errors import InvalidSpec
from fairlead.specs.formats.reading import load_file
from fairlead.specs.keys import Spec
from fairlead.specs.training import Training
from fairlead.traces import public
from fairlead.traces.arrivals import Arrival
from fairlead.traces.rows import Row, arrival_of, profile_of, reads_of, refuse_unlike_sizes, seconds

SPEC_COLUMNS = (
    "name", "team", "nodes", "gpu", "cpu", "memory", "colocate", "priority", "max_duration", "expected_duration",
    "deadline", "spot", "max_price", "checkpoint_every",
)  # fmt: skip
COST_COLUMNS = ("start_up_s", "checkpoint_s", "save_s")
PROFILE_COLUMNS = ("iteration_s", "load_s", "compute_s", "communicate_s")
DATA_COLUMNS = ("data", "data_gb", "data_mb_s")
OWN_COLUMNS = ("submit_s", "duration_s", *SPEC_COLUMNS, *COST_COLUMNS, *PROFILE_COLUMNS, *DATA_COLUMNS)


def read_trace(path: Path) -> tuple[Arrival, ...]:
    """Read the runs of a file in order of arrival.

    A spec file (.yaml, .yml) is a trace whose runs all arrive at once, each as long as its `max_duration`. A .trace is
    Shockwave's: columns between tabs, without a header.

    Raises:
        InvalidSpec: It cannot be read, or is invalid; at most 20 problems are listed.
    """
    if path.suffix.lower() in (".yaml", ".yml"):
        return tuple(_of_spec(spec, path) for spec in load_file(path))
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = [(number, line) for number, line in enumerate(file, 1) if line.strip() and line[0] != "#"]
        headless = path.suffix == ".trace"
        table = csv.DictReader(
            (line for _, line in lines),
            fieldnames=public.SHOCKWAVE if headless else None,
            delimiter="\t" if headless else ",",
        )
        header = tuple(table.fieldnames or ())
        rows = list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidSpec((f"{path}: cannot be read as a trace: {reason}",)) from error
    convert = _converter(header, path)
    repeated = next((name for name in header if header.count(name) > 1), None)
    if repeated is not None:
        raise InvalidSpec((f"{path}:1: {repeated}: the header has this column twice; keep one",))
    arrivals: list[Arrival] = []
    problems: list[str] = []
    for index, row in enumerate(rows):
        try:
            where = f"{path}:{lines[index + (not headless)][0]}"
            _refuse_other_length(row, header, where)
            arrivals.append(convert(row, index, where))
        except InvalidSpec as error:
            problems.extend(error.problems)
            if len(problems) >= 20:
                break
    if problems:
        raise InvalidSpec(tuple(problems[:20]))
    if not arrivals:
        raise InvalidSpec((f"{path}: there is no run in it, only a header",))
    refuse_unlike_sizes(arrivals, path)
    return tuple(sorted(with_own_names(arrivals), key=lambda arrival: arrival.at_s))


def _refuse_other_length(row: Mapping[str | None, object], header: Sequence[str], where: str) -> None:
    """Refuse a row with more or fewer fields than columns, whose values may stand under the wrong names."""
    beyond = row.get(None)
    num = sum(value is not None for name, value in row.items() if name is not None)
    num += len(beyond) if isinstance(beyond, list) else 0
    if num != len(header):
        raise InvalidSpec(
            (f"{where}: it has {num} fields, and the header {len(header)}; leave a field empty for the default",)
        )


def _converter(columns: tuple[str, ...], path: Path) -> Callable[[Row, int, str], Arrival]:
    known = set(columns)
    if {"submit_time", "duration", "num_gpu", "resource_time_0"} <= known:
        return public.of_muri
    if {"submit_time", "duration", "num_gpu"} <= known:
        return public.of_philly
    if {"num_gpu", "gpu_milli", "creation_time", "deletion_time"} <= known:
        return public.of_openb
    if columns == public.SHOCKWAVE:
        return public.of_shockwave
    if {"submit_s", "duration_s"} <= known:
        surplus = sorted(known - set(OWN_COLUMNS))
        if surplus:
            raise InvalidSpec((f"{path}:1: {surplus[0]}: unknown column; allowed are {', '.join(OWN_COLUMNS)}",))
        return _of_own
    if len(columns) == 1 and (separator := next((character for character in ";\t|" if character in columns[0]), "")):
        raise InvalidSpec((f"{path}:1: the columns are separated by {separator!r}; a trace has commas between them",))
    raise InvalidSpec(
        (
            f"{path}:1: the header is {', '.join(columns) or 'empty'}; a trace of ours has submit_s and duration_s, "
            "those of Philly and Muri have num_gpu, submit_time and duration, openb's num_gpu, gpu_milli, "
            "creation_time and deletion_time",
        )
    )


def _of_own(row: Row, index: int, where: str) -> Arrival:
    resources: dict[str, object] = {key: row[key] for key in ("gpu", "cpu", "memory") if row.get(key)}
    if colocate := row.get("colocate"):
        resources["colocate"] = {"true": True, "false": False}.get(colocate.lower(), colocate)
    arrival = arrival_of(
        where,
        at_s=seconds(row, "submit_s", where),
        duration_s=seconds(row, "duration_s", where),
        name=row.get("name") or f"run-{index + 1}",
        team=row.get("team", ""),
        nodes=row.get("nodes") or "1",
        resources=resources,
        priority=row.get("priority", ""),
        max_duration=row.get("max_duration", ""),
        expected_duration=row.get("expected_duration", ""),
        deadline=row.get("deadline", ""),
        spot=row.get("spot", ""),
        max_price=row.get("max_price", ""),
        checkpoint_every=row.get("checkpoint_every", ""),
    )
    start_up_s, checkpoint_s, save_s = (
        seconds(row, column, where) if row.get(column) else None for column in COST_COLUMNS
    )
    measured = [seconds(row, column, where) for column in PROFILE_COLUMNS if row.get(column)]
    return replace(
        arrival,
        start_up_s=start_up_s,
        checkpoint_s=checkpoint_s,
        save_s=save_s,
        profile=profile_of(measured, where) if measured else None,
        reads=reads_of(row, where) if any(row.get(column) for column in DATA_COLUMNS) else None,
    )


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


def with_own_names(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Number repeated names, so that each is unique: in a trace runs of one name may overlap."""
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
