"""The two ports to a cluster, with the guarantees of every adapter, which ``tests/cluster/contract.py`` verifies.

``Cluster`` serves control loops, ``WorkloadStore`` people and programs that use workloads; a process may have one
without the other. Returned values are frozen, never change and may be kept. What a call has stored survives the death
of the calling process and that of the cluster's own. Calls raise ``fairlead.errors.ClusterError`` when the cluster
itself fails, and never an exception of an underlying library. An instance belongs to one thread; any number of
instances, in any processes, may use one cluster concurrently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from fairlead.frozen import dataclass
from fairlead.specs.workload import WorkloadSpec

if TYPE_CHECKING:
    from fairlead.state.plan import Plan
    from fairlead.state.reasons import Reason
    from fairlead.state.snapshot import AnyWorkload, Intent, Snapshot, Workload

Spec = TypeVar("Spec", bound=WorkloadSpec)

# Of runs that succeeded, only the newest are reported, as evidence for predictions about later ones.
MOST_COMPLETED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """A stored event; ``id`` rises in the order of recording."""

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
    """The port of control loops: observe, change, wait.

    A created pod is started at most once, whatever crashes in between, and exactly once unless it is notified to stop
    before. It terminates by itself or by its stop notice, or becomes Lost when the end of its ranks cannot be
    determined; its phase only moves forwards, and a final pod never changes again.
    """

    def snapshot(self) -> Snapshot:
        """Return nodes and workloads with their pods at one instant.

        Workloads are those that are unfinished, have a live pod, or are finished with the intent RUN (resume it) or
        DELETE. Pods are all those of a workload's current attempt that were not replaced, and live ones of any; while
        it is Restarting also those of the previous attempt, as far as they are known. For parents all children are
        included. Teams and succeeded runs, at most ``MOST_COMPLETED``, are included at least while other workloads are
        pending.
        """
        ...

    def apply(self, plan: Plan) -> tuple[bool, ...]:
        """Apply each change atomically; return False for each that was stale and dropped.

        A change is stale when the workload is gone or not at the change's version, when it forgets a workload that has
        a live pod or a child, or when it would make a workload unfinished, or submit a child, whose name another
        unfinished one has by now. Every applied change raises the version, so that applying the same plan again does
        nothing. Changes are independent: a stale one does not hold up the others.

        Creating an existing pod again does nothing, and neither does a notice to a final or unknown pod, submitting an
        existing child, or setting an intent of a child that is gone or already has it. A pod's notice shows in
        ``terminating_since`` from then on, and SIGKILL comes at the earliest time that any notice has named. Forgetting
        removes the workload, its pods, its events and its files, and frees its name.
        """
        ...

    def wait(self, timeout_s: float) -> None:
        """Return after any change since this instance last waited (or was created), or after the timeout.

        A caller that observes, decides and waits in turn therefore misses no change, whoever made it and however long
        it took.
        """
        ...


class WorkloadStore(Protocol):
    """The port of people and programs: submit workloads, set their intents, read them."""

    def submit(self, spec: Spec) -> Workload[Spec]:
        """Store a new workload, Pending with the intent RUN, with the event ``Submitted``; uids are never reused.

        Raises:
            NameTaken: An unfinished workload of that team has the name; nothing was stored.
        """
        ...

    def set_intent(self, uid: str, intent: Intent) -> AnyWorkload:
        """Record the user's intent for a workload; the control loop acts on it.

        A different intent raises the version; the same one changes nothing.

        Raises:
            NotFound: No such workload.
            NameTaken: The intent is RUN, and another unfinished workload has the name; nothing was changed.
        """
        ...

    def update(self, uid: str, spec: Spec, *, version: int) -> Workload[Spec]:
        """Replace the spec of a run or sweep, with the event ``Changed``; later pods use the new spec.

        This raises the version and voids decisions made for the old spec; an equal spec changes nothing. The event may
        come with the loop's next pass.

        Args:
            version: Version of the workload as the caller saw it; a different one by now is a Conflict.

        Raises:
            NotFound: No such workload.
            Conflict: It has changed since, or ``fairlead.policy.kinds.spec_updates`` refuses; nothing was changed.
        """
        ...

    def workloads(self, *, limit: int | None = None) -> tuple[AnyWorkload, ...]:
        """Return all workloads of all kinds, newest first, finished ones and children included."""
        ...

    def children(self, uid: str) -> tuple[AnyWorkload, ...]:
        """Return the existing children of a workload, finished ones included, oldest first; none for a leaf."""
        ...

    def events(self, uid: str | None = None, *, after: int = 0) -> tuple[EventRecord, ...]:
        """Return events with ids above ``after``, oldest first, of one workload or of all; empty for an unknown one.

        Ids are above 0, rise in the order of recording, and are never reused.
        """
        ...
