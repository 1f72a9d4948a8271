"""Decides the next actions of a pipeline: which tasks are ready, skipped, failed or blocked, and when it is over.

A task is a step, or one item of a fanned-out step. Nothing here runs, reads or writes anything.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any

from fairlead.frozen import dataclass
from fairlead.specs.expressions import holds, names_in
from fairlead.specs.pipeline import Cache, Pipeline, Step
from fairlead.specs.quantities import format_duration
from fairlead.text.lists import listed
from fairlead.text.quantities import describe_memory, plural

ITEMS_MOST = 10_000
# Maximum size of a list that `each_of` reads; a variable of a program, such as FAIRLEAD_ITEM, holds less on Linux.
LIST_BYTES = 4 * 1024 * 1024
ITEM_BYTES = 128 * 1024 - len("FAIRLEAD_ITEM=") - 1
MOST_NAMED = 3


class TaskPhase(StrEnum):
    """The phases of a task or a step."""

    WAITING = "Waiting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    CACHED = "Cached"
    SKIPPED = "Skipped"
    FAILED = "Failed"

    @property
    def is_final(self) -> bool:
        """Return whether nothing more happens to it in this run."""
        return self not in (TaskPhase.WAITING, TaskPhase.RUNNING)

    @property
    def is_good(self) -> bool:
        """Return whether its outputs exist."""
        return self in (TaskPhase.SUCCEEDED, TaskPhase.CACHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A step, or one item of it.

    Attributes:
        index: Of the item; None if the step is not fanned out.
        item: The value of FAIRLEAD_ITEM.
        outputs: Digest of each existing output.
        values: Content of small outputs, as far as conditions may read it.
        failures: The number of failures of its program.
        message: Why it is in this phase; empty while it waits.
    """

    step: str
    index: int | None = None
    item: str | None = None
    phase: TaskPhase = TaskPhase.WAITING
    outputs: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    failures: int = 0
    message: str = ""

    @property
    def name(self) -> str:
        """Return its name in messages and files."""
        return self.step if self.index is None else f"{self.step}[{self.index}]"


def place_name(step: str, index: int | None) -> str:
    """Return the directory name of a task."""
    return step if index is None else f"{step}-{index}"


def input_name(need: str, output: str) -> str:
    """Return the name of a need's output among the inputs of a task."""
    return f"{need}.{output}"


def variables_of(pipeline: Pipeline, task: Task, room: str, input_of: Callable[[str, str], str]) -> dict[str, str]:
    """Return the variables that describe a step and its inputs to its program, for any way of running it.

    Args:
        room: The directory for its outputs.
        input_of: Returns the location of an output of one of its needs.
    """
    step = pipeline.steps[task.step]
    env = {"FAIRLEAD_STEP": task.step}
    if task.item is not None:
        env |= {"FAIRLEAD_ITEM": task.item, "FAIRLEAD_ITEM_INDEX": str(task.index)}
    env |= {f"FAIRLEAD_OUTPUT_{name.upper()}": f"{room}/{name}" for name in step.outputs}
    for need in step.needs:
        for output in pipeline.steps[need].outputs:
            env[f"FAIRLEAD_INPUT_{need}_{output}".upper()] = input_of(need, output)
    return env


@dataclass(frozen=True, slots=True, kw_only=True)
class Expand:
    """The tasks of a step are known: one for each of these items."""

    step: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """A step ends as a whole without running any of its programs."""

    step: str
    phase: TaskPhase
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """A step's tasks may be run, or taken from the cache."""

    step: str


Action = Expand | Settle | Prepare


def step_phase(tasks: Sequence[Task]) -> TaskPhase:
    """Return the phase of a step with these tasks."""
    phases = {task.phase for task in tasks}
    for phase in (TaskPhase.RUNNING, TaskPhase.WAITING, TaskPhase.FAILED):
        if phase in phases:
            return phase
    if phases <= {TaskPhase.SKIPPED}:
        return TaskPhase.SKIPPED
    return TaskPhase.SUCCEEDED if TaskPhase.SUCCEEDED in phases else TaskPhase.CACHED


def judge(pipeline: Pipeline, step: str, steps: Mapping[str, Sequence[Task]]) -> Action | None:
    """Decide on an undecided step; return None while it has to wait for its needs.

    Args:
        steps: The tasks of each step; one without fan-out has one.
    """
    spec = pipeline.steps[step]
    phases = {need: step_phase(steps[need]) for need in spec.needs}
    if not all(phase.is_final for phase in phases.values()):
        return None
    for need, phase in phases.items():
        if phase is TaskPhase.FAILED:
            return Settle(step=step, phase=TaskPhase.SKIPPED, message=f"{need} has failed")
        if phase is TaskPhase.SKIPPED:
            return Settle(step=step, phase=TaskPhase.SKIPPED, message=f"{need} was skipped")
    values = {
        f"{need}.{name}": value for need in spec.needs for name, value in values_of(pipeline, need, steps[need]).items()
    }
    if spec.when is not None:
        try:
            if not holds(spec.when, values):
                return Settle(step=step, phase=TaskPhase.SKIPPED, message=f"when: {explain(spec.when, values)}")
        except ValueError as error:
            return Settle(step=step, phase=TaskPhase.FAILED, message=f"when: `{spec.when}`: {error}")
    if not spec.is_fanned_out or steps[step][0].index is not None:
        return Prepare(step=step)
    return _expand(pipeline, step, values)


def _expand(pipeline: Pipeline, step: str, values: Mapping[str, Any]) -> Action:
    spec = pipeline.steps[step]
    if spec.each_of is None:
        return Expand(step=step, items=spec.each)
    items = values.get(spec.each_of)
    unread = items is None
    if isinstance(items, list) and pipeline.steps[spec.each_of.partition(".")[0]].is_fanned_out:
        unread = None in items  # of a task whose output is too large; `null` is no item either
    if unread:
        message = (
            f"each_of: {spec.each_of} cannot be read: it is a directory, not UTF-8 text, `null` or larger than "
            f"{describe_memory(LIST_BYTES)}; write a JSON list, such as [1, 2], of addresses if the items are large"
        )
        return Settle(step=step, phase=TaskPhase.FAILED, message=message)
    if not isinstance(items, list):
        message = f"each_of: {spec.each_of} is not a list; write a JSON list, such as [1, 2]"
        return Settle(step=step, phase=TaskPhase.FAILED, message=message)
    if len(items) > ITEMS_MOST:
        message = f"each_of: {spec.each_of} has {len(items)} items; at most {ITEMS_MOST} are run"
        return Settle(step=step, phase=TaskPhase.FAILED, message=message)
    if not items:
        return Settle(step=step, phase=TaskPhase.SKIPPED, message=f"each_of: {spec.each_of} is empty")
    return Expand(step=step, items=tuple(item if isinstance(item, str) else _plain(item) for item in items))


def _plain(item: Any) -> str:
    return json.dumps(item, sort_keys=True)


def handed_to(pipeline: Pipeline, step: str, steps: Mapping[str, Sequence[Task]]) -> dict[str, str]:
    """Return the hash of each output of a step's needs, by the names of task and output."""
    return {
        f"{task.name}.{output}": digest
        for need in pipeline.steps[step].needs
        for task in steps[need]
        for output, digest in task.outputs.items()
    }


def values_of(pipeline: Pipeline, step: str, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the values of a step that conditions may read; with fan-out, lists in the order of items."""
    if not pipeline.steps[step].is_fanned_out:
        return dict(tasks[0].values)
    names = {name for task in tasks for name in task.values}
    return {name: [task.values.get(name) for task in tasks] for name in sorted(names)}


def gate_problem(spec: Step, values: Mapping[str, Any]) -> str | None:
    """Return why the gate of a step blocks the pipeline; None if it does not, or there is none."""
    if spec.gate is None:
        return None
    try:
        return None if holds(spec.gate, values) else f"gate: {explain(spec.gate, values)}"
    except ValueError as error:
        return f"gate: `{spec.gate}`: {error}"


def explain(condition: str, values: Mapping[str, Any]) -> str:
    """Explain that a condition does not hold, with the values it has read."""
    read = ", ".join(f"{name} is {_short(values[name])}" for name in sorted(names_in(condition)) if name in values)
    return f"`{condition}` does not hold{': ' if read else ''}{read}"


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """An earlier result of a task.

    Attributes:
        parts: Its dependencies at that time: a digest or text by the name of each input.
        at: When it ended, in Unix seconds.
        took_s: Seconds that its program ran.
        run: Uid of the run.
        lacks: An output that no longer exists; None if all do.
    """

    parts: Mapping[str, str]
    outputs: Mapping[str, str]
    values: Mapping[str, Any]
    at: float
    took_s: float
    run: str
    lacks: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDecision:
    """The decision whether a task has to be run.

    Attributes:
        result: The result to reuse; None if the task has to be run.
        why: Why it is reused, or which input has changed.
    """

    result: Result | None
    why: str


def decide_cache(
    cache: Cache, parts: Mapping[str, str], same: Result | None, last: Result | None, now: float
) -> CacheDecision:
    """Decide whether an earlier result of a task is reused.

    Args:
        same: The newest result with identical parts; None for none.
        last: The newest result of the task of that name, with any parts; None for none.
        now: Unix seconds.
    """
    if cache.off:
        return CacheDecision(result=None, why="cache: off")
    if same is None:
        if last is None:
            return CacheDecision(result=None, why="it has not succeeded before")
        return CacheDecision(result=None, why=describe_changes(last.parts, parts))
    age_s = max(0.0, now - same.at)
    if cache.max_age_s is not None and age_s > cache.max_age_s:
        most = format_duration(cache.max_age_s)
        return CacheDecision(result=None, why=f"its result is older than cache.max_age, {most}")
    if same.lacks is not None:
        return CacheDecision(result=None, why=f"its output {same.lacks} is not there any more")
    return CacheDecision(result=same, why=f"unchanged since run {same.run}")


def describe_changes(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Describe the inputs that differ, a few of them."""
    changed = [name for name in new if name in old and old[name] != new[name]]
    added = [name for name in new if name not in old]
    gone = [name for name in old if name not in new]
    parts = [f"{name} has changed" for name in changed]
    parts += [f"{name} is new" for name in added] + [f"{name} is gone" for name in gone]
    return listed(parts, MOST_NAMED, joint=", and ")


# Failed steps that the sentence of a finished pipeline names; it counts the others.
MOST_NAMED = 3


def outcome(steps: Mapping[str, Sequence[Task]]) -> tuple[bool, str]:
    """Return whether a pipeline with nothing left to do has succeeded, and a sentence on it."""
    tasks = [task for of_step in steps.values() for task in of_step]
    failed = [task for task in tasks if task.phase is TaskPhase.FAILED]
    counts = {phase: sum(task.phase is phase for task in tasks) for phase in TaskPhase}
    parts = _counted(counts)
    if failed:
        named = "; ".join(f"step {task.name} failed: {task.message}" for task in failed[:MOST_NAMED])
        return False, f"{named}; {parts}"
    return True, parts


def _counted(counts: Mapping[TaskPhase, int]) -> str:
    words: Iterable[tuple[TaskPhase, str]] = (
        (TaskPhase.SUCCEEDED, "ran"),
        (TaskPhase.CACHED, "unchanged"),
        (TaskPhase.SKIPPED, "skipped"),
        (TaskPhase.FAILED, "failed"),
    )
    parts = [(counts[phase], word) for phase, word in words if counts[phase]]
    if not parts:
        return "no steps"
    (first, word), *others = parts
    return ", ".join((f"{plural(first, 'step')} {word}", *(f"{count} {word}" for count, word in others)))
