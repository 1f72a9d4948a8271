"""How runs look to people, and the same as JSON."""

import json
import sys
import time
from dataclasses import asdict
from typing import Any

from fairlead.policy.quantities import say_duration
from fairlead.state.reasons import Reason
from fairlead.state.snapshot import Progress, Workload


def as_json(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(value, default=str)


def run_json(workload: Workload) -> dict[str, Any]:
    """A run as an object for programs."""
    return {
        "name": workload.spec.name,
        "team": workload.spec.team,
        "uid": workload.uid,
        "phase": workload.status.phase.value,
        "intent": workload.intent.value,
        "reason": asdict(workload.status.reason),
        "attempt": workload.status.attempt,
        "ranks": workload.spec.world_size,
        "created_at": workload.created_at,
        "started_at": workload.status.started_at,
        "finished_at": workload.status.finished_at,
        "last_failure": None if workload.status.last_failure is None else asdict(workload.status.last_failure),
        "progress": None if workload.progress is None else asdict(workload.progress),
    }


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows in aligned columns; the first is the header and the last column is not padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def run_row(workload: Workload) -> tuple[str, ...]:
    """A run as a row of the listing."""
    return (
        workload.spec.name,
        workload.status.phase.value,
        str(workload.spec.world_size),
        say_progress(workload.progress, short=True),
        f"{say_duration(max(0.0, time.time() - workload.created_at))} ago",
        _cut(workload.status.reason.message, 100),
    )


def say_progress(progress: Progress | None, *, short: bool = False) -> str:
    """Step, loss, throughput and checkpoint in one line; ``-`` when nothing was said."""
    if progress is None or progress.step is None:
        return "-"
    steps = f"{progress.step}" if progress.total_steps is None else f"{progress.step}/{progress.total_steps}"
    if short:
        return steps
    parts = [f"step {steps}"]
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4g}")
    if progress.throughput is not None:
        parts.append(f"{progress.throughput:,.0f} {progress.throughput_unit or 'steps/s'}")
    if progress.checkpoint_step is not None:
        parts.append(f"checkpoint at {progress.checkpoint_step}")
    return ", ".join(parts)


def say_reason(reason: Reason) -> str:
    """A reason with its further lines and its remedy."""
    lines = [reason.message]
    lines += [f"    {line}" for line in reason.detail[-12:]]
    if reason.remedy:
        lines.append(reason.remedy)
    return "\n".join(lines)


def message(text: str) -> None:
    """Something for people, which is no result."""
    print(text, file=sys.stderr, flush=True)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."
