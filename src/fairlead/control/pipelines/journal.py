"""Records the progress of a pipeline's run: one line per change of a task, appended before the driver acts on it.

After a kill the next driver reads it and continues. An incomplete last line was never acted on and is dropped.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fairlead.policy.kinds.steps import Task, TaskPhase
from fairlead.specs.pipeline import Pipeline

NAME = "pipeline.jsonl"


@dataclass(slots=True, kw_only=True)
class StepTasks:
    """The tasks of each step.

    Attributes:
        is_over: The last driver finished, with success or failure.
        times: Last start and end of each task, in Unix seconds.
    """

    steps: dict[str, list[Task]]
    is_over: bool = False
    times: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)

    def put(self, task: Task) -> None:
        """Replace a task."""
        place = 0 if task.index is None else task.index
        self.steps[task.step][place] = task


class Journal:
    """The journal of one run, written by one driver at a time.

    Args:
        is_synced: Sync each line to disk before returning.
        send: Copies each line elsewhere before returning; None for no copy.
    """

    def __init__(self, path: Path, *, is_synced: bool = False, send: Callable[[bytes], None] | None = None) -> None:
        self._is_synced = is_synced
        self._send = send
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        size = os.fstat(self._file).st_size
        end = os.pread(self._file, size, 0).rfind(b"\n") + 1
        if end < size:
            os.ftruncate(self._file, end)

    def close(self) -> None:
        os.close(self._file)

    def expand(self, step: str, items: tuple[str, ...]) -> None:
        """Record the items of a step."""
        self._write({"expand": step, "items": items})

    def task(self, task: Task, at: float) -> None:
        """Record the current state of a task."""
        self._write({"task": asdict(task), "at": at})

    def over(self) -> None:
        """Record that nothing is left to do."""
        self._write({"over": True})
        os.fsync(self._file)

    def _write(self, record: dict[str, Any]) -> None:
        data = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        if os.write(self._file, data) != len(data):
            raise OSError(f"no room for the pipeline's journal: {NAME}")
        if self._is_synced:
            os.fsync(self._file)
        if self._send is not None:
            self._send(data)


def read(path: Path, pipeline: Pipeline) -> StepTasks:
    """Read the progress from a journal; without one, every task is waiting."""
    progress = StepTasks(steps={name: [Task(step=name)] for name in pipeline.steps})
    for record in _records(path):
        progress.is_over = bool(record.get("over"))
        if "expand" in record and record["expand"] in progress.steps:
            step, items = record["expand"], record["items"]
            progress.steps[step] = [Task(step=step, index=place, item=item) for place, item in enumerate(items)]
        elif "task" in record and record["task"]["step"] in progress.steps:
            task = _task(record["task"])
            progress.put(task)
            began = progress.times.get(task.name, (None, None))[0]
            is_end = task.phase.is_final
            progress.times[task.name] = (began, record["at"]) if is_end else (record["at"], None)
    return progress


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        yield json.loads(line)


def _task(record: dict[str, Any]) -> Task:
    known = {attribute.name for attribute in fields(Task)}
    known_fields = {name: value for name, value in record.items() if name in known}
    return Task(**{**known_fields, "phase": TaskPhase(record["phase"])})
