"""Converts a pipeline to a cluster object: a run whose pod is the driver, or a Pipeline whose steps are runs too."""

from dataclasses import replace

from fairlead.cluster.kubernetes.manifests.pipeline_driver import COMMAND, place_problem, variable, with_driver
from fairlead.control.pipelines.submission import pipeline_of
from fairlead.errors import ClusterError, Conflict, InvalidSpec
from fairlead.policy.kinds.standing_pipeline import OF_PIPELINE
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.pipeline import Pipeline
from fairlead.specs.training import Training
from fairlead.specs.workload import PIPELINE_VARIABLE


def as_object(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline as a cluster object of its kind that runs once, immediately.

    Raises:
        Conflict: No storage that outlives its pods can hold the outputs of its steps, or it is too long for its pod.
    """
    labels = {**pipeline.labels, OF_PIPELINE: pipeline.labels.get(OF_PIPELINE, pipeline.name)}
    try:
        return with_driver(replace(pipeline, labels=labels, schedule=None, on=None))
    except InvalidSpec as error:
        raise Conflict(error.problems[0]) from error


def as_standing(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline as a persistent cluster object that starts runs by its triggers, with the driver of its runs.

    Raises:
        Conflict: A cluster cannot run it.
    """
    try:
        once = with_driver(replace(pipeline, schedule=None, on=None))
        return replace(with_driver(pipeline), driver=once.driver)
    except InvalidSpec as error:
        raise Conflict(error.problems[0]) from error


def in_pods(driver: Training) -> Training:
    """Convert the local run of a pipeline's driver to one that runs as a pod.

    Raises:
        Conflict: No storage that outlives its pods can hold the outputs of its steps, or it is too long for its pod.
    """
    pipeline = pipeline_of(driver)
    if pipeline is None:
        raise ClusterError(f"{driver.name}: its pipeline is no longer kept on this machine; submit its file again.")
    problem = place_problem(pipeline, driver)
    if problem is not None:
        raise Conflict(f"{driver.name}: {problem}")
    try:
        return replace(driver, run=COMMAND, env={**driver.env, PIPELINE_VARIABLE: variable(pipeline)})
    except InvalidSpec as error:
        raise Conflict(f"{driver.name}: {error.problems[0]}") from error
    except BrokenRules as error:
        raise Conflict(
            f"{driver.name}: {error}, together with the one in which the pipeline itself reaches its pod; give fewer "
            "or shorter ones."
        ) from error
