"""The present state: nodes, workloads and pods, as frozen values. Times are Unix seconds."""

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeGuard

from fairlead.frozen import dataclass
from fairlead.specs.sharing import Sharing
from fairlead.specs.training import Training
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.reasons import Reason
from fairlead.state.scheduling_policy import DEFAULT, SchedulingPolicy
from fairlead.state.split_probing import Probing, in_force

if TYPE_CHECKING:  # a command that lists runs needs none of them, and making a dataclass takes a millisecond
    from typing_extensions import TypeVar

    from fairlead.specs.serving import Replica
    from fairlead.specs.team import Team
    from fairlead.state.capacity_requests import CapacityRequest, Growth
    from fairlead.state.demand import Demand
    from fairlead.state.engine_endpoints import EngineEndpoint
    from fairlead.state.idleness import Idleness
    from fairlead.state.measurements import Measurement
    from fairlead.state.partitions import PartitionedNode
    from fairlead.state.pool_demand import PoolDemand, Standby

    # A ``Workload`` without further words is one with pods; Python itself knows defaults from 3.13 on.
    Spec_co = TypeVar("Spec_co", bound=WorkloadSpec, covariant=True, default=Training)
else:
    from typing import TypeVar

    Spec_co = TypeVar("Spec_co", covariant=True)

WHOLE_MILLI = 1000


class Phase(StrEnum):
    """A phase of a workload's life; the legal moves are in ``fairlead.policy.kinds.lifecycle``."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    STOPPING = "Stopping"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"

    @property
    def is_final(self) -> bool:
        """Nothing more happens unless a person asks for it."""
        return self in _FINAL


class Intent(StrEnum):
    """The user's intent for a workload."""

    RUN = "run"
    SUSPEND = "suspend"
    STOP = "stop"
    DELETE = "delete"


class PodPhase(StrEnum):
    """A phase of a pod's life. Succeeded, Failed, Lost and Refused mean that none of its processes is alive.

    One that is Refused never came to be: a quota of the cluster has no room for it now.
    """

    CREATED = "Created"
    STARTING = "Starting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    LOST = "Lost"
    REFUSED = "Refused"

    @property
    def is_final(self) -> bool:
        """None of the pod's processes is alive, and none will be."""
        return self in _FINAL_OF_PODS


# Asked for each member of each gang at each pass.
_FINAL = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED})
_FINAL_OF_PODS = frozenset({PodPhase.SUCCEEDED, PodPhase.FAILED, PodPhase.LOST, PodPhase.REFUSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device of a node, or a part of one that is handed out by itself.

    Attributes:
        milli: Which part of a device it is, in thousandths; less than 1000 for a MIG slice or a time slice.
        divisible: Several runs may share it; a device of Kubernetes, or a part, goes to one.
        shared_by: How parts are kept apart, as far as somebody says; see ``sharing``.
    """

    uuid: str
    model: str
    memory_bytes: int
    milli: int = 1000
    divisible: bool = True
    shared_by: Sharing | None = None

    @property
    def sharing(self) -> Sharing | None:
        """Return how runs with a part of it are kept apart; time slices where nobody says. None if whole."""
        if self.shared_by is None and (self.divisible or self.milli < WHOLE_MILLI):
            return Sharing.TIME_SLICING
        return self.shared_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A mark of a node that keeps runs away which do not tolerate it; the effect is NoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A node is about to be taken away.

    Attributes:
        why: As the node says it.
        within_s: How long what runs there has from now, in seconds; None when nobody knows.
        gpus_only: The node stays, and its GPUs are taken away: who holds none of them may stay too.
    """

    why: str
    within_s: float | None = None
    gpus_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine and what it can hold in all.

    Attributes:
        ready: It answers, and what runs there can be relied on.
        closed: Why it takes no new pods although it is ready, such as "cordoned"; None when it takes them.
        labels: What a run may ask of it.
        taints: What a run must tolerate to go there.
        leaving: That it is about to be taken away; None when nobody says so.
        price_per_hour: Dollars for the whole node; None when nobody says.
    """

    name: str
    cpu_milli: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    ready: bool = True
    closed: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    leaving: Leaving | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """The place of one rank's main thread when its run hung, as its stack told.

    Attributes:
        place: The innermost call of the program's own code, as in "load_batch (train.py:42)"; None if unknown.
        waits_in: The call in which it waited for other ranks, as in "all_reduce"; None when it waited for none.
        step: The step that it had reported last; None when it reports none.
    """

    place: str | None = None
    waits_in: str | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """The end of one rank.

    Attributes:
        exit_code: Exit code; None when a signal ended it.
        signal: Signal number; None when it exited by itself.
        at: When it ended.
        out_of_memory: The kernel killed it at the pod's memory limit.
        tail: Last lines of its error output, at most 40.
        hang: Where it was when its run hung; None when it ended otherwise, or nobody looked.
    """

    rank: int
    exit_code: int | None = None
    signal: int | None = None
    at: float
    out_of_memory: bool = False
    tail: tuple[str, ...] = ()
    hang: Whereabouts | None = None

    @property
    def ok(self) -> bool:
        """Return whether the program says it succeeded."""
        return self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAsked:
    """A step of a pipeline that its driver wants to be there as a run.

    Attributes:
        index, item: Of a step that is run for each item of a list; None for others.
    """

    step: str
    index: int | None = None
    item: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftSeen:
    """The finding of a run that looks for drift.

    Attributes:
        run: The number of the pipeline's run from whose end rows count; 0 for from the beginning of the file.
        looked: The hash by which the files that it has looked at are told from other content.
        begin: Where rows count from, in bytes; None where that could not be found.
        fresh: The mean loss of a fresh model, as known now.
        is_due: Whether to train.
        said: The reason for that, or for not; or why it cannot be looked.
    """

    run: int
    looked: str = ""
    begin: int | None = None
    fresh: float | None = None
    is_due: bool = False
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The last report of a run about itself, rank 0 first. Steps are counts of completed steps.

    Attributes:
        asks: Of a pipeline's driver in a pod: the steps whose runs it waits for.
        seen: Of a run that watches data: the hash of what that holds.
        drift: Of a run that looks for drift: what it has found.
        saves_failed: Saves of this start that failed since one was complete; None while nobody has asked for one.
        save_failed_step: The step of the last of them; None when the last save went well.
        save_problem: Why that one failed.
        memory_step: Step of the newest checkpoint in the memory of the nodes; None where they hold none.
        checkpoint_interval_s: Seconds between saves that the run chose; None where it chooses none, or has not yet.
        checkpoint_interval_why: What it chose that by.
        saving_s: Seconds of this start in which the program waited for its checkpoints; None while it makes none.
        loading_s: Seconds of this start in which it waited for data, of what it takes from ``run.batches``.
        probe_attempt: The start whose split ``probe_step_s`` was measured with; None before any was.
        probe_step_s: Seconds that a step took there.
    """

    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    throughput: float | None = None
    throughput_unit: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    checkpoint_step: int | None = None
    checkpoint_at: float | None = None
    memory_step: int | None = None
    resumed_step: int | None = None
    stopped_step: int | None = None
    saves_failed: int | None = None
    save_failed_step: int | None = None
    save_problem: str | None = None
    checkpoint_interval_s: float | None = None
    checkpoint_interval_why: str | None = None
    saving_s: float | None = None
    loading_s: float | None = None
    probe_attempt: int | None = None
    probe_step_s: float | None = None
    asks: tuple[StepAsked, ...] = ()
    seen: str | None = None
    drift: DriftSeen | None = None
    updated_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The share of its node that a pod holds while it lives."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu_uuids: tuple[str, ...] = ()
    gpu_milli: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The greatest use of one node by a pod, or by any pod of a run.

    Attributes:
        memory_bytes: At any moment.
        cpu_milli: Thousandths of a core in its busiest minute, or over all of a shorter life.
        ranks: Ranks on the node.
    """

    memory_bytes: int
    cpu_milli: int
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The amounts that a run asks for by what others of its kind used; None leaves what its spec says.

    Attributes:
        why: Where they come from, as a sentence.
    """

    memory_bytes: int | None = None
    cpu_milli: int | None = None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The speed of a run beside others on the same GPUs.

    Attributes:
        kind: Its own: runs of one kind slow others down alike.
        beside: The kinds of those others, sorted; none while it was alone.
        since: When they were first seen together; once the rate is known, since when it is.
        rate: Its throughput there, as it reported it; None until it has had time to settle.
    """

    kind: str
    beside: tuple[str, ...] = ()
    since: float
    rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A place that is kept for one member of a gang until it starts there."""

    node: str
    grant: Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The place that a round of sharing gave a run.

    Attributes:
        at: When that round was.
        seats: Where its members go, in their order; none for one that stays where it is, or goes nowhere.
        beside: Uids of the others that may be on the same GPUs.
    """

    at: float
    seats: tuple[Reservation, ...] = ()
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The time for which nothing has been heard of a pod that is to start.

    Attributes:
        since: When something of it was heard last, or it was created.
        until: Up to when that is known; None where it is always known.
        what: Who owes the next step, as a clause.
    """

    since: float
    until: float | None = None
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One member of a gang on one node.

    Attributes:
        uid: ``<workload uid>-<attempt>-<index>``, so that creating it twice is impossible.
        index: Node rank within the gang.
        attempt: Which start of the gang it belongs to, from 0.
        terminating_since: When it was told to stop; None while it may run.
        active_at: Last sign of progress (a step reported, or output when it reports none).
        heard_at: Up to when its silence is known; None where that is always now.
        exits: How its ranks ended; complete when ``phase`` is Succeeded or Failed.
        message: What the cluster says of it, such as why it could not start, or does not while it is still tried.
        ready: Of a replica, whether it answered its probe when last asked.
        usage: The most that it used, once it is over; None where nobody measured it.
        silence: That nothing is heard of its start; None once it has started, and while what it waits for is known.
    """

    uid: str
    workload_uid: str
    attempt: int
    index: int
    node: str
    grant: Grant
    phase: PodPhase
    created_at: float
    started_at: float | None = None
    terminating_since: float | None = None
    active_at: float | None = None
    heard_at: float | None = None
    exits: tuple[RankExit, ...] = ()
    message: str | None = None
    ready: bool = False
    usage: Usage | None = None
    silence: Silence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The loop's knowledge of a workload.

    Attributes:
        phase: Where it is in its life.
        reason: Why it is there.
        since: When it entered this phase.
        attempt: The gang's current or next start, from 0.
        started_at: When it first started since it was submitted, resumed, suspended, preempted or moved: what
            ``max_duration`` counts from. None before.
        finished_at: When it came to a final phase; None before.
        next_phase: While Stopping, the phase that follows; None otherwise.
        next_reason: While Stopping, the reason for that phase; None otherwise.
        program_failures: Failures of the program so far.
        disruptions: Failures of the platform in a row without progress between them.
        last_failure: The failure that caused the latest restart.
        failed_step: The highest step reached at any failure.
        retry_at: While Restarting, or Pending after a quota refused its pods, no start before this time; else None.
        refusals: How often a quota refused its pods since it last ran; an elastic gang keeps that, and grows no more.
        asked_at: While Pending, since when nodes to come are asked for; None while they are not.
        ask_again_at: They did not come, and are not asked for before this time.
        taken_by: While it waits after it was preempted, by whom and why; None otherwise.
        raised: Points of priority that it gained by waiting before its latest start; it keeps them.
        seats: While it moves, the places that are kept for its members, in their order.
        moved_at: When it was last told to move; None when it never was.
        moved_cost_s: What that move cost at most, in seconds of the whole cluster.
        nodes: How many nodes the current or latest start of an elastic gang has; None before, and for every other gang.
        active_s: Seconds that it was Running before its current phase, saved or not; waiting is not in it.
        ran_s: Seconds that it ran before its current start, as far as it saved; of an elastic gang times its nodes.
        room_since: While an elastic gang runs, since when it could grow; None while it could not.
        warning: What is wrong although it runs; None while nothing is.
        warned_at: When that was last told.
        detail: Of a parent, what its kind keeps besides, a frozen dataclass; None before its first judgement and for a
            run with pods.
        halted: Of a parent, the uids of the children that were unfinished when it was stopped; they resume with it.
        is_kept_small: Of an elastic gang that left idle what it held, that it starts with its fewest nodes and grows no
            more, until it is resumed.
        spot_there: Of a run with ``spot: auto``, whether spot had room for it when last looked at; None until it had.
        spot_since: Since when that is so; None until spot had room for it.
        requests: Of a run with ``auto`` resources, what it asks for; None until that is decided.
        used: The most that any of its pods used, of those that are over; None where nobody measured it.
        paces: Of a run that may be colocated, how fast it went beside whom; the newest last.
        assigned: Where the last round of sharing sent it; None where none has had anything to say of it.
        avoids: Nodes that have not started its pods since it last ran; it goes elsewhere where there is room.
        probing: Of a run with several splits to try, what was found of them; None before the first is over.
    """

    phase: Phase
    reason: Reason
    since: float
    attempt: int = 0
    started_at: float | None = None
    finished_at: float | None = None
    next_phase: Phase | None = None
    next_reason: Reason | None = None
    program_failures: int = 0
    disruptions: int = 0
    last_failure: Reason | None = None
    failed_step: int | None = None
    retry_at: float | None = None
    refusals: int = 0
    asked_at: float | None = None
    ask_again_at: float | None = None
    raised: int = 0
    taken_by: str | None = None
    seats: tuple[Reservation, ...] = ()
    moved_at: float | None = None
    moved_cost_s: float = 0.0
    nodes: int | None = None
    room_since: float | None = None
    ran_s: float = 0.0
    active_s: float = 0.0
    warning: Reason | None = None
    warned_at: float | None = None
    detail: object | None = None
    halted: tuple[str, ...] = ()
    is_kept_small: bool = False
    spot_there: bool | None = None
    spot_since: float | None = None
    requests: Requests | None = None
    used: Usage | None = None
    paces: tuple[Pace, ...] = ()
    assigned: Assignment | None = None
    avoids: tuple[str, ...] = ()
    probing: Probing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(Generic[Spec_co]):
    """One workload, as the cluster keeps it: a leaf has pods, a parent has children, nothing has both.

    Attributes:
        version: Rises with every change of intent or status; a plan made on an older one is dropped.
        progress: What it last said of itself; None when it said nothing.
        parent: The uid of the workload that submitted it; None when a person did.
        idle: That it leaves idle what it holds; None where it does not, or nobody measures that.
    """

    uid: str
    spec: Spec_co
    intent: Intent
    status: Status
    version: int
    created_at: float
    progress: Progress | None = None
    parent: str | None = None
    idle: "Idleness | None" = None

    @property
    def gang(self: "Workload") -> Training:
        """The spec with the size and the split of the current or latest start; before the first of an elastic gang, its
        smallest."""
        if self.spec.most_nodes is None:
            if self.spec.parallel is None or not self.spec.parallel.candidates:
                return self.spec
            return replace(self.spec, parallel=in_force(self.spec, self.status.probing))
        return self.spec.at(self.status.nodes or self.spec.nodes)

    def is_told_by(self, pod: Pod) -> bool:
        """Return whether a pod of the run belongs into a snapshot.

        It does while it lives, and while it is of the current attempt. While the run is Restarting the attempt before
        does too: how its pods ended is still to be told when the next one is counted.
        """
        status = self.status
        if not pod.phase.is_final or pod.attempt == status.attempt:
            return True
        return status.phase is Phase.RESTARTING and pod.attempt == status.attempt - 1


AnyWorkload: TypeAlias = Workload[WorkloadSpec]
LEAVES = (Training,)
"""The classes of the specs of workloads that have pods."""


def is_leaf(workload: AnyWorkload) -> TypeGuard[Workload]:
    """Tell whether a workload has pods, and no children."""
    return isinstance(workload.spec, LEAVES)


def is_replica(spec: object) -> "TypeGuard[Replica]":
    """Tell whether a leaf is a replica of an endpoint, without the module of these, which few runs need."""
    return type(spec).__name__ == "Replica"


def with_requests(spec: Training, requests: Requests | None) -> Training:
    """Return a run's spec with what was decided that it asks for."""
    if requests is None or (requests.memory_bytes is None and requests.cpu_milli is None):
        return spec
    asked = spec.resources
    memory = asked.memory_bytes if requests.memory_bytes is None else requests.memory_bytes
    cpu = asked.cpu_milli if requests.cpu_milli is None else requests.cpu_milli
    return replace(spec, resources=replace(asked, memory_bytes=memory, cpu_milli=cpu))


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A run that succeeded.

    Attributes:
        took_s: From its first start to its end.
        at: When it ended.
        used: The most that any of its pods used; None where nobody measured it.
        paces: Of one that could be colocated, how fast it went beside whom.
    """

    team: str
    name: str
    took_s: float
    at: float = 0.0
    used: Usage | None = None
    paces: tuple[Pace, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The needs of a pod, as somebody else has found them from what pods of the same program use.

    Attributes:
        name: Of the kind of runs that it is meant for.
        by: Whose it is, to be named to people.
        memory_bytes, cpu_milli: None where nothing is said of it.
    """

    team: str
    name: str
    by: str
    memory_bytes: int | None = None
    cpu_milli: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Micro-dollars that were spent up to now.

    Attributes:
        by_team: In this calendar month.
        by_project: In this calendar month, by team and project, of those projects that have a budget at least.
        by_run: In all, by the uids of unfinished runs.
    """

    by_team: Mapping[str, int] = field(default_factory=dict)
    by_project: Mapping[tuple[str, str], int] = field(default_factory=dict)
    by_run: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a decision may look at.

    Attributes:
        workloads: Leaves: those with pods, or that wait for them.
        pods: Of the workloads; and what others hold of a node, as one pod of no workload.
        growth: What may bring more nodes; None where nothing does.
        asked: Of the runs for which it is asked.
        teams: Those that somebody described; any other has weight 1, no guarantee and no quota.
        completed: Runs that succeeded, as far as the cluster remembers them; in any order.
        rules: By which those that wait are started.
        spending: What was spent, where somebody has a limit; None where it is not known.
        parents: Workloads that have children.
        ended: Children of the parents, of any kind, that are over and in neither of the other two.
        demand: What is asked of endpoints, by the uid of theirs; those of which nothing is known are missing.
        unaddressed: Why endpoints have no address, by the uid of theirs; those that have one are missing.
        measurements: Answers to the queries by which endpoints scale, by the uid of theirs.
        engine_endpoints: What engines say of the endpoints that they serve, by the uid of theirs.
        pools: Those that are to have nodes ahead of time, with the demand for them.
        standby: The nodes that they are to have, as it was decided last.
        partitioned: Nodes whose GPUs may be partitioned anew.
        recommended: For kinds of runs of which one is still to be given what it asks for.
    """

    nodes: tuple[Node, ...]
    workloads: tuple[Workload, ...]
    pods: tuple[Pod, ...]
    growth: "Growth | None" = None
    asked: "tuple[CapacityRequest, ...]" = ()
    teams: "tuple[Team, ...]" = ()
    completed: tuple[Completed, ...] = ()
    rules: SchedulingPolicy = DEFAULT
    spending: Spending | None = None
    parents: tuple[AnyWorkload, ...] = ()
    ended: tuple[AnyWorkload, ...] = ()
    demand: "Mapping[str, Demand]" = field(default_factory=dict)
    measurements: "Mapping[str, Measurement]" = field(default_factory=dict)
    unaddressed: Mapping[str, str] = field(default_factory=dict)
    engine_endpoints: "Mapping[str, EngineEndpoint]" = field(default_factory=dict)
    pools: "tuple[PoolDemand, ...]" = ()
    standby: "tuple[Standby, ...]" = ()
    partitioned: "tuple[PartitionedNode, ...]" = ()
    recommended: tuple[Recommendation, ...] = ()
