"""Predicts what a pipeline would do now, step by step, without running anything."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from fairlead.control.pipelines.artefacts import Artefacts
from fairlead.control.pipelines.dependencies import Dependencies
from fairlead.control.pipelines.results import Results
from fairlead.control.pipelines.step_run import with_list
from fairlead.frozen import dataclass
from fairlead.policy.kinds.steps import Expand, Settle, Task, TaskPhase, gate_problem, handed_to, judge
from fairlead.specs.pipeline import Pipeline


class Foreseen(StrEnum):
    """The predicted outcome of a task."""

    RUN = "run"
    UNCHANGED = "unchanged"
    SKIP = "skip"
    FAIL = "fail"
    DEPENDS = "depends"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A task with its predicted outcome and the reason."""

    task: str
    foreseen: Foreseen
    why: str


def preview(
    pipeline: Pipeline, workdir: Path, store: Path, environ: Mapping[str, str], now: float
) -> tuple[Preview, ...]:
    """Predict the outcome of each task; a task whose needs would run depends on their outputs.

    Raises:
        OSError: Code or an input cannot be read.
    """
    artefacts, results = Artefacts(store), Results(store / "results.db")
    try:
        dependencies = Dependencies(pipeline, workdir, environ, results, store.parent)
        steps: dict[str, Sequence[Task]] = {name: [Task(step=name)] for name in pipeline.steps}
        previews: list[Preview] = []
        for name in pipeline.in_order():
            previews += _of_step(pipeline, name, steps, dependencies, artefacts, now)
        return tuple(previews)
    finally:
        results.close()


def _of_step(
    pipeline: Pipeline,
    name: str,
    steps: dict[str, Sequence[Task]],
    dependencies: Dependencies,
    artefacts: Artefacts,
    now: float,
) -> list[Preview]:
    waiting = [need for need in pipeline.steps[name].needs if any(not task.phase.is_final for task in steps[need])]
    if waiting:
        return [Preview(task=name, foreseen=Foreseen.DEPENDS, why=f"on what {', '.join(waiting)} will return")]
    action = judge(pipeline, name, with_list(pipeline, name, steps, artefacts))
    if isinstance(action, Expand):
        steps[name] = [Task(step=name, index=place, item=item) for place, item in enumerate(action.items)]
    if isinstance(action, Settle):
        steps[name] = [replace(task, phase=action.phase) for task in steps[name]]
        foreseen = Foreseen.FAIL if action.phase is TaskPhase.FAILED else Foreseen.SKIP
        return [Preview(task=name, foreseen=foreseen, why=action.message)]
    previews, tasks = [], []
    for task in steps[name]:
        decided = dependencies.looked_up(task, dependencies.of(task, handed_to(pipeline, name, steps)), artefacts, now)
        result = decided.result
        foreseen, why = (Foreseen.RUN if result is None else Foreseen.UNCHANGED), decided.why
        if result is not None:
            task = replace(task, phase=TaskPhase.CACHED, outputs=result.outputs, values=result.values)
            shut = gate_problem(pipeline.steps[name], result.values)
            if shut is not None:
                foreseen, why, task = Foreseen.FAIL, shut, replace(task, phase=TaskPhase.FAILED)
        tasks.append(task)
        previews.append(Preview(task=task.name, foreseen=foreseen, why=why))
    steps[name] = tasks
    return previews
