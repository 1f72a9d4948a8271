"""The history of nodes: their failures, shared by all runs, and nodes that were taken out. Times are Unix seconds."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from fairlead.frozen import dataclass

MOST_RECENT = 16
"""Failures of a node that its history lists: those that weigh most. All of them are in its sum."""


class FailureCause(StrEnum):
    """The cause of a failure, as it is counted for nodes."""

    XID = "xid"
    ECC = "ecc"
    NETWORK = "network"
    HEAT = "heat"
    SYSTEM = "system"
    UNREADY = "unready"
    EVICTED = "evicted"
    NOT_STARTED = "not started"
    PREFLIGHT = "preflight"
    HANG = "hang"
    PROGRAM = "program"
    UNKNOWN = "unknown"


OF_HARDWARE = frozenset({
    FailureCause.XID, FailureCause.ECC, FailureCause.NETWORK, FailureCause.HEAT, FailureCause.SYSTEM,
    FailureCause.UNREADY,
})  # fmt: skip
"""Causes that a node or its detector reports. Programs can bring about all others."""
PROGRAM_XIDS = frozenset({13, 31, 43, 45, 68, 69})
"""XIDs that programs bring about (https://docs.nvidia.com/deploy/xid-errors/, user application errors)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A failure of a gang, or of a node by itself, that is entered in the histories of nodes.

    Attributes:
        team, run: The run that failed; empty for a node that reports a fault by itself.
        nodes: The node that failed; or, where that is unknown, all nodes of the gang.
        is_charged: Whether it speaks against its nodes; otherwise it is only listed, as for a program that fails.
    """

    at: float
    cause: FailureCause
    nodes: tuple[str, ...]
    team: str = ""
    run: str = ""
    is_charged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """A failure in the history of a node; of a cause that programs can bring about, one for each run.

    Attributes:
        at: The time of the newest one.
        share: The part of it that the node is charged with: 1 if the node is known, else its part among the gang, and
            0 if it does not speak against the node.
    """

    at: float
    cause: FailureCause
    team: str = ""
    run: str = ""
    share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFault:
    """A fault that a node has now, as a detector reports it.

    Attributes:
        name: The type of the condition, or the taint.
        cause: None for a node that is only about to be taken away.
        since: The time of the report; None if unknown.
        message: The detector's own words, from outside and cut.
        is_certain: Whether it is surely the node's, so that it counts as a failure of it.
    """

    name: str
    detector: str
    cause: FailureCause | None
    since: float | None = None
    message: str = ""
    is_certain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutage:
    """A node that was taken out.

    Attributes:
        since: When it was taken out.
        until: When it is given back by itself, as in a simulation; None if somebody has to test it and give it back.
        why: The reason, with what it costs.
    """

    since: float
    until: float | None = None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    """The history of one node.

    Attributes:
        node: Its name.
        since: The beginning of its service, or its return after a repair.
        failures: The sum of its shares in failures, halving in ``HALF_LIFE_S`` of the risk model; as of ``at``.
        by_team: The part of it that runs of each team account for by causes that programs can bring about.
        recent: Its newest failures, oldest first.
        was_out: Whether it was taken out before, so that it is more likely to be unreliable.
        out: Set while it is taken out.
    """

    node: str
    since: float
    failures: float = 0.0
    at: float = 0.0
    by_team: Mapping[str, float] = field(default_factory=dict)
    recent: tuple[NodeFailure, ...] = ()
    was_out: bool = False
    out: NodeOutage | None = None


Histories = Mapping[str, NodeHistory]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWithdrawal:
    """A node to take out, and why, in a sentence with the price."""

    node: str
    why: str
