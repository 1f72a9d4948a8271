"""Every key of a Sweep."""

from dataclasses import replace

from fairlead.specs import quantities, sweep
from fairlead.specs.goal import Goal
from fairlead.specs.sweep_engines import SweepEngine
from fairlead.specs.tables.field_types import (
    ANY,
    DURATION,
    FACTOR,
    TEXT,
    WHOLE,
    Key,
    ListField,
    MapField,
    Section,
    Single,
    Tag,
    labels_key,
    name_key,
    team_key,
    word,
)
from fairlead.specs.tables.training_keys import TRAINING
from fairlead.specs.training import TRAINING_RULES

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


def _parse_objective(text: str) -> sweep.Objective:
    metric, colon, goal = text.rpartition(":")
    if colon and goal in set(Goal):
        return sweep.Objective(metric=metric, goal=Goal(goal))
    return sweep.Objective(metric=text)


ONE_OBJECTIVE = Single(
    what="a metric, such as `loss` or `accuracy:maximize`",
    tags=frozenset({Tag.TEXT}),
    parse=_parse_objective,
    render=lambda each: each.metric if each.goal is Goal.MINIMIZE else f"{each.metric}:{each.goal}",
    schema={"type": "string"},
)

OBJECTIVE = Section(
    type=sweep.Objective,
    rules=sweep.OBJECTIVE_RULES,
    shorthand="metric",
    keys=(
        Key(
            name="metric",
            kind=TEXT,
            doc="The metric that trials report; its last value counts.",
            attributes=("metric",),
            example="loss",
            required=True,
            also=("name", "objective_metric_name", "monitor"),
        ),
        Key(
            name="goal",
            kind=word(Goal),
            doc="Which values are better.",
            attributes=("goal",),
            example="maximize",
            also=("direction", "mode", "type", "optimize"),
        ),
    ),
)

PRUNE = Section(
    type=sweep.Prune,
    rules=sweep.PRUNE_RULES,
    shorthand="rule",
    keys=(
        Key(
            name="rule",
            kind=word(sweep.Rule),
            doc="`asha` keeps the best at each rung, `hyperband` in brackets, `median` half, `pbt` copies good ones.",
            attributes=("rule",),
            example="asha",
            also=("name", "type", "algorithm", "pruner"),
        ),
        Key(
            name="after",
            kind=WHOLE,
            doc=(
                "Steps before a trial is first judged; left out, a quarter of a whole one, and with asha that pauses "
                "earlier if its objective improves steadily. With pbt between any two."
            ),
            attributes=("after",),
            example="10",
            also=("grace_period", "min_resource", "warmup", "start", "min_steps"),
        ),
        Key(
            name="factor",
            kind=WHOLE,
            doc="Steps of a rung over those of the one before; asha keeps 1 in `factor` trials, pbt replaces 1. "
            "Left out, 3; with asha 5 if the trial has `checkpoint.every`.",
            attributes=("factor",),
            example="4",
            also=("reduction_factor", "eta"),
        ),
        Key(
            name="steps",
            kind=WHOLE,
            doc="Steps of a whole trial; hyperband requires it.",
            attributes=("steps",),
            example="100",
            also=("max_resource", "max_steps", "max_t"),
        ),
    ),
)

STOP = Section(
    type=sweep.Stop,
    rules=sweep.STOP_RULES,
    keys=(
        Key(
            name="target",
            kind=FACTOR,
            doc="A value of the objective that is good enough.",
            attributes=("target",),
            example="0.05",
            also=("goal", "threshold", "value"),
        ),
        Key(
            name="duration",
            kind=DURATION,
            doc="After this time no trials start, and running ones are stopped.",
            attributes=("duration_s",),
            example="2h",
            also=("timeout", "time", "max_duration", "time_budget"),
        ),
    ),
)

# A run that is told what it is by the sweep that it belongs to.
TRIAL = Section(
    type=sweep.Trial,
    rules=TRAINING_RULES,
    keys=tuple(replace(key, metadata=None) for key in TRAINING.keys if key.name not in ("name", "team")),
)

SWEEP = Section(
    type=sweep.Sweep,
    rules=sweep.SWEEP_RULES,
    keys=(
        name_key(example="learning-rates", most=sweep.NAME_MOST, also=("sweep_name", "title", "id")),
        team_key(),
        labels_key("Names and values of your own, which its runs have too."),
        Key(
            name="parameters",
            kind=MapField(names=sweep.PARAMETER_NAME, values=sweep.PARAMETER_TEXT, most=sweep.MAX_PARAMETERS),
            doc="A range (`0.0..0.5`, `1..8`, `log 1e-5..1e-1`) or values (`sgd | adam`) of each; `when` conditions.",
            attributes=("parameters",),
            example="{lr: log 1e-5..1e-1}",
            required=True,
            also=("params", "search_space", "space", "config", "hyperparameters"),
        ),
        Key(
            name="objective",
            kind=OBJECTIVE,
            doc="Metric by which trials are compared; a text alone is `metric`. An array of runs when left out.",
            attributes=("objective",),
            example="{metric: accuracy, goal: maximize}",
            also=("metric", "optimize", "target"),
        ),
        Key(
            name="objectives",
            kind=ListField(item=ONE_OBJECTIVE, most=sweep.MAX_OBJECTIVES),
            doc="Two to four metrics in place of `objective`, as `METRIC` or `METRIC:maximize`.",
            attributes=("objectives",),
            example='[loss, "accuracy:maximize"]',
            also=("metrics", "goals", "directions"),
        ),
        Key(
            name="trials",
            kind=WHOLE,
            doc="How many trials; all combinations of values when left out.",
            attributes=("trials",),
            example="40",
            also=("max_trials", "num_trials", "n_trials", "num_samples", "max_trial_count", "run_cap", "count"),
        ),
        Key(
            name="parallel",
            kind=PARALLEL,
            doc="Trials at the same time; `free` for as many as there is room for.",
            attributes=("parallel",),
            example="4",
            also=("parallelism", "max_concurrent_trials", "parallel_trial_count", "n_jobs", "concurrency"),
        ),
        Key(
            name="sampler",
            kind=word(sweep.Sampler),
            doc="How values are chosen; `tpe` with an objective, `nsga-ii` with several, else `grid` when left out.",
            attributes=("sampler",),
            example="random",
            also=("algorithm", "method", "search", "strategy", "search_alg"),
        ),
        Key(
            name="prune",
            kind=PRUNE,
            doc="Rule by which trials are stopped early; a word alone is `rule`.",
            attributes=("prune",),
            example="asha",
            also=("pruner", "early_stopping", "early_terminate", "scheduler"),
        ),
        Key(
            name="stop",
            kind=STOP,
            doc="When the sweep ends early.",
            attributes=("stop",),
            example="{duration: 2h}",
            also=("until", "stopping", "stopper", "end"),
        ),
        Key(
            name="max_failed",
            kind=WHOLE,
            doc="The sweep fails when more trials than this fail; trials that diverge do not count.",
            attributes=("max_failed",),
            example="3",
            also=("max_failed_trials", "max_failed_trial_count", "max_failures", "failures"),
        ),
        Key(
            name="seed",
            kind=WHOLE,
            doc="Seed of the sampler.",
            attributes=("seed",),
            example="7",
            also=("random_seed", "random_state"),
        ),
        Key(
            name="engine",
            kind=word(SweepEngine),
            doc="A controller of the cluster that chooses the values of trials instead of Fairlead; see engines.md.",
            attributes=("engine",),
            example="katib",
            also=("controller", "backend", "managed_by", "platform", "tuner"),
        ),
        Key(
            name="trial",
            kind=TRIAL,
            doc="The run, with the keys of a Training; `{{lr}}` in its command or variables is that parameter's value.",
            attributes=("trial",),
            example="{run: 'python train.py --lr {{lr}}'}",
            required=True,
            also=("run", "training", "template", "trial_template", "job", "trial_spec"),
        ),
    ),
)
