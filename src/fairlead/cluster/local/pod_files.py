"""Reads the files that shims and ranks write for the agent; the pod contract in ARCHITECTURE.md describes them.

The program of a run may write anything to any of them, so each value is taken with its type and bounds or left out.
"""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.deferred import deferred
from fairlead.frozen import dataclass
from fairlead.runtime import collectives
from fairlead.runtime.own_time import MOST_STEPS
from fairlead.runtime.podfiles import read_json, read_regular
from fairlead.state.plan import Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.series import Point
from fairlead.state.snapshot import DriftSeen, GroupProgress, Progress, RankExit, StepAsked, Usage, Whereabouts
from fairlead.untrusted_json import fields, items, moment, number, parse_json, parse_object, text, whole

if TYPE_CHECKING:
    from fairlead.policy.health import gang_times
    from fairlead.policy.health.gang_times import OwnTimes
else:
    gang_times = deferred("fairlead.policy.health.gang_times")

SERIES = "rank-0.series.jsonl"
# A finding of drift becomes part of a status, its hash part of a label.
_LOOKED = re.compile(r"[0-9a-f]{1,64}")
MOST_SAID = 500
MOST_METRICS = 1000
MOST_STEP_S = 86_400.0
MOST_NAME = 200
MOST_TAIL = 40
# Of a file of lines that is read at once, and of one of its lines.
MOST_READ_BYTES = 1 << 20
MOST_LINE_BYTES = 1 << 16
MOST_SERIES_BYTES = 64 << 20
MOST_AMOUNT = 2.0**63
MOST_PID = 1 << 22  # the largest number of a process in Linux


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvents:
    """Lines added to the event files, with the offsets up to which they have been read."""

    events: tuple[tuple[float, Event], ...]
    offsets: str


def read_exits(ended: dict[str, Any]) -> tuple[RankExit, ...]:
    """Read the exits of a pod's ranks from its ``exit.json``; malformed ones are left out."""
    reports = (fields(rank) for rank in items(ended.get("ranks")))
    exits = (
        exit_of(
            rank=report.get("rank"),
            code=report.get("exit_code"),
            signal=report.get("signal"),
            at=report.get("at"),
            out_of_memory=report.get("out_of_memory"),
            tail=report.get("tail"),
            hang=hang_of(report.get("hang")),
        )
        for report in reports
    )
    return tuple(rank_exit for rank_exit in exits if rank_exit is not None)


def exit_of(
    *, rank: object, code: object, signal: object, at: object, out_of_memory: object, tail: object, hang: object
) -> RankExit | None:
    """Return how a rank ended, as it was reported; None if the report is malformed."""
    index, ended_at = whole(rank), moment(at)
    if index is None or index < 0 or ended_at is None or not (code is None or whole(code) is not None):
        return None
    if not (signal is None or whole(signal) is not None):
        return None
    return RankExit(
        rank=index,
        exit_code=whole(code),
        signal=whole(signal),
        at=ended_at,
        out_of_memory=out_of_memory is True,
        tail=tail_of(tail),
        hang=hang if isinstance(hang, Whereabouts) else None,
    )


def tail_of(lines: object) -> tuple[str, ...]:
    """Return the last lines of a rank's error output, as they were reported."""
    return tuple(line for entry in items(lines)[-MOST_TAIL:] if (line := text(entry)) is not None)


def hang_of(value: object) -> Whereabouts | None:
    """Return the location of a rank that hung, as it was reported; None if there is none."""
    if not isinstance(value, dict):
        return None
    return Whereabouts(
        place=text(value.get("place")),
        waits_in=text(value.get("waits_in")),
        step=whole(value.get("step")),
        collectives=tuple(
            GroupProgress(
                group=row[0],
                entered=row[1],
                pending=row[2],
                operation=row[3],
                rank=row[4],
                place=row[5],
                waits_in=row[6],
            )
            for entry in items(value.get("collectives"))[: collectives.MOST_ROWS]
            if (row := collectives.row_of(entry)) is not None
        ),
    )


def read_pids(pod_dir: Path) -> list[int]:
    """Read the processes of a pod's ranks; none before they have started."""
    started = fields(read_json(pod_dir / "started.json"))
    pids = (whole(pid) for pid in fields(started.get("pids")).values())
    return [pid for pid in pids if pid is not None and 1 < pid < MOST_PID]


def read_usage(ended: dict[str, Any]) -> Usage | None:
    """Read the peak usage of a pod's processes from its ``exit.json``; None if it is missing there."""
    used, ranks = fields(ended.get("usage")), len(items(ended.get("ranks")))
    return usage_of(used.get("memory_bytes"), used.get("cpu_milli"), used.get("gpu_memory_bytes"), ranks)


def read_lost_output(ended: dict[str, Any]) -> tuple[int, int, str] | None:
    """Read the lines and bytes of output that a full disk took, and its reason, from ``exit.json``; None for none."""
    lost = fields(ended.get("lost_output"))
    lines, num_bytes, why = _amount(lost.get("lines")), _amount(lost.get("bytes")), text(lost.get("why"), MOST_SAID)
    return (lines, num_bytes or 0, why or "it could not be written") if lines else None


def usage_of(memory: object, cpu: object, gpu: object, ranks: int) -> Usage | None:
    """Return the peak usage of a pod's processes, as it was reported; None if the report is malformed."""
    memory_bytes, cpu_milli = _amount(memory), _amount(cpu)
    if memory_bytes is None or cpu_milli is None:
        return None
    return Usage(memory_bytes=memory_bytes, cpu_milli=cpu_milli, ranks=ranks, gpu_memory_bytes=_amount(gpu))


def _amount(value: object) -> int | None:
    amount = number(value)
    return int(amount) if amount is not None and 0 <= amount < MOST_AMOUNT else None


def read_progress(pod_dir: Path) -> tuple[Progress | None, float | None]:
    """Read the last report of the pod's lowest rank, and the last sign of progress of any rank.

    For a rank that reports steps each report is a sign; for one that never reports, output is.
    """
    newest: float | None = None
    first: tuple[int, dict[str, Any]] | None = None
    for path in pod_dir.glob("rank-*.json"):
        rank = path.stem.removeprefix("rank-")
        report = read_json(path) if rank.isdecimal() else None
        if report is None:  # damaged by the program or deleted: the next report replaces it
            continue
        newest = max(newest or 0.0, moment(report.get("updated_at")) or 0.0)
        if first is None or int(rank) < first[0]:
            first = (int(rank), report)
    if first is None:
        try:
            return None, (pod_dir / "output.log").stat().st_mtime
        except FileNotFoundError:
            return None, None
    return progress_of(first[1]), newest


def read_own_times(pod_dir: Path) -> "dict[int, OwnTimes]":
    """Read the own times that the ranks of a pod report, by rank; malformed ones are left out."""
    reports = {}
    for path in pod_dir.glob("rank-*.json"):
        rank = path.stem.removeprefix("rank-")
        own = own_times_of(fields(read_json(path)).get("own")) if rank.isdecimal() else None
        if own is not None:
            reports[int(rank)] = own
    return reports


def own_times_of(value: object) -> "OwnTimes | None":
    """Return the own times of a rank, as it reported them; None if there are none or the report is malformed."""
    own = fields(value)
    step, step_s = whole(own.get("step")), number(own.get("step_s"))
    times = items(own.get("us"))[-MOST_STEPS:]
    if step is None or step < len(times) or step_s is None or not 0 < step_s < MOST_STEP_S or not times:
        return None
    if not all(type(own_us) is int and 0 <= own_us < MOST_STEP_S * 1e6 for own_us in times):
        return None
    return gang_times.OwnTimes(
        step=step, own_us=tuple(max(own_us, 1) for own_us in times), step_s=step_s, of_gpu=own.get("gpu") is True
    )


def read_events(pod_dir: Path, offsets: str) -> NewEvents:
    """Read the complete lines beyond the offsets in the event files of all ranks."""
    read_to: dict[str, int] = json.loads(offsets)
    events: list[tuple[float, Event]] = []
    for path in sorted(pod_dir.glob("rank-*.events.jsonl")):
        start = read_to.get(path.name, 0)
        lines, read_to[path.name] = _lines(path, start)
        events.extend(event for line in lines if (event := _event(line)) is not None)
    return NewEvents(events=tuple(sorted(events, key=lambda item: item[0])), offsets=json.dumps(read_to))


def _lines(path: Path, start: int, most_bytes: int = MOST_READ_BYTES) -> tuple[list[bytes], int]:
    """Return the complete lines of a file beyond an offset, and the offset of the next one."""
    data = read_regular(path, start, most_bytes)
    end = data.rfind(b"\n") + 1
    if not end and len(data) == most_bytes:
        end = most_bytes  # a line without an end, which is passed over in parts
    return data[:end].splitlines(), start + end


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPoints:
    """Points added to the first rank's series, with the offset up to which it has been read."""

    points: tuple[tuple[str, Point], ...]
    offsets: str


def read_series(pod_dir: Path, attempt: int, offsets: str, *, is_over: bool) -> NewPoints:
    """Read complete lines beyond the offset in the first rank's series; all of them once the pod is final."""
    read_to: dict[str, int] = json.loads(offsets)
    start = read_to.get(SERIES, 0)
    lines, end = _lines(pod_dir / SERIES, start, MOST_SERIES_BYTES if is_over else MOST_READ_BYTES)
    if end == start:
        return NewPoints(points=(), offsets=offsets)
    read_to[SERIES] = end
    points = tuple(point for line in lines for point in _points(line, attempt))
    return NewPoints(points=points, offsets=json.dumps(read_to))


def _points(line: bytes, attempt: int) -> list[tuple[str, Point]]:
    """Return the points of a line of the series; none of a line that the program itself wrote there."""
    try:
        at, step, values = parse_json(line, max_bytes=MOST_LINE_BYTES)
    except (ValueError, TypeError):
        return []
    when, at_step = moment(at), whole(step)
    if when is None or (step is not None and at_step is None):
        return []
    return [
        (name, Point(at=when, step=at_step, value=value, attempt=attempt)) for name, value in metrics_of(values).items()
    ]


def metrics_of(values: object) -> dict[str, float]:
    """Return the metrics of a report by their names; values that are not numbers are left out."""
    some = list(fields(values).items())[:MOST_METRICS]
    return {name[:MOST_NAME]: value for name, reported in some if (value := number(reported)) is not None}


def _event(line: bytes) -> tuple[float, Event] | None:
    """Return an event in a line; None of a line that the program itself wrote there."""
    try:
        record = parse_object(line, max_bytes=MOST_LINE_BYTES)
    except ValueError:
        return None
    at = moment(record.get("at"))
    event = reported_event(record.get("type"), record.get("message"))
    return None if at is None or event is None else (at, event)


def reported_event(kind: object, message: object) -> Event | None:
    """Return an event as a rank reported it; None if the report is malformed."""
    name, sentence = text(kind, MOST_NAME), text(message)
    if name is None or sentence is None:
        return None
    return Event(type=name, reason=Reason(code=Code.REPORTED, message=sentence))


def progress_of(report: dict[str, Any]) -> Progress:
    """Convert a rank's own report; values of a wrong type are left out."""
    return Progress(
        step=whole(report.get("step")),
        first_step_at=moment(report.get("first_step_at")),
        total_steps=whole(report.get("total_steps")),
        epoch=number(report.get("epoch")),
        loss=number(report.get("loss")),
        throughput=number(report.get("throughput")),
        throughput_unit=text(report.get("throughput_unit"), MOST_NAME) or None,
        metrics=metrics_of(report.get("metrics")),
        checkpoint_step=whole(report.get("checkpoint_step")),
        checkpoint_at=moment(report.get("checkpoint_at")),
        memory_step=whole(report.get("memory_step")),
        resumed_step=whole(report.get("resumed_step")),
        stopped_step=whole(report.get("stopped_step")),
        saves_failed=whole(report.get("saves_failed")),
        save_failed_step=whole(report.get("save_failed_step")),
        save_problem=text(report.get("save_problem")) or None,
        checkpoint_interval_s=number(report.get("checkpoint_interval_s")),
        checkpoint_interval_why=text(report.get("checkpoint_interval_why")) or None,
        saving_s=number(report.get("saving_s")),
        loading_s=number(report.get("loading_s")),
        probe_attempt=whole(report.get("probe_attempt")),
        probe_step_s=number(report.get("probe_step_s")),
        in_place_attempt=whole(report.get("in_place_attempt")),
        asks=_asks(report.get("asks")),
        seen=text(report.get("seen")) or None,
        drift=_drift(report.get("drift")),
        updated_at=moment(report.get("updated_at")) or 0.0,
    )


def _asks(value: object) -> tuple[StepAsked, ...]:
    """Read the steps that a driver requests; malformed requests are left out."""
    return tuple(
        StepAsked(step=request[0], index=request[1], item=request[2])
        for request in items(value)
        if isinstance(request, list)
        and len(request) == 3
        and isinstance(request[0], str)
        and (request[1] is None or whole(request[1]) is not None)
        and (request[2] is None or isinstance(request[2], str))
    )


def _drift(value: object) -> DriftSeen | None:
    """Read the result of a check for drift; None if it is malformed."""
    if not isinstance(value, dict) or whole(value.get("run")) is None:
        return None
    return DriftSeen(
        run=value["run"],
        looked=looked if isinstance(looked := value.get("looked"), str) and _LOOKED.fullmatch(looked) else "",
        begin=whole(value.get("begin")),
        fresh=number(value.get("fresh")),
        is_due=value.get("due") is True,
        said=str(value.get("said", ""))[:MOST_SAID],
    )
