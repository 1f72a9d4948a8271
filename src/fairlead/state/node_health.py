"""The history of nodes: their failures, shared by all runs, and nodes that were taken out. Times are Unix seconds."""

from collections.abc import Mapping

from fairlead.frozen import dataclass
from fairlead.state.reasons import Code

MOST_RECENT = 16
"""Failures of a node that its history lists; older ones are in its sum only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A failure of a gang that is charged to nodes.

    Attributes:
        run: The name of the run, as its team knows it.
        cause: The reason code of the failure.
        nodes: The node that failed; or, where that is unknown, all nodes of the gang.
    """

    at: float
    run: str
    cause: Code
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """A failure in the history of a node.

    Attributes:
        share: The part of it that the node is charged with: 1 if the node is known, else its part among the gang.
    """

    at: float
    run: str
    cause: Code
    share: float


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
        recent: Its newest failures, oldest first.
        was_out: Whether it was taken out before, so that it is more likely to be unreliable.
        out: Set while it is taken out.
    """

    node: str
    since: float
    failures: float = 0.0
    at: float = 0.0
    recent: tuple[NodeFailure, ...] = ()
    was_out: bool = False
    out: NodeOutage | None = None


Histories = Mapping[str, NodeHistory]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWithdrawal:
    """A node to take out, and why, in a sentence with the price."""

    node: str
    why: str
