"""Formats the steps of a pipeline as text and as JSON."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.cli.show import table
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.output import LogQuery
from fairlead.control.pipelines.command import is_pipeline
from fairlead.errors import ClusterError
from fairlead.state.snapshot import AnyWorkload, Workload
from fairlead.text.quantities import describe_duration, plural

if TYPE_CHECKING:
    from fairlead.control.pipelines.journal import Progress


def describe_steps(workload: Workload) -> str:
    """Describe the number of steps of a run's pipeline."""
    from fairlead.control.pipelines.submission import pipeline_of

    pipeline = pipeline_of(workload.spec)
    return "its spec is gone" if pipeline is None else plural(len(pipeline.steps), "step")


def step_lines(cluster: ClusterClient, workload: AnyWorkload) -> list[str]:
    """Return a table with a row per task of a pipeline; empty for other workloads."""
    try:
        progress = _progress(cluster, workload)
    except ClusterError as error:
        return [f"its steps are read from its output, which is unavailable: {error}"]
    if progress is None:
        return []
    rows: list[tuple[str, ...]] = [("STEP", "PHASE", "TOOK", "")]
    for tasks in progress.steps.values():
        for task in tasks:
            began, ended = progress.times.get(task.name, (None, None))
            took = "" if began is None or ended is None else describe_duration(ended - began)
            rows.append((task.name, task.phase.value, took, task.message))
    return table(rows).splitlines()


def steps_json(cluster: ClusterClient, workload: AnyWorkload) -> list[dict[str, Any]] | None:
    """Return each task of a pipeline as an object; empty for other workloads, None if it cannot be read now."""
    try:
        progress = _progress(cluster, workload)
    except ClusterError:
        return None
    if progress is None:
        return []
    told = []
    for tasks in progress.steps.values():
        for task in tasks:
            began, ended = progress.times.get(task.name, (None, None))
            told.append({"name": task.name, **asdict(task), "began_at": began, "ended_at": ended})
    return told


def _progress(cluster: ClusterClient, workload: AnyWorkload) -> "Progress | None":
    if not is_pipeline(workload.spec):
        return None
    # Here and not above: few runs are pipelines.
    from fairlead.control.pipelines.submission import driver_uid, pipeline_of, progress_of

    pipeline = pipeline_of(workload.spec)
    if pipeline is not None and cluster.has_containers:
        from fairlead.control.pipelines.told import LINE, read_told

        uid = driver_uid(cluster, workload)
        return read_told(pipeline, () if uid is None else cluster.logs(uid, LogQuery(pattern=LINE)))
    return None if pipeline is None else progress_of(pipeline, workload, Path(cluster.kept_at(workload)))
