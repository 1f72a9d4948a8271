"""Faults of a simulation, beyond what programs do themselves. A fault without its target does nothing."""

import signal as signals

from fairlead.frozen import dataclass
from fairlead.state.snapshot import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRank:
    """A signal ends one rank; as in a real pod, the pod's other ranks are terminated too."""

    pod_uid: str
    rank: int
    signal: int = signals.SIGKILL
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LosePod:
    """The pod and all its ranks vanish, without known exits."""

    pod_uid: str
    message: str = "it vanished"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusePod:
    """A quota rejects the pod; a pod that has started is counted already, and stays."""

    pod_uid: str
    message: str = "a quota has no room for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseNode:
    """The node becomes not ready, and every pod on it is lost."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnNode:
    """The node becomes ready again, without pods."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRunsOnNode:
    """All ranks of all runs with a pod on the node are killed at once, which does not show where the cause was."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBackNode:
    """A node that was taken out is tested, and given back."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WarnNode:
    """The node announces that it will be taken away in so many seconds."""

    node: str
    why: str
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveNode:
    """The node is removed with all its pods."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddNode:
    """A node is added, replacing any node of the same name."""

    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionNode:
    """The node's MIG manager has applied the requested layout, or failed to."""

    node: str
    layout: str
    works: bool = True


Fault = (
    KillRank
    | LosePod
    | RefusePod
    | LoseNode
    | ReturnNode
    | KillRunsOnNode
    | GiveBackNode
    | WarnNode
    | RemoveNode
    | AddNode
    | PartitionNode
)
