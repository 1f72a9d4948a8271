"""Pipelines in Python: ``fairlead.Pipeline("churn", [prepare, train]).run()`` of functions with ``@fairlead.step``."""

import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.api import WorkloadHandle, submit
from fairlead.cluster.local.home import Home
from fairlead.cluster.output import LogQuery
from fairlead.cluster.port import LogLine
from fairlead.control.admission import admit
from fairlead.control.opening import open_local
from fairlead.control.pipelines.artefacts import Artefacts
from fairlead.control.pipelines.step_output import progress_in, runs_of_steps
from fairlead.control.pipelines.submission import as_workload, driver_uid, store_of
from fairlead.errors import Conflict, InvalidSpec, NotFound
from fairlead.policy.kinds.steps import Task
from fairlead.python_keys import read_keys
from fairlead.runtime.steps import ITEM, KEYS, RESULT, load
from fairlead.specs.pipeline import Pipeline as PipelineSpec
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.snapshot import Intent

Function = Callable[..., Any]


class Pipeline:
    """A pipeline of functions, each of which needs the steps that its parameters name.

    Args:
        steps: Functions with ``@fairlead.step``, each at the top level of a file.
        **keys: The keys of a Pipeline in a spec file, such as ``env`` and ``resources``. ``workdir`` is the directory
            of the first function's file when left out.

    Raises:
        InvalidSpec: A function cannot be a step, or a key or value is wrong.
    """

    def __init__(self, name: str, steps: Sequence[Function], **keys: Any) -> None:
        if not steps:
            raise InvalidSpec(("Pipeline: steps: there is no step; give functions with @fairlead.step.",))
        workdir = Path(keys.pop("workdir", None) or os.path.dirname(_file(steps[0]))).absolute()
        known = {function.__name__: _keys(function) for function in steps}
        if len(known) < len(steps):
            raise InvalidSpec(("Pipeline: steps: two functions have one name; rename one.",))
        described = {function.__name__: _described(function, known, workdir) for function in steps}
        document = {"kind": "Pipeline", "name": name, "workdir": str(workdir), "steps": described, **keys}
        spec = read_keys(document, source="Pipeline")
        if not isinstance(spec, PipelineSpec):
            raise InvalidSpec((f"Pipeline: kind: {type(spec).__name__} is another kind; leave `kind` out.",))
        self.spec = spec

    def run(self) -> "PipelineHandle":
        """Submit it on this machine and return at once.

        Raises:
            CannotFit: A run of it would not fit even if nothing else ran.
            NameTaken: An unfinished workload has its name.
            Conflict: It is called from one of its own steps.
        """
        if "FAIRLEAD_STEP" in os.environ:
            raise Conflict(
                f"{self.spec.name} is submitted by one of its own steps, which load this file too; put what submits it "
                'below `if __name__ == "__main__":`.'
            )
        cluster = open_local()
        spec: WorkloadSpec = as_workload(self.spec, Home.open())
        return PipelineHandle(cluster, submit(cluster, admit(cluster, spec, Path.cwd())).uid)


class PipelineHandle(WorkloadHandle[WorkloadSpec]):
    """A submitted pipeline. Not thread-safe: use it in one thread."""

    def tasks(self) -> list[Task]:
        """Return its steps, or the items of fanned-out steps, with their phases and reasons."""
        progress = progress_in(self._cluster, self.workload)
        if progress is None:
            raise NotFound(f"{self.name}: what it consists of is no longer kept.")
        return [task for tasks in progress.steps.values() for task in tasks]

    def result(self, step: str) -> Any:
        """Return the value that a function returned; a list for a fanned-out one.

        Raises:
            NotFound: It has not returned yet, or there is no such step.
            Conflict: It ran on a cluster, where its results are.
        """
        if self._cluster.has_containers:
            raise Conflict(
                f"{self.name} ran on a cluster, and its results are at its `checkpoint.to`; `fairlead "
                f"status {self.name}` has its steps."
            )
        tasks = [task for task in self.tasks() if task.step == step]
        if not tasks or any(RESULT not in task.outputs for task in tasks):
            why = f"is {tasks[0].phase.value}: {tasks[0].message}" if tasks else "is not a step"
            raise NotFound(f"{self.name}: {step} {why}.")
        store = Artefacts(store_of(Home.open()))
        values = [load(store.path(task.outputs[RESULT])) for task in tasks]
        return values[0] if tasks[0].index is None else values

    def logs(self, step: str | None = None) -> Iterator[LogLine]:
        """Yield the output so far, of a step as its program printed it.

        Args:
            step: Name of a step, or of an item of it such as ``train[2]``; None for all that its driver printed.

        Raises:
            InvalidArgument: There is no such step.
        """
        if step is None:
            uid = driver_uid(self._cluster, self.workload)
            yield from () if uid is None else self._cluster.logs(uid)
            return
        for run, prefix in runs_of_steps(self._cluster, self.workload, [step]):
            for line in self._cluster.logs(run.uid, LogQuery(prefix=prefix)):
                yield line if prefix is None else replace(line, text=prefix.sub("", line.text, count=1))

    def resume(self) -> None:
        """Resume a suspended, stopped or failed pipeline; succeeded steps are not run again."""
        self._want(Intent.RUN)


def _described(function: Function, known: dict[str, dict[str, Any]], workdir: Path) -> dict[str, Any]:
    """Describe a function as a step of a spec file."""
    name, keys = function.__name__, dict(_keys(function))
    source = _list_of(keys)
    if source is not None:
        keys["each_of"] = f"{source}.{RESULT}"
    words, needs = [], [] if source is None else [source]
    for parameter in inspect.signature(function).parameters.values():
        own = parameter.name
        if own == ITEM and (source is not None or keys.get("each")):
            words.append(ITEM if source is None else f"{ITEM}={source}")
        elif own in known:
            needs.append(own)
            is_fanned_out = bool(known[own].get("each")) or _list_of(known[own]) is not None
            words.append(f"{own}[]" if is_fanned_out else own)
        elif parameter.default is parameter.empty:
            steps = ", ".join(known)
            raise InvalidSpec((f"{name}: {own} is not a step of the pipeline, and has no default; steps: {steps}.",))
    file = os.path.relpath(_file(function), workdir)
    command = shlex.join([sys.executable, "-m", "fairlead.runtime.steps", file, name, *words])
    program = keys.pop("training", None)
    ran = {"run": command} if program is None else {"training": {**program, "run": command}}
    needs += keys.pop("needs", ())
    return {**ran, "needs": list(dict.fromkeys(needs)), "outputs": [RESULT], **keys}


def _list_of(keys: dict[str, Any]) -> str | None:
    """Return the step over whose list a function is fanned out; None for one that is called once."""
    source = keys.get("each_of")
    if source is None:
        return None
    return source.__name__ if callable(source) else str(source).removesuffix(f".{RESULT}")


def _keys(function: Function) -> dict[str, Any]:
    keys: dict[str, Any] | None = getattr(function, KEYS, None)
    if keys is None:
        raise InvalidSpec((f"{getattr(function, '__name__', function)!r} is not a step; mark it with @fairlead.step.",))
    for key in ("run", "sweep", "outputs"):
        if key in keys:
            raise InvalidSpec((f"{function.__name__}: {key}: a function has none; leave it out, or use a spec file.",))
    return keys


def _file(function: Function) -> str:
    file = inspect.getsourcefile(function)
    if file is None or not os.path.exists(file) or function.__qualname__ != function.__name__:
        name = function.__qualname__
        raise InvalidSpec((f"{name} is not at the top level of a file, from where other processes call it; move it.",))
    return os.path.abspath(file)
