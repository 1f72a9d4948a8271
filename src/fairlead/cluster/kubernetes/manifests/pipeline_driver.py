"""The driver of a pipeline as a run with a pod, and the fields that runs of its steps inherit. Pure.

A Pipeline object contains the user's request; its driver is derived from that whenever the object is read.

See decision 34.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from fairlead.cluster.kubernetes.manifests.pod_environment import DRIVER as PROGRAM
from fairlead.cluster.kubernetes.manifests.pod_environment import PYTHON
from fairlead.cluster.kubernetes.manifests.volumes import mount_at
from fairlead.errors import InvalidSpec
from fairlead.policy.kinds.standing_pipeline import HASH, OF_PIPELINE, WATCH, WATCHES
from fairlead.runtime.places import is_url
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.formats.packing import packed
from fairlead.specs.overlay import Overlay
from fairlead.specs.pipeline import DRIVER, WATCH_VARIABLE, Pipeline, map_runs
from fairlead.specs.resources import Resources
from fairlead.specs.training import ENV_VALUE, Launch, Training
from fairlead.specs.workload import PIPELINE_VARIABLE

COMMAND = f"{PYTHON} {PROGRAM}"
# For a driver that mostly waits for other runs.
WAITING_CPU_MILLI, WAITING_MEMORY_BYTES = 200, 256 * 1024**2
WATCH_CPU_MILLI, WATCH_MEMORY_BYTES = 50, 128 * 1024**2
# For rows of a file and, with `detector` and `reference`, numeric libraries.
DRIFT_CPU_MILLI, DRIFT_MEMORY_BYTES = 200, 512 * 1024**2
# Most automatic runs, as limited by the names of the runs.
MOST_RUNS = 9_999
ADVICE = (
    "give `checkpoint.to` a URL such as s3://bucket/pipelines, or a directory on a volume that `kubernetes` "
    "mounts, such as a PersistentVolumeClaim"
)


def place_problem(pipeline: Pipeline, run: Training) -> str | None:
    """Return why the checkpoint storage does not outlive the pipeline's pods; None if it does.

    Args:
        run: The pipeline's driver, or any run with the same mounts.
    """
    to = pipeline.checkpoint.to
    if to is None:
        return f"what steps return has to outlive the pods that run them: {ADVICE}."
    if not is_url(to) and mount_at(run, to) is None:
        return f"checkpoint.to: {to} is on no volume of the pipeline that outlives its pods; {ADVICE}."
    return None


def variable(pipeline: Pipeline) -> str:
    """Return the variable that passes a pipeline to its driver's pod.

    Raises:
        InvalidSpec: The variable is too long.
    """
    value = packed(pipeline)
    if len(value) > ENV_VALUE.max_length:
        raise InvalidSpec(
            (
                f"its steps take {len(value)} characters even when packed, and {ENV_VALUE.max_length} reach "
                "a pod; move long commands into files of `workdir`, or divide it into several pipelines.",
            )
        )
    return value


def with_driver(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with its driver, and its runs with the fields that they inherit.

    Raises:
        InvalidSpec: A cluster cannot execute it.
    """
    to = pipeline.checkpoint.to

    def placed(run: Training) -> Training:
        return replace(
            run,
            team=pipeline.team,
            image=run.image if run.image is not None else pipeline.image,
            environment=run.environment if run.environment is not None or run.image else pipeline.environment,
            workdir=run.workdir if run.workdir is not None else pipeline.workdir,
            setup=run.setup if run.setup is not None else pipeline.setup,
            kubernetes=run.kubernetes if run.kubernetes != Overlay() else pipeline.kubernetes,
            checkpoint=replace(run.checkpoint, to=run.checkpoint.to or to),
        )

    whole = map_runs(replace(pipeline, driver=None, watch=None), placed)
    driver = _driver(whole)
    problem = place_problem(pipeline, driver)
    if problem is None and to is not None:
        problem = _steps_problem(whole, driver, to)
    if problem is not None:
        raise InvalidSpec((f"{pipeline.name}: {problem}",))
    if not pipeline.runs_by_itself:
        return replace(whole, driver=driver)
    return _standing(whole)


def _standing(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline with triggers: its runs have drivers, and one more run watches its data."""
    on = pipeline.on
    try:
        # Each of its runs has a distinct name, and so have the runs of their steps.
        _driver(replace(pipeline, name=f"{pipeline.name}-{MOST_RUNS}", schedule=None, on=None))
    except BrokenRules as error:
        raise InvalidSpec(
            (f"{pipeline.name}: name: its runs would be named {pipeline.name}-1 and so on: {error}",)
        ) from error
    if on is None:
        return pipeline
    request: dict[str, Any] = {"data": list(on.data), "every_s": on.every_s}
    if on.drift is not None:
        request["drift"] = asdict(on.drift)
    watch = _run_of(
        pipeline,
        WATCH,
        env={WATCH_VARIABLE: json.dumps(request)},
        resources=Resources(
            cpu_milli=WATCH_CPU_MILLI if on.drift is None else DRIFT_CPU_MILLI,
            memory_bytes=WATCH_MEMORY_BYTES if on.drift is None else DRIFT_MEMORY_BYTES,
        ),
        grace_s=1.0,
    )
    problems = [_unseen(f"on.data: {path}", path, "data", "no change", watch) for path in on.data]
    if on.drift is not None:
        seen = on.drift.data
        problems.append(_unseen(f"on.drift.data: {seen}", seen, "drift", "no row that is appended", watch))
    for problem in filter(None, problems):
        raise InvalidSpec((f"{pipeline.name}: {problem}",))
    digest = hashlib.sha256(repr(watch).encode("utf-8", "surrogatepass")).hexdigest()[:HASH]
    return replace(pipeline, watch=replace(watch, labels={**watch.labels, WATCHES: digest}))


def _unseen(what: str, place: str, looks_for: str, change: str, watch: Training) -> str | None:
    """Return why changed data is not visible to the pod that watches it; None if it is.

    Args:
        what: The key and its value, for the message.
        change: What the pod would never see.
    """
    if is_url(place) or mount_at(watch, place.removeprefix("file://"), to_write=False) is not None:
        return None
    return (
        f"{what} is on no volume of the pipeline, so that the pod that looks for {looks_for} would see {change}; "
        "give a URL such as s3://bucket/seen.csv, or a path on a volume that `kubernetes` mounts, such as a "
        "PersistentVolumeClaim."
    )


def _driver(pipeline: Pipeline) -> Training:
    named = replace(pipeline, name=pipeline.labels.get(OF_PIPELINE, pipeline.name), schedule=None, on=None)
    resources = pipeline.resources
    if all(step.child is not None for step in pipeline.steps.values()):
        resources = replace(
            resources,
            cpu_milli=resources.cpu_milli or WAITING_CPU_MILLI,
            memory_bytes=resources.memory_bytes or WAITING_MEMORY_BYTES,
        )
    try:
        driver = _run_of(
            pipeline, DRIVER, env={PIPELINE_VARIABLE: variable(named)}, resources=resources, grace_s=pipeline.grace_s
        )
        return replace(driver, checkpoint=pipeline.checkpoint, priority=pipeline.priority)
    except BrokenRules as error:
        raise InvalidSpec(
            (f"{pipeline.name}: {error}, together with the one in which its steps reach its pod",)
        ) from error
    except InvalidSpec as error:
        raise InvalidSpec((f"{pipeline.name}: {error.problems[0]}",)) from error


def _run_of(pipeline: Pipeline, what: str, *, env: Mapping[str, str], resources: Resources, grace_s: float) -> Training:
    """Return a run of Fairlead's own program with the pipeline's files, image and variables."""
    return Training(
        name=f"{pipeline.name}-{what}",
        run=COMMAND,
        team=pipeline.team,
        labels=pipeline.labels,
        image=pipeline.image,
        environment=pipeline.environment,
        workdir=pipeline.workdir,
        setup=pipeline.setup,
        env={**pipeline.env, **env},
        secrets=pipeline.secrets,
        resources=resources,
        kubernetes=pipeline.kubernetes,
        grace_s=grace_s,
        launch=Launch.EXEC,
    )


def _steps_problem(pipeline: Pipeline, driver: Training, to: str) -> str | None:
    """Return why runs of steps cannot read the driver's files; None if they can."""
    if not pipeline.has_children:
        return None
    if is_url(to):
        return None
    ours = mount_at(driver, to)
    for name, step in pipeline.steps.items():
        if step.program is not None and mount_at(step.program, to) != ours:
            key = "training" if step.sweep is None else "sweep.trial"
            return (
                f"steps.{name}.{key}.kubernetes: it does not mount the volume of {to} as the pipeline does; leave the "
                "key out, and the step has the pipeline's, or mount it there too."
            )
    return None
