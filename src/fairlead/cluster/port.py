"""The one interface to a cluster, and what every adapter guarantees; ``tests/cluster/contract.py`` holds it to that."""

from dataclasses import dataclass
from typing import Protocol

from fairlead.specs.training import Training
from fairlead.state.plan import Plan
from fairlead.state.reasons import Reason
from fairlead.state.snapshot import Intent, Snapshot, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """An event as the cluster keeps it; ``id`` rises in the order of recording."""

    id: int
    at: float
    workload_uid: str
    run: str
    type: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of output of one rank.

    Attributes:
        rank: The rank, or -1 for the set-up step and the pod itself.
        stream: ``o`` for standard output, ``e`` for standard error.
    """

    at: float
    attempt: int
    rank: int
    stream: str
    text: str


class Cluster(Protocol):
    """What the loops and the faces need of a cluster.

    Values that come back are frozen and may be kept. Every call may be repeated. Calls raise
    ``fairlead.errors.ClusterError`` when the cluster itself is in trouble, and never anything of a library below.
    """

    def snapshot(self) -> Snapshot:
        """Nodes, workloads that are unfinished or asked for something, and their pods, at one instant.

        A finished workload is asked for something when its intent is RUN (resume it) or DELETE.
        """
        ...

    def apply(self, plan: Plan) -> tuple[bool, ...]:
        """Carry out each change whole or not at all; False where it was stale and was dropped.

        A change is stale when the workload is gone or no longer at the change's version. Applying the same plan twice
        does nothing the second time.
        """
        ...

    def submit(self, spec: Training) -> Workload:
        """Keep a new workload, Pending.

        Raises:
            NameTaken: An unfinished workload of that team has the name.
        """
        ...

    def set_intent(self, uid: str, intent: Intent) -> Workload:
        """Record what the user wants of a workload now; the loop does the rest.

        Raises:
            NotFound: No such workload.
        """
        ...

    def workloads(self, *, limit: int | None = None) -> tuple[Workload, ...]:
        """All workloads, newest first, finished ones too."""
        ...

    def events(self, uid: str | None = None, *, after: int = 0) -> tuple[EventRecord, ...]:
        """Events with ids above ``after``, oldest first, of one workload or of all."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Return when something may have changed, or after the timeout."""
        ...
