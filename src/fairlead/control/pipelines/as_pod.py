"""A pipeline as a run on Kubernetes: its driver is a pod, which has a place that outlives it."""

from dataclasses import replace

from fairlead.cluster.kubernetes.client.workdir_stores import store_of
from fairlead.cluster.kubernetes.manifests.pod_environment import DRIVER
from fairlead.cluster.kubernetes.manifests.pods import PYTHON
from fairlead.control.pipelines.packing import packed
from fairlead.control.pipelines.submission import pipeline_of
from fairlead.errors import ClusterError, Conflict
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.pipeline import VARIABLE, Pipeline
from fairlead.specs.training import ENV_VALUE, Training


def refuse_runs(pipeline: Pipeline) -> None:
    """Refuse a pipeline that a cluster cannot carry out for what its steps are.

    Raises:
        Conflict: Some of them are runs of their own.
    """
    if pipeline.has_children:
        raise Conflict(
            f"{pipeline.name}: steps that are runs of their own (`training`, `sweep`) are for this machine so far; "
            "give `--cluster local`, or make them commands."
        )


def in_pods(driver: Training) -> Training:
    """The run that carries a pipeline out as a pod, of the one that does so here.

    Raises:
        Conflict: Nothing that outlives its pods could hold what its steps return, or it is too long for its pod.
    """
    pipeline = pipeline_of(driver)
    if pipeline is None:
        raise ClusterError(f"{driver.name}: its pipeline is no longer kept on this machine; submit its file again.")
    to = pipeline.checkpoint.to
    advice = (
        "give `checkpoint.to` a URL such as s3://bucket/pipelines, or a directory on a volume that `kubernetes` "
        "mounts, such as a PersistentVolumeClaim"
    )
    if to is None:
        raise Conflict(f"{driver.name}: what steps return has to outlive the pods that run them: {advice}.")
    if store_of(driver) is None:
        raise Conflict(
            f"{driver.name}: checkpoint.to: {to} is on no volume of the pipeline that outlives its pods; {advice}."
        )
    value = packed(pipeline)
    if len(value) > ENV_VALUE.max_length:
        raise Conflict(
            f"{driver.name}: its steps take {len(value)} characters even when packed, and {ENV_VALUE.max_length} reach "
            "a pod; move long commands into files of `workdir`, or divide it into several pipelines."
        )
    try:
        return replace(driver, run=f"{PYTHON} {DRIVER}", env={**driver.env, VARIABLE: value})
    except BrokenRules as error:
        raise Conflict(
            f"{driver.name}: {error}, together with the one in which the pipeline itself reaches its pod; give fewer "
            "or shorter ones."
        ) from error
