"""A pipeline as what a cluster keeps: the run whose pod is its driver, or a Pipeline whose steps are runs too."""

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
    """The pipeline as a cluster carries it out by an object of its kind, once and now.

    Raises:
        Conflict: Nothing that outlives its pods could hold what its steps return, or it is too long for its pod.
    """
    labels = {**pipeline.labels, OF_PIPELINE: pipeline.labels.get(OF_PIPELINE, pipeline.name)}
    try:
        return with_driver(replace(pipeline, labels=labels, schedule=None, on=None))
    except InvalidSpec as error:
        raise Conflict(error.problems[0]) from error


def as_standing(pipeline: Pipeline) -> Pipeline:
    """The pipeline as an object that stays on a cluster and is run by itself, with the driver that its runs will have.

    Raises:
        Conflict: A cluster cannot carry it out.
    """
    try:
        once = with_driver(replace(pipeline, schedule=None, on=None))
        return replace(with_driver(pipeline), driver=once.driver)
    except InvalidSpec as error:
        raise Conflict(error.problems[0]) from error


def in_pods(driver: Training) -> Training:
    """The run that carries a pipeline out as a pod, of the one that does so here.

    Raises:
        Conflict: Nothing that outlives its pods could hold what its steps return, or it is too long for its pod.
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
