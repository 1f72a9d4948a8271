"""The command by which a run is known to carry out a pipeline."""

from fairlead.errors import Conflict
from fairlead.specs.training import Training
from fairlead.specs.workload import WorkloadSpec

DRIVER = "fairlead.control.pipelines.driver"


def is_pipeline(spec: WorkloadSpec) -> bool:
    """Return whether a workload carries out a pipeline: as a run, or as the parent of steps that are runs."""
    return type(spec).__name__ == "Pipeline" or is_driver(spec)


def is_driver(spec: WorkloadSpec) -> bool:
    """Return whether a workload is the run that carries out a pipeline."""
    return isinstance(spec, Training) and f" -m {DRIVER} " in spec.run


def refuse_elsewhere(spec: Training) -> None:
    """Refuse a pipeline on a cluster that is not this machine.

    Raises:
        Conflict: It is one.
    """
    if is_driver(spec):
        raise Conflict(
            f"{spec.name}: a Pipeline runs on this machine only so far; leave `--context` and `--namespace` out, or "
            "submit its steps as runs of their own."
        )
