"""The runs and sweeps that steps are, as a driver meets them, wherever it is."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fairlead.control.pipelines.artefacts import Artefacts, content_digest, read_value
from fairlead.errors import NotFound
from fairlead.frozen import dataclass
from fairlead.policy.kinds.steps import Task
from fairlead.runtime.podfiles import read_json, write_json
from fairlead.specs.pipeline import Step

COLLECTED = "collected.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun:
    """A run or sweep that is there.

    Attributes:
        name: Its whole name.
        phase: As people read it.
        message: Why it is in that phase.
        is_over: Nothing more happens to it unless somebody asks for it.
        has_failed: It is over and has not succeeded.
        took_s: From its start to its end; nothing before.
    """

    name: str
    phase: str
    message: str
    is_over: bool
    has_failed: bool
    took_s: float


class StepRuns(Protocol):
    """Submits the runs of one pipeline's steps, and tells what became of them."""

    @property
    def is_wanted(self) -> bool:
        """Return whether the pipeline is to go on; where it is not, its runs end for that reason."""
        ...

    def close(self) -> None:
        """Let go of what was opened."""
        ...

    def has_changed(self) -> bool:
        """Return whether anything was told since this was asked last."""
        ...

    def find(self, task: Task) -> StepRun | None:
        """The run of a task; None where there is none, or nothing is known of it yet."""
        ...

    def is_gone(self, task: Task) -> bool:
        """Return whether the run of a task that was submitted is not there any more."""
        ...

    def has_room(self, task: Task) -> bool:
        """Return whether the run of one more task may be waited for."""
        ...

    def submit(self, task: Task, variables: Mapping[str, str]) -> str | None:
        """Submit the run of a task, unless it is there; why that cannot be done now, None where it was."""
        ...

    def resume(self, task: Task) -> str | None:
        """Let a run that is over go on; why that cannot be done now, None where it was."""
        ...

    def settled(self, task: Task) -> None:
        """Take note that nobody waits for the run of a task any more."""
        ...

    def collect(self, task: Task, step: Step, room: Path, store: Artefacts) -> tuple[dict[str, str], dict[str, Any]]:
        """Keep the outputs of a run that succeeded: the hash of each, and what small ones hold.

        Doing it again comes to the same, wherever it was cut short.

        Args:
            room: Where its program wrote them.

        Raises:
            NotFound: There is no such output.
            Conflict: A checkpoint is out of reach.
            OSError: One of them cannot be kept.
        """
        ...


def keep_outputs(
    step: Step, room: Path, store: Artefacts, add_own: Callable[[], None]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Keep the outputs of a run that succeeded, as ``StepRuns.collect`` does.

    Args:
        add_own: Writes what a run returns without its program writing it.
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
