"""The state of a fleet: its runs, and reports of its clusters. Times are Unix seconds."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from fairlead.frozen import dataclass
from fairlead.specs.training import Training
from fairlead.state.snapshot import Intent, Node, Phase


class FleetStage(StrEnum):
    """A stage of a run on its way among clusters; at most one cluster, ``cluster``, has a copy of it."""

    QUEUED = "Queued"  # no cluster has it
    PLACING = "Placing"  # a cluster was chosen, which may have it already
    PLACED = "Placed"
    LEAVING = "Leaving"  # its copy is suspended, then deleted; until that is seen, no other cluster gets the run
    ENDED = "Ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """The record of a run in a fleet.

    Attributes:
        uid: A label of its copies.
        number: The position in the order of submission.
        stage: Its stage, entered at ``since``.
        reason: Why it is in that stage, as a sentence.
        intent: RUN, or STOP once requested.
        cluster: The cluster that has its copy or is to get it; None while Queued.
        child: The uid of the copy, once seen.
        target: While Leaving or Queued, the cluster that gets it next; None for any.
        origin: The place of the previous copy's checkpoints, from which the next one resumes.
        refused: Why clusters reject it, by cluster name.
        started_at: When its ranks first ran, or a rented cluster was chosen for it: the end of its waiting.
        phase, message: Those of its copy, as last seen; the final ones of an Ended run.
        step, total_steps, checkpoint_step: Its progress, as last seen.
        rented_since: Since when it has held rented nodes; None while it holds none.
        spent: Dollars for rented nodes before ``rented_since``.
        took_s: Seconds from first start to end, if it succeeded.
    """

    uid: str
    number: int
    spec: Training
    submitted_at: float
    stage: FleetStage = FleetStage.QUEUED
    since: float = 0.0
    reason: str = "waits for the fleet's controller"
    intent: Intent = Intent.RUN
    cluster: str | None = None
    child: str | None = None
    target: str | None = None
    origin: str | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    started_at: float | None = None
    phase: Phase = Phase.PENDING
    message: str | None = None
    step: int | None = None
    total_steps: int | None = None
    checkpoint_step: int | None = None
    rented_since: float | None = None
    spent: float = 0.0
    took_s: float | None = None

    @property
    def waits_to_start(self) -> bool:
        """Return whether its copy is pending, and none has ever run."""
        return self.phase is Phase.PENDING and self.started_at is None

    @property
    def has_gpus(self) -> bool:
        """Return whether it is counted and billed by GPUs instead of cores."""
        return self.spec.resources.gpu is not None

    @property
    def units(self) -> float:
        """Return the GPUs of the whole gang, or cores if it requests no GPU; for an elastic gang's smallest size."""
        return self.units_of_node * self.spec.nodes

    @property
    def units_of_node(self) -> float:
        """Return the GPUs, or cores, of each of its nodes."""
        return units_of_node(self.spec)


def units_of_node(spec: Training) -> float:
    """Return the GPUs of each node of a run, or the cores if it requests no GPU."""
    resources = spec.resources
    return (resources.pod_cpu_milli or 1000) / 1000 if resources.gpu is None else resources.gpu.milli / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A fleet's run in a cluster, as that cluster reports it.

    Attributes:
        has_pods: Whether some of its pods may still run.
        place: The place of saved checkpoints that outlive it; None without any.
    """

    uid: str
    phase: Phase
    message: str
    intent: Intent = Intent.RUN
    has_pods: bool = False
    started_at: float | None = None
    finished_at: float | None = None
    step: int | None = None
    total_steps: int | None = None
    checkpoint_step: int | None = None
    place: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldNode:
    """A part of a node that is held until a time: GPUs and cores."""

    node: str
    until: float
    gpus: float
    cpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRun:
    """A pending run of a cluster outside the fleet: its spec, since when it waits, and its duration in seconds."""

    spec: Training
    since: float
    takes_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The nodes of a cluster, what is held of them, and other runs that wait for them."""

    nodes: tuple[Node, ...]
    held: tuple[HeldNode, ...] = ()
    others: tuple[OtherRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSeen:
    """A cluster as observed.

    Attributes:
        copies: Copies of the fleet's runs, by the run's uid; absent runs are missing.
        refused: Why it rejects runs assigned to it, by the run's uid.
        room: None if not requested, or not permitted to read.
        trouble: Why its state is unknown now; its runs then stay with it. None while it answers.
    """

    copies: Mapping[str, Copy] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    room: Room | None = None
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """Everything that a decision about a fleet may use."""

    runs: tuple[FleetRun, ...]
    seen: Mapping[str, ClusterSeen]
