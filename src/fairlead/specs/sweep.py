"""The spec of a sweep, a search over parameters or an array of runs: one run with different values in each trial."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, replace
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, ClassVar

from fairlead.frozen import dataclass
from fairlead.specs import quantities, sweep_engines
from fairlead.specs.constraints import NAME, Limit, Text, enforce, quote
from fairlead.specs.engines import refusal
from fairlead.specs.field_types import ANY, DURATION, FACTOR, ListField, MapField, Single, Tag
from fairlead.specs.goal import Goal
from fairlead.specs.key import Key, SameKey, broken
from fairlead.specs.search_space import Parameter, Value, count_combinations, read_parameters, texts_of
from fairlead.specs.sweep_engines import SweepEngine
from fairlead.specs.training import DECADE_S, DEFAULT_TEAM, Training
from fairlead.specs.workload import Kind

MAX_TRIALS = 10_000
# Leaves room for a dash and the number of the last trial in names.
NAME_MOST = 45
ENV_PREFIX = "FAIRLEAD_PARAM_"
ENV_ALL = "FAIRLEAD_PARAMS"
TEMPLATE = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")

PARAMETER_NAME = Text(
    max_length=60,
    pattern=r"[A-Za-z_][A-Za-z0-9_]*",
    what="the name of a parameter; use letters, digits and `_`, not starting with a digit",
)
PARAMETER_TEXT = Text(max_length=4_096)
MAX_PARAMETERS = 100
MAX_OBJECTIVES = 4

# One of so many goes on at a rung. Paused trials may go on later, so that fewer are enough at first (decision 144).
REDUCTION, REDUCTION_WITH_PAUSES = 3, 5


CHANGEABLE_KEYS = ("trials", "parallel", "stop", "max_failed")
"""The keys that may change while a sweep exists: none of them changes what a trial is, or how it is compared."""


class Sampler(StrEnum):
    """The methods of choosing the values of the next trial."""

    RANDOM = "random"
    GRID = "grid"
    TPE = "tpe"
    CMA_ES = "cma-es"
    GP = "gp"
    NSGA_II = "nsga-ii"


# `minimize loss`, `loss:max` and the like, as a text alone where a metric is expected.
_GOAL = r"(?:maximi[sz]e|minimi[sz]e)"
_METRIC_WITH_GOAL = re.compile(
    rf"(?:{_GOAL}\s+|(?:{_GOAL}|max|min)\s*:\s*)(?P<after>\S+)|(?P<before>\S+?)(?:\s+{_GOAL}|\s*:\s*(?:{_GOAL}|max|min))",
    re.IGNORECASE,
)
# Samplers that learn from one objective.
LEARNING = (Sampler.TPE, Sampler.CMA_ES, Sampler.GP)


class Rule(StrEnum):
    """The rules by which trials are stopped early."""

    ASHA = "asha"
    HYPERBAND = "hyperband"
    MEDIAN = "median"
    PBT = "pbt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The metric that a trial optimizes."""

    metric: Annotated[
        str,
        Key("metric", rule=Text(max_length=200), example="loss", also="name objective_metric_name monitor", alone=True),
        "The metric that trials report; its last value counts.",
    ]
    goal: Annotated[
        Goal,
        Key("goal", example="maximize", also="direction mode type optimize"),
        "Which values are better.",
    ] = Goal.MINIMIZE

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune:
    """The settings of early stopping of trials.

    ``asha`` keeps the best of ``factor`` at each rung (Li et al., 2020), ``hyperband`` does so in brackets that begin
    at different rungs (Li et al., 2018), ``median`` stops trials worse than the median of the others at the same step
    (Golovin et al., 2017); ``pbt`` replaces a trial by one that continues from the checkpoint of a better one, with
    other values (Jaderberg et al., 2017). A quarter of a whole trial is known once one has reported its length; until
    then, and with the other rules, the first rung is step 1.
    """

    rule: Annotated[
        Rule,
        Key("rule", example="asha", also="name type algorithm pruner", alone=True),
        "`asha` keeps the best at each rung, `hyperband` in brackets, `median` half, `pbt` copies good ones.",
    ] = Rule.ASHA
    after: Annotated[
        int | None,
        Key(
            "after",
            rule=Limit(low=1, high=10**12, whole=True),
            example="10",
            also="grace_period min_resource warmup start min_steps",
        ),
        "Steps before a trial is first judged; left out, a quarter of a whole one, and with asha that pauses earlier "
        "if its objective improves steadily. With pbt between any two.",
    ] = None
    factor: Annotated[
        int | None,
        Key("factor", rule=Limit(low=2, high=100, whole=True), example="4", also="reduction_factor eta"),
        "Steps of a rung over those of the one before; asha keeps 1 in `factor` trials, pbt replaces 1. "
        "Left out, 3; with asha 5 if the trial has `checkpoint.every`.",
    ] = None
    steps: Annotated[
        int | None,
        Key("steps", rule=Limit(low=1, high=10**12, whole=True), example="100", also="max_resource max_steps max_t"),
        "Steps of a whole trial; hyperband requires it.",
    ] = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def one_in(self) -> int:
        """Return ``factor`` or its default."""
        return REDUCTION if self.factor is None else self.factor

    @property
    def num_brackets(self) -> int:
        """Return the number of brackets of Hyperband."""
        number, reach = 1, (self.after or 1) * self.one_in
        while self.steps is not None and reach <= self.steps:
            number, reach = number + 1, reach * self.one_in
        return number

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if self.rule is Rule.HYPERBAND and self.steps is None:
            yield "steps", "hyperband has to know how many steps a whole trial has; give `steps`"
        if self.rule is not Rule.HYPERBAND and self.steps is not None:
            yield "steps", f"{self.rule} does not use it; remove it, or use hyperband"
        if self.steps is not None and self.after is not None and self.steps < self.after:
            yield "steps", f"a trial of {self.steps} steps never comes to `after`, {self.after}; give more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The conditions under which a sweep ends before all of its trials."""

    target: Annotated[
        float | None,
        Key("target", FACTOR, Limit(low=-1e300, high=1e300), example="0.05", also="goal threshold value"),
        "A value of the objective that is good enough.",
    ] = None
    duration_s: Annotated[
        float | None,
        Key(
            "duration",
            DURATION,
            Limit(low=0.001, high=DECADE_S),
            example="2h",
            also="timeout time max_duration time_budget",
        ),
        "After this time of running no trials start, and running ones are stopped.",
    ] = None

    def __post_init__(self) -> None:
        enforce(broken(self))


FREE = "free"


def _parse_parallel(text: str) -> int | None:
    return None if text == FREE else quantities.parse_whole(text)


PARALLEL = Single(
    what=f"a whole number, or `{FREE}`",
    tags=ANY,
    parse=_parse_parallel,
    render=lambda number: FREE if number is None else number,
    schema={"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": f"^(?:{FREE})$"}]},
    text=FREE,
)


def _parse_objective(text: str) -> Objective:
    metric, colon, goal = text.rpartition(":")
    if colon and goal in set(Goal):
        return Objective(metric=metric, goal=Goal(goal))
    return Objective(metric=text)


ONE_OBJECTIVE = Single(
    what="a metric, such as `loss` or `accuracy:maximize`",
    tags=frozenset({Tag.TEXT}),
    parse=_parse_objective,
    render=lambda objective: (
        objective.metric if objective.goal is Goal.MINIMIZE else f"{objective.metric}:{objective.goal}"
    ),
    schema={"type": "string"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Training):
    """The spec of the run of every trial; its name is the sweep's with the trial's number appended."""

    kind: ClassVar[str] = Kind.TRIAL

    name: Annotated[str, NAME] = "trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Many runs that differ in their parameters.

    Attributes:
        name: Lower-case letters, digits and dashes, at most 45.
    """

    kind: ClassVar[str] = Kind.SWEEP

    name: Annotated[
        str,
        Key(
            "name",
            rule=replace(NAME, max_length=NAME_MOST),
            example="learning-rates",
            also="sweep_name title id",
            metadata="name",
        ),
        "Lower-case letters, digits and dashes, at most 45.",
    ]
    trial: Annotated[
        Trial,
        Key(
            "trial",
            example="{run: 'python train.py --lr {{lr}}'}",
            also="run training template trial_template job trial_spec",
        ),
        "The run, with the keys of a Training; `{{lr}}` in its command or variables is that parameter's value.",
    ]
    parameters: Annotated[
        Mapping[str, str],
        Key(
            "parameters",
            MapField(
                names=PARAMETER_NAME,
                values=PARAMETER_TEXT,
                most=MAX_PARAMETERS,
                example="0.1 | 0.01` for values or `0.01..0.1",
            ),
            example="{lr: log 1e-5..1e-1}",
            also="params search_space space config hyperparameters",
        ),
        "A range (`0.0..0.5`, `1..8`, `log 1e-5..1e-1`) or values (`sgd | adam`) of each; `when` conditions.",
    ]
    team: Annotated[str, SameKey(Training, "team")] = DEFAULT_TEAM
    labels: Annotated[
        Mapping[str, str],
        SameKey(Training, "labels"),
        "Names and values of your own, which its runs have too.",
    ] = field(default_factory=dict)
    objective: Annotated[
        Objective | None,
        Key("objective", example="{metric: accuracy, goal: maximize}", also="metric optimize target"),
        "Metric by which trials are compared; a text alone is `metric`. An array of runs when left out.",
    ] = None
    objectives: Annotated[
        tuple[Objective, ...],
        Key(
            "objectives",
            ListField(item=ONE_OBJECTIVE, most=MAX_OBJECTIVES),
            example='[loss, "accuracy:maximize"]',
            also="metrics goals directions",
        ),
        "Two to four metrics in place of `objective`, as `METRIC` or `METRIC:maximize`.",
    ] = ()
    trials: Annotated[
        int | None,
        Key(
            "trials",
            rule=Limit(low=1, high=MAX_TRIALS, whole=True),
            example="40",
            also="max_trials num_trials n_trials num_samples max_trial_count run_cap count",
        ),
        "How many trials; each combination of the values once when left out.",
    ] = None
    parallel: Annotated[
        int | None,
        Key(
            "parallel",
            PARALLEL,
            Limit(low=1, high=MAX_TRIALS, whole=True),
            example="4",
            also="parallelism max_concurrent_trials parallel_trial_count n_jobs concurrency",
        ),
        "Trials at the same time; `free` for as many as there is room for.",
    ] = None
    sampler: Annotated[
        Sampler | None,
        Key("sampler", example="random", also="algorithm method search strategy search_alg"),
        "How values are chosen; `tpe` with an objective, `nsga-ii` with several, else `grid` when left out.",
    ] = None
    prune: Annotated[
        Prune | None,
        Key("prune", example="asha", also="pruner early_stopping early_terminate scheduler"),
        "Rule by which trials are stopped early; a word alone is `rule`.",
    ] = None
    stop: Annotated[
        Stop,
        Key("stop", example="{duration: 2h}", also="until stopping stopper end"),
        "When the sweep ends early.",
    ] = field(default_factory=Stop)
    max_failed: Annotated[
        int,
        Key(
            "max_failed",
            rule=Limit(low=0, high=MAX_TRIALS, whole=True),
            example="3",
            also="max_failed_trials max_failed_trial_count max_failures failures",
        ),
        "The sweep fails when more trials than this fail; trials that diverge do not count.",
    ] = 10
    seed: Annotated[
        int,
        Key("seed", rule=Limit(low=0, high=2**31 - 1, whole=True), example="7", also="random_seed random_state"),
        "Seed of the sampler.",
    ] = 0
    engine: Annotated[
        SweepEngine | None,
        Key("engine", example="katib", also="controller backend managed_by platform tuner"),
        "A controller of the cluster that chooses the values of trials instead of Fairlead; see engines.md.",
    ] = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def space(self) -> tuple[Parameter, ...]:
        """Return its parameters, in order."""
        return read_parameters(self.parameters)[0]

    @property
    def adapted(self) -> tuple[Parameter, ...]:
        """Return the parameters that CMA-ES adapts: unconditional ranges."""
        return tuple(filter(_is_adapted, self.space))

    @property
    def judged_by(self) -> tuple[Objective, ...]:
        """Return its objectives: one, several, or none for an array."""
        return self.objectives or (() if self.objective is None else (self.objective,))

    @property
    def num_trials(self) -> int:
        """Return the total number of trials."""
        if self.trials is not None and self.chosen_sampler is not Sampler.GRID:
            return self.trials
        most = MAX_TRIALS if self.trials is None else self.trials
        combinations = count_combinations(self.space, most)
        assert combinations is not None, "checked when it was made"
        return min(most, combinations)

    @property
    def pruning(self) -> Prune | None:
        """Return the rule of early stopping with its factor, which depends on the trial if it is left out."""
        prune = self.prune
        if prune is None or prune.factor is not None:
            return prune
        return replace(prune, factor=REDUCTION_WITH_PAUSES if self.has_pauses else REDUCTION)

    @property
    def may_pause(self) -> bool:
        """Return whether trials that are stopped at a rung with a checkpoint may be resumed."""
        return self.prune is not None and self.prune.rule is Rule.ASHA and self.engine is None

    @property
    def has_pauses(self) -> bool:
        """Return whether trials that are stopped at a rung will have a checkpoint from which to be resumed."""
        return self.may_pause and self.trial.checkpoint.is_periodic

    @property
    def is_population(self) -> bool:
        """Return whether stopped trials are replaced by copies of better ones."""
        return self.prune is not None and self.prune.rule is Rule.PBT

    @property
    def chosen_sampler(self) -> Sampler:
        """Return the sampler or its default: grid for all combinations, else TPE or NSGA-II."""
        if self.sampler is not None:
            return self.sampler
        if not self.judged_by or self._is_exhaustive:
            return Sampler.GRID
        return Sampler.NSGA_II if self.objectives else Sampler.TPE

    @property
    def _is_exhaustive(self) -> bool:
        """Return whether each combination of listed values is one trial, of which samplers would repeat some."""
        return (
            self.trials is None
            and not self.is_population
            and all(parameter.listed is not None for parameter in self.space)
        )

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if not self.parameters:
            yield "parameters", "none is given; give at least one, such as `lr: log 1e-4..1e-1`"
            return
        if len(self.parameters) > MAX_PARAMETERS:
            yield "parameters", f"{len(self.parameters)} parameters; give at most {MAX_PARAMETERS}"
        names = [(name, PARAMETER_NAME.problem(name)) for name in self.parameters]
        yield from (("parameters", problem) for _, problem in names if problem is not None)
        upper = [name.upper() for name in self.parameters]
        for name in self.parameters:
            if upper.count(name.upper()) > 1:
                yield "parameters", f"{name}: another parameter differs from it only in case"
        space, problems = read_parameters(self.parameters)
        yield from (("parameters", problem) for problem in problems)
        yield from self._goal_problems()
        yield from self._template_problems()
        if not problems:
            yield from self._search_problems(space)
            yield from self._engine_problems(space)

    def _search_problems(self, space: tuple[Parameter, ...]) -> Iterable[tuple[str, str]]:
        endless = [parameter.name for parameter in space if parameter.listed is None]
        if self.chosen_sampler is Sampler.GRID and endless:
            why = "" if self.sampler is not None else "; without a `sampler` it is grid where no `objective` is given"
            yield (
                "sampler",
                f"grid needs values that are listed, and {endless[0]} is any number of a range; list them, such as "
                f"`0.1 | 0.01`, or use another sampler{why}",
            )
        elif self.trials is None and endless:
            yield "trials", f"missing; {endless[0]} has no end of values, so give how many trials there are to be"
        elif self.trials is None and (count_combinations(space, MAX_TRIALS) or 0) > MAX_TRIALS:
            yield "trials", f"missing; there are more than {MAX_TRIALS} combinations, so give how many of them to try"
        if self.sampler is Sampler.CMA_ES and not any(_is_adapted(parameter) for parameter in space):
            yield (
                "sampler",
                "cma-es adapts ranges that are always there, and this sweep has none; give one, such as "
                "`lr: log 1e-4..1e-1`, or use tpe",
            )
        if self.objectives:
            yield from self._objectives_problems()
            return
        if self.sampler is Sampler.NSGA_II:
            yield "sampler", "nsga-ii is for several `objectives`; give them, or use tpe, gp, cma-es, random or grid"
        if self.is_population:
            yield from self._population_problems()
        if self.objective is not None:
            return
        for key, is_given in (("prune", self.prune is not None), ("stop", self.stop.target is not None)):
            if is_given:
                what = "prune" if key == "prune" else "stop.target"
                yield key, f"`{what}` needs an `objective`, such as `{{metric: loss, goal: minimize}}`"
        if self.sampler in LEARNING:
            yield "sampler", f"{self.sampler} learns from an `objective`; give one, or use random or grid"

    def _population_problems(self) -> Iterable[tuple[str, str]]:
        assert self.prune is not None
        least = max(2, self.prune.one_in)
        if self.parallel is None or self.parallel < least:
            yield "parallel", f"pbt compares trials that run side by side; give how many, at least {least}"
        elif self.trials is not None and self.trials < self.parallel:
            yield (
                "trials",
                f"fewer than run side by side, {self.parallel}; pbt needs more, for those that follow others",
            )
        if self.sampler is Sampler.GRID:
            yield "sampler", "pbt changes the values of trials as they run, which grid does not; use random"
        checkpoint = self.trial.checkpoint
        if not checkpoint.is_periodic:
            yield "prune", "pbt continues from checkpoints; give `checkpoint: {every: 10 steps}` in the trial"
        if checkpoint.origin is not None:
            yield "trial", "checkpoint.from: with pbt a trial begins from the checkpoint of another; leave it out"

    def _goal_problems(self) -> Iterable[tuple[str, str]]:
        """Yield metrics that are named with their goal, whose trials would be judged by a metric that none reports."""
        key = "objectives" if self.objectives else "objective"
        for metric in (objective.metric for objective in (self.objective, *self.objectives) if objective is not None):
            match = _METRIC_WITH_GOAL.fullmatch(metric)
            if match is not None:
                name = match["after"] or match["before"]
                goal = Goal.MAXIMIZE if "max" in metric.removesuffix(name).removeprefix(name).lower() else Goal.MINIMIZE
                text = f"{{metric: {name}, goal: {goal}}}" if key == "objective" else quote(f"{name}:{goal}")
                yield key, f"{quote(metric)} is no metric but one with its goal; write {text}"

    def _objectives_problems(self) -> Iterable[tuple[str, str]]:
        names = [objective.metric for objective in self.objectives]
        if self.objective is not None:
            yield "objective", "`objectives` says what trials are judged by; leave one of the two out"
        if not 2 <= len(names) <= MAX_OBJECTIVES:
            yield (
                "objectives",
                f"{len(names)} given; give two to {MAX_OBJECTIVES}, or one as `objective: {names[0]}`",
            )
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield "objectives", f"{quote(name)} is listed twice; list each once"
        for key, is_given, what in (
            ("prune", self.prune is not None, "`prune` compares trials by one `objective`"),
            ("stop", self.stop.target is not None, "`stop.target` is a value of one `objective`"),
            ("sampler", self.sampler in LEARNING, f"{self.sampler} learns from one `objective`"),
        ):
            if is_given:
                yield key, f"{what}, and there are several; leave it out, or give one objective"

    def _engine_problems(self, space: tuple[Parameter, ...]) -> Iterable[tuple[str, str]]:
        """Yield the keys that an engine would not honour."""
        engine, messages = self.engine, sweep_engines
        if engine is None:
            return
        if len(self.name) > messages.NAME_MOST:
            what = "as Katib names objects after it"
            yield "name", f"with `engine` it has at most {messages.NAME_MOST} characters, {what}; shorten it"
        if (self.trials or 0) > messages.TRIALS_MOST:
            yield "trials", f"with `engine: {engine}` there are at most {messages.TRIALS_MOST}; give fewer"
        is_cma_es = self.chosen_sampler is Sampler.CMA_ES
        for key, is_unmet, why in (
            ("objectives", bool(self.objectives), messages.ONE_OBJECTIVE),
            ("objective", self.objective is None and not self.objectives, messages.NO_OBJECTIVE),
            ("parallel", self.parallel is None, messages.NO_PARALLEL),
            ("prune", self.is_population, messages.NO_POPULATION),
            ("parameters", any(parameter.when is not None for parameter in space), messages.NO_CONDITION),
            ("sampler", is_cma_es and any(parameter.choices for parameter in space), messages.NO_CHOICES),
            ("seed", self.seed != 0 and self.chosen_sampler is Sampler.GRID, messages.NO_SEED),
        ):
            if is_unmet:
                yield key, refusal(engine, messages.PROPOSES, why)

    def _template_problems(self) -> Iterable[tuple[str, str]]:
        named = {name for text in template_texts(self.trial) for name in TEMPLATE.findall(text)}
        for name in sorted(named - set(self.parameters)):
            yield (
                "trial",
                f"`{{{{{name}}}}}` is not a parameter of this sweep; those are: {', '.join(self.parameters)}",
            )
        unused = [
            name
            for name in self.parameters
            if name not in named
            and not any(f"{ENV_PREFIX}{name.upper()}" in text for text in template_texts(self.trial))
        ]
        if named & set(self.parameters) and unused:
            yield (
                "parameters",
                f"{unused[0]}: nothing in the trial has `{{{{{unused[0]}}}}}` although it has others; add it, "
                f"name ${ENV_PREFIX}{unused[0].upper()} there, or remove the parameter",
            )
        for name in self.trial.env:
            if name.startswith(ENV_PREFIX) or name == ENV_ALL:
                yield "trial", f"env: {quote(name)} is set for each trial by the sweep; choose another name"


def _is_adapted(parameter: Parameter) -> bool:
    return not parameter.choices and parameter.when is None


def template_texts(trial: Training) -> tuple[str, ...]:
    """Return the texts of a trial in which parameters are substituted."""
    return (trial.run, trial.setup or "", *trial.env.values())


def trial_run(sweep: Sweep, values: Mapping[str, Value]) -> Training:
    """Return the run of a trial with some values."""
    trial = sweep.trial
    texts = texts_of(sweep.space, values)

    def filled(text: str) -> str:
        return TEMPLATE.sub(lambda name: texts.get(name[1], ""), text)

    own = {f"{ENV_PREFIX}{name.upper()}": text for name, text in texts.items()}
    env = {name: filled(text) for name, text in trial.env.items()} | own | {ENV_ALL: json.dumps(dict(values))}
    keys = {attribute.name: getattr(trial, attribute.name) for attribute in fields(Training)}
    keys |= {"run": filled(trial.run), "env": env, "labels": {**sweep.labels, **trial.labels}}
    keys["setup"] = None if trial.setup is None else filled(trial.setup)
    return Training(**keys)


def values_of(trial: Training) -> Mapping[str, Value]:
    """Return the immutable values of the parameters of a trial's run."""
    return _read_values(trial.env.get(ENV_ALL, "{}"))


# Every evaluation of a sweep reads all of its trials.
@lru_cache(maxsize=10_000)
def _read_values(text: str) -> Mapping[str, Value]:
    values: dict[str, Value] = json.loads(text)
    return values


def map_runs(spec: Sweep, of: Callable[[Training], Training]) -> Sweep:
    """Return the sweep with a function applied to its run."""
    run = of(spec.trial)
    return replace(
        spec, trial=Trial(**{attribute.name: getattr(run, attribute.name) for attribute in fields(Training)})
    )
