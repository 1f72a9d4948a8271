"""Runs a pipeline, as the program of its run: ``python -m fairlead.control.pipelines.driver SPEC STORE``.

The driver may be killed at any instant: the next one reads the journal and continues. A task whose success is recorded
never runs again in that run; an interrupted command runs again, with an empty directory for its outputs. A task that is
a run of its own continues meanwhile, and the next driver finds it by its name.

See decision 18.
"""

import contextlib
import errno
import gc
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.control.pipelines import journal
from fairlead.control.pipelines.artefacts import Artefacts, read_value
from fairlead.control.pipelines.dependencies import Dependencies
from fairlead.control.pipelines.processes import StepProgram, StepPrograms
from fairlead.control.pipelines.result_store import ResultStore
from fairlead.control.pipelines.step_run import COLLECTED, StepRun, StepRuns, with_list
from fairlead.control.pipelines.task_lines import task_line
from fairlead.errors import FairleadError, NotFound
from fairlead.frozen import dataclass
from fairlead.policy.kinds.steps import (
    ITEM_BYTES,
    Expand,
    Prepare,
    Result,
    Settle,
    Task,
    TaskPhase,
    gate_problem,
    handed_to,
    input_name,
    judge,
    outcome,
    place_name,
    step_phase,
    variables_of,
)
from fairlead.runtime import utf8_mode
from fairlead.runtime.podfiles import read_json, write_json
from fairlead.runtime.progress import Reporter
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.formats.serialization import from_json
from fairlead.specs.pipeline import Pipeline
from fairlead.specs.workload import PIPELINE_VARIABLE
from fairlead.text.quantities import describe_duration

if TYPE_CHECKING:
    from fairlead.cluster.local.code.keeping import AttemptDirectory
    from fairlead.cluster.local.code.trees import Tree
    from fairlead.control.pipelines.object_place import StoreExchange

PARALLEL = 4
FIRST_BACKOFF_S = 0.5
MOST_BACKOFF_S = 60.0
TELL_EVERY_S = 0.2
# Poll interval of children; a query of the database takes microseconds, and updates in pods arrive once a second.
LOOK_S, LOOK_IN_POD_S = 0.05, 0.2
SUBMIT_AGAIN_S = 0.5
HANDED = "handed.json"
STOPPED = 143
# Variables of the driver itself, which would give programs of steps a wrong rank or place.
_OWN = ("FAIRLEAD_POD_DIR", "FAIRLEAD_RUN_DIR", "FAIRLEAD_CHECKPOINT_TO", "FAIRLEAD_CHECKPOINT_FROM", PIPELINE_VARIABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The environment of a driver.

    Attributes:
        workdir: Working directory of the pipeline.
        files: Directory of the run, which outlives this process.
        checkpoints: Place of the run's checkpoints; each task gets a place of its own below.
        run: Uid of the run.
        environ: Environment that the steps inherit.
        children: Steps of the pipeline that are runs of their own; None without any.
        is_in_pod: The driver is a pod: it prints each change, since its journal cannot be read from outside.
        send: Copies each line of the journal elsewhere; None if its file outlives the driver.
        exchange: Transfers inputs and outputs of steps that are runs; None if those can access ``files``.
        place: The place in which the steps find the code as submitted; None for the working directory.
        tree: The tree of that place.
    """

    workdir: Path
    files: Path
    checkpoints: str
    run: str
    environ: Mapping[str, str]
    children: StepRuns | None = None
    is_in_pod: bool = False
    send: Callable[[bytes], None] | None = None
    exchange: "StoreExchange | None" = None
    place: "AttemptDirectory | None" = None
    tree: "Tree | None" = None


class PipelineDriver:
    """Runs one pipeline from the state in its journal to its end."""

    def __init__(
        self,
        pipeline: Pipeline,
        artefacts: Artefacts,
        results: ResultStore,
        around: Surroundings,
        reporter: Reporter,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pipeline = pipeline
        self._around = around
        self._reporter = reporter
        self._clock = clock
        self._artefacts = artefacts
        self._results = results
        self._dependencies = Dependencies(
            pipeline,
            around.workdir,
            around.environ,
            results,
            artefacts.root.parent,
            is_in_pod=around.is_in_pod,
            tree=around.tree,
        )
        place = around.files / journal.NAME
        self._progress = journal.read(place, pipeline)
        self._journal = journal.Journal(place, is_synced=around.is_in_pod and around.send is None, send=around.send)
        if not around.is_in_pod:
            self._dependencies.read_code()
        self._programs = StepPrograms(is_alone=len(pipeline.steps) == 1)
        self._ready: deque[Task] = deque()
        self._delayed: list[tuple[float, Task]] = []
        # Tasks that are runs of their own: still to submit, and submitted.
        self._to_submit: deque[Task] = deque()
        self._followed: dict[str, Task] = {}
        self._told_waiting: set[str] = set()
        self._parts: dict[str, dict[str, str]] = {}
        self._look_s = LOOK_IN_POD_S if around.is_in_pod else LOOK_S
        self._tell_at = 0.0
        self._stopping = False
        self._needed_by: dict[str, list[str]] = {name: [] for name in pipeline.steps}
        for name, step in pipeline.steps.items():
            for need in step.needs:
                self._needed_by[need].append(name)

    def run(self) -> int:
        """Run the remaining tasks and return the exit code."""
        try:
            with self._programs.listening(self._stop):
                self._take_up()
                while self._has_work() and not self._is_stopped():
                    self._look_after_children()
                    self._start_ready()
                    if self._stopping:
                        self._stop()  # also a program that was being started when the stop notice came
                    for program, code in self._programs.wait(self._wait_s()):
                        self._ended(program, code)
            if self._stopping:
                return STOPPED
            good, sentence = outcome(self._progress.steps)
            self._journal.over()
            self._tell_at = 0.0
            self._tell_progress()
            self._reporter.flush()
            print(f"fairlead: {sentence}", file=sys.stdout if good else sys.stderr, flush=True)
            return 0 if good else 1
        finally:
            self._journal.close()
            self._results.close()
            if self._around.children is not None:
                self._around.children.close()

    def _has_work(self) -> bool:
        waiting = self._ready or self._delayed or self._to_submit
        return bool(waiting or self._followed or self._programs.num_running)

    def _take_up(self) -> None:
        """Continue where the last driver was interrupted; if that driver finished, retry failed and skipped tasks."""
        anew = (TaskPhase.FAILED, TaskPhase.SKIPPED) if self._progress.is_over else ()
        for name in self._pipeline.in_order():
            tasks = self._progress.steps[name]
            for task in list(tasks):
                # In a pod, runs are unknown until requested; waiting tasks are requested in due course.
                if task.phase is TaskPhase.RUNNING and self._find(task) is not None:
                    self._parts[task.name] = read_json(self._place(task) / HANDED) or {}
                    self._followed[task.name] = task
                elif task.phase.is_final and task.phase not in anew:
                    self._tell(task)  # the output of the previous driver may be lost
                elif task.phase is TaskPhase.RUNNING or task.phase in anew:
                    failures = 0 if task.phase in anew else task.failures
                    self._progress.put(replace(task, phase=TaskPhase.WAITING, failures=failures, message=""))
        self._make_lost_again()
        for name in self._pipeline.in_order():
            if step_phase(self._progress.steps[name]) is TaskPhase.WAITING:
                self._consider(name)

    def _make_lost_again(self) -> None:
        """Have tasks run again whose outputs are needed and no longer stored as they were."""
        for name in reversed(self._pipeline.in_order()):
            readers = [task for reader in self._needed_by[name] for task in self._progress.steps[reader]]
            if all(task.phase.is_final for task in readers):
                continue
            for task in list(self._progress.steps[name]):
                lost = [output for output, digest in task.outputs.items() if not self._artefacts.has(digest)]
                if lost and task.phase.is_final:
                    message = f"its output {lost[0]} is no longer stored as it was"
                    self._progress.put(Task(step=task.step, index=task.index, item=task.item, message=message))

    def _consider(self, first: str) -> None:
        """Decide on a step, and on those that become decidable when it ends."""
        pending = deque([first])
        while pending and not self._stopping:
            name = pending.popleft()
            tasks = self._progress.steps[name]
            if step_phase(tasks) is not TaskPhase.WAITING:
                continue
            match judge(self._pipeline, name, with_list(self._pipeline, name, self._progress.steps, self._artefacts)):
                case Expand(items=items):
                    self._journal.expand(name, items)
                    self._progress.steps[name] = [
                        Task(step=name, index=place, item=item) for place, item in enumerate(items)
                    ]
                    pending.appendleft(name)
                    continue
                case Settle(phase=phase, message=message):
                    for task in list(tasks):
                        if not task.phase.is_final:
                            self._record(replace(task, phase=phase, message=message))
                case Prepare():
                    self._prepare(name)
                case None:
                    continue
            if step_phase(self._progress.steps[name]).is_final:
                pending.extend(self._needed_by[name])

    def _prepare(self, name: str) -> None:
        """Take the tasks of a step from the cache, or queue them; once each, since a queued task is still Waiting."""
        for task in list(self._progress.steps[name]):
            if task.phase is TaskPhase.WAITING and task.name not in self._parts:
                self._take_or_queue(task)

    def _take_or_queue(self, task: Task) -> None:
        try:
            parts = self._dependencies.of(task, handed_to(self._pipeline, task.step, self._progress.steps))
        except OSError as error:
            message = f"{error.strerror or error}: {error.filename}"
            self._record(replace(task, phase=TaskPhase.FAILED, message=message))
            return
        self._parts[task.name] = parts
        with self._artefacts.in_use():
            decided = self._dependencies.looked_up(task, parts, self._artefacts, self._clock())
            if decided.result is None:
                self._queue(replace(task, message=decided.why))
                return
            outputs, values = decided.result.outputs, decided.result.values
            self._finish(replace(task, phase=TaskPhase.CACHED, outputs=outputs, values=values, message=decided.why))

    def _finish(self, task: Task) -> None:
        """Record a task with its outputs; as failed if its gate is not met."""
        shut = gate_problem(self._pipeline.steps[task.step], task.values)
        self._record(task if shut is None else replace(task, phase=TaskPhase.FAILED, message=shut))

    def _queue(self, task: Task) -> None:
        (self._ready if self._pipeline.steps[task.step].child is None else self._to_submit).append(task)

    def _start_ready(self) -> None:
        now = time.monotonic()
        for at, task in self._delayed:
            if at <= now:
                self._queue(task)
        self._delayed = [(at, task) for at, task in self._delayed if at > now]
        parallel = self._pipeline.parallel
        # Runs of their own wait in the cluster's queue, unless `parallel` limits them.
        while self._may_submit and not self._stopping:
            self._submit(self._to_submit.popleft())
        most = parallel or -(-(self._pipeline.resources.cpu_milli or 0) // 1000) or PARALLEL
        while self._ready and self._num_commands(parallel) < most and not self._stopping:
            task = self._ready.popleft()
            step = self._pipeline.steps[task.step]
            if self._has_lost_input(task):
                continue
            # Recorded first: a driver that finds it Running after a kill runs it again.
            self._record(replace(task, phase=TaskPhase.RUNNING))
            try:
                command, workdir = step.command, self._around.workdir
                env = self._environment(task, self._make_room(task))
                if self._around.place is not None:
                    place, own = self._around.place, {**self._pipeline.env, **step.env}
                    env |= {name: place.moved(value, str(workdir)) for name, value in own.items()}
                    env["PYTHONPATH"] = place.python_path(env.get("PYTHONPATH", ""), str(workdir), command, env)
                    command = place.moved(command, str(workdir))
                    workdir = place.tree or workdir
                self._programs.start(task.name, command, workdir=workdir, env=env)
            except (OSError, ValueError) as error:  # an item may contain characters that are invalid in variables
                problem = error.strerror if isinstance(error, OSError) else None
                if isinstance(error, OSError) and error.errno == errno.E2BIG:
                    problem = f"its variables are too large; an item has at most {ITEM_BYTES} bytes: write it to a file"
                self._failed(task, f"it cannot be started: {problem or error}")
                self._consider_after(task.step)

    def _ran_other_code(self, task: Task) -> str | None:
        """Return why a step may have run other code than that recorded for it; None if it cannot have."""
        if self._around.is_in_pod:
            return None
        changed = self._dependencies.edited_sources(self._pipeline.steps[task.step].code)
        return f"{changed[0]} was changed while the pipeline ran" if changed else None

    @property
    def _may_submit(self) -> bool:
        most, children = self._pipeline.parallel, self._around.children
        if not self._to_submit or children is None or (most is not None and self._num_running >= most):
            return False
        return children.has_room(self._to_submit[0])

    @property
    def _num_running(self) -> int:
        return self._programs.num_running + len(self._followed)

    def _num_commands(self, parallel: int | None) -> int:
        """Count the tasks that use the limit: all if `parallel` is given, else those on the pipeline's cores."""
        return self._programs.num_running if parallel is None else self._num_running

    def _find(self, task: Task) -> StepRun | None:
        children = self._around.children
        if self._pipeline.steps[task.step].child is None or children is None:
            return None
        return children.find(task)

    def _submit(self, task: Task) -> None:
        """Submit the run of a task, or resume it if it failed before."""
        children = self._around.children
        assert children is not None, "a pipeline with runs of their own has a parent"
        if self._has_lost_input(task):
            return
        run = self._find(task)
        self._record(replace(task, phase=TaskPhase.RUNNING))
        try:
            if self._around.is_in_pod:
                self._provide(task)
                why = children.submit(task, {})
            elif run is None:
                room = self._make_room(task)
                (self._place(task) / COLLECTED).unlink(missing_ok=True)
                write_json(self._place(task) / HANDED, self._parts[task.name])
                why = children.submit(task, self._variables(task, room))
            else:
                write_json(self._place(task) / HANDED, self._parts[task.name])
                # An active run needs no resume, and the outputs of a successful one only need to be collected.
                why = children.resume(task) if run.has_failed else None
        except (OSError, BrokenRules) as error:
            self._failed(task, f"it cannot be submitted: {error}")
            self._consider_after(task.step)
            return
        if why is None:
            self._followed[task.name] = replace(task, phase=TaskPhase.RUNNING)
            return
        if task.name not in self._told_waiting:
            self._told_waiting.add(task.name)
            self._reporter.event("StepWaits", f"{task.name}: {why}")
        self._delayed.append((time.monotonic() + SUBMIT_AGAIN_S, task))

    def _provide(self, task: Task) -> None:
        """Provide the inputs of a task's run, unless a previous driver has done so.

        The run may exist and be active already, so its outputs stay.
        """
        place = self._place(task)
        (place / "outputs").mkdir(parents=True, exist_ok=True)
        if self._around.exchange is not None:
            self._parts[task.name] = self._around.exchange.give(
                place.name, self._input_hashes(task), self._parts[task.name]
            )
            return
        for need in self._pipeline.steps[task.step].needs:
            for output in self._pipeline.steps[need].outputs:
                self._linked(task, need, output)
        known = read_json(place / HANDED)
        if known is None:
            write_json(place / HANDED, self._parts[task.name])
        else:
            self._parts[task.name] = known

    def _input_hashes(self, task: Task) -> dict[str, str | dict[str, str]]:
        """Return the hashes of a task's inputs, by their names in the task."""
        inputs: dict[str, str | dict[str, str]] = {}
        for need in self._pipeline.steps[task.step].needs:
            made = self._progress.steps[need]
            for output in self._pipeline.steps[need].outputs:
                if made[0].index is None:
                    inputs[input_name(need, output)] = made[0].outputs[output]
                else:
                    values = {str(one.index): one.outputs[output] for one in made if output in one.outputs}
                    inputs[input_name(need, output)] = values
        return inputs

    def _look_after_children(self) -> None:
        """Settle the tasks whose runs have ended."""
        children = self._around.children
        if not self._followed or children is None or self._stopping or not children.has_changed():
            return
        for task in list(self._followed.values()):
            run = self._find(task)
            if not children.is_gone(task) if run is None else not run.is_over:
                continue
            if not children.is_wanted:
                return  # it was stopped with the pipeline, and this driver is about to be
            del self._followed[task.name]
            if self._has_lost_input(task):
                children.settled(task)
                continue
            if run is None:
                self._run_failed(task, "its run was deleted")
            elif not run.has_failed:
                with self._artefacts.in_use():
                    self._collect_child(task, run)
            else:
                self._run_failed(task, f"{run.name} is {run.phase}: {run.message}")
            children.settled(task)
            self._consider_after(task.step)

    def _run_failed(self, task: Task, message: str) -> None:
        """Record that the run of a task failed; the inputs of a retry are determined again."""
        if self._around.is_in_pod:
            for name in (HANDED, COLLECTED):
                (self._place(task) / name).unlink(missing_ok=True)
            if self._around.exchange is not None:
                self._around.exchange.take_back(self._place(task).name)
        self._failed(task, message)

    def _collect_child(self, task: Task, run: StepRun) -> None:
        """Store the outputs of a successful run."""
        children = self._around.children
        assert children is not None
        step, room = self._pipeline.steps[task.step], self._place(task) / "outputs"
        try:
            if self._around.exchange is not None and step.training is not None:
                self._around.exchange.take(room.parent.name, room)
            outputs, values = children.collect(task, step, room, self._artefacts)
        except NotFound as error:
            self._run_failed(task, str(error))
            return
        except (OSError, FairleadError) as error:
            self._run_failed(task, f"its outputs cannot be kept: {error}")
            return
        self._keep_result(task, outputs, values, run.took_s)

    def _make_room(self, task: Task) -> Path:
        """Create an empty directory for the outputs of a task."""
        room = self._place(task) / "outputs"
        if room.exists():
            shutil.rmtree(room)
        room.mkdir(parents=True)
        return room

    def _place(self, task: Task) -> Path:
        return self._around.files / "steps" / place_name(task.step, task.index)

    def _environment(self, task: Task, room: Path) -> dict[str, str]:
        env = {name: value for name, value in self._around.environ.items() if name not in _OWN}
        place = self._place(task)
        env |= {**self._pipeline.env, **self._pipeline.steps[task.step].env}
        env |= {
            "FAIRLEAD_POD_DIR": str(place),
            "FAIRLEAD_RUN_DIR": str(place),
            "FAIRLEAD_CHECKPOINT_TO": f"{self._around.checkpoints.rstrip('/')}/{place.name}",
        }
        return env | self._variables(task, room)

    def _variables(self, task: Task, room: Path) -> dict[str, str]:
        """Return the variables with a step's identity, inputs and outputs, for any kind of step."""
        return variables_of(
            self._pipeline, task, str(room), lambda need, output: str(self._output_path(task, need, output))
        )

    def _output_path(self, task: Task, need: str, output: str) -> Path:
        """Return the path of another task's output; for a step with fan-out, a directory of links by index."""
        made = self._progress.steps[need]
        if made[0].index is None:
            return self._artefacts.path(made[0].outputs[output])
        links = self._place(task) / "inputs" / input_name(need, output)
        if links.exists():
            shutil.rmtree(links)
        self._make_links(links, made, output)
        return links

    def _make_links(self, links: Path, made: Sequence[Task], output: str) -> None:
        links.mkdir(parents=True)
        for part in made:
            if output in part.outputs:
                (links / str(part.index)).symlink_to(self._artefacts.path(part.outputs[output]))

    def _linked(self, task: Task, need: str, output: str) -> None:
        """Link another task's output to where the run of a task reads it; links of a previous driver stay."""
        place, made = self._place(task) / "inputs" / input_name(need, output), self._progress.steps[need]
        if os.path.lexists(place):
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        if made[0].index is None:
            place.symlink_to(self._artefacts.path(made[0].outputs[output]))
            return
        whole = place.with_name(f".{place.name}")
        shutil.rmtree(whole, ignore_errors=True)  # partial links of a killed driver
        self._make_links(whole, made, output)
        whole.rename(place)

    def _ended(self, program: StepProgram, code: int) -> None:
        task = next(task for task in self._progress.steps[program.name.partition("[")[0]] if task.name == program.name)
        if self._stopping:
            return
        step = self._pipeline.steps[task.step]
        took_s = time.monotonic() - program.began_at
        if self._has_lost_input(task):
            return
        if program.timed_out:
            self._failed(task, f"it ran for longer than timeout, {describe_duration(step.timeout_s or 0.0)}")
        elif code != 0:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            self._failed(task, f"its program ended with {how} after {describe_duration(took_s)}")
        else:
            with self._artefacts.in_use():
                self._collect(task, took_s)
        self._consider_after(task.step)

    def _collect(self, task: Task, took_s: float) -> None:
        """Store the outputs of a successful program."""
        step, room = self._pipeline.steps[task.step], self._place(task) / "outputs"
        missing = [name for name in step.outputs if not os.path.lexists(room / name)]
        if missing:
            self._failed(task, f"it wrote no output {missing[0]} ($FAIRLEAD_OUTPUT_{missing[0].upper()})")
            return
        try:
            values = {name: read_value(room / name) for name in step.outputs}
            outputs = {name: self._artefacts.keep(room / name) for name in step.outputs}
        except OSError as error:
            self._failed(task, f"its outputs cannot be kept: {error}")
            return
        self._keep_result(task, outputs, {name: value for name, value in values.items() if value is not None}, took_s)

    def _keep_result(self, task: Task, outputs: dict[str, str], values: dict[str, Any], took_s: float) -> None:
        """Record the result of a task, for this run and later ones."""
        parts, room = self._parts[task.name], self._place(task) / "outputs"
        now = self._clock()
        done = replace(task, phase=TaskPhase.SUCCEEDED, outputs=outputs, values=values)
        done = replace(done, message=f"ran {describe_duration(took_s)} ({task.message})")
        why = self._ran_other_code(task)
        if why is not None:
            # A result under the hash of code that may not have made it would be wrong for every later run.
            self._reporter.event(
                "CodeEdited", f"{task.name}: {why}; its result is used by this run, and not kept for later ones"
            )
        else:
            self._results.add(
                self._pipeline.name,
                task.name,
                Result(parts=parts, outputs=outputs, values=values, at=now, took_s=took_s, run=self._around.run),
            )
        self._finish(done)
        with contextlib.suppress(OSError):  # undeclared files; a retry would empty the directory too
            shutil.rmtree(room)

    def _has_lost_input(self, task: Task) -> bool:
        """Fail a task if an input of it was changed in place, by its program or another one; return whether it was."""
        for need in self._pipeline.steps[task.step].needs:
            for made in self._progress.steps[need]:
                for output, digest in made.outputs.items():
                    if not self._artefacts.is_lost(digest):
                        continue
                    variable = f"FAIRLEAD_INPUT_{need}_{output}".upper()
                    message = (
                        f"its input {made.name}.{output} was changed or removed where it is stored, by its program or "
                        f"by one beside it; copy an input before changing it, as in `cp -r ${variable} $(mktemp -d)`; "
                        f"the next run or `fairlead resume` makes {made.name} again"
                    )
                    self._record(replace(task, phase=TaskPhase.FAILED, message=message))
                    self._consider_after(task.step)
                    return True
        return False

    def _failed(self, task: Task, message: str) -> None:
        failures = task.failures + 1
        allowed = self._pipeline.steps[task.step].retry
        if failures > allowed:
            tried = f" (tried {failures} times)" if allowed else ""
            self._record(replace(task, phase=TaskPhase.FAILED, failures=failures, message=f"{message}{tried}"))
            return
        wait_s = min(MOST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (failures - 1))
        again = replace(task, phase=TaskPhase.WAITING, failures=failures, message=message)
        self._journal.task(again, self._clock())
        self._progress.put(again)
        self._tell(again)
        self._reporter.event("StepRetried", f"{task.name}: {message}; tried again in {describe_duration(wait_s)}")
        self._delayed.append((time.monotonic() + wait_s, again))

    def _consider_after(self, step: str) -> None:
        if step_phase(self._progress.steps[step]).is_final:
            for name in self._needed_by[step]:
                self._consider(name)

    def _record(self, task: Task) -> None:
        """Record the current state of a task, and report it."""
        self._journal.task(task, self._clock())
        self._progress.put(task)
        event = "StepStarted" if task.phase is TaskPhase.RUNNING else f"Step{task.phase.value}"
        self._reporter.event(event, f"{task.name}: {task.message}")
        self._tell(task)
        if task.phase is TaskPhase.SUCCEEDED:
            # Its result is kept, so work up to now is not repeated.
            self._reporter.fact(checkpoint_at=self._clock())
        if task.phase.is_final:
            self._tell_progress()

    def _tell(self, task: Task) -> None:
        """Print the state of a task for readers of a pod's output."""
        if self._around.is_in_pod:
            print(task_line(task), flush=True)

    def _tell_progress(self) -> None:
        """Report finished tasks as progress, rate-limited, since many may come from the cache at once."""
        now = time.monotonic()
        if now < self._tell_at:
            return
        self._tell_at = now + TELL_EVERY_S
        tasks = [task for step in self._progress.steps.values() for task in step]
        done = sum(task.phase.is_final for task in tasks)
        self._reporter.progress(done, total=len(tasks), loss=None, epoch=None, samples=None, tokens=None, metrics={})

    def _wait_s(self) -> float | None:
        timeouts = {
            name: limit
            for name in self._programs.names()
            if (limit := self._pipeline.steps[name.partition("[")[0]].timeout_s) is not None
        }
        waits = [self._programs.enforce(timeouts, self._pipeline.grace_s)]
        waits += [max(0.0, at - time.monotonic()) for at, _ in self._delayed]
        waits += [0.0] if self._may_submit or not self._has_work() else [self._look_s] if self._followed else []
        return min((wait for wait in waits if wait is not None), default=None)

    def _stop(self) -> None:
        self._stopping = True
        for name in self._programs.names():
            self._programs.stop(name, self._pipeline.grace_s)

    def _is_stopped(self) -> bool:
        return self._stopping and not self._programs.num_running


def _in_tree(around: Surroundings, state: Path) -> Surroundings:
    """Return the surroundings of a driver in a tree with the code as submitted, if it was started in one."""
    if not (state / "trees").is_dir():
        return around  # no code is stored, so that nothing else is imported
    # Here and not above: pods have no such directory, nor these modules.
    from fairlead.cluster.local.code.keeping import CodeStore
    from fairlead.cluster.local.home import Home

    placed = CodeStore(Home(path=state)).place_at(around.workdir)
    if placed is None:
        return around
    place, tree = placed
    return replace(around, workdir=Path(tree.workdir), place=place, tree=tree)


def main(arguments: list[str]) -> int:
    """Run the pipeline of a stored spec with artefacts in a directory."""
    spec, store = arguments
    pipeline = from_json(Path(spec).read_text())
    assert isinstance(pipeline, Pipeline)
    directory = os.environ.get("FAIRLEAD_POD_DIR")
    files = Path(os.environ["FAIRLEAD_RUN_DIR"])
    around = Surroundings(
        workdir=Path.cwd(),
        files=files,
        checkpoints=os.environ.get("FAIRLEAD_CHECKPOINT_TO", str(files / "checkpoints")),
        run=os.environ.get("FAIRLEAD_RUN_UID", ""),
        environ=dict(os.environ),
    )
    around = _in_tree(around, Path(store).parent)
    if pipeline.has_children:
        # Here and not above: these imports take longer than a short pipeline.
        from fairlead.cluster.local.cluster import LocalCluster
        from fairlead.control.pipelines.children import Children

        cluster = LocalCluster.open(Path(store).parent)
        parent = cluster.get(around.run).parent
        if parent is None:
            print("fairlead: steps of this pipeline are runs; submit it with `fairlead run`.", file=sys.stderr)
            return 2
        around = replace(around, run=parent, children=Children(cluster, parent))
    reporter = Reporter(rank=0, world_size=1, directory=None if directory is None else Path(directory))
    from fairlead.control.pipelines.results import Results  # here and not above: pods do not use this database

    return PipelineDriver(pipeline, Artefacts(Path(store)), Results(Path(store) / "results.db"), around, reporter).run()


if __name__ == "__main__":
    utf8_mode.enter()
    code = main(sys.argv[1:])
    gc.freeze()  # the process ends: skip a last garbage collection
    sys.exit(code)
