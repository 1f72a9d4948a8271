"""Faults of a simulation, beyond what programs do themselves. A fault without its target does nothing."""

import signal as signals

from fairlead.frozen import dataclass
from fairlead.state.snapshot import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRank:
    """A signal ends one rank; as in a real pod, the pod's other ranks are ended for it."""

    pod_uid: str
    rank: int
    signal: int = signals.SIGKILL
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LosePod:
    """The pod and all its ranks vanish, and nobody knows how they ended."""

    pod_uid: str
    message: str = "it vanished"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusePod:
    """A quota has no room for the pod; one that has started is counted already, and stays."""

    pod_uid: str
    message: str = "a quota has no room for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseNode:
    """The node is not ready any more and every pod on it is lost."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnNode:
    """The node is ready again, and empty."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WarnNode:
    """The node says that it is about to be taken away, in so many seconds."""

    node: str
    why: str
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveNode:
    """The node is there no more, nor is any pod on it."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddNode:
    """A node comes, in place of any of its name."""

    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionNode:
    """The node's MIG manager has carried out the layout that was asked of it, or could not."""

    node: str
    layout: str
    works: bool = True


Fault = KillRank | LosePod | RefusePod | LoseNode | ReturnNode | WarnNode | RemoveNode | AddNode | PartitionNode
