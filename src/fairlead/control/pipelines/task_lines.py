"""Reads the progress of a pipeline from its driver's output, one line per change, if its journal is out of reach."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fairlead.control.pipelines.journal import StepTasks
from fairlead.policy.kinds.steps import Task, TaskPhase
from fairlead.specs.pipeline import Pipeline

if TYPE_CHECKING:  # a driver only writes
    from fairlead.cluster.port import LogLine

_PHASES = "|".join(phase.value for phase in TaskPhase)
LINE = re.compile(rf"^fairlead: step ([a-z0-9_]+)(?:\[([0-9]{{1,9}})\])? ({_PHASES})(?:: (.*))?$")
MOST_TASKS = 100_000
"""Maximum tasks that are read of a pipeline: any program may print such a line, with an index of its choice."""


MOST_MESSAGE = 500
"""Maximum characters of a task's message."""


def task_line(task: Task) -> str:
    """Format the state of a task in one line."""
    message = " ".join(task.message.split())
    return f"fairlead: step {task.name} {task.phase.value}{f': {message}' if message else ''}"


def read_task_lines(pipeline: Pipeline, lines: "Iterable[LogLine]") -> StepTasks:
    """Parse the progress of a pipeline from its driver's output; tasks without a line are waiting."""
    progress = StepTasks(steps={name: [Task(step=name)] for name in pipeline.steps})
    num_tasks = 0
    for line in lines:
        match = LINE.match(line.text)
        if match is None or match[1] not in progress.steps:
            continue
        index = None if match[2] is None else int(match[2])
        task = Task(step=match[1], index=index, phase=TaskPhase(match[3]), message=(match[4] or "")[:MOST_MESSAGE])
        known = progress.steps[task.step]
        if index is not None:
            # Lower indexes have had no line yet.
            start = 0 if known[0].index is None else len(known)
            new = range(start, max(start, index + 1))
            if num_tasks + len(new) > MOST_TASKS:
                continue
            num_tasks += len(new)
            known[start:] = [Task(step=task.step, index=place) for place in new]
        known[index or 0] = task
        began, ended = progress.times.get(task.name, (None, None))
        if not task.phase.is_final:
            progress.times[task.name] = (line.at, None)
        elif ended is None:  # otherwise repeated by a later driver
            progress.times[task.name] = (began, line.at)
    return progress
