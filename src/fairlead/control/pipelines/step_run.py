"""Defines the interface through which a driver handles steps that are runs or sweeps, on any cluster."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from fairlead.control.pipelines.artefacts import Artefacts, content_digest, read_value
from fairlead.errors import NotFound
from fairlead.frozen import dataclass
from fairlead.policy.kinds.steps import LIST_BYTES, Task
from fairlead.runtime.podfiles import read_json, write_json
from fairlead.specs.pipeline import Pipeline, Step

COLLECTED = "collected.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun:
    """An existing run or sweep of a step.

    Attributes:
        name: Full name.
        phase: Name of its phase.
        message: Reason of the phase.
        is_over: It has ended, and changes only on request.
        has_failed: It has ended without success.
        took_s: Seconds from its start to its end; 0 before its end.
    """

    name: str
    phase: str
    message: str
    is_over: bool
    has_failed: bool
    took_s: float


class StepRuns(Protocol):
    """Submits the runs of a pipeline's steps and reports their states."""

    @property
    def is_wanted(self) -> bool:
        """Return whether the pipeline is to continue; if not, its runs end for that reason."""
        ...

    def close(self) -> None:
        """Release its resources."""
        ...

    def has_changed(self) -> bool:
        """Return whether anything may have changed since the last call."""
        ...

    def find(self, task: Task) -> StepRun | None:
        """Return the run of a task; None if it does not exist or its state is not known yet."""
        ...

    def is_gone(self, task: Task) -> bool:
        """Return whether the submitted run of a task no longer exists."""
        ...

    def has_room(self, task: Task) -> bool:
        """Return whether the run of one more task may be submitted."""
        ...

    def submit(self, task: Task, variables: Mapping[str, str]) -> str | None:
        """Submit the run of a task, unless it exists; return why that is impossible now, None on success."""
        ...

    def resume(self, task: Task) -> str | None:
        """Resume a finished run; return why that is impossible now, None on success."""
        ...

    def settled(self, task: Task) -> None:
        """Drop the request for the run of a task, which the driver has settled."""
        ...

    def collect(self, task: Task, step: Step, room: Path, store: Artefacts) -> tuple[dict[str, str], dict[str, Any]]:
        """Store the outputs of a successful run; return the hash of each, and the values of small ones.

        The operation is idempotent, also after an interruption.

        Args:
            room: Directory to which its program wrote them.

        Raises:
            NotFound: An output does not exist.
            Conflict: A checkpoint cannot be reached.
            OSError: An output cannot be stored.
        """
        ...


def with_list(
    pipeline: Pipeline, name: str, steps: Mapping[str, Sequence[Task]], store: Artefacts
) -> Mapping[str, Sequence[Task]]:
    """Return the tasks of steps with the values that ``each_of`` of a step reads and that are too large to be kept.

    Raises:
        StoreUnavailable: An output cannot be downloaded.
    """
    each_of = pipeline.steps[name].each_of
    if each_of is None or steps[name][0].index is not None:
        return steps
    need, _, output = each_of.partition(".")
    if any(not task.phase.is_final for task in steps[need]):
        return steps

    def read(task: Task) -> Task:
        if output in task.values or output not in task.outputs:
            return task
        value = read_value(store.path(task.outputs[output]), LIST_BYTES)
        return task if value is None else replace(task, values={**task.values, output: value})

    return {**steps, need: [read(task) for task in steps[need]]}


def keep_outputs(
    step: Step, room: Path, store: Artefacts, add_own: Callable[[], None]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Store the outputs of a successful run; see ``StepRuns.collect``.

    Args:
        add_own: Writes the outputs that a run has without its program writing them.
    """
    noted = room.with_name(COLLECTED)
    known = read_json(noted)
    if known is None:
        add_own()
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
