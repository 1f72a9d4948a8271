"""The present state of a fleet: its runs, and what each of its clusters tells. Times are Unix seconds."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from fairlead.frozen import dataclass
from fairlead.specs.training import Training
from fairlead.state.snapshot import Intent, Node, Phase


class Stage(StrEnum):
    """A stage of a run on its way among clusters; it has a copy in one of them at most, in ``cluster``."""

    QUEUED = "Queued"  # no cluster has it
    PLACING = "Placing"  # one is to have it, and may have it already
    PLACED = "Placed"
    LEAVING = "Leaving"  # its copy is suspended, then deleted; until that is seen no other cluster gets it
    ENDED = "Ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """A run as the fleet keeps it.

    Attributes:
        uid: Its copies carry it as a label.
        number: Its place in the order of submission.
        stage: Its stage, and ``since`` when.
        reason: Why it is there, as a sentence.
        intent: RUN, or STOP once somebody wants that.
        cluster: The one that has its copy, or is to have it; None while Queued.
        child: The uid of the copy, once it was seen.
        target: While Leaving or Queued, the cluster that is to have it next; None for any.
        origin: The place of the checkpoints of the copy before, from which the next one goes on.
        refused: Why clusters do not take it, by their names.
        started_at: When its ranks first ran, or a rented cluster was to have it: what ended its waiting.
        phase, message: Of its copy, as last seen; the final ones of an Ended run.
        step, total_steps, checkpoint_step: Of its progress, as last seen.
        rented_since: Since when it has held rented nodes; None while it holds none.
        spent: Dollars for rented nodes before that.
        took_s: Of one that succeeded, seconds from its first start to its end.
    """

    uid: str
    number: int
    spec: Training
    submitted_at: float
    stage: Stage = Stage.QUEUED
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
        """Return whether its copy waits for a turn, and none has ever run."""
        return self.phase is Phase.PENDING and self.started_at is None

    @property
    def has_gpus(self) -> bool:
        """Return whether it is counted, and paid, by its GPUs instead of its cores."""
        return self.spec.resources.gpu is not None

    @property
    def units(self) -> float:
        """GPUs of the whole gang, or cores of one that asks for none; of an elastic one, its smallest size."""
        return self.units_of_node * self.spec.nodes

    @property
    def units_of_node(self) -> float:
        """GPUs, or cores, of each of its nodes."""
        return units_of_node(self.spec)


def units_of_node(spec: Training) -> float:
    """GPUs of each node of a run, or cores of one that asks for none."""
    resources = spec.resources
    return (resources.cpu_milli or 1000) / 1000 if resources.gpu is None else resources.gpu.milli / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A fleet's run in a cluster, as that tells.

    Attributes:
        has_pods: Something of it may still run.
        place: Where it has saved checkpoints that outlive it; None where it has not.
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
    """A run that waits in a cluster and is not of the fleet: its spec, since when it waits, seconds it takes."""

    spec: Training
    since: float
    takes_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The nodes of a cluster, what is held of them, and who else waits for them."""

    nodes: tuple[Node, ...]
    held: tuple[HeldNode, ...] = ()
    others: tuple[OtherRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSeen:
    """A cluster as it was seen.

    Attributes:
        copies: Of the fleet's runs, by the run's uid; a run that is not there has none.
        refused: Why it does not take runs that it was to have, by the run's uid.
        room: None where nobody asked, or it may not be seen.
        trouble: Why nothing is known of it now; then it keeps what it has. None while it answers.
    """

    copies: Mapping[str, Copy] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    room: Room | None = None
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """All that a decision about a fleet may look at."""

    runs: tuple[FleetRun, ...]
    seen: Mapping[str, ClusterSeen]
