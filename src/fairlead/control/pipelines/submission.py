"""Converts a pipeline to the workload that runs it, and back: the program is the driver, the spec is stored separately.

A pipeline of commands alone is a single run, the driver's. A pipeline with steps that are runs of their own is a parent
whose children are the driver and those runs.
"""

import contextlib
import hashlib
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from fairlead.cluster.client import ClusterClient
from fairlead.cluster.local.home import Home
from fairlead.control.pipelines import journal
from fairlead.control.pipelines.command import DRIVER, is_driver
from fairlead.errors import ClusterError, InvalidSpec
from fairlead.policy.kinds.parents import child_name
from fairlead.policy.kinds.steps import Task, TaskPhase
from fairlead.specs.formats.packing import unpacked
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.pipeline import DRIVER as DRIVER_NAME
from fairlead.specs.pipeline import Pipeline, map_runs
from fairlead.specs.training import Launch, Training
from fairlead.specs.workload import PIPELINE_VARIABLE, WorkloadSpec
from fairlead.state.plan import child_uid
from fairlead.state.snapshot import AnyWorkload, Phase, is_leaf

DRIVER_CPU_MILLI = 10


def store_of(home: Home) -> Path:
    """Return the directory of artefacts of this machine's pipelines."""
    return home.artefacts


def as_workload(pipeline: Pipeline, home: Home) -> Training | Pipeline:
    """Return the workload that runs a pipeline on this machine.

    Raises:
        ClusterError: Its spec cannot be stored.
    """
    if not pipeline.has_children:
        return as_training(pipeline, home)

    def placed(run: Training) -> Training:
        return replace(
            run,
            team=pipeline.team,
            workdir=run.workdir if run.workdir is not None else pipeline.workdir,
            environment=run.environment if run.environment is not None else pipeline.environment,
        )

    driver = replace(as_training(pipeline, home), name=f"{pipeline.name}-{DRIVER_NAME}")
    if pipeline.resources.cpu_milli is None:
        # The driver mostly waits for the runs, which cannot use the resources that it holds.
        driver = replace(driver, resources=replace(driver.resources, cpu_milli=DRIVER_CPU_MILLI))
    return replace(map_runs(pipeline, placed), driver=driver)


def as_training(pipeline: Pipeline, home: Home) -> Training:
    """Return the run of a pipeline's driver on this machine, after storing the spec by the hash of its content.

    Raises:
        ClusterError: The spec cannot be stored.
    """
    text = to_json(pipeline)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    place = home.path / "pipelines" / f"{digest[:24]}.json"
    try:
        if not place.exists():
            place.parent.mkdir(mode=0o700, exist_ok=True)
            temporary = place.with_name(f".{place.name}.{os.getpid()}")
            temporary.write_text(text)
            temporary.replace(place)
    except OSError as error:
        raise ClusterError(f"{place}: the pipeline cannot be kept: {error.strerror or error}") from error
    words = (sys.executable, "-m", DRIVER, str(place), str(store_of(home)))
    return Training(
        name=pipeline.name,
        run=shlex.join(words),
        team=pipeline.team,
        labels=pipeline.labels,
        image=pipeline.image,
        workdir=pipeline.workdir,
        setup=pipeline.setup,
        environment=pipeline.environment,
        env=pipeline.env,
        secrets=pipeline.secrets,
        resources=pipeline.resources,
        checkpoint=pipeline.checkpoint,
        kubernetes=pipeline.kubernetes,
        priority=pipeline.priority,
        grace_s=pipeline.grace_s,
        launch=Launch.EXEC,
    )


def driver_of(spec: WorkloadSpec) -> Training | None:
    """Return the run of a pipeline's driver; None if the workload is not a pipeline."""
    if isinstance(spec, Pipeline):
        return spec.driver
    return spec if isinstance(spec, Training) and is_driver(spec) else None


def pipeline_of(spec: WorkloadSpec) -> Pipeline | None:
    """Return the spec of the pipeline that a workload runs; None if it is not a pipeline, or its spec is unreadable or
    gone."""
    driver = driver_of(spec)
    if driver is None:
        return None
    if PIPELINE_VARIABLE in driver.env:
        with contextlib.suppress(InvalidSpec):
            return unpacked(driver.env[PIPELINE_VARIABLE])
        return None
    place = Path(shlex.split(driver.run)[3])
    try:
        submitted = from_json(place.read_text())
    except FileNotFoundError:
        return None
    return submitted if isinstance(submitted, Pipeline) else None


def shown_spec(spec: WorkloadSpec) -> WorkloadSpec:
    """Return the spec that a person wrote: of a pipeline's run the pipeline, if its spec can be read."""
    pipeline = pipeline_of(spec)
    if pipeline is None or (pipeline.has_children and isinstance(spec, Training)):
        return spec
    return replace(pipeline, name=spec.name)


def shown_phase(task: Task, workload: AnyWorkload) -> str:
    """Return the phase of a task; one that was running when its run ended, or was suspended, is Interrupted."""
    state = workload.status.phase
    is_interrupted = task.phase is TaskPhase.RUNNING and (state.is_final or state is Phase.SUSPENDED)
    return "Interrupted" if is_interrupted else task.phase.value


def driver_uid(cluster: ClusterClient, workload: AnyWorkload) -> str | None:
    """Return the uid of the run of a pipeline's driver; None if it does not exist."""
    if is_leaf(workload):
        return workload.uid
    name = child_name(workload, DRIVER_NAME)
    return next((child.uid for child in cluster.children(workload.uid) if child.spec.name == name), None)


def progress_of(pipeline: Pipeline, workload: AnyWorkload, directory: Path) -> journal.StepTasks:
    """Return the progress of a pipeline.

    Args:
        directory: Directory of the workload.
    """
    if isinstance(workload.spec, Pipeline):
        directory = directory.with_name(child_uid(workload.uid, DRIVER_NAME))
    return journal.read(directory / "files" / journal.NAME, pipeline)
