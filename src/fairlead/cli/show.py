"""Formats runs as text and as JSON."""

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from fairlead.cli.families import by_family
from fairlead.cli.suggestions import suggest
from fairlead.cluster.port import EventRecord
from fairlead.policy.kinds.progress import progress_of, warning_of
from fairlead.state.reasons import JUST_SUBMITTED, Reason
from fairlead.state.run_times import active_until
from fairlead.state.snapshot import AnyWorkload, is_leaf
from fairlead.text.quantities import describe_duration

json_option = click.option("--json", "json_", is_flag=True, help="JSON instead of text.")

LEAST_COLUMN = 20


def as_json(value: Any) -> str:
    """Serialize a value to one line of JSON."""
    return json.dumps(value, default=str)


def run_json(workload: AnyWorkload) -> dict[str, Any]:
    """Return a workload as a JSON object."""
    detail: Any = workload.status.detail
    own = {} if is_leaf(workload) else {"detail": None if detail is None else asdict(detail)}
    return {
        "kind": type(workload.spec).__name__,
        "parent": workload.parent,
        "name": workload.spec.name,
        "team": workload.spec.team,
        "uid": workload.uid,
        "labels": dict(workload.spec.labels),
        "phase": workload.status.phase.value,
        "intent": workload.intent.value,
        "reason": asdict(workload.status.reason),
        "attempt": workload.status.attempt,
        "ranks": workload.gang.world_size if is_leaf(workload) else None,
        "nodes": workload.gang.nodes if is_leaf(workload) else None,
        "created_at": workload.created_at,
        "started_at": workload.status.started_at,
        "active_s": active_until(workload.status, time.time()),
        "finished_at": workload.status.finished_at,
        "last_failure": None if workload.status.failures.last is None else asdict(workload.status.failures.last),
        "requests": None if workload.status.measured.requests is None else asdict(workload.status.measured.requests),
        "used": None if workload.status.measured.usage is None else asdict(workload.status.measured.usage),
        "warning": None if (wrong := warning_of(workload, time.time())) is None else asdict(wrong),
        "progress": None if workload.progress is None else asdict(workload.progress),
        **own,
    }


def event_json(event: EventRecord) -> dict[str, Any]:
    """Return an event as a JSON object: ``event`` is its type, ``uid`` that of its run."""
    return {
        "id": event.id,
        "at": event.at,
        "run": event.run,
        "uid": event.workload_uid,
        "event": event.type,
        "reason": asdict(event.reason),
    }


def table(rows: list[tuple[str, ...]]) -> str:
    """Format rows in aligned columns, the first as header; on a terminal, truncate the last one to avoid wrapping."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    room = None
    if sys.stdout is not None and sys.stdout.isatty():
        room = max(LEAST_COLUMN, shutil.get_terminal_size().columns - sum(widths) - 2 * len(widths))
    pads = [*widths, 0]
    cells = ((*row[:-1], cut(row[-1], room)) for row in rows)
    lines = ((cell.ljust(pad) for cell, pad in zip(row, pads, strict=True)) for row in cells)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def run_rows(workloads: Sequence[AnyWorkload]) -> list[tuple[str, ...]]:
    """Return workloads as rows of a listing with header; with teams if there are several, and children indented."""
    has_teams = len({workload.spec.team for workload in workloads}) > 1
    team = ("TEAM",) if has_teams else ()
    header = ("NAME", *team, "PHASE", "RANKS", "STEP", "SUBMITTED", "REASON")
    return [header, *(_run_row(workload, depth, has_teams=has_teams) for depth, workload in by_family(workloads))]


def _run_row(workload: AnyWorkload, depth: int, *, has_teams: bool) -> tuple[str, ...]:
    # A warning of a running workload takes precedence over the reason of its phase.
    wrong = warning_of(workload, time.time())
    return (
        f"{'  ' * depth}{workload.spec.name}",
        *((workload.spec.team,) if has_teams else ()),
        workload.status.phase.value,
        str(workload.gang.world_size) if is_leaf(workload) else "-",
        progress_of(workload, short=True),
        f"{describe_duration(max(0.0, time.time() - workload.created_at))} ago",
        workload.status.reason.message if wrong is None else wrong.message,
    )


def describe_event(type_: str, reason: Reason) -> str:
    """Format an event as its type and reason; the type alone if the reason adds nothing."""
    return type_ if reason == JUST_SUBMITTED else f"{type_}: {reason.message}"


def describe_time(at: float) -> str:
    """Format a Unix time as local time."""
    return time.strftime("%F %T", time.localtime(at))


def describe_reason(reason: Reason, options: str) -> str:
    """Format a reason with its details and its remedy.

    Args:
        options: Options of a command that select the cluster; empty for this machine.
    """
    lines = [reason.message]
    lines += [f"    {line}" for line in reason.detail[-12:]]
    if reason.remedy:
        lines.append(suggest(reason.remedy, options))
    return "\n".join(lines)


def message(text: str) -> None:
    """Print a message for the user to stderr."""
    print(text, file=sys.stderr, flush=True)


def cut(text: str, length: int | None) -> str:
    """Truncate a text to a length, if one is given."""
    return text if length is None or len(text) <= length else f"{text[: length - 3]}..."
