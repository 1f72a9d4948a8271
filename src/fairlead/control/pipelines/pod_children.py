"""Requests runs and sweeps that are steps of a pipeline whose driver is a pod.

The driver has no access to the API server. Its reports list the desired runs, which the operator reads and submits.
The operator writes their states to an annotation of the driver's pod, which kubelet mirrors to a file for the driver.
Both messages carry the full state, so that the successor of a killed process reads the same.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.control.pipelines.artefacts import Artefacts
from fairlead.control.pipelines.step_run import StepRun, keep_outputs
from fairlead.errors import NotFound
from fairlead.policy.kinds.steps import Task
from fairlead.runtime.checkpoint.directory import open_store
from fairlead.runtime.checkpoint.manifest import MANIFEST, DamagedError
from fairlead.runtime.checkpoint.store import step_name
from fairlead.runtime.progress import Reporter
from fairlead.specs.pipeline import CHECKPOINT, Step, child_name

# A report is one line of at most 8 KiB, and has other fields too.
MOST_REQUESTED = 100
MOST_BYTES = 6_000
MOST_ITEM_BYTES = 4_000


class PodChildren:
    """The runs and sweeps of the pipeline of this pod.

    Args:
        state_file: File with the states of the runs, from the operator.
        reporter: Reports the desired runs.
    """

    def __init__(self, state_file: Path, reporter: Reporter) -> None:
        self._state_file = state_file
        self._reporter = reporter
        self._requested: dict[str, Task] = {}
        self._seen: set[str] = set()
        self._stamp: tuple[int, int] | None = None
        self._states: dict[str, Any] = {}

    def close(self) -> None:
        """Do nothing: nothing is open."""

    @property
    def is_wanted(self) -> bool:
        """Return whether the pipeline is to continue; if not, its runs end for that reason."""
        return bool(self._states.get("wanted", True))

    def has_changed(self) -> bool:
        """Return whether the file has changed since the last call."""
        try:
            status = self._state_file.stat()
            stamp = status.st_ino, status.st_mtime_ns
            if stamp == self._stamp:
                return False
            text = self._state_file.read_text()
        except FileNotFoundError:
            return False
        self._stamp = stamp
        fields = json.loads(text) if text else {}
        if fields == self._states:
            return False
        self._states = fields
        self._seen |= self._states.get("runs", {}).keys() & self._requested.keys()
        return True

    def has_room(self, task: Task) -> bool:
        """Return whether the run of one more task can be requested."""
        if len(self._requested) >= MOST_REQUESTED:
            return False
        return not self._requested or len(self._ask(*self._requested.values(), task)) <= MOST_BYTES

    def _ask(self, *tasks: Task) -> str:
        return json.dumps([[task.step, task.index, task.item] for task in tasks])

    def find(self, task: Task) -> StepRun | None:
        """Return the requested run of a task; None while its state is unknown."""
        name = child_name(task.step, task.index)
        fields = self._states.get("runs", {}).get(name) if name in self._requested else None
        if fields is None:
            return None
        return StepRun(
            name=fields["run"],
            phase=fields["phase"],
            message=fields.get("message", ""),
            is_over=bool(fields.get("over")),
            has_failed=bool(fields.get("failed")),
            took_s=float(fields.get("took_s", 0.0)),
        )

    def is_gone(self, task: Task) -> bool:
        """Return whether the run of a task existed and no longer does."""
        name = child_name(task.step, task.index)
        return name in self._seen and name not in self._states.get("runs", {})

    def submit(self, task: Task, variables: Mapping[str, str]) -> str | None:
        """Request the run of a task until it is settled; the operator determines the variables itself.

        Raises:
            OSError: The task's item is too long for a request.
        """
        if len(self._ask(task)) > MOST_ITEM_BYTES:
            raise OSError(
                f"its item takes more than {MOST_ITEM_BYTES} bytes, too many to reach a run of its own; let the list "
                "hold names of files instead"
            )
        self._requested[child_name(task.step, task.index)] = task
        self._report()
        return None

    def resume(self, task: Task) -> str | None:
        """Request the run as any other: failed ones resume with the pipeline."""
        return self.submit(task, {})

    def settled(self, task: Task) -> None:
        """Stop requesting the run of a task."""
        name = child_name(task.step, task.index)
        self._requested.pop(name, None)
        self._seen.discard(name)
        self._report()

    def _report(self) -> None:
        asks = json.loads(self._ask(*self._requested.values()))
        self._reporter.fact(asks=asks)

    def collect(self, task: Task, step: Step, room: Path, store: Artefacts) -> tuple[dict[str, str], dict[str, Any]]:
        """Store the outputs of a successful run; see ``StepRuns``."""
        fields = self._states["runs"][child_name(task.step, task.index)]
        return keep_outputs(step, room, store, lambda: _add_own(fields, step, room))


def _add_own(fields: Mapping[str, Any], step: Step, room: Path) -> None:
    """Write the outputs that a run has without its program writing them.

    Raises:
        NotFound: No trial has succeeded, or no checkpoint exists.
    """
    best = fields.get("best")
    if step.sweep is not None and step.outputs:
        if best is None:
            raise NotFound(f"no trial of {fields['run']} has succeeded")
        (room / "parameters").write_text(json.dumps(best["parameters"]))
        (room / "value").write_text(json.dumps(best["value"]))
    place = room / CHECKPOINT
    if CHECKPOINT not in step.outputs or (best is None and os.path.lexists(place)):
        return
    saved = fields.get("checkpoint")
    if saved is None:
        raise NotFound(f"{fields['run']} keeps no checkpoints; give it `checkpoint.to`")
    store = open_store(saved, scratch=room)
    steps = store.steps()
    if not steps:
        raise NotFound(f"{fields['run']} has no complete checkpoint in {saved}")
    if place.exists():
        shutil.rmtree(place)
    try:
        fetched = store.fetch(steps[-1], (*store.manifest(steps[-1]).files, MANIFEST))
    except DamagedError as error:
        raise NotFound(f"the checkpoint of step {steps[-1]} in {saved} cannot be used: {error}") from error
    shutil.copytree(fetched, place / step_name(steps[-1]), symlinks=True)
    store.release(fetched)
