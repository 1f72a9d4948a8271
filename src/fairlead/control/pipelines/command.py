"""Recognizes runs that are drivers of pipelines by their command."""

from fairlead.specs.training import Training
from fairlead.specs.workload import PIPELINE_VARIABLE, Kind, WorkloadSpec

DRIVER = "fairlead.control.pipelines.driver"
UNSEEN = "which steps would run is decided by its pod, where their results lie; `fairlead run` says of each why it runs"


def is_pipeline(spec: WorkloadSpec) -> bool:
    """Return whether a workload is a pipeline: a driver's run, or the parent of steps that are runs."""
    return spec.kind == Kind.PIPELINE or is_driver(spec)


def is_driver(spec: WorkloadSpec) -> bool:
    """Return whether a workload is the run of a pipeline's driver."""
    return isinstance(spec, Training) and (f" -m {DRIVER} " in spec.run or PIPELINE_VARIABLE in spec.env)
