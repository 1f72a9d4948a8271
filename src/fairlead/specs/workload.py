"""The common interface of the specs of workloads of all kinds."""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeVar, cast

LABELS_MOST = 50
# Variable with the pipeline if its driver is a pod. Here, since admission checks every run for it.
PIPELINE_VARIABLE = "FAIRLEAD_PIPELINE"


class Kind(StrEnum):
    """The kinds of specs, each by the name of its class; a kind that is added from outside has a name of its own.

    The last three are templates in other specs, of which trials and steps are made.
    """

    TRAINING = "Training"
    REPLICA = "Replica"
    WORKSPACE = "Workspace"
    SERVING = "Serving"
    SWEEP = "Sweep"
    PIPELINE = "Pipeline"
    FEDERATION = "Federation"
    TEAM = "Team"
    POOL = "Pool"
    SIMULATION = "Simulation"
    FLEET = "Fleet"
    DATASET = "Dataset"
    TRIAL = "Trial"
    STEP_TRAINING = "StepTraining"
    STEP_SWEEP = "StepSweep"


class WorkloadSpec(Protocol):
    """A spec that a cluster stores as a workload: a run with pods, or a parent with children.

    Attributes:
        name: Unique among the unfinished workloads of its team.
        team: Team that owns it.
        labels: Labels by which users select it.
        kind: What it is, by which code tells kinds apart that does not import their classes.
    """

    kind: ClassVar[str]

    @property
    def name(self) -> str: ...

    @property
    def team(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...


Spec = TypeVar("Spec", bound=WorkloadSpec)


def renamed(spec: Spec, name: str, team: str | None = None) -> Spec:
    """Return a spec with another name, and another team if one is given.

    Raises:
        BrokenRules: The name is invalid for the spec.
    """
    # A protocol cannot declare that it is a dataclass.
    value = cast(Any, spec)
    return cast(Spec, replace(value, name=name, team=spec.team if team is None else team))
