"""The program of a pipeline's run: ``python -m fairlead.control.pipelines.driver SPEC STORE``.

It may be killed at any instant: the next one reads the journal and goes on. A task whose success is recorded never
runs again in that run; one that was cut short runs anew, with an empty place for its outputs.
"""

import contextlib
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.control.pipelines import journal
from fairlead.control.pipelines.artefacts import Artefacts, read_value
from fairlead.control.pipelines.dependencies import Dependencies
from fairlead.control.pipelines.processes import Program, Programs
from fairlead.control.pipelines.results import Results
from fairlead.policy.kinds.pipeline import (
    Expand,
    Prepare,
    Result,
    Settle,
    Task,
    TaskPhase,
    gate_problem,
    handed_to,
    judge,
    outcome,
    step_phase,
)
from fairlead.runtime.progress import Reporter
from fairlead.specs.formats.serialization import from_json
from fairlead.specs.pipeline import Pipeline
from fairlead.text.quantities import describe_duration

PARALLEL = 4
FIRST_BACKOFF_S = 0.5
MOST_BACKOFF_S = 60.0
TELL_EVERY_S = 0.2
STOPPED = 143
# A driver's own, which mean another rank or another place to whatever a step starts.
_OWN = ("FAIRLEAD_POD_DIR", "FAIRLEAD_RUN_DIR", "FAIRLEAD_CHECKPOINT_TO", "FAIRLEAD_CHECKPOINT_FROM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The surroundings that a driver is given.

    Attributes:
        workdir: Where the steps run.
        files: The run's own directory, which outlives this process.
        checkpoints: Where the run's checkpoints go; each task gets a place of its own below.
        run: Uid of the run.
        environ: What the steps inherit.
    """

    workdir: Path
    files: Path
    checkpoints: str
    run: str
    environ: Mapping[str, str]


class Driver:
    """One pipeline, from where its journal says to its end."""

    def __init__(
        self,
        pipeline: Pipeline,
        store: Path,
        around: Surroundings,
        reporter: Reporter,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pipeline = pipeline
        self._around = around
        self._reporter = reporter
        self._clock = clock
        self._artefacts = Artefacts(store)
        self._results = Results(store / "results.db")
        self._dependencies = Dependencies(pipeline, around.workdir, around.environ, self._results, store.parent)
        place = around.files / journal.NAME
        self._progress = journal.read(place, pipeline)
        self._journal = journal.Journal(place)
        self._programs = Programs(is_alone=len(pipeline.steps) == 1)
        self._ready: deque[Task] = deque()
        self._delayed: list[tuple[float, Task]] = []
        self._parts: dict[str, dict[str, str]] = {}
        self._tell_at = 0.0
        self._stopping = False
        self._needed_by: dict[str, list[str]] = {name: [] for name in pipeline.steps}
        for name, step in pipeline.steps.items():
            for need in step.needs:
                self._needed_by[need].append(name)

    def run(self) -> int:
        """Run what is left to do; the exit code."""
        try:
            with self._programs.listening(self._stop):
                self._take_up()
                while (self._ready or self._delayed or self._programs.num_running) and not self._is_stopped():
                    self._start_ready()
                    if self._stopping:
                        self._stop()  # also the one that was just being started when the notice came
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

    def _take_up(self) -> None:
        """Go on where the last driver was cut short; after one that came to its end, try again what failed."""
        anew = (TaskPhase.FAILED, TaskPhase.SKIPPED) if self._progress.is_over else ()
        for name in self._pipeline.in_order():
            tasks = self._progress.steps[name]
            for task in list(tasks):
                if task.phase is TaskPhase.RUNNING or task.phase in anew:
                    failures = 0 if task.phase in anew else task.failures
                    self._progress.put(replace(task, phase=TaskPhase.WAITING, failures=failures, message=""))
        for name in self._pipeline.in_order():
            if step_phase(self._progress.steps[name]) is TaskPhase.WAITING:
                self._consider(name)

    def _consider(self, first: str) -> None:
        """Decide on a step, and on those that can be decided once it is over."""
        pending = deque([first])
        while pending and not self._stopping:
            name = pending.popleft()
            tasks = self._progress.steps[name]
            if step_phase(tasks) is not TaskPhase.WAITING:
                continue
            match judge(self._pipeline, name, self._progress.steps):
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
        """Take the tasks of a step from the cache, or queue them; once, as a queued task waits until it is started."""
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
        decided = self._dependencies.looked_up(task, parts, self._artefacts, self._clock())
        if decided.result is None:
            self._ready.append(replace(task, message=decided.why))
            return
        result = decided.result
        taken = replace(task, phase=TaskPhase.CACHED, outputs=result.outputs, values=result.values, message=decided.why)
        self._finish(taken)

    def _finish(self, task: Task) -> None:
        """Record a task whose outputs are there, unless its gate is shut."""
        shut = gate_problem(self._pipeline.steps[task.step], task.values)
        self._record(task if shut is None else replace(task, phase=TaskPhase.FAILED, message=shut))

    def _start_ready(self) -> None:
        now = time.monotonic()
        self._ready.extend(task for at, task in self._delayed if at <= now)
        self._delayed = [(at, task) for at, task in self._delayed if at > now]
        most = self._pipeline.parallel or -(-(self._pipeline.resources.cpu_milli or 0) // 1000) or PARALLEL
        while self._ready and self._programs.num_running < most and not self._stopping:
            task = self._ready.popleft()
            step = self._pipeline.steps[task.step]
            # Recorded first: whoever finds it Running after a kill knows that it has to be run anew.
            self._record(replace(task, phase=TaskPhase.RUNNING))
            try:
                self._programs.start(
                    task.name,
                    step.run,
                    workdir=self._around.workdir,
                    env=self._environment(task, self._make_room(task)),
                )
            except (OSError, ValueError) as error:  # an item may hold what no variable can
                said = error.strerror if isinstance(error, OSError) else None
                self._failed(task, f"it cannot be started: {said or error}")
                self._consider_after(task.step)

    def _make_room(self, task: Task) -> Path:
        """An empty directory for the outputs of a task."""
        room = self._place(task) / "outputs"
        if room.exists():
            shutil.rmtree(room)
        room.mkdir(parents=True)
        return room

    def _place(self, task: Task) -> Path:
        return self._around.files / "steps" / (task.step if task.index is None else f"{task.step}-{task.index}")

    def _environment(self, task: Task, room: Path) -> dict[str, str]:
        step = self._pipeline.steps[task.step]
        env = {name: value for name, value in self._around.environ.items() if name not in _OWN}
        place = self._place(task)
        env |= {**self._pipeline.env, **step.env}
        env |= {
            "FAIRLEAD_STEP": task.step,
            "FAIRLEAD_POD_DIR": str(place),
            "FAIRLEAD_RUN_DIR": str(place),
            "FAIRLEAD_CHECKPOINT_TO": f"{self._around.checkpoints.rstrip('/')}/{place.name}",
        }
        if task.item is not None:
            env |= {"FAIRLEAD_ITEM": task.item, "FAIRLEAD_ITEM_INDEX": str(task.index)}
        env |= {f"FAIRLEAD_OUTPUT_{name.upper()}": str(room / name) for name in step.outputs}
        for need in step.needs:
            for output in self._pipeline.steps[need].outputs:
                env[f"FAIRLEAD_INPUT_{need}_{output}".upper()] = str(self._handed_path(task, need, output))
        return env

    def _handed_path(self, task: Task, need: str, output: str) -> Path:
        """Return where a task finds an output of another; of a step that is fanned out, a directory of links by
        number."""
        made = self._progress.steps[need]
        if made[0].index is None:
            return self._artefacts.path(made[0].outputs[output])
        links = self._place(task) / "inputs" / f"{need}.{output}"
        if links.exists():
            shutil.rmtree(links)
        links.mkdir(parents=True)
        for each in made:
            if output in each.outputs:
                (links / str(each.index)).symlink_to(self._artefacts.path(each.outputs[output]))
        return links

    def _ended(self, program: Program, code: int) -> None:
        task = next(task for task in self._progress.steps[program.name.partition("[")[0]] if task.name == program.name)
        if self._stopping:
            return
        step = self._pipeline.steps[task.step]
        took_s = time.monotonic() - program.began_at
        if program.timed_out:
            self._failed(task, f"it ran for longer than timeout, {describe_duration(step.timeout_s or 0.0)}")
        elif code != 0:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            self._failed(task, f"its program ended with {how} after {describe_duration(took_s)}")
        else:
            self._collect(task, took_s)
        self._consider_after(task.step)

    def _collect(self, task: Task, took_s: float) -> None:
        """Keep the outputs of a program that succeeded."""
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
        parts = self._parts[task.name]
        values = {name: value for name, value in values.items() if value is not None}
        now = self._clock()
        done = replace(task, phase=TaskPhase.SUCCEEDED, outputs=outputs, values=values)
        done = replace(done, message=f"ran {describe_duration(took_s)} ({task.message})")
        self._results.add(
            self._pipeline.name,
            task.name,
            Result(parts=parts, outputs=outputs, values=values, at=now, took_s=took_s, run=self._around.run),
        )
        self._finish(done)
        with contextlib.suppress(OSError):  # whatever it left there that is no output; the next try empties it
            shutil.rmtree(room)

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
        self._reporter.event("StepRetried", f"{task.name}: {message}; tried again in {describe_duration(wait_s)}")
        self._delayed.append((time.monotonic() + wait_s, again))

    def _consider_after(self, step: str) -> None:
        if step_phase(self._progress.steps[step]).is_final:
            for name in self._needed_by[step]:
                self._consider(name)

    def _record(self, task: Task) -> None:
        """Keep a task as it is now, and tell of it."""
        self._journal.task(task, self._clock())
        self._progress.put(task)
        event = "StepStarted" if task.phase is TaskPhase.RUNNING else f"Step{task.phase.value}"
        self._reporter.event(event, f"{task.name}: {task.message}")
        if task.phase is TaskPhase.FAILED:
            print(f"fairlead: step {task.name} failed: {task.message}", file=sys.stderr, flush=True)
        if task.phase.is_final:
            self._tell_progress()

    def _tell_progress(self) -> None:
        """Report finished tasks as steps; not each of many that are taken from the cache at once."""
        now = time.monotonic()
        if now < self._tell_at:
            return
        self._tell_at = now + TELL_EVERY_S
        tasks = [each for step in self._progress.steps.values() for each in step]
        done = sum(each.phase.is_final for each in tasks)
        self._reporter.progress(done, total=len(tasks), loss=None, epoch=None, samples=None, tokens=None, metrics={})

    def _wait_s(self) -> float | None:
        timeouts = {
            name: limit
            for name in self._programs.names()
            if (limit := self._pipeline.steps[name.partition("[")[0]].timeout_s) is not None
        }
        waits = [self._programs.enforce(timeouts, self._pipeline.grace_s)]
        waits += [max(0.0, at - time.monotonic()) for at, _ in self._delayed]
        return min((each for each in waits if each is not None), default=None)

    def _stop(self) -> None:
        self._stopping = True
        for name in self._programs.names():
            self._programs.stop(name, self._pipeline.grace_s)

    def _is_stopped(self) -> bool:
        return self._stopping and not self._programs.num_running


def main(arguments: list[str]) -> int:
    """Run the pipeline of a kept spec with artefacts in a directory."""
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
    reporter = Reporter(rank=0, world_size=1, directory=None if directory is None else Path(directory))
    return Driver(pipeline, Path(store), around, reporter).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
