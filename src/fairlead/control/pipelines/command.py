"""The command by which a run is known to carry out a pipeline."""

from typing import TypeGuard

from fairlead.errors import Conflict
from fairlead.specs.training import Training
from fairlead.specs.workload import WorkloadSpec

DRIVER = "fairlead.control.pipelines.driver"


def is_pipeline(spec: WorkloadSpec) -> TypeGuard[Training]:
    """Return whether a workload is a run that carries out a pipeline."""
    return isinstance(spec, Training) and f" -m {DRIVER} " in spec.run


def refuse_elsewhere(spec: Training) -> None:
    """Refuse a pipeline on a cluster that is not this machine.

    Raises:
        Conflict: It is one.
    """
    if is_pipeline(spec):
        raise Conflict(
            f"{spec.name}: a Pipeline runs on this machine only so far; leave `--context` and `--namespace` out, or "
            "submit its steps as runs of their own."
        )
