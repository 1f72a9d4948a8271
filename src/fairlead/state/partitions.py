"""Nodes whose GPUs may be repartitioned, the progress of each change, and its steps. Times are Unix seconds."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from fairlead.frozen import dataclass
from fairlead.specs.pool import Pool


class ManagerState(StrEnum):
    """The state that a node's MIG manager reports for the last requested layout."""

    UNKNOWN = ""
    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"


class PartitionAction(StrEnum):
    """A step of repartitioning a node."""

    CORDON = "Cordon"
    RELABEL = "Relabel"
    REVERT = "Revert"
    UNCORDON = "Uncordon"
    GIVE_UP = "GiveUp"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """A change in progress, as recorded on the node.

    Attributes:
        to: The name of the new layout.
        back: The name of the previous layout.
        since: When the node was cordoned, or, later, when the layout was requested.
    """

    to: str
    back: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedNode:
    """A node whose GPUs may be repartitioned.

    Attributes:
        node: Its name.
        pool: Its pool, with the available layouts in ``partitions``.
        layout: The name of the current layout; None if its devices match none.
        requested: The name of the last requested layout; None if there was none.
        manager_state: The report of its MIG manager on that; UNKNOWN if its GPUs are of a device plugin, without one.
        change: None while no change is in progress.
        failed: When layouts last failed there, by name.
    """

    node: str
    pool: Pool
    layout: str | None = None
    requested: str | None = None
    manager_state: ManagerState = ManagerState.UNKNOWN
    change: PartitionChange | None = None
    failed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStep:
    """The next step of one node; ``why`` explains it in a sentence.

    Attributes:
        to: The target layout; for UNCORDON and GIVE_UP the current one.
        failed: A layout that failed there; None for none.
    """

    node: str
    action: PartitionAction
    to: str
    why: str
    failed: str | None = None
