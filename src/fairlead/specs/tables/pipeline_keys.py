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
            doc="Results that are older are not taken again.",
            attributes=("max_age_s",),
            example="7d",
            also=("ttl", "expires", "expiration", "cache_expiration", "max_cache_staleness"),
        ),
        Key(
            name="off",
            kind=FLAG,
            doc="Whether the step always runs.",
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
            doc="The command, as for a shell; left out where the step is a run of its own.",
            attributes=("run",),
            example="python prepare.py",
            also=("command", "cmd", "script", "entrypoint", "args", "exec"),
        ),
        Key(
            name="training",
            kind=_TRAINING,
            doc="The run that the step is, with the keys of a Training: nodes and resources of its own.",
            attributes=("training",),
            example="{run: python train.py, nodes: 2}",
            also=("job", "train", "workload"),
        ),
        Key(
            name="sweep",
            kind=_SWEEP,
            doc="The sweep that the step is, with the keys of a Sweep; its best trial's values are its outputs.",
            attributes=("sweep",),
            example="{parameters: {lr: 0.1 | 1}, objective: loss, trial: {run: 'python train.py {{lr}}'}}",
            also=("tune", "search", "experiment"),
        ),
        Key(
            name="needs",
            kind=ListField(item=TEXT, most=pipeline.LIST_MOST, rule=pipeline.IDENTIFIER),
            doc="Steps that must have succeeded first; their outputs are handed on.",
            attributes=("needs",),
            example="[prepare]",
            also=("depends_on", "dependencies", "depends", "after", "requires", "dependson"),
        ),
        Key(
            name="when",
            kind=TEXT,
            doc="Condition over outputs of its needs, as `step.output`; skipped where it does not hold.",
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
            doc="Files and directories whose content counts, beside the code and what its needs return.",
            attributes=("inputs",),
            example="[/data/raw.csv]",
            also=("input", "data", "reads"),
        ),
        Key(
            name="outputs",
            kind=ListField(item=TEXT, most=pipeline.LIST_MOST, rule=pipeline.IDENTIFIER),
            doc="Names of what it returns: files or directories that it writes to FAIRLEAD_OUTPUT_<NAME>.",
            attributes=("outputs",),
            example="[model, accuracy]",
            also=("output", "artifacts", "artefacts", "produces", "returns", "writes"),
        ),
        Key(
            name="code",
            kind=ListField(item=TEXT, most=pipeline.LIST_MOST, rule=PATH),
            doc="Files, directories and patterns that are its code; all of the working directory when left out.",
            attributes=("code",),
            example="[prepare.py, lib]",
            also=("sources", "source", "files", "deps"),
        ),
        Key(
            name="cache",
            kind=_CACHE,
            doc="When what it returned before is taken instead of running it.",
            attributes=("cache",),
            example="{max_age: 7d}",
            also=("caching", "memoize", "reuse"),
        ),
        Key(
            name="retry",
            kind=WHOLE,
            doc="How often it is run again after it failed.",
            attributes=("retry",),
            example="2",
            also=("retries", "max_retries", "attempts", "retry_limit"),
        ),
        Key(
            name="timeout",
            kind=DURATION,
            doc="It is stopped and has failed after this long.",
            attributes=("timeout_s",),
            example="1h",
            also=("max_duration", "time_limit", "deadline"),
        ),
        Key(
            name="gate",
            kind=TEXT,
            doc="Condition over its own outputs that must hold for the pipeline to go on.",
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
            doc="`one` run for all times that came while nobody looked after this machine, or `none`.",
            attributes=("catch_up",),
            example="none",
            also=("catchup", "backfill", "misfire"),
        ),
        Key(
            name="overlap",
            kind=word(pipeline.Overlap),
            doc="A time that comes while an earlier run is not over is left out (`skip`) or waited with (`wait`).",
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
            doc="What a training costs in the unit of `column`; it is run when staleness has cost as much.",
            attributes=("cost",),
            example="50",
            also=("retraining_cost", "training_cost", "threshold", "budget"),
        ),
        Key(
            name="detector",
            kind=word(pipeline.Detector),
            doc="Run when this finds that losses have grown; needs `pip install 'fairlead[drift]'`.",
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
            doc="Predictions after a training that tell the loss of a fresh model, with `cost`.",
            attributes=("window",),
            example="300",
            also=("window_size", "warmup", "grace"),
        ),
        Key(
            name="significance",
            kind=FACTOR,
            doc="Probability to find a difference from `reference` where there is none.",
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
            doc="Files and directories; when their content has changed the pipeline is run.",
            attributes=("data",),
            example="[/data/raw.csv]",
            also=("files", "paths", "dataset"),
        ),
        Key(
            name="drift",
            kind=_DRIFT,
            doc="Run when a model has grown stale: by the losses of its predictions, or by data unlike its training's.",
            attributes=("drift",),
            example="{data: predictions.csv, column: error, cost: 50}",
            also=("data_drift", "concept_drift", "monitor", "staleness"),
        ),
        Key(
            name="every",
            kind=DURATION,
            doc="How often is looked; a change counts when the next look finds nothing new.",
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
            doc="Variables of every step; they count for what may be taken again.",
            attributes=("env",),
            example="{SEED: 1}",
            also=("envs", "environment", "vars", "variables"),
        ),
        Key(
            name="resources",
            kind=_RESOURCES,
            doc="What the pipeline gets as a whole; its steps share it.",
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
        _of_a_run("kubernetes", doc="Fields merged into the pod that runs the steps, in Kubernetes' own words."),
        Key(
            name="priority",
            kind=WHOLE,
            doc="Higher starts first, from 0 to 1000; -1 takes only what is idle.",
            attributes=("priority",),
            example="100",
            also=("priority_class", "prio"),
        ),
        Key(
            name="parallel",
            kind=WHOLE,
            doc="Steps that run at the same time at most; as many as `resources.cpu`, or 4, when left out.",
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
            doc="When it is run once `fairlead apply` has taken it; a lone text is `cron`.",
            attributes=("schedule",),
            example='"0 3 * * *"',
            also=("cron", "schedules", "when"),
        ),
        Key(
            name="on",
            kind=_ON,
            doc="What makes it run once `fairlead apply` has taken it.",
            attributes=("on",),
            example="{data: [/data/raw.csv]}",
            also=("trigger", "triggers", "watch", "sensor"),
        ),
        Key(
            name="steps",
            kind=SectionMap(item=_STEP, names=pipeline.IDENTIFIER, most=pipeline.STEPS_MOST),
            doc="The steps by name; a lone command is `run`.",
            attributes=("steps",),
            example="{train: {run: python train.py}}",
            required=True,
            also=("tasks", "jobs", "stages", "nodes", "dag"),
        ),
    ),
)
