"""The things that the specs of all workloads have in common, whatever their kind."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

LABELS_MOST = 50
# The variable that holds the pipeline where its driver is a pod. Here, since whoever admits a run looks for it.
PIPELINE_VARIABLE = "FAIRLEAD_PIPELINE"


class WorkloadSpec(Protocol):
    """A spec that a cluster keeps as a workload: a run with pods, or a parent with children.

    Attributes:
        name: Unique among the unfinished workloads of its team.
        team: Whose it is.
        labels: By which people select it.
    """

    @property
    def name(self) -> str: ...

    @property
    def team(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...


Spec = TypeVar("Spec", bound=WorkloadSpec)


def renamed(spec: Spec, name: str, team: str | None = None) -> Spec:
    """Return a spec under another name, and for another team where one is given.

    Raises:
        BrokenRules: A spec cannot have that name.
    """
    # A protocol cannot say that it is a dataclass.
    value = cast(Any, spec)
    return cast(Spec, replace(value, name=name, team=spec.team if team is None else team))
