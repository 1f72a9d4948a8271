"""Converts rows of public traces into arrivals: Microsoft's Philly, Muri, Alibaba's openb, and Shockwave."""

import re
from dataclasses import replace

from fairlead.errors import InvalidSpec
from fairlead.traces.arrivals import Arrival
from fairlead.traces.rows import Row, arrival_of, profile_of, seconds

GPUS_PER_NODE = 8
"""GPUs of a node: traces of whole-GPU jobs give GPUs and no nodes, and their nodes had eight each."""

# Columns of Shockwave's files (NSDI'23), which are separated by tabs and have no header.
SHOCKWAVE = (
    "job_type", "command", "working_directory", "steps_argument", "needs_data", "total_steps", "num_gpus", "mode",
    "weight", "deadline", "duration", "arrival",
)  # fmt: skip


def of_philly(row: Row, index: int, where: str, *, unit_s: float = 1.0) -> Arrival:
    """Convert a row of a table made from Microsoft's Philly: num_gpu, submit_time and duration, in seconds.

    If present, ``job_id`` names the job, and ``vc``, the virtual cluster, is its team.
    """
    return _job(
        where,
        num_gpus=int(seconds(row, "num_gpu", where)),
        at_s=seconds(row, "submit_time", where) * unit_s,
        duration_s=seconds(row, "duration", where) * unit_s,
        name=_slug(f"job-{row.get('job_id') or index + 1}"),
        team=_slug(row.get("vc", "")),
    )


def of_muri(row: Row, index: int, where: str) -> Arrival:
    """Convert a row of Muri's tables (SIGCOMM'22): as Philly's, in milliseconds, with the stages of iterations."""
    arrival = of_philly(row, index, where, unit_s=0.001)
    columns = ("iteration_time", "resource_time_0", "resource_time_1", "resource_time_2")
    measured_s = [seconds(row, column, where) * 0.001 for column in columns if row.get(column)]
    return replace(arrival, profile=profile_of(measured_s, where)) if len(measured_s) == len(columns) else arrival


def of_openb(row: Row, index: int, where: str) -> Arrival:
    """Convert a row of Alibaba's openb pod lists (cluster-trace-gpu-v2023): shares of devices, cores, memory, models.

    A pod lasts from its scheduling, or its creation if it was never scheduled, to its deletion, in seconds.
    """
    began = "scheduled_time" if row.get("scheduled_time") else "creation_time"
    duration_s = seconds(row, "deletion_time", where) - seconds(row, began, where)
    if duration_s < 0:
        raise InvalidSpec((f"{where}: deletion_time: {row['deletion_time']} is before {began}, {row[began]}",))
    resources: dict[str, object] = {}
    if cpu_milli := seconds(row, "cpu_milli", where):
        resources["cpu"] = f"{cpu_milli:.0f}m"
    if memory_mib := seconds(row, "memory_mib", where):
        resources["memory"] = f"{memory_mib:.0f}Mi"
    num = int(seconds(row, "num_gpu", where))
    if num:
        gpus = seconds(row, "gpu_milli", where) / 1000 if num == 1 else float(num)
        models = "|".join(dict.fromkeys(name for name in row.get("gpu_spec", "").split("|") if name))
        resources["gpu"] = f"{models}:{gpus:g}" if models else f"{gpus:g}"
    return arrival_of(
        where,
        at_s=seconds(row, "creation_time", where),
        duration_s=duration_s,
        name=row.get("name") or f"pod-{index + 1}",
        team="",
        nodes="1",
        resources=resources,
        priority="",
    )


def of_shockwave(row: Row, index: int, where: str) -> Arrival:
    """Convert a job of Shockwave, named after its model; its duration is that of its first batch size."""
    model = _slug(row["job_type"].partition("(")[0])
    return _job(
        where,
        num_gpus=int(seconds(row, "num_gpus", where)),
        at_s=seconds(row, "arrival", where),
        duration_s=seconds(row, "duration", where),
        name=model or f"job-{index + 1}",
    )


def _slug(text: str) -> str:
    """Turn a text into a valid name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:50].strip("-")


def _job(where: str, *, num_gpus: int, at_s: float, duration_s: float, name: str, team: str = "") -> Arrival:
    """Return the arrival of a whole-GPU job on as few nodes of eight GPUs as possible."""
    nodes = max(1, -(-num_gpus // GPUS_PER_NODE))
    return arrival_of(
        where,
        at_s=at_s,
        duration_s=duration_s,
        name=name,
        team=team,
        nodes=str(nodes),
        resources={"gpu": num_gpus // nodes} if num_gpus else {},
        priority="",
    )
