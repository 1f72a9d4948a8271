"""Packs reports about a pod for the operator, which sees only its log and its termination message.

Both are one line of JSON with short keys. The readers are in ``fairlead.cluster.kubernetes.workloads.pod_reports``.
Standard library only.
"""

from __future__ import annotations

import json
import os

from fairlead.runtime import collectives, podfiles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

FORM = 1  # increased when an older reader could not parse the new form
REPORT_EVERY_S = 5.0
MOST_EXIT_BYTES = 4096  # kubelet keeps no more of a termination message
MOST_PROGRESS_BYTES = 1024  # share of the above
MOST_REPORT_BYTES = 8192  # half of the longest line that a container runtime keeps whole
MOST_EVENTS = 20
_MOST_GROUPS = 3  # of a hung rank, those that it waits in first
MOST_POINTS_BYTES = 3072  # share of a report; points that do not fit come with the next one
GPUS = "gpus.json"
ENDING = "ending.json"


def pack_exit(record: Mapping[str, Any], pod_dir: str | None = None) -> bytes:
    """Pack the end of a pod into at most 4,096 bytes.

    It has every rank's end, the most advanced progress, and as much of the first failed rank's last output as fits.

    Args:
        pod_dir: The directory of the ranks' reports; None if no rank was started.
    """
    ranks = record.get("ranks") or []
    packed: dict[str, Any] = {
        "form": FORM,
        "at": record.get("at"),
        "message": _cut(record.get("message"), 500),
        "setup_failed": bool(record.get("setup_failed")),
        "ranks": [
            [end["rank"], end["exit_code"], end["signal"], round(end["at"], 3), int(end["out_of_memory"])]
            for end in ranks
        ],
    }
    usage = record.get("usage")
    if usage is not None:
        packed["usage"] = [usage["memory_bytes"], usage["cpu_milli"]]
        if usage.get("gpu_memory_bytes") is not None:
            packed["usage"].append(usage["gpu_memory_bytes"])
    hang = {end["rank"]: end["hang"] for end in ranks if end.get("hang") is not None}
    if hang:
        packed["hang"] = [[rank, *_whereabouts(at)] for rank, at in hang.items()]
    reports = {} if pod_dir is None else _reports(pod_dir)
    if reports:
        # The rank that failed first may have been a step behind.
        furthest = reports[max(reports, key=lambda rank: (_step(reports[rank]), -rank))]
        is_short = len(_encoded(furthest)) <= MOST_PROGRESS_BYTES
        packed["progress"] = furthest if is_short else {**furthest, "metrics": {}, "asks": []}
    first = first_failed(ranks)
    lines = [str(line) for line in (first["tail"] if first is not None else record.get("tail") or ())]
    if first is not None:
        packed["tail_of"] = first["rank"]
    if len(_encoded(packed)) > MOST_EXIT_BYTES and "hang" in packed:
        packed["hang"] = [row[:4] for row in packed["hang"]]
    if len(_encoded(packed)) > MOST_EXIT_BYTES:
        # Thousands of ranks do not fit: only those that failed are kept, the first ones first, as they show the cause.
        bad = sorted((row for row in packed["ranks"] if row[1] != 0), key=lambda row: float(row[3]))
        packed["ranks"], packed["of"] = bad[:20], len(ranks)
        if "hang" in packed:
            # Ranks that do not wait for another rank are the most informative.
            packed["hang"] = sorted(packed["hang"], key=lambda row: row[2] is not None)[:10]
        if len(_encoded(packed)) > MOST_EXIT_BYTES:
            packed.pop("progress", None)
    tail: list[str] = []
    for line in reversed(lines):
        if len(_encoded({**packed, "tail": [_cut(line, 400), *tail]})) > MOST_EXIT_BYTES:
            break
        tail.insert(0, str(_cut(line, 400)))
    return _encoded({**packed, "tail": tail})


def exit_code(record: Mapping[str, Any]) -> int:
    """Return the exit code of the first failed rank, 128 + N for signal N; 1 if none started, 0 if none failed."""
    first = first_failed(record.get("ranks") or [])
    if first is None:
        return 0 if record.get("ranks") else 1
    code = first["exit_code"]
    return int(code) if code is not None else 128 + int(first["signal"])


def first_failed(ranks: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the rank that failed first, or None."""
    failed = [end for end in ranks if end["exit_code"] != 0]
    return min(failed, key=lambda end: float(end["at"]), default=None)


def read_points(pod_dir: str, offset: int) -> tuple[list[Any], int]:
    """Return points of rank 0's metrics from an offset on, as many as fit into a report, and the offset after them."""
    try:
        with open(os.path.join(pod_dir, "rank-0.series.jsonl"), "rb") as file:
            file.seek(offset)
            data = file.read(MOST_POINTS_BYTES)
    except FileNotFoundError:
        return [], offset
    end = data.rfind(b"\n") + 1
    if not end and len(data) == MOST_POINTS_BYTES:
        return [], offset + len(data)  # Fairlead writes no such long line, and its remainder is no point either
    points = []
    for line in data[:end].splitlines():
        try:
            points.append(json.loads(line))
        except ValueError:
            continue  # a line that the program itself wrote into the file
    return points, offset + end


def pack_report(pod_dir: str, points: Sequence[Any] = ()) -> str:
    """Pack the current reports of a pod's ranks: the lowest rank's progress, the last activity and the latest events.

    Args:
        points: New points of the metrics, not reported before.
    """
    started = podfiles.read_json(os.path.join(pod_dir, "started.json")) or {}
    reports = _reports(pod_dir)
    packed: dict[str, Any] = {"form": FORM, "started_at": started.get("at"), "active_at": active_at(pod_dir)}
    gpus = podfiles.read_json(os.path.join(pod_dir, GPUS))
    if gpus is not None:
        packed["gpus"] = gpus["uuids"]
    ending = podfiles.read_json(os.path.join(pod_dir, ENDING))
    if ending is not None:
        packed["ending"] = ending
    if points:
        packed["points"] = points
    if reports:
        packed["progress"] = reports[min(reports)]
    events = _events(pod_dir)
    while True:
        line = json.dumps({**packed, "events": events}, separators=(",", ":"))
        if len(line) <= MOST_REPORT_BYTES:
            return line
        if events:
            events = events[1:]
        else:
            packed.pop("progress", None)


def _reports(pod_dir: str) -> dict[int, dict[str, Any]]:
    reports = {}
    for name in _names(pod_dir):
        number = name[len("rank-") : -len(".json")]
        if name.startswith("rank-") and name.endswith(".json") and number.isdigit():
            value = podfiles.read_json(os.path.join(pod_dir, name))
            if value is not None:
                reports[int(number)] = value
    return reports


def _whereabouts(at: Mapping[str, Any]) -> list[Any]:
    """Return place, call, step and a few process groups, short enough that those of all ranks of a node fit."""
    return [
        _cut(at.get("place"), 120),
        _cut(at.get("waits_in"), 60),
        at.get("step"),
        collectives.of_first_groups(at.get("collectives") or [], _MOST_GROUPS),
    ]


def _step(report: Mapping[str, Any]) -> int:
    step = report.get("step")
    return step if isinstance(step, int) else 0


def active_at(pod_dir: str) -> float | None:
    """Return the time of the newest report of any rank, or without reports of the newest output; None without both."""
    stamps = [report.get("updated_at") for report in _reports(pod_dir).values()]
    times = [float(at) for at in stamps if isinstance(at, (int, float))]
    if times:
        return max(times)
    try:
        return os.stat(os.path.join(pod_dir, "output.log")).st_mtime
    except FileNotFoundError:
        return None


def _events(pod_dir: str) -> list[list[Any]]:
    """Return the latest events with their rank and line number, by which a reader recognizes those it has seen."""
    events = []
    for name in _names(pod_dir):
        number = name[len("rank-") : -len(".events.jsonl")]
        if not (name.startswith("rank-") and name.endswith(".events.jsonl") and number.isdigit()):
            continue
        with open(os.path.join(pod_dir, name), "rb") as file:
            lines = file.read().splitlines()
        for place, line in list(enumerate(lines))[-MOST_EVENTS:]:
            try:
                event = json.loads(line)
                events.append([int(number), place, float(event["at"]), str(event["type"]), _cut(event["message"], 300)])
            except (ValueError, KeyError, TypeError):
                continue  # a line that the program itself wrote into the file, or a partial one
    return sorted(events, key=_at)[-MOST_EVENTS:]


def _at(event: list[Any]) -> float:
    return float(event[2])


def _names(pod_dir: str) -> list[str]:
    try:
        return sorted(os.listdir(pod_dir))
    except FileNotFoundError:
        return []  # the ranks' container has not started


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _cut(text: object, most: int) -> str | None:
    return None if text is None else str(text)[:most]
