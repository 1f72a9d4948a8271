"""Reads an object of a kind without a life cycle, such as a Team: its spec and its status."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Generic, TypeVar

from fairlead.cluster.kubernetes.manifests.spec_objects import read_object
from fairlead.errors import InvalidSpec
from fairlead.frozen import dataclass

Spec = TypeVar("Spec")


@dataclass(frozen=True, slots=True, kw_only=True)
class KindObject(Generic[Spec]):
    """One object as it was read.

    Attributes:
        observed: The generation that its status describes; 0 before the first.
        state: What the operator keeps in its status.
        held: Of a team: the amounts that its runs hold, as its status has them.
        spec: None if it breaks a rule that the API server lacks; ``problem`` says which.
    """

    key: str
    version: int
    name: str
    uid: str
    generation: int
    is_leaving: bool
    observed: int
    conditions: tuple[Mapping[str, Any], ...]
    spec: "Spec | None"
    problem: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)
    held: Mapping[str, Any] = field(default_factory=dict)

    def is_true(self, type_: str) -> bool:
        """Return whether a condition is true."""
        return any(
            condition.get("type") == type_ and condition.get("status") == "True" for condition in self.conditions
        )

    def has_condition(self, type_: str) -> bool:
        """Return whether its status has a condition, true or not."""
        return any(condition.get("type") == type_ for condition in self.conditions)


def read_kind(kind: type[Spec], content: dict[str, Any]) -> KindObject[Spec]:
    """Read an object of the API server."""
    metadata, status = content["metadata"], content.get("status") or {}
    spec, problem = None, ""
    try:
        parsed = read_object(content)
        assert isinstance(parsed, kind), "the path holds no other kind"
        spec = parsed
    except InvalidSpec as error:
        problem = error.problems[0]
    return KindObject(
        key=metadata["name"],
        version=int(metadata["resourceVersion"]),
        name=metadata["name"],
        uid=metadata["uid"],
        generation=int(metadata.get("generation") or 0),
        is_leaving="deletionTimestamp" in metadata,
        observed=int(status.get("observedGeneration") or 0),
        conditions=tuple(status.get("conditions") or ()),
        spec=spec,
        problem=problem,
        state=status.get("state") or {},
        held=status.get("held") or {},
    )
