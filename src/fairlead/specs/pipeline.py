"""The spec of a pipeline: steps that pass on outputs, each run only when a dependency has changed."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, replace
from enum import StrEnum
from typing import Annotated, ClassVar

from fairlead.frozen import dataclass
from fairlead.specs.constraints import NAME, PATH, BrokenRules, Limit, Text, enforce, quote
from fairlead.specs.cron import TIMEZONE, parse_cron, timezone_problem
from fairlead.specs.environment import PythonEnvironment
from fairlead.specs.expressions import names_in
from fairlead.specs.field_types import DURATION, FACTOR, TEXT, ListField, Named, Section
from fairlead.specs.key import Key, SameKey, broken
from fairlead.specs.overlay import SET_BY_US, Overlay
from fairlead.specs.resources import Resources
from fairlead.specs.secret_reference import SecretReference, secrets_problems
from fairlead.specs.sections import part_of, without
from fairlead.specs.sweep import NAME_MOST, Sweep
from fairlead.specs.sweep import map_runs as map_trial
from fairlead.specs.training import DAY_S, DECADE_S, DEFAULT_TEAM, ENV, Checkpoint, Retry, Training
from fairlead.specs.workload import Kind

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

# Defaults of a drift.
FRESH_WINDOW = 300
SIGNIFICANCE = 0.001


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
    """The schedule of an applied pipeline."""

    cron: Annotated[
        str,
        Key("cron", rule=Text(max_length=200), example="0 3 * * *", also="expression crontab at", alone=True),
        "Minute, hour, day of the month, month and day of the week.",
    ]
    timezone: Annotated[
        str,
        Key("timezone", rule=TIMEZONE, example="Europe/Berlin", also="tz time_zone zone"),
        "Time zone of these times.",
    ] = "UTC"
    catch_up: Annotated[
        CatchUp,
        Key("catch_up", example="none", also="catchup backfill misfire"),
        "`one` run for all times that were missed while no supervisor was running, or `none`.",
    ] = CatchUp.ONE
    overlap: Annotated[
        Overlap,
        Key("overlap", example="wait", also="concurrency_policy overlap_policy max_active_runs"),
        "A time that comes while an earlier run is unfinished is skipped (`skip`), or runs after it (`wait`).",
    ] = Overlap.SKIP

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        try:
            parse_cron(self.cron)
        except ValueError as error:
            yield "cron", f"{quote(self.cron)} {error}"
        problem = timezone_problem(self.timezone)
        if problem is not None:
            yield "timezone", problem


class Detector(StrEnum):
    """The detectors of drift in a stream of losses, from the package river."""

    ADWIN = "adwin"
    PAGE_HINKLEY = "page-hinkley"
    HDDM_A = "hddm-a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A drift trigger of an applied pipeline: drift of a model's losses, or of data from its training data."""

    data: Annotated[
        str,
        Key("data", rule=PATH, example="predictions.csv", also="file stream predictions current"),
        "File of predictions, or of rows, in the order they came: CSV with a header, or a JSON object a line.",
    ]
    column: Annotated[
        str | None,
        Key("column", rule=Text(max_length=200), example="error", also="loss field metric target"),
        "The column with the loss of each prediction, such as 0 for right and 1 for wrong.",
    ] = None
    cost: Annotated[
        float | None,
        Key(
            "cost",
            FACTOR,
            Limit(low=1e-9, high=1e15),
            example="50",
            also="retraining_cost training_cost threshold budget",
        ),
        "Cost of a training in the unit of `column`; the pipeline runs when drift has cost as much.",
    ] = None
    detector: Annotated[
        Detector | None,
        Key("detector", example="adwin", also="algorithm method test"),
        "Run when this detector finds higher losses; needs `pip install 'fairlead[drift]'`.",
    ] = None
    reference: Annotated[
        str | None,
        Key("reference", rule=PATH, example="training.csv", also="baseline reference_data expected train"),
        "File to which `data` is compared, column by column; needs `pip install 'fairlead[drift]'`.",
    ] = None
    window: Annotated[
        int,
        Key("window", rule=Limit(low=10, high=1_000_000, whole=True), example="300", also="window_size warmup grace"),
        "With `cost`: predictions after a training that measure the loss of a fresh model.",
    ] = FRESH_WINDOW
    significance: Annotated[
        float,
        Key(
            "significance", FACTOR, Limit(low=1e-12, high=0.5), example="0.001", also="alpha p_value pvalue confidence"
        ),
        "Probability of a false alarm, with `reference`.",
    ] = SIGNIFICANCE

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
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
    """The triggers of an applied pipeline besides its schedule."""

    data: Annotated[
        tuple[str, ...],
        Key(
            "data",
            ListField(item=TEXT, most=LIST_MOST, rule=PATH),
            example="[/data/raw.csv]",
            also="files paths dataset",
        ),
        "Files and directories; the pipeline runs when their content changes.",
    ] = ()
    drift: Annotated[
        Drift | None,
        Key(
            "drift",
            example="{data: predictions.csv, column: error, cost: 50}",
            also="data_drift concept_drift monitor staleness",
        ),
        "Run when a model drifts: by the losses of its predictions, or by data unlike its training data.",
    ] = None
    every_s: Annotated[
        float,
        Key("every", DURATION, Limit(low=0.1, high=DECADE_S), example="5m", also="interval poll poll_interval"),
        "Interval of checks; a change counts when the next check finds no further one.",
    ] = 60.0

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        yield from _list_problems("data", self.data, PATH)
        if not self.data and self.drift is None:
            yield "data", "there is nothing to watch; name a file or a directory, or say in `drift` what to look at"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The cache policy of a step: when an earlier result replaces running it."""

    max_age_s: Annotated[
        float | None,
        Key(
            "max_age",
            DURATION,
            Limit(low=0.001, high=DECADE_S),
            example="7d",
            also="ttl expires expiration cache_expiration max_cache_staleness",
        ),
        "Maximum age of results that are reused.",
    ] = None
    off: Annotated[
        bool,
        Key("off", example="true", also="disable disabled no_cache"),
        "Always run the step.",
    ] = False

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if self.off and self.max_age_s is not None:
            yield "max_age", "a step with `off` always runs, so no result of it has an age; leave one of the two out"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTraining(Training):
    """The spec of a step that is a run; its name is the pipeline's with the step's appended."""

    kind: ClassVar[str] = Kind.STEP_TRAINING

    name: Annotated[str, NAME] = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSweep(Sweep):
    """The spec of a step that is a sweep; its name is the pipeline's with the step's appended."""

    kind: ClassVar[str] = Kind.STEP_SWEEP

    name: Annotated[str, replace(NAME, max_length=NAME_MOST)] = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a pipeline: a command, or a run or sweep with nodes and resources of its own."""

    run: Annotated[
        str | None,
        Key(
            "run",
            rule=Text(max_length=65_536, lines=True),
            example="python prepare.py",
            also="command cmd script entrypoint args exec",
            alone=True,
        ),
        "The command, as for a shell; or give `training` or `sweep`.",
    ] = None
    training: Annotated[
        StepTraining | None,
        Key("training", example="{run: python train.py, nodes: 2}", also="job train workload"),
        "A run with its own nodes and resources, with the keys of a Training.",
    ] = None
    sweep: Annotated[
        StepSweep | None,
        Key(
            "sweep",
            example="{parameters: {lr: 0.1 | 1}, objective: loss, trial: {run: 'python train.py {{lr}}'}}",
            also="tune search experiment",
        ),
        "A sweep, with the keys of a Sweep; the values of its best trial are outputs.",
    ] = None
    resources: Annotated[
        Resources | None,
        Key("resources", example="{cpu: 4, gpu: 1}", also="resource requests limits"),
        "What a command needs of its own, beside the pipeline; it is then a run as with `training`.",
    ] = None
    needs: Annotated[
        tuple[str, ...],
        Key(
            "needs",
            ListField(item=TEXT, most=LIST_MOST, rule=IDENTIFIER),
            example="[prepare]",
            also="depends_on dependencies depends after requires dependson",
        ),
        "Steps that must succeed first; the step gets their outputs.",
    ] = ()
    when: Annotated[
        str | None,
        Key("when", rule=CONDITION, example="prepare.rows > 1000", also="if condition only_if"),
        "Condition on outputs of its needs, as `step.output`; if false, the step is skipped.",
    ] = None
    each: Annotated[
        tuple[str, ...],
        Key(
            "each",
            ListField(item=TEXT, most=LIST_MOST, rule=ITEM),
            example="[north, south]",
            also="foreach for_each with_items matrix map",
        ),
        "Runs the step once for each of these, in FAIRLEAD_ITEM.",
    ] = ()
    each_of: Annotated[
        str | None,
        Key("each_of", rule=REFERENCE, example="prepare.shards", also="with_param for_each_of map_over"),
        "The same for each item of a list that one of its needs returned.",
    ] = None
    env: Annotated[
        Mapping[str, str],
        Key("env", ENV, example="{LR: 0.1}", also="envs environment vars variables"),
        "Variables added to the pipeline's.",
    ] = field(default_factory=dict)
    inputs: Annotated[
        tuple[str, ...],
        Key(
            "inputs",
            ListField(item=TEXT, most=LIST_MOST, rule=PATH),
            example="[/data/raw.csv]",
            also="input data reads",
        ),
        "Files, directories, URLs of data and Datasets that the step reads, beside its code and outputs of its needs.",
    ] = ()
    outputs: Annotated[
        tuple[str, ...],
        Key(
            "outputs",
            ListField(item=TEXT, most=LIST_MOST, rule=IDENTIFIER),
            example="[model, accuracy]",
            also="output artifacts artefacts produces returns writes",
        ),
        "Names of outputs: files or directories that it writes to FAIRLEAD_OUTPUT_<NAME>.",
    ] = ()
    code: Annotated[
        tuple[str, ...],
        Key(
            "code",
            ListField(item=TEXT, most=LIST_MOST, rule=PATH),
            example="[prepare.py, lib]",
            also="sources source files deps",
        ),
        "Files, directories and patterns of its code; the whole working directory when left out.",
    ] = ()
    cache: Annotated[
        Cache,
        Key("cache", example="{max_age: 7d}", also="caching memoize reuse"),
        "When earlier results are reused.",
    ] = field(default_factory=Cache)
    retry: Annotated[
        int,
        Key(
            "retry",
            rule=Limit(low=0, high=1_000, whole=True),
            example="2",
            also="retries max_retries attempts retry_limit",
        ),
        "Number of retries after a failure.",
    ] = 0
    timeout_s: Annotated[
        float | None,
        Key(
            "timeout", DURATION, Limit(low=0.001, high=DECADE_S), example="1h", also="max_duration time_limit deadline"
        ),
        "Time limit, after which the step fails.",
    ] = None
    gate: Annotated[
        str | None,
        Key("gate", rule=CONDITION, example="accuracy > 0.9", also="check assert expect threshold"),
        "Condition on its own outputs that must be true for the pipeline to continue.",
    ] = None

    def __post_init__(self) -> None:
        if self.resources is not None and self.run is not None and self.child is None:
            self._become_run(self.run, self.resources)
        enforce(self._problems())

    def _become_run(self, run: str, resources: Resources) -> None:
        """Turn a command with resources into the run that it is short for."""
        retry = Retry(program=self.retry)
        training = StepTraining(run=run, resources=resources, retry=retry, max_duration_s=self.timeout_s)
        changes = {"training": training, "run": None, "resources": None, "retry": 0, "timeout_s": None}
        for name, value in changes.items():
            object.__setattr__(self, name, value)

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
        yield from broken(self)
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
        ways = [key for key in ("run", "training", "sweep") if getattr(self, key) is not None]
        if not ways:
            yield "run", "missing; give a command, or say in `training` or `sweep` what run the step is"
        elif len(ways) > 1:
            yield ways[1], f"a step is one thing, and `{ways[0]}` is given too; remove one of them"
        if self.child is None:
            return
        if self.resources is not None:
            other = "training.resources" if self.sweep is None else "sweep.trial.resources"
            yield "resources", f"it is for a command; give `{other}` instead"
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


def _resources() -> Section:
    """Return the resources of a driver, which reports no pace by which its GPUs could be shared."""
    return without(part_of(Resources), "colocate")


def _checkpoint() -> Section:
    whole = part_of(Checkpoint)
    place = whole.key("to")
    assert place is not None
    doc = "Directory or URL for checkpoints of steps; on Kubernetes also for all that steps return."
    return replace(whole, shorthand="to", keys=(replace(place, doc=doc),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Steps in the order that their needs give.

    Attributes:
        image: Container image of the steps, on a cluster with containers.
        setup: Shell commands that run before the first step on each machine.
        kubernetes: Fields of the pod on Kubernetes.
        driver: Run of the driver if some steps are runs of their own, set at submission. Not a key.
        watch: Run that watches the data of ``on``, for an applied pipeline on a cluster. Not a key.
    """

    kind: ClassVar[str] = Kind.PIPELINE

    name: Annotated[
        str,
        Key("name", rule=NAME, example="churn", metadata="name"),
        "Lower-case letters, digits and dashes, at most 50; a short form without it takes the file's name.",
    ]
    steps: Annotated[
        Mapping[str, Step],
        Key(
            "steps",
            Named(IDENTIFIER, STEPS_MOST),
            example="{train: {run: python train.py}}",
            also="tasks jobs stages nodes dag",
        ),
        "The steps by name; a command alone is `run`.",
    ]
    team: Annotated[str, SameKey(Training, "team"), "The team it belongs to."] = DEFAULT_TEAM
    labels: Annotated[
        Mapping[str, str],
        SameKey(Training, "labels"),
        "Names and values of your own, to find it by (`--label`).",
    ] = field(default_factory=dict)
    image: Annotated[
        str | None,
        SameKey(Training, "image"),
        "Container image that the steps run in; needs a cluster with containers.",
    ] = None
    workdir: Annotated[
        str | None,
        Key("workdir", rule=PATH, example="src", also="working_dir working_directory cwd"),
        "Directory the steps run in; the directory of the spec file when left out.",
    ] = None
    setup: Annotated[
        str | None,
        SameKey(Training, "setup", {"also": "setup_commands install"}),
        "Shell commands run once before the first step.",
    ] = None
    environment: Annotated[
        PythonEnvironment | None,
        SameKey(Training, "environment"),
        "Packages and Python of the steps, made before the first; a text alone is `file`.",
    ] = None
    env: Annotated[
        Mapping[str, str],
        Key("env", ENV, example="{SEED: 1}", also="envs vars variables"),
        "Variables of every step; a change makes steps run again.",
    ] = field(default_factory=dict)
    secrets: Annotated[
        tuple[SecretReference, ...],
        SameKey(Training, "secrets"),
        "Secrets of every step, as in a Training; a step that is a run may have more.",
    ] = ()
    resources: Annotated[
        Resources,
        Key("resources", _resources, example="{cpu: 4}", also="resource requests limits"),
        "Resources of the pipeline, which its steps share.",
    ] = field(default_factory=Resources)
    checkpoint: Annotated[
        Checkpoint,
        Key(
            "checkpoint", _checkpoint, example="{to: s3://bucket/pipelines}", also="checkpoints artifacts store storage"
        ),
        "Where checkpoints of steps go, and on Kubernetes what steps return; a lone text is `to`.",
    ] = field(default_factory=Checkpoint)
    kubernetes: Annotated[
        Overlay,
        SameKey(Training, "kubernetes"),
        "Fields of Kubernetes that are merged into the pod that runs the steps.",
    ] = field(default_factory=Overlay)
    priority: Annotated[
        int,
        Key("priority", rule=Limit(low=-1, high=1_000, whole=True), example="100", also="priority_class prio"),
        "Higher starts first, from 0 to 1000; -1 uses only idle resources.",
    ] = 0
    parallel: Annotated[
        int | None,
        Key(
            "parallel",
            rule=Limit(low=1, high=10_000, whole=True),
            example="4",
            also="parallelism concurrency max_parallel max_workers",
        ),
        "Maximum number of steps at the same time; as many as `resources.cpu`, or 4, when left out.",
    ] = None
    grace_s: Annotated[
        float,
        Key(
            "grace", DURATION, Limit(low=0.001, high=DAY_S, zero=True), example="30s", also="grace_period stop_timeout"
        ),
        "Time between the stop notice (SIGTERM) and SIGKILL.",
    ] = 30.0
    schedule: Annotated[
        Schedule | None,
        Key("schedule", example='"0 3 * * *"', also="cron schedules when"),
        "Schedule for `fairlead apply`; a text alone is `cron`.",
    ] = None
    on: Annotated[
        On | None,
        Key("on", example="{data: [/data/raw.csv]}", also="trigger triggers watch sensor"),
        "Changes that trigger a run, for `fairlead apply`.",
    ] = None
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

    def secrets_of(self, program: Training) -> tuple[SecretReference, ...]:
        """Return the secrets of a step's run: the pipeline's, and its own."""
        return tuple(dict.fromkeys((*self.secrets, *program.secrets)))

    def in_order(self) -> tuple[str, ...]:
        """Return the steps in topological order, each after its needs."""
        return _ordered(self.steps)[0]

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        yield from _mapping_problems(env=self.env, labels=self.labels)
        yield from secrets_problems(self.secrets, self.env)
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
        if step.program is not None:
            kind = "training" if step.sweep is None else "sweep.trial"
            env = {**self.env, **step.env, **step.program.env}
            for key, problem in secrets_problems(self.secrets_of(step.program), env):
                yield f"{kind}.{key}", problem
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
        inputs = {
            f"{need}.{output}": need for need in step.needs if need in self.steps for output in self.steps[need].outputs
        }
        if step.when is not None:
            yield from _condition_problems("when", step.when, frozenset(inputs), "outputs of its needs", tuple(inputs))
        if step.each_of is not None and step.each_of not in inputs:
            listed = ", ".join(inputs) or "they have none"
            yield "each_of", f"{quote(step.each_of)} is not an output of its needs; outputs: {listed}"
        outputs: dict[str, list[str]] = {}
        for output in inputs:
            outputs.setdefault(output.replace(".", "_").upper(), []).append(output)
        for variable, same in outputs.items():
            if len(same) > 1:
                yield (
                    "needs",
                    f"{' and '.join(same)} would both be in FAIRLEAD_INPUT_{variable}; rename a step or an output",
                )
        for variable in _INPUT.findall(step.command):
            if variable not in outputs:
                listed = ", ".join(f"FAIRLEAD_INPUT_{output_name}" for output_name in sorted(outputs)) or "none"
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
            return replace(
                step,
                training=StepTraining(**{attribute.name: getattr(run, attribute.name) for attribute in fields(run)}),
            )
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
    return Training(
        **{**{attribute.name: getattr(run, attribute.name) for attribute in fields(Training)}, "name": name}
    )


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


def _list_problems(key: str, values: tuple[str, ...], rule: Text) -> Iterable[tuple[str, str]]:
    seen: set[str] = set()
    for value in values:
        if (problem := rule.problem(value)) is not None:
            yield key, problem
        elif value in seen:
            yield key, f"{quote(value)} is listed twice; name each once"
        seen.add(value)


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
