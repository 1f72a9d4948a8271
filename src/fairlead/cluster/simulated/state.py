"""All that a simulated cluster knows, as plain data: what is saved is exactly this."""

import heapq
import math
from dataclasses import dataclass, field
from enum import StrEnum

from fairlead.cluster.port import EventRecord
from fairlead.cluster.simulated.faults import Fault
from fairlead.cluster.simulated.programs import OnTerm, Program
from fairlead.specs.team import Team
from fairlead.state.plan import Event
from fairlead.state.snapshot import Completed, Node, Pod, Progress, Workload


class Due(StrEnum):
    """What the queue holds for a time to come."""

    START = "start"
    END = "end"
    LEAVE = "leave"
    KILL = "kill"
    FAULT = "fault"


@dataclass(slots=True)
class Run:
    """A live pod from within.

    Attributes:
        held_s: Work that the checkpoint it started from holds.
        ends_at: When its work is done; None before it starts and when it never ends by itself.
        kill_at: When SIGKILL comes.
    """

    workload_uid: str
    pod_uid: str
    index: int
    program: Program
    held_s: float = 0.0
    started_at: float | None = None
    ends_at: float | None = None
    notice_at: float | None = None
    kill_at: float = math.inf

    def work_s(self, now: float) -> float:
        """Work done so far, that of earlier starts up to their checkpoint included."""
        if self.started_at is None:
            return self.held_s
        if self.notice_at is not None and self.program.on_term is OnTerm.CHECKPOINT:
            now = min(now, self.notice_at)
        limit = self.program.duration_s
        if self.program.hangs_after_s is not None:
            limit = min(limit, self.program.hangs_after_s)
        return max(self.held_s, min(self.held_s + max(0.0, now - self.started_at), limit))

    def saved_s(self, now: float) -> float:
        """Work that the newest regular checkpoint holds."""
        every = self.program.checkpoint_s
        return self.held_s if every is None else max(self.held_s, count(self.work_s(now), every) * every)

    def active_at(self, now: float) -> float | None:
        """Last sign of progress: a step, or without steps any output until it hangs."""
        if self.started_at is None:
            return None
        work = self.work_s(now)
        if self.program.step_s is not None:
            work = max(self.held_s, count(work, self.program.step_s) * self.program.step_s)
        return self.started_at + work - self.held_s

    def progress(self, now: float) -> Progress | None:
        """What rank 0 last said; None when the program reports nothing or has not begun."""
        step_s = self.program.step_s
        if step_s is None or self.started_at is None:
            return None
        total = self.program.duration_s
        saved = count(self.saved_s(now), step_s)
        return Progress(
            step=count(self.work_s(now), step_s),
            total_steps=count(total, step_s) if math.isfinite(total) else None,
            throughput=1.0 / step_s,
            throughput_unit="steps/s",
            checkpoint_step=saved or None,
            resumed_step=count(self.held_s, step_s) or None,
            updated_at=self.active_at(now) or 0.0,
        )


@dataclass(slots=True)
class State:
    """Tables and their indexes.

    Attributes:
        workloads: By uid, in order of submission.
        names: Unfinished workloads by team and name.
        active: Workloads that a snapshot shows.
        pods: By workload and uid, also those that have ended.
        runs: The live pods.
        live: Live pods of each workload, in order of creation.
        on_node: Live pods of each node, in order of creation.
        reporting: Live pods whose progress is looked at.
        saved_s: Work that the newest checkpoint of each workload holds.
        queue: A heap of (time, sequence, what, pod uid, fault).
        completed: The newest runs that succeeded.
        num_starts: How often each pod's ranks began, by pod.
    """

    now: float
    nodes: dict[str, Node]
    teams: tuple[Team, ...] = ()
    completed: tuple[Completed, ...] = ()
    workloads: dict[str, Workload] = field(default_factory=dict)
    names: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    active: dict[str, None] = field(default_factory=dict)
    pods: dict[str, dict[str, Pod]] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
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

    def push(self, at: float, due: Due, uid: str, fault: Fault | None = None) -> None:
        """Have something happen at a time."""
        self.sequence += 1
        heapq.heappush(self.queue, (at, self.sequence, due, uid, fault))

    def record(self, workload: Workload, event: Event, at: float) -> None:
        """Keep an event."""
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

    def has_namesake(self, workload: Workload) -> bool:
        """Whether another unfinished workload has the name."""
        return bool(self.names.get(_name(workload), set()) - {workload.uid})

    def take_name(self, workload: Workload) -> None:
        self.names.setdefault(_name(workload), set()).add(workload.uid)

    def release_name(self, workload: Workload) -> None:
        holders = self.names.get(_name(workload))
        if holders is not None:
            holders.discard(workload.uid)
            if not holders:
                del self.names[_name(workload)]


def _name(workload: Workload) -> tuple[str, str]:
    return workload.spec.team, workload.spec.name


def count(work_s: float, every_s: float) -> int:
    """Whole multiples of ``every_s``, forgiving the rounding of sums of times."""
    return int(work_s / every_s + 1e-6)
