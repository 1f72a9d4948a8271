"""The observed state: nodes, workloads and pods, as frozen values. Times are Unix seconds.

See decision 1.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeGuard

from fairlead.frozen import dataclass
from fairlead.specs.gang import GangSpec
from fairlead.specs.sharing import Sharing
from fairlead.specs.training import Training
from fairlead.specs.workload import Kind, WorkloadSpec
from fairlead.state.phases import Intent as Intent
from fairlead.state.phases import Phase as Phase
from fairlead.state.reasons import Reason
from fairlead.state.scheduling_policy import DEFAULT, SchedulingPolicy
from fairlead.state.slow_ranks import SlowRankReport
from fairlead.state.split_probing import Probing, in_force

if TYPE_CHECKING:  # a command that lists runs needs none of them, and defining a dataclass takes a millisecond
    from typing_extensions import TypeVar

    from fairlead.specs.serving import Replica
    from fairlead.specs.team import Team
    from fairlead.specs.workspace import Workspace
    from fairlead.state.capacity_requests import CapacityRequest, Growth
    from fairlead.state.demand import Demand
    from fairlead.state.engine_endpoints import EngineEndpoint
    from fairlead.state.engine_searches import EngineSearch
    from fairlead.state.idleness import Idleness
    from fairlead.state.measurements import Measurement
    from fairlead.state.node_health import Histories, NodeFault
    from fairlead.state.partitions import PartitionedNode
    from fairlead.state.pool_demand import PoolDemand, Standby
    from fairlead.state.preparations import Preparation
    from fairlead.state.site_clients import ClientReport
    from fairlead.state.site_rollouts import SiteReport

    # ``Workload`` without arguments is one with pods; Python supports defaults of type variables from 3.13 on.
    Spec_co = TypeVar("Spec_co", bound=WorkloadSpec, covariant=True, default=Training)
else:
    from typing import TypeVar

    Spec_co = TypeVar("Spec_co", covariant=True)

WHOLE_MILLI = 1000


class PodPhase(StrEnum):
    """A phase of a pod. In Succeeded, Failed, Lost and Refused none of its processes is alive.

    A Refused pod was never created: a quota of the cluster has no room for it now.
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
        """Return whether none of the pod's processes is alive, and none will be."""
        return self in _FINAL_OF_PODS


# Checked for each pod of each gang at each pass.
_FINAL_OF_PODS = frozenset({PodPhase.SUCCEEDED, PodPhase.FAILED, PodPhase.LOST, PodPhase.REFUSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device of a node, or a part of one that is allocated by itself.

    Attributes:
        milli: The part of a device, in thousandths; less than 1000 for a MIG slice or a time slice.
        divisible: Whether several runs may share it; a device of Kubernetes, or a part, is allocated to one.
        shared_by: How parts are isolated, if known; see ``sharing``.
    """

    uuid: str
    model: str
    memory_bytes: int
    milli: int = 1000
    divisible: bool = True
    shared_by: Sharing | None = None

    @property
    def sharing(self) -> Sharing | None:
        """Return how runs with a part of it are isolated; time slicing if unknown. None if whole."""
        if self.shared_by is None and (self.divisible or self.milli < WHOLE_MILLI):
            return Sharing.TIME_SLICING
        return self.shared_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A mark of a node that repels runs which do not tolerate it; the effect is NoSchedule or NoExecute."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """An announcement that a node will be taken away.

    Attributes:
        why: The reason given by the node.
        within_s: The seconds from now for which its pods may still run; None if unknown.
        gpus_only: Whether only its GPUs are taken away; pods without GPUs may then stay.
    """

    why: str
    within_s: float | None = None
    gpus_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine and its total capacity.

    Attributes:
        ready: Whether it answers, so that its pods can be relied on.
        closed: Why it accepts no new pods although it is ready, such as "cordoned"; None if it accepts them.
        full: Whether it is closed only because it has as many pods as it may.
        labels: Labels that a run may require.
        taints: Taints that a run must tolerate to be placed there.
        leaving: The announcement that it will be taken away; None without one.
        price_per_hour: Dollars for the whole node; None if unknown.
        extended: Other resources of its device plugins, such as network adapters, with their numbers.
    """

    name: str
    cpu_milli: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    ready: bool = True
    closed: str | None = None
    full: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    leaving: Leaving | None = None
    price_per_hour: float | None = None
    extended: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """The position of one rank in the collectives of a process group, by PyTorch's flight recorder.

    Attributes:
        group: The group's description, or its number.
        entered: The number of the last collective that the rank entered, counted from 1 by each rank; 0 for none.
        pending: The number of the first collective that it entered and that has not ended; None for none.
        operation: That collective, its first shape and its types, as in "all_reduce of [4] Float".
        rank: The rank by which the process knows itself, as behind a launcher that starts several; None if unknown.
        place, waits_in: Where its main thread is, as in ``Whereabouts``.
    """

    group: str
    entered: int
    pending: int | None = None
    operation: str | None = None
    rank: int | None = None
    place: str | None = None
    waits_in: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """The location of one rank's main thread when its run hung, from its stack.

    Attributes:
        place: The innermost call of the program's own code, as in "load_batch (train.py:42)"; None if unknown.
        waits_in: The call in which it waited for other ranks, as in "all_reduce"; None if it waited for none.
        step: The last step that it reported; None if it reports none.
        collectives: Its process groups, as far as known; empty without torch.distributed.
    """

    place: str | None = None
    waits_in: str | None = None
    step: int | None = None
    collectives: tuple[GroupProgress, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """The end of one rank.

    Attributes:
        exit_code: Exit code; None if a signal ended it.
        signal: Signal number; None if it exited by itself.
        at: When it ended.
        out_of_memory: Whether the kernel killed it at the pod's memory limit.
        tail: Last lines of its error output, at most 40.
        hang: Its location when its run hung; None if it ended otherwise, or was not examined.
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
        """Return whether the program reported success."""
        return self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAsked:
    """A step of a pipeline that its driver requests as a run.

    Attributes:
        index, item: Set for a step that runs once per item of a list; None for others.
    """

    step: str
    index: int | None = None
    item: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftSeen:
    """The finding of a drift check.

    Attributes:
        run: The number of the pipeline's run after whose end rows count; 0 for the beginning of the file.
        looked: The hash that identifies the content of the files it has examined.
        begin: The offset in bytes from which rows count; None if it could not be found.
        fresh: The mean loss of a fresh model, as known now.
        is_due: Whether to train.
        said: The reason for that decision, or why it cannot be checked.
    """

    run: int
    looked: str = ""
    begin: int | None = None
    fresh: float | None = None
    is_due: bool = False
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The last report of a run, from rank 0 if available. Steps are counts of completed steps.

    Attributes:
        first_step_at: When the start that reported this reported its first step; None before.
        asks: Of a pipeline's driver in a pod: the steps whose runs it waits for.
        seen: Of a run that watches data: the hash of the data.
        drift: Of a run that checks for drift: its finding.
        slow_rank: The rank that computes more slowly than its peers, as the loop has detected it; None without one.
        saves_failed: Failed saves of this start since the last complete one; None before the first save was requested.
        save_failed_step: The step of the last failed save; None if the last save succeeded.
        save_problem: Why that one failed.
        memory_step: Step of the newest checkpoint in the memory of the nodes; None without one.
        checkpoint_interval_s: Seconds between saves that the run chose; None if it chooses none, or has not yet.
        checkpoint_interval_why: The reason for that choice.
        saving_s: Seconds of this start in which the program waited for its checkpoints; None while it makes none.
        loading_s: Seconds of this start in which it waited for data from ``run.batches``.
        probe_attempt: The start whose split ``probe_step_s`` was measured with; None before any measurement.
        probe_step_s: Seconds per step in that start.
        in_place_attempt: The start whose ranks have formed a group that continues in place without some of them; None
            before any.
    """

    step: int | None = None
    first_step_at: float | None = None
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
    in_place_attempt: int | None = None
    asks: tuple[StepAsked, ...] = ()
    seen: str | None = None
    drift: DriftSeen | None = None
    slow_rank: SlowRankReport | None = None
    updated_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The share of its node that a pod holds while it is alive."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu_uuids: tuple[str, ...] = ()
    gpu_milli: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The peak use of one node by a pod, or by any pod of a run.

    Attributes:
        memory_bytes: The maximum at any moment.
        cpu_milli: Thousandths of a core in the busiest minute, or over all of a shorter lifetime.
        ranks: Ranks on the node.
        gpu_memory_bytes: Of the device that was used most; None if not measured.
    """

    memory_bytes: int
    cpu_milli: int
    ranks: int
    gpu_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The requests of a run as derived from the usage of others of its kind; None leaves the value of its spec.

    Attributes:
        why: Their source, as a sentence.
    """

    memory_bytes: int | None = None
    cpu_milli: int | None = None
    gpu_memory_bytes: int | None = None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The speed of a run beside others on the same GPUs.

    Attributes:
        kind: Its own kind: runs of one kind slow others down alike.
        beside: The kinds of the others, sorted; empty while it was alone.
        since: When they were first seen together; once the rate is known, since when it is.
        rate: Its reported throughput there; None until it has settled.
    """

    kind: str
    beside: tuple[str, ...] = ()
    since: float
    rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A place that is reserved for one pod of a gang until it starts there."""

    node: str
    grant: Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The place that a round of sharing assigned to a run.

    Attributes:
        at: The time of that round.
        seats: The places of its pods, in order; empty for a run that stays in place or gets none.
        beside: Uids of the others that may be on the same GPUs.
    """

    at: float
    seats: tuple[Reservation, ...] = ()
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The time without a sign of life from a pod that is to start.

    Attributes:
        since: The time of the last sign of life, or its creation.
        until: The time up to which that is known; None if it is always known.
        what: The component that has to act next, as a clause.
    """

    since: float
    until: float | None = None
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of a gang on one node.

    Attributes:
        uid: ``<workload uid>-<attempt>-<index>``, so that it cannot be created twice; see ``pod_uids``.
        index: Node rank within the gang.
        attempt: The attempt of the gang it belongs to, from 0.
        replacement: How often a pod of that index was lost before in that attempt.
        terminating_since: When its stop notice was sent; None while it may run.
        active_at: Last sign of progress (a step reported, or output when it reports none).
        heard_at: The time up to which its silence is known; None if that is always now.
        exits: The ends of its ranks; complete when ``phase`` is Succeeded or Failed.
        message: The cluster's message on it, such as why it could not start, or does not start yet.
        ready: Of a replica, whether its last probe succeeded.
        usage: Its peak usage, once it is over; None if not measured.
        silence: Set while its start shows no sign of life; None once it has started, and while what it waits for is
            known.
        cluster: Another cluster that carries it out for its engine; None where it is in this one.
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
    cluster: str | None = None
    replacement: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPod:
    """A pod of a gang that was lost while the others went on in place, in the current attempt.

    Attributes:
        index: Its index.
        times: How often a pod of that index was lost, which is the number of its replacement.
        in_a_row: How many of these losses came in a row, each soon after the pod's start.
        steps: The steps that the run had reported at the last losses, oldest first.
        retry_at: No replacement is placed before.
        replaced_at: When the replacement was placed; None before.
    """

    index: int
    times: int
    in_a_row: int
    steps: tuple[int, ...]
    retry_at: float
    replaced_at: float | None = None


class _Printer(Protocol):
    """Prints a value in IPython."""

    def text(self, text: str, /) -> None:
        """Print a text."""
        ...


_FLAT: Mapping[str, object] = {"flat": True}


def _stored(name: str) -> Mapping[str, object]:
    """Return the metadata of a field that is stored under another name; see ``cluster.records``."""
    return {"stored": name}


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterStop:
    """While a workload is Stopping, the phase to which it goes once all its pods, or children, are over.

    Attributes:
        phase: None while it is not Stopping.
        reason: The reason for that phase; None for that of its stop.
    """

    phase: Phase | None = field(default=None, metadata=_stored("next_phase"))
    reason: Reason | None = field(default=None, metadata=_stored("next_reason"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureHistory:
    """The failures of a run since it was submitted or resumed, and when it is tried again.

    Attributes:
        program: Failures of the program.
        disruptions: Consecutive failures of the platform without progress between them.
        last: The failure that caused the latest restart.
        step: The highest step reached at any failure.
        nodes: The nodes on which its last failures in a row without progress began, as far as they are known.
        retry_at: While Restarting, or Pending after a quota refused its pods, no start before this time; else None.
        refusals: How often a quota refused its pods since it last ran; an elastic gang keeps the count, and grows no
            more.
        avoided_nodes: Nodes that failed to start its pods since it last ran; it is placed elsewhere if there is room.
        is_tested: Whether the test of nodes before its program is over, so that it starts without: the program has
            started, or there are no other nodes.
        preflights: Tests that named one of its nodes.
        nodes_per_day: Expected failures a day of the nodes of its latest start, for ``checkpoint.every: auto``; None
            if nothing is known of them.
        lost_pods: The pods of the current attempt that were lost while the others went on, by index.
    """

    program: int = field(default=0, metadata=_stored("program_failures"))
    disruptions: int = 0
    last: Reason | None = field(default=None, metadata=_stored("last_failure"))
    step: int | None = field(default=None, metadata=_stored("failed_step"))
    nodes: tuple[str, ...] = field(default=(), metadata=_stored("failed_on"))
    retry_at: float | None = None
    refusals: int = 0
    avoided_nodes: tuple[str, ...] = field(default=(), metadata=_stored("avoids"))
    is_tested: bool = False
    preflights: int = 0
    nodes_per_day: float | None = None
    lost_pods: tuple[LostPod, ...] = field(default=(), metadata=_stored("lost"))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHistory:
    """The record that the queue keeps of a run.

    Attributes:
        raised: Points of priority gained by waiting before its latest start; it keeps them.
        preempted_by: While pending after a preemption, the preempting run and the reason; None otherwise.
        nodes_requested_at: While Pending, or Running without pods that it has lost, since when new nodes are requested;
            None while they are not.
        request_again_at: After a request without result, the earliest time of the next one.
        spot_has_room: Of a run with ``spot: auto``, whether spot had room for it at the last check; None until it had.
        spot_since: Since when that holds; None until spot had room for it.
    """

    raised: int = 0
    preempted_by: str | None = field(default=None, metadata=_stored("taken_by"))
    nodes_requested_at: float | None = field(default=None, metadata=_stored("asked_at"))
    request_again_at: float | None = field(default=None, metadata=_stored("ask_again_at"))
    spot_has_room: bool | None = field(default=None, metadata=_stored("spot_there"))
    spot_since: float | None = None

    def without_request(self) -> "QueueHistory":
        """Return the record of a run that requests no new nodes."""
        if self.nodes_requested_at is self.request_again_at is None:
            return self
        return replace(self, nodes_requested_at=None, request_again_at=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The last move of a run to other nodes.

    Attributes:
        seats: While it moves, the places that are reserved for its pods, in order.
        decided_at: When the move was decided; None if it never moved.
        cost_s: The maximum cost of that move, in seconds of the whole cluster.
    """

    seats: tuple[Reservation, ...] = ()
    decided_at: float | None = field(default=None, metadata=_stored("moved_at"))
    cost_s: float = field(default=0.0, metadata=_stored("moved_cost_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticSize:
    """The size of an elastic gang; for every other gang all is None or False.

    Attributes:
        nodes: The number of nodes of its current or latest start; None before.
        room_since: While it runs, since when it could grow; None while it cannot.
        is_kept_small: Whether it left its nodes idle, so that it starts with its fewest and grows no more until it is
            resumed.
    """

    nodes: int | None = None
    room_since: float | None = None
    is_kept_small: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """The time that a workload has run before its current phase or start, in seconds; waiting does not count.

    Attributes:
        saved_s: Seconds of saved work before its current start; of an elastic gang, times its nodes.
        active_s: Seconds that it was Running before its current phase, saved or not.
    """

    saved_s: float = field(default=0.0, metadata=_stored("ran_s"))
    active_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """A problem of a running run.

    Attributes:
        reason: None without a problem.
        at: When it was last reported.
    """

    reason: Reason | None = field(default=None, metadata=_stored("warning"))
    at: float | None = field(default=None, metadata=_stored("warned_at"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Measurements of a run, and values derived from them.

    Attributes:
        requests: Of a run with ``auto`` resources, its derived requests; None until decided.
        usage: The peak usage of any of its pods that are over; None if not measured.
        paces: Of a run that may be colocated, its speeds beside others; the newest last.
        assigned: The assignment of the last round of sharing; None if no round concerned it.
        probing: Of a run with several candidate splits, the results so far; None before the first is over.
    """

    requests: Requests | None = None
    usage: Usage | None = field(default=None, metadata=_stored("used"))
    paces: tuple[Pace, ...] = ()
    assigned: Assignment | None = None
    probing: Probing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The loop's record of a workload. Clusters store the fields of its parts beside its own.

    Attributes:
        phase: Its phase.
        reason: Why it is in that phase.
        since: When it entered this phase.
        attempt: The gang's current or next attempt, from 0.
        started_at: When it first started since it was last submitted, resumed, suspended, preempted or moved;
            ``max_duration`` counts from then. None before.
        finished_at: When it came to a final phase; None before.
        after_stop: What follows its stop.
        failures: Its failures and retries.
        queue: What the queue remembers of it.
        migration: Its last move to other nodes.
        size: Of an elastic gang, its size.
        run_time: How long it has run.
        warning: A problem while it runs.
        measured: What was measured of it.
        detail: Of a parent, the state of its kind, a frozen dataclass; None before its first judgement and for a run
            with pods.
        halted: Of a parent, the uids of the children that were unfinished when it was stopped; they resume with it.
    """

    phase: Phase
    reason: Reason
    since: float
    attempt: int = 0
    started_at: float | None = None
    finished_at: float | None = None
    after_stop: AfterStop = field(default=AfterStop(), metadata=_FLAT)
    failures: FailureHistory = field(default=FailureHistory(), metadata=_FLAT)
    queue: QueueHistory = field(default=QueueHistory(), metadata=_FLAT)
    migration: Migration = field(default=Migration(), metadata=_FLAT)
    size: ElasticSize = field(default=ElasticSize(), metadata=_FLAT)
    run_time: RunTime = field(default=RunTime(), metadata=_FLAT)
    warning: Warned = field(default=Warned(), metadata=_FLAT)
    measured: MeasuredRun = field(default=MeasuredRun(), metadata=_FLAT)
    detail: object | None = None
    halted: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[LostPod, ...]:
        """Return the lost pods without a replacement so far."""
        return tuple(pod for pod in self.failures.lost_pods if pod.replaced_at is None)

    def replacement(self, index: int) -> int:
        """Return which replacement is, or will be, the pod of an index; 0 if none was lost."""
        return next((pod.times for pod in self.failures.lost_pods if pod.index == index), 0)

    def _repr_pretty_(self, printer: "_Printer", _is_cycle: bool, /) -> None:
        """Show in a notebook what a user reads of it."""
        printer.text(f"Status(phase={self.phase.value!r}, attempt={self.attempt}, reason={self.reason.message!r})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(Generic[Spec_co]):
    """A workload as recorded by the cluster: a leaf has pods, a parent has children, none has both.

    Attributes:
        version: Increases with every change of intent or status; a plan made on an older one is dropped.
        progress: Its last report; None without one.
        parent: The uid of the workload that submitted it; None if a user did.
        idle: The finding that it is idle; None if it is not, or if that is not measured.
        gpu_active_at: When the GPUs of a workspace were last measured as used; None if never, and for other kinds.
        preparation: What its environment still needs before it can start; None if it has none, or a complete one.
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
    gpu_active_at: float | None = None
    preparation: "Preparation | None" = None

    @property
    def gang(self: "Workload") -> Training:
        """Return the spec with size and split of the current or latest start; an elastic gang's smallest before."""
        if self.spec.most_nodes is None:
            if self.spec.parallel is None or not self.spec.parallel.candidates:
                return self.spec
            return replace(self.spec, parallel=in_force(self.spec, self.status.measured.probing))
        return self.spec.at(self.status.size.nodes or self.spec.nodes)

    @property
    def is_to_be_tested(self: "Workload") -> bool:
        """Return whether the nodes of its next start are tested before its program starts."""
        return self.spec.preflight is not None and not self.status.failures.is_tested

    def is_told_by(self, pod: Pod) -> bool:
        """Return whether a pod of the run belongs in a snapshot.

        It does while it is alive, and while it is of the current attempt and was not replaced. While the run is
        Restarting, pods of the previous attempt belong as well: their ends are still to be reported when the next
        attempt is counted.
        """
        status = self.status
        if not pod.phase.is_final:
            return True
        if pod.attempt == status.attempt:
            return not status.failures.lost_pods or pod.replacement >= status.replacement(pod.index)
        return status.phase is Phase.RESTARTING and pod.attempt == status.attempt - 1


AnyWorkload: TypeAlias = Workload[WorkloadSpec]
LEAVES = (Training,)
"""The classes of the specs of workloads that have pods."""


def is_leaf(workload: AnyWorkload) -> TypeGuard[Workload]:
    """Return whether a workload has pods and no children."""
    return isinstance(workload.spec, LEAVES)


def is_replica(spec: object) -> "TypeGuard[Replica]":
    """Return whether a leaf is a replica of an endpoint, without importing that module, which few runs need."""
    return getattr(spec, "kind", "") == Kind.REPLICA


def is_workspace(workload: "Workload") -> "TypeGuard[Workload[Workspace]]":
    """Return whether a leaf is a workspace, without importing that module, which few runs need."""
    return workload.spec.kind == Kind.WORKSPACE


def shown_name(leaf: GangSpec) -> str:
    """Return the name by which users know a leaf: that of its endpoint, if it is a replica."""
    return leaf.service if is_replica(leaf) else leaf.name


def with_requests(spec: Training, requests: Requests | None) -> Training:
    """Return a run's spec with its derived requests."""
    if requests is None or requests == Requests(why=requests.why):
        return spec
    resources = spec.resources
    gpu = resources.gpu
    if gpu is not None and requests.gpu_memory_bytes is not None:
        gpu = replace(gpu, min_memory_bytes=requests.gpu_memory_bytes)
    memory = resources.memory_bytes if requests.memory_bytes is None else requests.memory_bytes
    cpu = resources.cpu_milli if requests.cpu_milli is None else requests.cpu_milli
    return replace(spec, resources=replace(resources, gpu=gpu, memory_bytes=memory, cpu_milli=cpu))


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A run that succeeded.

    Attributes:
        took_s: Seconds from its first start to its end.
        at: When it ended.
        used: The peak usage of any of its pods; None if not measured.
        paces: Of a run that could be colocated, its speeds beside others.
    """

    team: str
    name: str
    took_s: float
    at: float = 0.0
    used: Usage | None = None
    paces: tuple[Pace, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The recommended requests of a pod, computed by another system from the usage of pods of the same program.

    Attributes:
        name: The name of the kind of runs that it applies to.
        by: The name of its source, for display.
        memory_bytes, cpu_milli: None without a recommendation.
    """

    team: str
    name: str
    by: str
    memory_bytes: int | None = None
    cpu_milli: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Micro-dollars spent up to now.

    Attributes:
        by_team: In this calendar month.
        by_project: In this calendar month, by team and project; at least for projects that have a budget.
        by_run: In total, by the uids of unfinished runs.
    """

    by_team: Mapping[str, int] = field(default_factory=dict)
    by_project: Mapping[tuple[str, str], int] = field(default_factory=dict)
    by_run: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that a decision may use.

    Attributes:
        workloads: Leaves: workloads with pods, or that wait for them.
        pods: Pods of the workloads; and what others hold of a node, as one pod of no workload.
        growth: The autoscaler; None without one.
        capacity_requests: Requests for nodes of pending runs.
        teams: The described teams; any other has weight 1, no guarantee and no quota.
        completed: Runs that succeeded, as far as the cluster records them; in any order.
        rules: The rules by which pending runs are started.
        spending: The amounts spent, if limits exist; None if unknown.
        parents: Workloads that have children.
        ended: Finished children of the parents, of any kind, that are in neither of the other two.
        demand: Requests for endpoints, by endpoint uid; endpoints without known demand are missing.
        unaddressed: Why endpoints have no address, by endpoint uid; those that have one are missing.
        measurements: Answers to the queries by which endpoints scale, by endpoint uid.
        engine_endpoints: States of endpoints reported by engines, by endpoint uid.
        engine_searches: Searches of sweeps as reported by engines, by the sweep's uid.
        sites: Reports of the sites of endpoints and federations in other clusters, by their uid and name of the site,
            None for one that was not visited yet; missing for those whose sites nobody visits.
        pools: Pools that should have nodes ahead of demand, with the demand for them.
        standby: The nodes that they should have, as last decided.
        partitioned: Nodes whose GPUs may be repartitioned.
        node_health: Histories of nodes, by name; a node without one never failed.
        node_faults: Faults that detectors report of nodes now, by name; of each node the oldest first.
        withdraws_nodes: Whether nodes can be taken out here.
        debts: What teams have had beyond their shares, in seconds of the whole cluster; negative for less, missing for
            none.
        recommended: Recommendations for kinds of runs with a run whose requests are still undecided.
        unreadable: Why workloads could not be observed, by uid; nothing is decided for these.
        deferred: Uids of workloads whose last change was refused, or has no answer yet; nor is for these.
    """

    nodes: tuple[Node, ...]
    workloads: tuple[Workload, ...]
    pods: tuple[Pod, ...]
    growth: "Growth | None" = None
    capacity_requests: "tuple[CapacityRequest, ...]" = ()
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
    engine_searches: "Mapping[str, EngineSearch]" = field(default_factory=dict)
    sites: "Mapping[str, Mapping[str, SiteReport | ClientReport | None]]" = field(default_factory=dict)
    pools: "tuple[PoolDemand, ...]" = ()
    standby: "tuple[Standby, ...]" = ()
    partitioned: "tuple[PartitionedNode, ...]" = ()
    node_health: "Histories" = field(default_factory=dict)
    node_faults: "Mapping[str, tuple[NodeFault, ...]]" = field(default_factory=dict)
    withdraws_nodes: bool = False
    debts: Mapping[str, float] = field(default_factory=dict)
    recommended: tuple[Recommendation, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    deferred: frozenset[str] = frozenset()
