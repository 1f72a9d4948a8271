"""The two interfaces to a cluster, and what every adapter guarantees; ``tests/cluster/contract.py`` holds it to that.

``Cluster`` is what loops need, and ``WorkloadStore`` what people and programs ask of its workloads; a process may have
one without the other. Values that come back are frozen, never change and may be kept. What a call has kept survives the
death of the process that made it, and of the cluster's own. Calls raise ``fairlead.errors.ClusterError`` when the
cluster itself is in trouble, and never anything of a library below. An instance belongs to one thread; any number of
instances, in any processes, may use one cluster at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from fairlead.frozen import dataclass
from fairlead.specs.workload import WorkloadSpec

if TYPE_CHECKING:
    from fairlead.specs.training import Training
    from fairlead.state.plan import Plan
    from fairlead.state.reasons import Reason
    from fairlead.state.snapshot import AnyWorkload, Intent, Snapshot, Workload

Spec = TypeVar("Spec", bound=WorkloadSpec)

# Of runs that succeeded, the newest are told for what they say of those to come.
MOST_COMPLETED = 500


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
    """The port of loops: look, change, wait.

    A pod that was created is started at most once, whatever dies meanwhile, and exactly once unless it is told to stop
    before. It ends by itself, by its stop notice, or is Lost when nobody can say how its ranks ended; its phase only
    moves forwards, and once final the pod never changes again.
    """

    def snapshot(self) -> Snapshot:
        """Nodes, workloads with their pods, at one instant.

        Workloads are those that are unfinished, have a live pod, or are finished with the intent RUN (resume it) or
        DELETE. Pods are all those of a workload's current attempt, and live ones of any attempt; while it is
        Restarting also those of the attempt before, as far as they are known. Of parents all children are told.
        Teams and runs that succeeded, at most ``MOST_COMPLETED``, are told at least while others wait.
        """
        ...

    def apply(self, plan: Plan) -> tuple[bool, ...]:
        """Carry out each change whole or not at all; False where it was stale and was dropped.

        A change is stale when the workload is gone or not at the change's version, when it forgets a workload that has
        a live pod or a child, or when it would make a workload unfinished, or submit a child, whose name another
        unfinished one has by now. Every
        change that is applied raises the version, so applying the same plan twice does nothing the second time. Changes
        are independent of each other: one that is stale holds up none.

        Creating a pod that was created before does nothing, and so does a notice to a pod that is over or unknown,
        submitting a child that is there, and asking something of a child that is gone or wants it already. A
        pod's notice is seen in ``terminating_since`` from then on, and SIGKILL comes at the earliest time that any
        notice has named. Forgetting removes the workload, its pods, its events and its files, and frees its name.
        """
        ...

    def wait(self, timeout_s: float) -> None:
        """Return when something has changed since this instance last waited (or began), or after the timeout.

        So whoever looks, decides and waits in turn misses no change, whoever made it and however long that took.
        """
        ...


class WorkloadStore(Protocol):
    """The port of people and programs: keep a workload, want something of it, look at all."""

    def submit(self, spec: Spec) -> Workload[Spec]:
        """Keep a new workload, Pending, wanted to run, with the event ``Submitted``; no uid is ever given twice.

        Raises:
            NameTaken: An unfinished workload of that team has the name; nothing was kept.
        """
        ...

    def set_intent(self, uid: str, intent: Intent) -> AnyWorkload:
        """Record what the user wants of a workload now; the loop does the rest.

        Another intent than before raises the version; the same one changes nothing.

        Raises:
            NotFound: No such workload.
            NameTaken: The intent is RUN, and another workload that is unfinished has its name; nothing was changed.
        """
        ...

    def update(self, uid: str, spec: Training, *, version: int) -> Workload:
        """Give a workload another spec, with the event ``Changed``; its pods to come are of the new one.

        It raises the version, and what was decided for the old spec is void; the spec that is there already changes
        nothing. The event may come with the loop's next look.

        Args:
            version: Of the workload as it was seen; another one by now is a Conflict.

        Raises:
            NotFound: No such workload.
            Conflict: It has changed since, or ``fairlead.policy.kinds.spec_updates`` says no; nothing was changed.
        """
        ...

    def workloads(self, *, limit: int | None = None) -> tuple[AnyWorkload, ...]:
        """All workloads of all kinds, newest first, finished ones and children too."""
        ...

    def children(self, uid: str) -> tuple[AnyWorkload, ...]:
        """Children of a workload that are there, finished ones too, oldest first; none of one that has pods."""
        ...

    def events(self, uid: str | None = None, *, after: int = 0) -> tuple[EventRecord, ...]:
        """Events with ids above ``after``, oldest first, of one workload or of all; none of an unknown one.

        Ids are above 0, rise in the order of recording, and are never given twice.
        """
        ...
