"""Submits runs and sweeps that are steps of a pipeline as its children, and finds them by name.

The uid of a child is derived from the pipeline and the child's name, so that submission is idempotent. Its dependencies
and results are stored beside its outputs, where the successor of a killed driver finds both.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.cluster.chosen_checkpoint import best_trial
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.models import resolve_run
from fairlead.control.pipelines.artefacts import Artefacts
from fairlead.control.pipelines.step_run import StepRun, keep_outputs
from fairlead.errors import NotFound
from fairlead.policy.kinds.parents import submit
from fairlead.policy.kinds.step_runs import child_spec
from fairlead.policy.kinds.steps import Task
from fairlead.policy.search.trials import metric_of
from fairlead.runtime.checkpoint.store import step_name
from fairlead.specs.model_reference import BEST, LATEST, ModelReference
from fairlead.specs.pipeline import CHECKPOINT, Pipeline, Step, child_name
from fairlead.specs.sweep import Sweep, values_of
from fairlead.state.plan import Change, ChildIntent, Plan, child_uid
from fairlead.state.snapshot import AnyWorkload, Intent, Phase

# Retries of a conflicting write; a supervisor updates the pipeline only when its progress changes, which is rare.
TRIES = 10


class Children:
    """The runs and sweeps of a local pipeline. An instance belongs to its driver.

    Args:
        parent: Uid of the pipeline.
    """

    def __init__(self, cluster: LocalCluster, parent: str) -> None:
        self._cluster = cluster
        self._parent = parent
        self._seen: tuple[int, int] | None = None

    def close(self) -> None:
        self._cluster.close()

    @property
    def is_wanted(self) -> bool:
        """Return whether the pipeline is to continue; if not, its children end for that reason."""
        return self._cluster.get(self._parent).intent is Intent.RUN

    def has_changed(self) -> bool:
        """Return whether anything was recorded since the last call."""
        counter = self._cluster.store.change_counter()
        before, self._seen = self._seen, counter
        return counter != before

    def has_room(self, task: Task) -> bool:
        """Return True, since runs wait in the cluster's queue."""
        return True

    def find(self, task: Task) -> StepRun | None:
        """Return the run of a task; None if it does not exist (any more)."""
        run = self._find(task)
        return None if run is None else step_run_of(run)

    def _find(self, task: Task) -> AnyWorkload | None:
        try:
            child_run: AnyWorkload = self._cluster.get(child_uid(self._parent, child_name(task.step, task.index)))
        except NotFound:
            return None
        return child_run

    def is_gone(self, task: Task) -> bool:
        """Return whether the submitted run of a task no longer exists."""
        return self._find(task) is None

    def submit(self, task: Task, variables: Mapping[str, str]) -> str | None:
        """Submit the run of a task, unless it exists; return why that is impossible now, None on success."""
        parent = self._cluster.get(self._parent)
        assert isinstance(parent.spec, Pipeline)
        spec = child_spec(parent.spec, parent.spec.steps[task.step], variables)
        order = submit(parent, child_name(task.step, task.index), spec)
        key = order.spec.team, order.spec.name
        others = (run for run in self._cluster.unfinished() if run.parent != parent.uid)
        if any((run.spec.team, run.spec.name) == key for run in others):
            return f"another unfinished run is named {order.spec.name}"
        return self._apply(lambda at: Change(workload_uid=self._parent, version=at, submit=(order,)))

    def resume(self, task: Task) -> str | None:
        """Resume a finished child; return why that is impossible now, None on success."""
        order = ChildIntent(uid=child_uid(self._parent, child_name(task.step, task.index)), intent=Intent.RUN)
        return self._apply(lambda at: Change(workload_uid=self._parent, version=at, children=(order,)))

    def settled(self, task: Task) -> None:
        """Do nothing: no request is pending."""

    def collect(self, task: Task, step: Step, room: Path, store: Artefacts) -> tuple[dict[str, str], dict[str, Any]]:
        """Store the outputs of a successful child; see ``StepRuns.collect``."""
        child = self._find(task)
        assert child is not None, "it was there when it had succeeded"
        return keep_outputs(step, room, store, partial(self._add_own, child, step, room))

    def _add_own(self, child: AnyWorkload, step: Step, room: Path) -> None:
        """Write the outputs that a run has without its program writing them."""
        which = BEST if isinstance(child.spec, Sweep) else LATEST
        reference = ModelReference(name=child.spec.name, which=which, is_run=True)
        if isinstance(child.spec, Sweep) and child.spec.objective is not None and step.outputs:
            trial = best_trial(self._cluster, child, reference)
            value = metric_of(trial.progress, child.spec.objective.metric)
            (room / "parameters").write_text(json.dumps(dict(values_of(trial.spec))))
            (room / "value").write_text(json.dumps(value))
        place = room / CHECKPOINT
        if CHECKPOINT in step.outputs and (which == BEST or not place.exists()):
            run = resolve_run(self._cluster, reference, child)
            assert run.step is not None
            if place.exists():
                shutil.rmtree(place)
            shutil.copytree(run.path, place / step_name(run.step), symlinks=True)

    def _apply(self, change_at: Callable[[int], Change]) -> str | None:
        """Apply a change to the current version of the pipeline; return why that is impossible, None on success."""
        for _ in range(TRIES):
            parent = self._cluster.get(self._parent)
            if parent.intent is not Intent.RUN:
                return "the pipeline is to end"
            (done,) = self._cluster.apply(Plan(changes=(change_at(parent.version),)))
            if done:
                self._cluster.nudge()
                return None
        return "the pipeline changes all the time"


def step_run_of(child: AnyWorkload) -> StepRun:
    """Return a child as a step's run."""
    phase, status = child.status.phase, child.status
    is_over = phase is Phase.SUCCEEDED or (phase.is_final and child.intent is not Intent.RUN)
    return StepRun(
        name=child.spec.name,
        phase=phase.value,
        message=status.reason.message,
        is_over=is_over,
        has_failed=is_over and phase is not Phase.SUCCEEDED,
        took_s=(status.finished_at or 0.0) - (status.started_at or status.finished_at or 0.0),
    )
