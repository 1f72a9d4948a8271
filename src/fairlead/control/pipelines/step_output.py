"""Finds the output and the progress of the steps of a pipeline, on any cluster."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.cluster.client import ClusterClient
from fairlead.cluster.output import LogQuery
from fairlead.control.pipelines.command import is_pipeline
from fairlead.deferred import deferred
from fairlead.errors import InvalidArgument
from fairlead.policy.kinds.table import leaf
from fairlead.state.snapshot import AnyWorkload, Workload, is_leaf

if TYPE_CHECKING:
    from fairlead.control.pipelines import submission, task_lines
    from fairlead.control.pipelines.journal import StepTasks
    from fairlead.specs import pipeline as pipeline_specs
    from fairlead.specs.pipeline import Pipeline
else:
    submission = deferred("fairlead.control.pipelines.submission")
    task_lines = deferred("fairlead.control.pipelines.task_lines")
    pipeline_specs = deferred("fairlead.specs.pipeline")


def runs_of_steps(
    cluster: ClusterClient, workload: AnyWorkload, steps: Sequence[str]
) -> list[tuple[Workload, re.Pattern[str] | None]]:
    """Return the existing runs with the output of steps of a pipeline, and the prefix of their lines in each.

    The lines of commands are among those of the driver. The prefix of a single one matches all that was put before its
    lines, that of several nothing of them.

    Raises:
        InvalidArgument: The workload is not a pipeline, or has no such step.
    """
    name, pipeline = workload.spec.name, submission.pipeline_of(workload.spec)
    if pipeline is None:
        what = (
            "its steps are no longer known" if is_pipeline(workload.spec) else f"it is a {type(workload.spec).__name__}"
        )
        raise InvalidArgument(f"step: {name} has no steps: {what}.")
    chosen = [_step_of(pipeline, name, text) for text in steps]
    children = {child.spec.name.removeprefix(f"{name}-"): child for child in cluster.children(workload.uid)}
    runs: dict[str, tuple[Workload, re.Pattern[str] | None]] = {}
    for step, index in chosen:
        own = pipeline_specs.child_name(step, index)
        for child_of, child in children.items():
            item = child_of.removeprefix(f"{own}-") if child_of.startswith(f"{own}-") else None
            is_item = index is None and pipeline.steps[step].is_fanned_out and item is not None and item.isdigit()
            if child_of == own or is_item:
                runs |= {run.uid: (run, None) for run in _leaves(cluster, child)}
    commands = [(step, index) for step, index in chosen if pipeline.steps[step].run is not None]
    uid = submission.driver_uid(cluster, workload)
    if commands and uid is not None:
        marks = "|".join(rf"{step}(?:\[\d+\])?" if index is None else rf"{step}\[{index}\]" for step, index in commands)
        is_single = len(chosen) == 1 and not (pipeline.steps[chosen[0][0]].is_fanned_out and chosen[0][1] is None)
        prefix = re.compile(rf"\[(?:{marks})\] " if is_single else rf"(?=\[(?:{marks})\] )")
        runs[uid] = leaf(cluster.get(uid)), None if len(pipeline.steps) == 1 else prefix
    return list(runs.values())


def _step_of(pipeline: "Pipeline", name: str, text: str) -> tuple[str, int | None]:
    """Return the step and the index of an item that a text such as ``train`` or ``train[2]`` names."""
    named = re.fullmatch(r"([a-z0-9_]+)(?:\[(\d{1,9})\])?", text)
    step, index = (text, None) if named is None else (named[1], None if named[2] is None else int(named[2]))
    if step not in pipeline.steps:
        raise InvalidArgument(f"step {text!r}: {name} has no such step; steps: {', '.join(pipeline.steps)}.")
    if index is not None and not pipeline.steps[step].is_fanned_out:
        raise InvalidArgument(f"step {text!r}: {step} runs once; give `{step}`.")
    return step, index


def _leaves(cluster: ClusterClient, workload: AnyWorkload) -> list[Workload]:
    """Return a workload that has pods, or its descendants that have."""
    if is_leaf(workload):
        return [workload]
    return [run for child in cluster.children(workload.uid) for run in _leaves(cluster, child)]


def progress_in(cluster: ClusterClient, workload: AnyWorkload) -> "StepTasks | None":
    """Return the progress of a pipeline, from its files or its driver's output; None if it is no pipeline, or unknown.

    Raises:
        ClusterError: The output is unavailable.
    """
    if not is_pipeline(workload.spec):
        return None

    pipeline = submission.pipeline_of(workload.spec)
    if pipeline is not None and cluster.has_containers:
        uid = submission.driver_uid(cluster, workload)
        lines = () if uid is None else cluster.logs(uid, LogQuery(pattern=task_lines.LINE))
        return task_lines.read_task_lines(pipeline, lines)
    return None if pipeline is None else submission.progress_of(pipeline, workload, Path(cluster.kept_at(workload)))
