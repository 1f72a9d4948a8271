"""The complete state of a simulated cluster, as plain data; exactly this is saved."""

import heapq
from dataclasses import dataclass, field
from enum import StrEnum

from fairlead.cluster.port import EventRecord
from fairlead.cluster.simulated.accounts import Accounts
from fairlead.cluster.simulated.data_reads import DataReads
from fairlead.cluster.simulated.faults import Fault
from fairlead.cluster.simulated.runs import SimulatedPod
from fairlead.specs.pool import Pool
from fairlead.specs.simulation import Interference
from fairlead.specs.team import Team
from fairlead.state.capacity_requests import CapacityRequest, Growth
from fairlead.state.node_health import Histories
from fairlead.state.partitions import PartitionedNode, PartitionStep
from fairlead.state.plan import Event
from fairlead.state.pool_demand import PoolDemand, Standby
from fairlead.state.scheduling_policy import DEFAULT, SchedulingPolicy
from fairlead.state.snapshot import AnyWorkload, Completed, Intent, Node, Pod, Workload, is_leaf


class Due(StrEnum):
    """The kind of a scheduled entry of the queue."""

    START = "start"
    END = "end"
    LEAVE = "leave"
    KILL = "kill"
    FAULT = "fault"
    READ = "read"


@dataclass(slots=True)
class SimulationState:
    """Tables and their indexes.

    Attributes:
        workloads: By uid, in order of submission.
        children: Children of each parent that has any, in order of submission.
        names: Unfinished workloads by team and name.
        active: Workloads that a snapshot shows.
        stale: Workloads that changed, or whose pods did, since the last snapshot.
        pods: By workload and uid, terminated ones included.
        runs: The live pods.
        live: Live pods of each workload, in order of creation.
        on_node: Live pods of each node, in order of creation.
        reporting: Live pods whose progress is computed for snapshots.
        saved_s: Work that the newest checkpoint of each workload holds.
        queue: A heap of (time, sequence, kind, pod uid, fault).
        completed: The newest runs that succeeded.
        num_starts: How often each pod's ranks began, by pod.
        num_created: Number of pods so far.
        interference: Slowdown of pods beside others; None for none.
        reads: The store, the caches and those that read; None where reading takes no time.
        rules, growth, asked, pools, standby: As in a snapshot.
        pool_of: Pools of nodes whose GPUs may be repartitioned, by name of the node.
        partitioned: Those nodes that exist, as in a snapshot, by name.
        partition_steps: All steps of them so far, with their times.
        node_health: Histories of nodes, as in a snapshot.
        node_since: When each node arrived.
        version: Rises with every change that a snapshot shows.
    """

    now: float
    nodes: dict[str, Node]
    teams: tuple[Team, ...] = ()
    rules: SchedulingPolicy = DEFAULT
    completed: tuple[Completed, ...] = ()
    workloads: dict[str, AnyWorkload] = field(default_factory=dict)
    children: dict[str, dict[str, None]] = field(default_factory=dict)
    names: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    active: dict[str, None] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)
    pods: dict[str, dict[str, Pod]] = field(default_factory=dict)
    runs: dict[str, SimulatedPod] = field(default_factory=dict)
    live: dict[str, dict[str, None]] = field(default_factory=dict)
    on_node: dict[str, dict[str, None]] = field(default_factory=dict)
    reporting: dict[str, None] = field(default_factory=dict)
    saved_s: dict[str, float] = field(default_factory=dict)
    events: dict[int, EventRecord] = field(default_factory=dict)
    events_of: dict[str, list[int]] = field(default_factory=dict)
    queue: list[tuple[float, int, Due, str, Fault | None]] = field(default_factory=list)
    sequence: int = 0
    last_event: int = 0
    last_workload: int = 0
    num_starts: dict[str, int] = field(default_factory=dict)
    num_created: int = 0
    interference: Interference | None = None
    reads: DataReads | None = None
    growth: Growth | None = None
    capacity_requests: tuple[CapacityRequest, ...] = ()
    pools: tuple[PoolDemand, ...] = ()
    standby: tuple[Standby, ...] = ()
    pool_of: dict[str, Pool] = field(default_factory=dict)
    partitioned: dict[str, PartitionedNode] = field(default_factory=dict)
    partition_steps: list[tuple[float, PartitionStep]] = field(default_factory=list)
    node_health: Histories = field(default_factory=dict)
    node_since: dict[str, float] = field(default_factory=dict)
    accounts: Accounts = field(default_factory=Accounts)
    version: int = 0

    def touch(self) -> None:
        """Record a change that a snapshot shows."""
        self.version += 1

    def run_of(self, uid: str) -> Workload:
        """Return the workload of a uid, which has pods."""
        workload = self.workloads[uid]
        assert is_leaf(workload), "only leaves have pods"
        return workload

    def keep(self, workload: AnyWorkload) -> None:
        """Store a workload at its new version and update the indexes."""
        self.workloads[workload.uid] = workload
        if workload.status.phase.is_final:
            self.release_name(workload)
        else:
            self.take_name(workload)
        self.changed(workload.uid)

    def changed(self, uid: str) -> None:
        """Record a change of a workload or one of its pods."""
        workload = self.workloads[uid]
        is_wanted = workload.intent in (Intent.RUN, Intent.DELETE)
        if is_wanted or self.live[uid] or not workload.status.phase.is_final:
            self.active[uid] = None
        else:
            self.active.pop(uid, None)
        self.stale.add(uid)
        self.touch()

    def push(self, at: float, due: Due, uid: str, fault: Fault | None = None) -> None:
        """Schedule an entry of the queue."""
        self.sequence += 1
        heapq.heappush(self.queue, (at, self.sequence, due, uid, fault))

    def record(self, workload: AnyWorkload, event: Event, at: float) -> None:
        """Record an event."""
        self.last_event += 1
        self.events[self.last_event] = EventRecord(
            id=self.last_event,
            at=at,
            workload_uid=workload.uid,
            run=workload.spec.name,
            type=event.type,
            reason=event.reason,
        )
        self.events_of[workload.uid].append(self.last_event)

    def has_namesake(self, workload: AnyWorkload) -> bool:
        """Return whether another unfinished workload has the name."""
        return bool(self.names.get(_name(workload), set()) - {workload.uid})

    def take_name(self, workload: AnyWorkload) -> None:
        self.names.setdefault(_name(workload), set()).add(workload.uid)

    def release_name(self, workload: AnyWorkload) -> None:
        holders = self.names.get(_name(workload))
        if holders is not None:
            holders.discard(workload.uid)
            if not holders:
                del self.names[_name(workload)]


def _name(workload: AnyWorkload) -> tuple[str, str]:
    return workload.spec.team, workload.spec.name
