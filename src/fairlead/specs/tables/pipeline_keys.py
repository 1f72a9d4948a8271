"""Every key of a Pipeline."""

from dataclasses import replace
from typing import Any

from fairlead.specs import pipeline, sweep, training
from fairlead.specs.constraints import PATH
from fairlead.specs.tables.field_types import (
    DURATION,
    FACTOR,
    FLAG,
    TEXT,
    WHOLE,
    Key,
    ListField,
    MapField,
    Section,
    SectionMap,
    labels_key,
    name_key,
    team_key,
    word,
)
from fairlead.specs.tables.sweep_keys import SWEEP
from fairlead.specs.tables.training_keys import CHECKPOINT, RESOURCES, TRAINING

# A driver reports no pace, by which its GPUs could be shared.
_RESOURCES = replace(RESOURCES, keys=tuple(key for key in RESOURCES.keys if key.name != "colocate"))
_ENV = MapField(names=training.ENV_NAME, values=training.ENV_VALUE, most=training.ENV_MOST)

_CACHE = Section(
    type=pipeline.Cache,
    rules=pipeline.CACHE_RULES,
    keys=(
        Key(
            name="max_age",
            kind=DURATION,
            doc="Maximum age of results that are reused.",
            attributes=("max_age_s",),
            example="7d",
            also=("ttl", "expires", "expiration", "cache_expiration", "max_cache_staleness"),
        ),
        Key(
            name="off",
            kind=FLAG,
            doc="Always run the step.",
            attributes=("off",),
            example="true",
            also=("disable", "disabled", "no_cache"),
        ),
    ),
)

# What is told whose it is by the pipeline that it belongs to.
_TRAINING = Section(
    type=pipeline.StepTraining,
    rules=training.TRAINING_RULES,
    keys=tuple(replace(key, metadata=None) for key in TRAINING.keys if key.name not in ("name", "team")),
)
_SWEEP = Section(
    type=pipeline.StepSweep,
    rules=sweep.SWEEP_RULES,
    keys=tuple(replace(key, metadata=None) for key in SWEEP.keys if key.name not in ("name", "team")),
)

_STEP = Section(
    type=pipeline.Step,
    rules=pipeline.STEP_RULES,
    shorthand="run",
    keys=(
        Key(
            name="run",
            kind=TEXT,
            doc="The command, as for a shell; or give `training` or `sweep`.",
            attributes=("run",),
            example="python prepare.py",
            also=("command", "cmd", "script", "entrypoint", "args", "exec"),
        ),
        Key(
            name="training",
            kind=_TRAINING,
            doc="A run with its own nodes and resources, with the keys of a Training.",
            attributes=("training",),
            example="{run: python train.py, nodes: 2}",
            also=("job", "train", "workload"),
        ),
        Key(
            name="sweep",
            kind=_SWEEP,
            doc="A sweep, with the keys of a Sweep; the values of its best trial are outputs.",
            attributes=("sweep",),
            example="{parameters: {lr: 0.1 | 1}, objective: loss, trial: {run: 'python train.py {{lr}}'}}",
            also=("tune", "search", "experiment"),
        ),
        Key(
            name="needs",
            kind=ListField(item=TEXT, most=pipeline.LIST_MOST, rule=pipeline.IDENTIFIER),
            doc="Steps that must succeed first; the step gets their outputs.",
            attributes=("needs",),
            example="[prepare]",
            also=("depends_on", "dependencies", "depends", "after", "requires", "dependson"),
        ),
        Key(
            name="when",
            kind=TEXT,
            doc="Condition on outputs of its needs, as `step.output`; if false, the step is skipped.",
            attributes=("when",),
            example="prepare.rows > 1000",
            also=("if", "condition", "only_if"),
        ),
        Key(
            name="each",
            kind=ListField(item=TEXT, most=pipeline.LIST_MOST, rule=pipeline.ITEM),
            doc="Runs the step once for each of these, in FAIRLEAD_ITEM.",
            attributes=("each",),
            example="[north, south]",
            also=("foreach", "for_each", "with_items", "matrix", "map"),
        ),
        Key(
            name="each_of",
            kind=TEXT,
            doc="The same for each item of a list that one of its needs returned.",
            attributes=("each_of",),
            example="prepare.shards",
            also=("with_param", "for_each_of", "map_over"),
        ),
        Key(
            name="env",
            kind=_ENV,
            doc="Variables added to the pipeline's.",
            attributes=("env",),
            example="{LR: 0.1}",
            also=("envs", "environment", "vars", "variables"),
        ),
        Key(
            name="inputs",
            kind=ListField(item=TEXT, most=pipeline.LIST_MOST, rule=PATH),
            doc="Files and directories that the step reads, beside its code and the outputs of its needs.",
            attributes=("inputs",),
            example="[/data/raw.csv]",
            also=("input", "data", "reads"),
        ),
        Key(
            name="outputs",
            kind=ListField(item=TEXT, most=pipeline.LIST_MOST, rule=pipeline.IDENTIFIER),
            doc="Names of outputs: files or directories that it writes to FAIRLEAD_OUTPUT_<NAME>.",
            attributes=("outputs",),
            example="[model, accuracy]",
            also=("output", "artifacts", "artefacts", "produces", "returns", "writes"),
        ),
        Key(
            name="code",
            kind=ListField(item=TEXT, most=pipeline.LIST_MOST, rule=PATH),
            doc="Files, directories and patterns of its code; the whole working directory when left out.",
            attributes=("code",),
            example="[prepare.py, lib]",
            also=("sources", "source", "files", "deps"),
        ),
        Key(
            name="cache",
            kind=_CACHE,
            doc="When earlier results are reused.",
            attributes=("cache",),
            example="{max_age: 7d}",
            also=("caching", "memoize", "reuse"),
        ),
        Key(
            name="retry",
            kind=WHOLE,
            doc="Number of retries after a failure.",
            attributes=("retry",),
            example="2",
            also=("retries", "max_retries", "attempts", "retry_limit"),
        ),
        Key(
            name="timeout",
            kind=DURATION,
            doc="Time limit, after which the step fails.",
            attributes=("timeout_s",),
            example="1h",
            also=("max_duration", "time_limit", "deadline"),
        ),
        Key(
            name="gate",
            kind=TEXT,
            doc="Condition on its own outputs that must be true for the pipeline to continue.",
            attributes=("gate",),
            example="accuracy > 0.9",
            also=("check", "assert", "expect", "threshold"),
        ),
    ),
)

_SCHEDULE = Section(
    type=pipeline.Schedule,
    rules=pipeline.SCHEDULE_RULES,
    shorthand="cron",
    keys=(
        Key(
            name="cron",
            kind=TEXT,
            doc="Minute, hour, day of the month, month and day of the week.",
            attributes=("cron",),
            example="0 3 * * *",
            required=True,
            also=("expression", "crontab", "at"),
        ),
        Key(
            name="timezone",
            kind=TEXT,
            doc="Time zone of these times.",
            attributes=("timezone",),
            example="Europe/Berlin",
            also=("tz", "time_zone", "zone"),
        ),
        Key(
            name="catch_up",
            kind=word(pipeline.CatchUp),
            doc="`one` run for all times that were missed while no supervisor was running, or `none`.",
            attributes=("catch_up",),
            example="none",
            also=("catchup", "backfill", "misfire"),
        ),
        Key(
            name="overlap",
            kind=word(pipeline.Overlap),
            doc="A time that comes while an earlier run is unfinished is skipped (`skip`), or runs after it (`wait`).",
            attributes=("overlap",),
            example="wait",
            also=("concurrency_policy", "overlap_policy", "max_active_runs"),
        ),
    ),
)

_DRIFT = Section(
    type=pipeline.Drift,
    rules=pipeline.DRIFT_RULES,
    keys=(
        Key(
            name="data",
            kind=TEXT,
            doc="File of predictions, or of rows, in the order they came: CSV with a header, or a JSON object a line.",
            attributes=("data",),
            example="predictions.csv",
            required=True,
            also=("file", "stream", "predictions", "current"),
        ),
        Key(
            name="column",
            kind=TEXT,
            doc="The column with the loss of each prediction, such as 0 for right and 1 for wrong.",
            attributes=("column",),
            example="error",
            also=("loss", "field", "metric", "target"),
        ),
        Key(
            name="cost",
            kind=FACTOR,
            doc="Cost of a training in the unit of `column`; the pipeline runs when drift has cost as much.",
            attributes=("cost",),
            example="50",
            also=("retraining_cost", "training_cost", "threshold", "budget"),
        ),
        Key(
            name="detector",
            kind=word(pipeline.Detector),
            doc="Run when this detector finds higher losses; needs `pip install 'fairlead[drift]'`.",
            attributes=("detector",),
            example="adwin",
            also=("algorithm", "method", "test"),
        ),
        Key(
            name="reference",
            kind=TEXT,
            doc="File to which `data` is compared, column by column; needs `pip install 'fairlead[drift]'`.",
            attributes=("reference",),
            example="training.csv",
            also=("baseline", "reference_data", "expected", "train"),
        ),
        Key(
            name="window",
            kind=WHOLE,
            doc="With `cost`: predictions after a training that measure the loss of a fresh model.",
            attributes=("window",),
            example="300",
            also=("window_size", "warmup", "grace"),
        ),
        Key(
            name="significance",
            kind=FACTOR,
            doc="Probability of a false alarm, with `reference`.",
            attributes=("significance",),
            example="0.001",
            also=("alpha", "p_value", "pvalue", "confidence"),
        ),
    ),
)

_ON = Section(
    type=pipeline.On,
    rules=pipeline.ON_RULES,
    keys=(
        Key(
            name="data",
            kind=ListField(item=TEXT, most=pipeline.LIST_MOST, rule=PATH),
            doc="Files and directories; the pipeline runs when their content changes.",
            attributes=("data",),
            example="[/data/raw.csv]",
            also=("files", "paths", "dataset"),
        ),
        Key(
            name="drift",
            kind=_DRIFT,
            doc="Run when a model drifts: by the losses of its predictions, or by data unlike its training data.",
            attributes=("drift",),
            example="{data: predictions.csv, column: error, cost: 50}",
            also=("data_drift", "concept_drift", "monitor", "staleness"),
        ),
        Key(
            name="every",
            kind=DURATION,
            doc="Interval of checks; a change counts when the next check finds no further one.",
            attributes=("every_s",),
            example="5m",
            also=("interval", "poll", "poll_interval"),
        ),
    ),
)

_CHECKPOINT = Section(
    type=training.Checkpoint,
    rules=training.CHECKPOINT_RULES,
    shorthand="to",
    keys=tuple(
        replace(key, doc="Directory or URL for checkpoints of steps; on Kubernetes also for all that steps return.")
        for key in CHECKPOINT.keys
        if key.name == "to"
    ),
)


def _of_a_run(name: str, **changes: Any) -> Key:
    """The key of a run by that name, which means the same of the pipeline's."""
    return replace(next(key for key in TRAINING.keys if key.name == name), **changes)


PIPELINE = Section(
    type=pipeline.Pipeline,
    rules=pipeline.PIPELINE_RULES,
    keys=(
        name_key(example="churn", more="; a short form without it takes the file's name"),
        team_key("The team it belongs to."),
        labels_key("Names and values of your own, to find it by (`--label`)."),
        _of_a_run("image", doc="Container image that the steps run in; needs a cluster with containers."),
        Key(
            name="workdir",
            kind=TEXT,
            doc="Directory the steps run in; the directory of the spec file when left out.",
            attributes=("workdir",),
            example="src",
            also=("working_dir", "working_directory", "cwd"),
        ),
        _of_a_run("setup", doc="Shell commands run once before the first step.", also=("setup_commands", "install")),
        Key(
            name="env",
            kind=_ENV,
            doc="Variables of every step; a change makes steps run again.",
            attributes=("env",),
            example="{SEED: 1}",
            also=("envs", "environment", "vars", "variables"),
        ),
        Key(
            name="resources",
            kind=_RESOURCES,
            doc="Resources of the pipeline, which its steps share.",
            attributes=("resources",),
            example="{cpu: 4}",
            also=("resource", "requests", "limits"),
        ),
        Key(
            name="checkpoint",
            kind=_CHECKPOINT,
            doc="Where checkpoints of steps go, and on Kubernetes what steps return; a lone text is `to`.",
            attributes=("checkpoint",),
            example="{to: s3://bucket/pipelines}",
            also=("checkpoints", "artifacts", "store", "storage"),
        ),
        _of_a_run("kubernetes", doc="Fields of Kubernetes that are merged into the pod that runs the steps."),
        Key(
            name="priority",
            kind=WHOLE,
            doc="Higher starts first, from 0 to 1000; -1 uses only idle resources.",
            attributes=("priority",),
            example="100",
            also=("priority_class", "prio"),
        ),
        Key(
            name="parallel",
            kind=WHOLE,
            doc="Maximum number of steps at the same time; as many as `resources.cpu`, or 4, when left out.",
            attributes=("parallel",),
            example="4",
            also=("parallelism", "concurrency", "max_parallel", "max_workers"),
        ),
        Key(
            name="grace",
            kind=DURATION,
            doc="Time between the stop notice (SIGTERM) and SIGKILL.",
            attributes=("grace_s",),
            example="30s",
            also=("grace_period", "stop_timeout"),
        ),
        Key(
            name="schedule",
            kind=_SCHEDULE,
            doc="Schedule for `fairlead apply`; a text alone is `cron`.",
            attributes=("schedule",),
            example='"0 3 * * *"',
            also=("cron", "schedules", "when"),
        ),
        Key(
            name="on",
            kind=_ON,
            doc="Changes that trigger a run, for `fairlead apply`.",
            attributes=("on",),
            example="{data: [/data/raw.csv]}",
            also=("trigger", "triggers", "watch", "sensor"),
        ),
        Key(
            name="steps",
            kind=SectionMap(item=_STEP, names=pipeline.IDENTIFIER, most=pipeline.STEPS_MOST),
            doc="The steps by name; a command alone is `run`.",
            attributes=("steps",),
            example="{train: {run: python train.py}}",
            required=True,
            also=("tasks", "jobs", "stages", "nodes", "dag"),
        ),
    ),
)
