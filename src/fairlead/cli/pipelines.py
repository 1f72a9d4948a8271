"""Formats the steps of a pipeline as text and as JSON."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fairlead.cli.show import table
from fairlead.cluster.client import ClusterClient
from fairlead.control.pipelines.step_output import progress_in
from fairlead.deferred import deferred
from fairlead.errors import ClusterError
from fairlead.state.snapshot import AnyWorkload, Workload
from fairlead.text.quantities import describe_duration, plural

if TYPE_CHECKING:
    from fairlead.control.pipelines import submission
else:
    submission = deferred("fairlead.control.pipelines.submission")


def describe_steps(workload: Workload) -> str:
    """Describe the number of steps of a run's pipeline."""
    pipeline = submission.pipeline_of(workload.spec)
    return "its spec is gone" if pipeline is None else plural(len(pipeline.steps), "step")


def step_lines(cluster: ClusterClient, workload: AnyWorkload) -> list[str]:
    """Return a table with a row per task of a pipeline; empty for other workloads."""
    try:
        progress = progress_in(cluster, workload)
    except ClusterError as error:
        return [f"its steps are read from its output, which is unavailable: {error}"]
    if progress is None:
        return []

    rows: list[tuple[str, ...]] = [("STEP", "PHASE", "TOOK", "")]
    for tasks in progress.steps.values():
        for task in tasks:
            began, ended = progress.times.get(task.name, (None, None))
            took = "" if began is None or ended is None else describe_duration(ended - began)
            rows.append((task.name, submission.shown_phase(task, workload), took, task.message))
    return table(rows).splitlines()


def steps_json(cluster: ClusterClient, workload: AnyWorkload) -> list[dict[str, Any]] | None:
    """Return each task of a pipeline as an object; empty for other workloads, None if it cannot be read now."""
    try:
        progress = progress_in(cluster, workload)
    except ClusterError:
        return None
    if progress is None:
        return []

    rows = []
    for tasks in progress.steps.values():
        for task in tasks:
            began, ended = progress.times.get(task.name, (None, None))
            phase = submission.shown_phase(task, workload)
            rows.append({"name": task.name, **asdict(task), "phase": phase, "began_at": began, "ended_at": ended})
    return rows
