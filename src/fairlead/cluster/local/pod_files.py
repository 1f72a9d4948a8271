"""Reads the files that shims and ranks write for the agent; the pod contract in ARCHITECTURE.md describes them."""

import json
import re
from pathlib import Path
from typing import Any

from fairlead.frozen import dataclass
from fairlead.state.plan import Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.series import Point
from fairlead.state.snapshot import DriftSeen, Progress, RankExit, StepAsked, Usage, Whereabouts

SERIES = "rank-0.series.jsonl"
# A finding of drift becomes part of a status, its hash part of a label.
_LOOKED = re.compile(r"[0-9a-f]{1,64}")
MOST_SAID = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvents:
    """Lines added to the event files, with the offsets up to which they have been read."""

    events: tuple[tuple[float, Event], ...]
    offsets: str


def read_exits(ended: dict[str, Any]) -> tuple[RankExit, ...]:
    """Read the exits of a pod's ranks from its ``exit.json``."""
    return tuple(
        RankExit(
            rank=int(rank["rank"]),
            exit_code=rank["exit_code"],
            signal=rank["signal"],
            at=float(rank["at"]),
            out_of_memory=bool(rank.get("out_of_memory")),
            tail=tuple(rank.get("tail") or ()),
            hang=None if rank.get("hang") is None else Whereabouts(**rank["hang"]),
        )
        for rank in ended.get("ranks") or ()
    )


def read_usage(ended: dict[str, Any]) -> Usage | None:
    """Read the peak usage of a pod's processes from its ``exit.json``; None if it is missing there."""
    used = ended.get("usage")
    if used is None:
        return None
    ranks = len(ended.get("ranks") or ())
    gpu = used.get("gpu_memory_bytes")
    return Usage(
        memory_bytes=int(used["memory_bytes"]),
        cpu_milli=int(used["cpu_milli"]),
        ranks=ranks,
        gpu_memory_bytes=None if gpu is None else int(gpu),
    )


def read_progress(pod_dir: Path) -> tuple[Progress | None, float | None]:
    """Read the last report of the pod's lowest rank, and the last sign of progress of any rank.

    For a rank that reports steps each report is a sign; for one that never reports, output is.
    """
    newest: float | None = None
    first: tuple[int, dict[str, Any]] | None = None
    for path in pod_dir.glob("rank-*.json"):
        try:
            report = json.loads(path.read_text())
        except (OSError, ValueError):  # damaged by the program or deleted: the next report replaces it
            continue
        number = path.stem.removeprefix("rank-")
        if not isinstance(report, dict) or not number.isdigit():
            continue
        newest = max(newest or 0.0, _number(report.get("updated_at")) or 0.0)
        if first is None or int(number) < first[0]:
            first = (int(number), report)
    if first is None:
        try:
            return None, (pod_dir / "output.log").stat().st_mtime
        except FileNotFoundError:
            return None, None
    return progress_of(first[1]), newest


def read_events(pod_dir: Path, offsets: str) -> NewEvents:
    """Read the complete lines beyond the offsets in the event files of all ranks."""
    read_to: dict[str, int] = json.loads(offsets)
    found: list[tuple[float, Event]] = []
    for path in sorted(pod_dir.glob("rank-*.events.jsonl")):
        start = read_to.get(path.name, 0)
        if path.stat().st_size <= start:
            continue
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(1 << 20)
        end = data.rfind(b"\n") + 1
        read_to[path.name] = start + end
        found.extend(event for line in data[:end].splitlines() if (event := _event(line)) is not None)
    return NewEvents(events=tuple(sorted(found, key=lambda item: item[0])), offsets=json.dumps(read_to))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPoints:
    """Points added to the first rank's series, with the offset up to which it has been read."""

    points: tuple[tuple[str, Point], ...]
    offsets: str


def read_series(pod_dir: Path, attempt: int, offsets: str, *, is_over: bool) -> NewPoints:
    """Read complete lines beyond the offset in the first rank's series; all of them once the pod is final."""
    read_to: dict[str, int] = json.loads(offsets)
    path = pod_dir / SERIES
    start = read_to.get(SERIES, 0)
    try:
        if path.stat().st_size <= start:
            return NewPoints(points=(), offsets=offsets)
    except FileNotFoundError:
        return NewPoints(points=(), offsets=offsets)
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(-1 if is_over else 1 << 20)
    end = data.rfind(b"\n") + 1
    read_to[SERIES] = start + end
    found = [point for line in data[:end].splitlines() for point in _points(line, attempt)]
    return NewPoints(points=tuple(found), offsets=json.dumps(read_to))


def _points(line: bytes, attempt: int) -> list[tuple[str, Point]]:
    try:
        at, step, values = json.loads(line)
        if isinstance(step, bool):
            return []
        at, step = float(at), None if step is None else int(step)
        return [
            (str(name), Point(at=at, step=step, value=float(value), attempt=attempt)) for name, value in values.items()
        ]
    except (ValueError, TypeError, AttributeError):  # a line that the program itself wrote there
        return []


def _event(line: bytes) -> tuple[float, Event] | None:
    try:
        record = json.loads(line)
        at, kind, message = float(record["at"]), str(record["type"]), str(record["message"])
    except (ValueError, KeyError, TypeError):  # a line that the program itself wrote there
        return None
    return at, Event(type=kind, reason=Reason(code=Code.REPORTED, message=message))


def progress_of(report: dict[str, Any]) -> Progress:
    """Convert a rank's own report; values of a wrong type are left out."""
    metrics = report.get("metrics")
    return Progress(
        step=_whole(report.get("step")),
        first_step_at=_number(report.get("first_step_at")),
        total_steps=_whole(report.get("total_steps")),
        epoch=_number(report.get("epoch")),
        loss=_number(report.get("loss")),
        throughput=_number(report.get("throughput")),
        throughput_unit=str(report["throughput_unit"]) if report.get("throughput_unit") else None,
        metrics={str(key): float(value) for key, value in metrics.items()} if isinstance(metrics, dict) else {},
        checkpoint_step=_whole(report.get("checkpoint_step")),
        checkpoint_at=_number(report.get("checkpoint_at")),
        memory_step=_whole(report.get("memory_step")),
        resumed_step=_whole(report.get("resumed_step")),
        stopped_step=_whole(report.get("stopped_step")),
        saves_failed=_whole(report.get("saves_failed")),
        save_failed_step=_whole(report.get("save_failed_step")),
        save_problem=str(report["save_problem"]) if report.get("save_problem") else None,
        checkpoint_interval_s=_number(report.get("checkpoint_interval_s")),
        checkpoint_interval_why=str(why) if (why := report.get("checkpoint_interval_why")) else None,
        saving_s=_number(report.get("saving_s")),
        loading_s=_number(report.get("loading_s")),
        probe_attempt=_whole(report.get("probe_attempt")),
        probe_step_s=_number(report.get("probe_step_s")),
        in_place_attempt=_whole(report.get("in_place_attempt")),
        asks=_asks(report.get("asks")),
        seen=str(seen) if (seen := report.get("seen")) else None,
        drift=_drift(report.get("drift")),
        updated_at=_number(report.get("updated_at")) or 0.0,
    )


def _asks(value: object) -> tuple[StepAsked, ...]:
    """Read the steps that a driver requests; malformed requests are left out."""
    return tuple(
        StepAsked(step=each[0], index=each[1], item=each[2])
        for each in (value if isinstance(value, list) else ())
        if isinstance(each, list)
        and len(each) == 3
        and isinstance(each[0], str)
        and (each[1] is None or type(each[1]) is int)
        and (each[2] is None or isinstance(each[2], str))
    )


def _drift(value: object) -> DriftSeen | None:
    """Read the result of a check for drift; None if it is malformed."""
    if not isinstance(value, dict) or _whole(value.get("run")) is None:
        return None
    return DriftSeen(
        run=value["run"],
        looked=looked if isinstance(looked := value.get("looked"), str) and _LOOKED.fullmatch(looked) else "",
        begin=_whole(value.get("begin")),
        fresh=_number(value.get("fresh")),
        is_due=value.get("due") is True,
        said=str(value.get("said", ""))[:MOST_SAID],
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
