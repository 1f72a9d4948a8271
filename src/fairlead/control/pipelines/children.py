"""Runs and sweeps that are steps of a pipeline: submitted as its children, and found again by their names.

The uid of a child follows from the pipeline's and the child's name, so that submitting it twice is submitting it once.
What it depended on and what it returned lie beside its outputs: a driver that follows a killed one takes up both.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.models import best_trial, resolve_run
from fairlead.control.pipelines.artefacts import Artefacts, content_digest, read_value
from fairlead.errors import NotFound
from fairlead.policy.kinds.parents import submit
from fairlead.policy.search.trials import metric_of
from fairlead.runtime.checkpoint.store import step_name
from fairlead.runtime.podfiles import read_json, write_json
from fairlead.specs.model_reference import BEST, LATEST, ModelReference
from fairlead.specs.pipeline import CHECKPOINT, Pipeline, Step, as_run
from fairlead.specs.sweep import Sweep, Trial, values_of
from fairlead.specs.training import Training
from fairlead.state.plan import Change, ChildIntent, Plan, child_uid
from fairlead.state.snapshot import AnyWorkload, Intent, Phase

COLLECTED = "collected.json"
# A supervisor changes the pipeline when it tells how far it is, which is seldom.
TRIES = 10


class Children:
    """The runs and sweeps of one pipeline. An instance belongs to its driver.

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
        """Return whether the pipeline is to go on; where it is not, its children end for that reason."""
        return self._cluster.get(self._parent).intent is Intent.RUN

    def has_changed(self) -> bool:
        """Return whether anything was recorded since this was asked last."""
        counter = self._cluster.store.change_counter()
        before, self._seen = self._seen, counter
        return counter != before

    def find(self, name: str) -> AnyWorkload | None:
        """The child of that name; None where there is none, or no longer."""
        try:
            found: AnyWorkload = self._cluster.get(child_uid(self._parent, name))
        except NotFound:
            return None
        return found

    def is_over(self, child: AnyWorkload) -> bool:
        """Return whether nothing more happens to a child unless somebody asks for it."""
        phase = child.status.phase
        return phase is Phase.SUCCEEDED or (phase.is_final and child.intent is not Intent.RUN)

    def has_failed(self, child: AnyWorkload) -> bool:
        """Return whether a child is over and has not succeeded."""
        return self.is_over(child) and child.status.phase is not Phase.SUCCEEDED

    def submit(self, name: str, step: str, variables: Mapping[str, str]) -> str | None:
        """Submit what a step is, unless it is there already; why that cannot be done now, None where it was.

        Args:
            variables: What its program finds besides its own.
        """
        parent = self._cluster.get(self._parent)
        assert isinstance(parent.spec, Pipeline)
        order = submit(parent, name, child_spec(parent.spec, parent.spec.steps[step], variables))
        asked = order.spec.team, order.spec.name
        others = (run for run in self._cluster.unfinished() if run.parent != parent.uid)
        if any((run.spec.team, run.spec.name) == asked for run in others):
            return f"another unfinished run is named {order.spec.name}"
        return self._apply(lambda at: Change(workload_uid=self._parent, version=at, submit=(order,)))

    def resume(self, name: str) -> str | None:
        """Let a child that is over go on; why that cannot be done now, None where it was."""
        order = ChildIntent(uid=child_uid(self._parent, name), intent=Intent.RUN)
        return self._apply(lambda at: Change(workload_uid=self._parent, version=at, children=(order,)))

    def collect(self, name: str, step: Step, room: Path, store: Artefacts) -> tuple[dict[str, str], dict[str, Any]]:
        """Keep the outputs of a child that succeeded: the hash of each, and what small ones hold.

        Doing it again comes to the same, wherever it was cut short.

        Args:
            room: Where its program wrote them.

        Raises:
            NotFound: There is no such output.
            Conflict: A checkpoint is not on this machine.
            OSError: One of them cannot be kept.
        """
        noted = room.with_name(COLLECTED)
        known = read_json(noted)
        if known is None:
            child = self.find(name)
            assert child is not None
            self._add_own(child, step, room)
            for output in step.outputs:
                if not (room / output).exists():
                    raise NotFound(f"it wrote no output {output} ($FAIRLEAD_OUTPUT_{output.upper()})")
            values = {output: read_value(room / output) for output in step.outputs}
            known = {
                "outputs": {output: content_digest(room / output) for output in step.outputs},
                "values": {output: value for output, value in values.items() if value is not None},
            }
            write_json(noted, known)
        for output, digest in known["outputs"].items():
            if not store.has(digest):
                store.keep(room / output)
        return known["outputs"], known["values"]

    def _add_own(self, child: AnyWorkload, step: Step, room: Path) -> None:
        """Write what a run returns without its program writing it."""
        which = BEST if isinstance(child.spec, Sweep) else LATEST
        reference = ModelReference(name=child.spec.name, which=which, is_run=True)
        if isinstance(child.spec, Sweep) and child.spec.objective is not None and step.outputs:
            trial = best_trial(self._cluster, child, reference)
            value = metric_of(trial.progress, child.spec.objective.metric)
            (room / "parameters").write_text(json.dumps(dict(values_of(trial.spec))))
            (room / "value").write_text(json.dumps(value))
        place = room / CHECKPOINT
        if CHECKPOINT in step.outputs and (which == BEST or not place.exists()):
            found = resolve_run(self._cluster, reference, child)
            assert found.step is not None
            if place.exists():
                shutil.rmtree(place)
            shutil.copytree(found.path, place / step_name(found.step), symlinks=True)

    def _apply(self, change_at: Callable[[int], Change]) -> str | None:
        """Apply a change of the pipeline as it is now; why that cannot be done, None where it was."""
        for _ in range(TRIES):
            parent = self._cluster.get(self._parent)
            if parent.intent is not Intent.RUN:
                return "the pipeline is to end"
            (done,) = self._cluster.apply(Plan(changes=(change_at(parent.version),)))
            if done:
                self._cluster.nudge()
                return None
        return "the pipeline changes all the time"


def child_spec(pipeline: Pipeline, step: Step, variables: Mapping[str, str]) -> Training | Sweep:
    """A run or a sweep by itself, of what a step says it is."""

    def ours(program: Training) -> dict[str, str]:
        return {**pipeline.env, **step.env, **program.env, **variables}

    if step.sweep is None:
        assert step.training is not None
        run = as_run(step.training, step.training.name)
        return replace(run, env=ours(run), labels={**pipeline.labels, **run.labels})
    given = {each.name: getattr(step.sweep, each.name) for each in fields(Sweep)}
    trial: Trial = replace(step.sweep.trial, env=ours(step.sweep.trial))
    return Sweep(**{**given, "trial": trial, "labels": {**pipeline.labels, **step.sweep.labels}})
