"""Nodes whose GPUs may be partitioned anew, how far each is on its way, and the steps of it. Times are Unix seconds."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from fairlead.frozen import dataclass
from fairlead.specs.pool import Pool


class ManagerState(StrEnum):
    """The word of a node's MIG manager on the layout that was asked of it last."""

    UNKNOWN = ""
    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"


class PartitionAction(StrEnum):
    """A step of partitioning a node anew."""

    CORDON = "Cordon"
    RELABEL = "Relabel"
    REVERT = "Revert"
    UNCORDON = "Uncordon"
    GIVE_UP = "GiveUp"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """A change that is under way, as the node itself keeps it.

    Attributes:
        to: The name of the layout that it is to have.
        back: That of the layout that it had.
        since: When it was cordoned, or later when the layout was asked for.
    """

    to: str
    back: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedNode:
    """A node whose GPUs may be partitioned anew.

    Attributes:
        node: Its name.
        pool: Has the layouts to choose from, in ``partitions``.
        layout: The name of the one that its devices have; None where they have none of them.
        requested: The name of the one that was asked of it last; None where none was.
        said: What its MIG manager makes of that; UNKNOWN where a device plugin hands out GPUs, which says nothing.
        change: None while it rests.
        failed: When layouts failed there last, by name.
    """

    node: str
    pool: Pool
    layout: str | None = None
    requested: str | None = None
    said: ManagerState = ManagerState.UNKNOWN
    change: PartitionChange | None = None
    failed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStep:
    """The next step of one node; ``why`` says it in a sentence.

    Attributes:
        to: The layout on the way to which it is; for UNCORDON and GIVE_UP the one that it has.
        failed: A layout that failed there; None for none.
    """

    node: str
    action: PartitionAction
    to: str
    why: str
    failed: str | None = None
