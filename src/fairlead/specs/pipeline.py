"""The spec of a pipeline: steps that pass on outputs, each run only when a dependency has changed."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, replace
from enum import StrEnum

from fairlead.frozen import dataclass
from fairlead.specs.constraints import NAME, PATH, BrokenRules, Constraints, Limit, Text, broken, enforce, quote
from fairlead.specs.cron import TIMEZONE, parse_cron
from fairlead.specs.expressions import names_in
from fairlead.specs.overlay import SET_BY_US, Overlay
from fairlead.specs.resources import Resources
from fairlead.specs.sweep import NAME_MOST, Sweep
from fairlead.specs.sweep import map_runs as map_trial
from fairlead.specs.training import DAY_S, DECADE_S, DEFAULT_TEAM, Checkpoint, Training
from fairlead.specs.training import TRAINING_RULES as OF_A_RUN

STEPS_MOST = 2_000
LIST_MOST = 1_000
LISTED = 20
IDENTIFIER = Text(
    max_length=40,
    pattern=r"[a-z](?:[a-z0-9_]*[a-z0-9])?",
    what="a name; use lower-case letters, digits and `_`, starting with a letter, such as `train_large`",
)
REFERENCE = Text(
    max_length=81,
    pattern=r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*",
    what="an output of a step; give step and output, such as `prepare.shards`",
)
ITEM = Text(max_length=4096)
CONDITION = Text(max_length=500)
# Variables of inputs in the text of a command.
_INPUT = re.compile(r"\bFAIRLEAD_INPUT_([A-Z0-9_]+)")
_SET_BY_DRIVER = re.compile(r"FAIRLEAD_(STEP(?:_.*)?|ITEM|ITEM_INDEX|OUTPUT_.*|INPUT_.*|PIPELINE|WATCH)")
# Variable with the data that the watching pod checks.
WATCH_VARIABLE = "FAIRLEAD_WATCH"
# Directory in which the driver's pod finds the states of the runs of its steps.
FAMILY_DIR = "/fairlead/family"
FAMILY_FILE = f"{FAMILY_DIR}/runs"
# Directory of inputs and outputs in the pods of a step's run, if an object store transfers them.
STEP_DIR = "/fairlead/local/step"
_OUTPUT = re.compile(r"\bFAIRLEAD_OUTPUT_([A-Z0-9_]+)")
# Argo's and Airflow's way to pass on outputs, which a shell would take as text.
_PLACEHOLDER = re.compile(r"\{\{\s*(?:item|(?:steps|tasks|inputs|outputs|workflow|params)\.[^{}]+?)\s*\}\}")
# Outputs of a step that is a Sweep, from its best trial.
SWEEP_OUTPUTS = ("parameters", "value", "checkpoint")
CHECKPOINT = "checkpoint"
# Name of the driver's run within the pipeline.
DRIVER = "driver"
# Characters reserved in names of runs for the number of a repeated pipeline.
NUMBER_MOST = 4
ITEM_DIGITS = 4

CACHE_RULES: Constraints = {"max_age_s": Limit(low=0.001, high=DECADE_S)}
SCHEDULE_RULES: Constraints = {
    "cron": Text(max_length=200),
    "timezone": TIMEZONE,
}
ON_RULES: Constraints = {"every_s": Limit(low=0.1, high=DECADE_S)}
# Defaults of a drift.
FRESH_WINDOW = 300
SIGNIFICANCE = 0.001
DRIFT_RULES: Constraints = {
    "data": PATH,
    "reference": PATH,
    "column": Text(max_length=200),
    "cost": Limit(low=1e-9, high=1e15),
    "window": Limit(low=10, high=1_000_000, whole=True),
    "significance": Limit(low=1e-12, high=0.5),
}
STEP_RULES: Constraints = {
    "run": Text(max_length=65_536, lines=True),
    "when": CONDITION,
    "each_of": REFERENCE,
    "gate": CONDITION,
    "retry": Limit(low=0, high=1_000, whole=True),
    "timeout_s": Limit(low=0.001, high=DECADE_S),
}
PIPELINE_RULES: Constraints = {
    "name": NAME,
    "team": NAME,
    "image": OF_A_RUN["image"],
    "workdir": PATH,
    "setup": OF_A_RUN["setup"],
    "priority": Limit(low=-1, high=1_000, whole=True),
    "parallel": Limit(low=1, high=10_000, whole=True),
    "grace_s": Limit(low=0.001, high=DAY_S, zero=True),
}


class CatchUp(StrEnum):
    """The handling of times that passed while no supervisor ran."""

    ONE = "one"
    NONE = "none"


class Overlap(StrEnum):
    """The handling of a time at which an earlier run is unfinished."""

    SKIP = "skip"
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The schedule of an applied pipeline.

    Attributes:
        cron: Minute, hour, day of the month, month and day of the week.
        timezone: Time zone of the IANA database, such as Europe/Berlin.
        catch_up: One run for all missed times, or none.
        overlap: Whether a time is skipped or postponed while an earlier run is unfinished.
    """

    cron: str
    timezone: str = "UTC"
    catch_up: CatchUp = CatchUp.ONE
    overlap: Overlap = Overlap.SKIP

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, SCHEDULE_RULES)
        try:
            parse_cron(self.cron)
        except ValueError as error:
            yield "cron", f"{quote(self.cron)} {error}"


class Detector(StrEnum):
    """The detectors of drift in a stream of losses, from the package river."""

    ADWIN = "adwin"
    PAGE_HINKLEY = "page-hinkley"
    HDDM_A = "hddm-a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A drift trigger of an applied pipeline: drift of a model's losses, or of data from its training data.

    Attributes:
        data: File of rows in order of arrival, as CSV with a header or as JSON lines.
        column: Column with the loss of each prediction, such as 0 or 1 for right or wrong; None with ``reference``.
        cost: Cost of a training in the unit of ``column``, say mistakes; triggers when staleness has cost as much.
        detector: Triggers when this detector finds that losses have grown; None with ``cost`` or ``reference``.
        reference: File like ``data`` to compare with; triggers when the distribution of a column differs.
        window: With ``cost``, number of predictions after a training that determine the loss of a fresh model.
        significance: With ``reference``, probability of a false alarm.
    """

    data: str
    column: str | None = None
    cost: float | None = None
    detector: Detector | None = None
    reference: str | None = None
    window: int = FRESH_WINDOW
    significance: float = SIGNIFICANCE

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, DRIFT_RULES)
        ways = [key for key in ("cost", "detector", "reference") if getattr(self, key) is not None]
        if not ways:
            yield "cost", "missing; give what a training costs in the unit of `column`, a `detector`, or a `reference`"
        for other in ways[1:]:
            yield other, f"`{ways[0]}` says when it is run already; leave one of the two out"
        if self.reference is None and self.column is None:
            yield "column", "missing; name the column that has the loss of each prediction"
        if self.reference is not None and self.column is not None:
            yield "column", "with `reference` all columns that both files have are compared; leave it out"
        if self.cost is None and self.window != FRESH_WINDOW:
            yield "window", "it is for `cost`, which is not given; leave it out"
        if self.reference is None and self.significance != SIGNIFICANCE:
            yield "significance", "it is for `reference`, which is not given; leave it out"


@dataclass(frozen=True, slots=True, kw_only=True)
class On:
    """The triggers of an applied pipeline besides its schedule.

    Attributes:
        data: Files and directories; triggers when their content has changed and then been stable for one interval.
        drift: Triggers when a model has become stale.
        every_s: Seconds between checks.
    """

    data: tuple[str, ...] = ()
    drift: Drift | None = None
    every_s: float = 60.0

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, ON_RULES)
        yield from _list_problems("data", self.data, PATH)
        if not self.data and self.drift is None:
            yield "data", "there is nothing to watch; name a file or a directory, or say in `drift` what to look at"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The cache policy of a step: when an earlier result replaces running it.

    Attributes:
        max_age_s: Maximum age of a reused result; None for no limit.
        off: The step always runs.
    """

    max_age_s: float | None = None
    off: bool = False

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, CACHE_RULES)
        if self.off and self.max_age_s is not None:
            yield "max_age", "a step with `off` always runs, so no result of it has an age; leave one of the two out"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTraining(Training):
    """The spec of a step that is a run; its name is the pipeline's with the step's appended."""

    name: str = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSweep(Sweep):
    """The spec of a step that is a sweep; its name is the pipeline's with the step's appended."""

    name: str = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a pipeline: a command, or a run or sweep with nodes and resources of its own.

    Attributes:
        run: Shell command; None for a run or a sweep.
        training, sweep: Run or sweep to submit as a child of the pipeline; None for a command.
        needs: Steps that must succeed first; their outputs are passed on.
        when: Condition over outputs of ``needs``; the step is skipped if it is false. None for always.
        each: Items for each of which the step runs once; empty for a single run.
        each_of: Output with a list of such items, as ``step.output``.
        env: Variables added to those of the pipeline.
        inputs: Files and directories whose content the step depends on, besides code and outputs of ``needs``.
        outputs: Names of its outputs, each a file or directory.
        code: Files, directories and patterns of its code; empty for the whole working directory.
        retry: Number of retries after failures.
        timeout_s: Seconds after which it is stopped and fails; None for no limit.
        gate: Condition over its own outputs; the step fails if it is false.
    """

    run: str | None = None
    training: StepTraining | None = None
    sweep: StepSweep | None = None
    needs: tuple[str, ...] = ()
    when: str | None = None
    each: tuple[str, ...] = ()
    each_of: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    cache: Cache = field(default_factory=Cache)
    retry: int = 0
    timeout_s: float | None = None
    gate: str | None = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def is_fanned_out(self) -> bool:
        """Return whether it runs once for each item of a list."""
        return bool(self.each) or self.each_of is not None

    @property
    def child(self) -> Training | Sweep | None:
        """Return its run or sweep; None for a command."""
        return self.training if self.sweep is None else self.sweep

    @property
    def program(self) -> Training | None:
        """Return its run, or the trial of its sweep; None for a command."""
        return self.training if self.sweep is None else self.sweep.trial

    @property
    def command(self) -> str:
        """Return the command of its program."""
        return self.run or "" if self.program is None else self.program.run

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, STEP_RULES)
        yield from self._kind_problems()
        for key, rule in (
            ("needs", IDENTIFIER),
            ("outputs", IDENTIFIER),
            ("inputs", PATH),
            ("code", PATH),
            ("each", ITEM),
        ):
            yield from _list_problems(key, getattr(self, key), rule)
        if self.each and self.each_of is not None:
            yield "each_of", "it is either a list in `each` or one that a step returned, not both"
        yield from _mapping_problems(env=self.env)

    def _kind_problems(self) -> Iterable[tuple[str, str]]:
        given = [key for key in ("run", "training", "sweep") if getattr(self, key) is not None]
        if not given:
            yield "run", "missing; give a command, or say in `training` or `sweep` what run the step is"
        elif len(given) > 1:
            yield given[1], f"a step is one thing, and `{given[0]}` is given too; remove one of them"
        if self.child is None:
            return
        if self.retry:
            other = "training.retry" if self.sweep is None else "sweep.trial.retry"
            yield "retry", f"it is for a command; give `{other}` instead"
        if self.timeout_s is not None:
            other = "training.max_duration" if self.sweep is None else "sweep.stop.duration"
            yield "timeout_s", f"it is for a command; give `{other}` instead"
        if self.program is not None:
            yield from _mapping_problems(env=self.program.env)
        for output in self.outputs if self.sweep is not None else ():
            if output not in SWEEP_OUTPUTS:
                known = ", ".join(SWEEP_OUTPUTS)
                yield (
                    "outputs",
                    f"{quote(output)} is nothing that a sweep returns; of its best trial there are: {known}",
                )
        if self.sweep is not None and self.sweep.objective is None and self.outputs:
            yield "outputs", "none of its trials is the best without an `objective`; give one in `sweep`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Steps in the order that their needs give.

    Attributes:
        steps: Steps by name.
        image: Container image of the steps, on a cluster with containers.
        workdir: Working directory of the steps; None for the directory of the spec file.
        setup: Shell commands that run before the first step on each machine.
        env: Variables of every step.
        checkpoint: Its ``to`` is the place of checkpoints of steps; on Kubernetes also of outputs and of the pipeline's
            progress.
        kubernetes: Fields of the pod on Kubernetes.
        resources: Resources of the machine for the whole pipeline.
        parallel: Maximum number of concurrent steps; None for one per core of ``resources``, or 4 if that is not
            given.
        grace_s: Seconds between the stop notice (SIGTERM) and SIGKILL.
        schedule, on: Triggers after it is applied; None for manual runs only.
        driver: Run of the driver if some steps are runs of their own, set at submission. Not a key.
        watch: Run that watches the data of ``on``, for an applied pipeline on a cluster. Not a key.
    """

    name: str
    steps: Mapping[str, Step]
    team: str = DEFAULT_TEAM
    labels: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    workdir: str | None = None
    setup: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    kubernetes: Overlay = field(default_factory=Overlay)
    priority: int = 0
    parallel: int | None = None
    grace_s: float = 30.0
    schedule: Schedule | None = None
    on: On | None = None
    driver: Training | None = None
    watch: Training | None = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def has_children(self) -> bool:
        """Return whether some of its steps are runs of their own."""
        return any(step.child is not None for step in self.steps.values())

    @property
    def runs_by_itself(self) -> bool:
        """Return whether it has triggers."""
        return self.schedule is not None or self.on is not None

    def in_order(self) -> tuple[str, ...]:
        """Return the steps in topological order, each after its needs."""
        return _ordered(self.steps)[0]

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self, PIPELINE_RULES)
        yield from _mapping_problems(env=self.env, labels=self.labels)
        if not self.steps:
            yield "steps", "there is no step; give one, such as `{train: {run: python train.py}}`"
        if len(self.steps) > STEPS_MOST:
            yield "steps", f"{len(self.steps)} steps; give at most {STEPS_MOST}"
        for name, step in self.steps.items():
            if (problem := IDENTIFIER.problem(name)) is not None:
                yield "steps", problem
            yield from ((f"steps.{name}.{key}", problem) for key, problem in self._step_problems(name, step))
        if self.has_children:
            yield from self._name_problems()
        cycle = _ordered(self.steps)[1]
        if cycle:
            way = " needs ".join((*cycle, cycle[0]))
            yield f"steps.{cycle[0]}.needs", f"the steps need each other in a circle, {way}; remove one of these needs"

    def _name_problems(self) -> Iterable[tuple[str, str]]:
        taken, most = {DRIVER: DRIVER}, NAME.max_length - NUMBER_MOST
        if len(self.name) + len(DRIVER) + 1 > most:
            yield (
                "name",
                f"its driver would be named {self.name}-{DRIVER}, more than {most} characters; shorten it",
            )
        for name, step in self.steps.items():
            if step.child is None:
                continue
            last = 10**ITEM_DIGITS - 1 if step.each_of is not None else len(step.each) - 1
            whole = f"{self.name}-{child_name(name, last if step.is_fanned_out else None)}"
            most = (NAME.max_length if step.sweep is None else NAME_MOST) - NUMBER_MOST
            if len(whole) > most:
                yield f"steps.{name}", f"its run would be named {whole}, {len(whole)} characters; at most {most} fit"
            for own in {child_name(name, None), *(child_name(name, item) for item in range(len(step.each)))}:
                if taken.setdefault(own, name) != name or own == DRIVER:
                    other = "the one that runs the commands" if own == DRIVER else f"that of {taken[own]}"
                    yield f"steps.{name}", f"its run would be named {self.name}-{own}, as {other} is; rename it"

    def _step_problems(self, name: str, step: Step) -> Iterable[tuple[str, str]]:
        for need in step.needs:
            if need == name:
                yield "needs", "a step cannot need itself; remove it"
            elif need not in self.steps:
                known = ", ".join(list(self.steps)[:LISTED])
                yield "needs", f"there is no step {quote(need)}; steps: {known}"
        if step.gate is not None:
            own = frozenset(step.outputs)
            yield from _condition_problems("gate", step.gate, own, "outputs of this step", step.outputs)
        where = "run" if step.child is None else "training.run" if step.sweep is None else "sweep"
        for variable in _OUTPUT.findall(step.command):
            if variable not in {output.upper() for output in step.outputs}:
                yield where, f"FAIRLEAD_OUTPUT_{variable} is not set; add {variable.lower()} to `outputs`"
        for placeholder in _PLACEHOLDER.findall(step.command):
            yield (
                where,
                f"{placeholder} is not filled in: an output of a step in `needs` is in $FAIRLEAD_INPUT_STEP_OUTPUT, "
                "and an item of `each` in $FAIRLEAD_ITEM",
            )
        given = {
            f"{need}.{output}": need for need in step.needs if need in self.steps for output in self.steps[need].outputs
        }
        if step.when is not None:
            yield from _condition_problems("when", step.when, frozenset(given), "outputs of its needs", tuple(given))
        if step.each_of is not None and step.each_of not in given:
            listed = ", ".join(given) or "they have none"
            yield "each_of", f"{quote(step.each_of)} is not an output of its needs; outputs: {listed}"
        handed = {key.replace(".", "_").upper() for key in given}
        for variable in _INPUT.findall(step.command):
            if variable not in handed:
                listed = ", ".join(f"FAIRLEAD_INPUT_{each}" for each in sorted(handed)) or "none"
                yield (
                    where,
                    f"FAIRLEAD_INPUT_{variable} is not set, as no step in `needs` has that output; set: {listed}",
                )


def child_name(step: str, index: int | None) -> str:
    """Return the name of a step's run within its pipeline."""
    own = step.replace("_", "-")
    return own if index is None else f"{own}-{index}"


def map_runs(spec: Pipeline, of: Callable[[Training], Training]) -> Pipeline:
    """Return the pipeline with a function applied to each of its runs, including the driver's."""

    def step_of(name: str, step: Step) -> Step:
        whole = f"{spec.name}-{child_name(name, None)}"
        if step.training is not None:
            run = of(as_run(step.training, whole))
            return replace(step, training=StepTraining(**{each.name: getattr(run, each.name) for each in fields(run)}))
        if step.sweep is not None:
            sweep = map_trial(step.sweep, lambda trial: of(as_run(trial, whole)))
            assert isinstance(sweep, StepSweep), "it is made from one"
            return replace(step, sweep=sweep)
        return step

    driver = None if spec.driver is None else of(spec.driver)
    watch = None if spec.watch is None else of(spec.watch)
    steps = {name: step_of(name, step) for name, step in spec.steps.items()}
    return replace(spec, steps=steps, driver=driver, watch=watch)


def as_run(run: Training, name: str) -> Training:
    """Return the run of a step, or the trial of its sweep, as a standalone run."""
    return Training(**{**{each.name: getattr(run, each.name) for each in fields(Training)}, "name": name})


def _mapping_problems(**mappings: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yield the problems that a Training would have with the same variables and labels."""
    if not any(mappings.values()):
        return
    for name in mappings["env"]:
        if _SET_BY_DRIVER.fullmatch(name) is not None:
            yield "env", f"{quote(name)}{SET_BY_US}"
    try:
        Training(name="a", run="a", **mappings)  # type: ignore[arg-type] # only `env` and `labels` are given
    except BrokenRules as error:
        yield from error.problems


def _list_problems(key: str, given: tuple[str, ...], rule: Text) -> Iterable[tuple[str, str]]:
    seen: set[str] = set()
    for each in given:
        if (problem := rule.problem(each)) is not None:
            yield key, problem
        elif each in seen:
            yield key, f"{quote(each)} is listed twice; name each once"
        seen.add(each)


def _condition_problems(
    key: str, text: str, known: frozenset[str], what: str, listed: tuple[str, ...]
) -> Iterable[tuple[str, str]]:
    try:
        unknown = sorted(names_in(text) - known)
    except ValueError as error:
        yield key, f"{quote(text)} {error}"
        return
    for name in unknown:
        yield key, f"{quote(name)} is none of the {what}: {', '.join(listed) or 'there are none'}; add it to `outputs`"


def _ordered(steps: Mapping[str, Step]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the steps in topological order, and a cycle among them; an empty one if there is none."""
    left = {name: {need for need in step.needs if need in steps and need != name} for name, step in steps.items()}
    needed_by: dict[str, list[str]] = {name: [] for name in steps}
    for name, needs in left.items():
        for need in needs:
            needed_by[need].append(name)
    free = [name for name in steps if not left[name]]
    order: list[str] = []
    while free:
        name = free.pop(0)
        order.append(name)
        for other in needed_by[name]:
            left[other].discard(name)
            if not left[other]:
                free.append(other)
    stuck = [name for name in steps if left[name]]
    if not stuck:
        return tuple(order), ()
    way = [stuck[0]]
    while (following := min(left[way[-1]])) not in way:
        way.append(following)
    return tuple(order), tuple(way[way.index(following) :])
