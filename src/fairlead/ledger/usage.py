"""Usage: parts of nodes that somebody held, and what for. Times are whole milliseconds since 1970, UTC."""

from dataclasses import dataclass
from enum import StrEnum

from fairlead.state.snapshot import WHOLE_MILLI, Grant, Node

# Parts of a node are counted in these units. A node of up to ten GPUs, of 12, 14, 15 or 16, divides into thousandths
# of each without remainder: 5,040 is a multiple of all these numbers.
WHOLE = 5_040 * WHOLE_MILLI
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Use(StrEnum):
    """A use of a part of a node. Each moment of each part is one of these.

    The first six are of runs. ``REDONE`` is work that was lost with a pod and has to be done again; ``STALLED`` is a
    hang, or the time between a stop notice and the end in which nothing was saved; ``IDLE_IN_RUN`` is held by a run
    that leaves its GPUs idle. The others are nobody's.
    """

    PRODUCTIVE = "productive"
    STARTING = "starting"
    SAVING = "saving"
    REDONE = "redone"
    STALLED = "stalled"
    IDLE_IN_RUN = "idle-in-run"
    IDLE = "idle"
    KEPT_FREE = "kept-free"
    PLACEHOLDER = "placeholder"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A run, as far as bills name it.

    Attributes:
        uid: Of the workload.
        model: Its label ``model``, or else the name of the run.
        project: Its label ``project``; empty without.
        user: Who submitted it.
    """

    uid: str
    run: str
    team: str
    model: str
    project: str = ""
    user: str = ""

    @property
    def account(self) -> str:
        """Return its team and project, which may have budgets."""
        return f"{self.team}/{self.project}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A part of a node that was held for one use.

    Attributes:
        holder: None for what is held by no run.
        share: Part of the node, in units of which ``WHOLE`` make one.
    """

    node: str
    holder: Holder | None
    use: Use
    start_ms: int
    end_ms: int
    share: int

    def __post_init__(self) -> None:
        if self.end_ms < self.start_ms or not 0 <= self.share <= WHOLE:
            raise ValueError(f"no interval: {self}")

    def overlap_ms(self, start_ms: int, end_ms: int) -> int:
        """Milliseconds of it that are within other bounds."""
        return max(0, min(self.end_ms, end_ms) - max(self.start_ms, start_ms))


def share_of(grant: Grant, node: Node) -> int:
    """Return the part of a node that a pod pays for, in units of which ``WHOLE`` make one.

    A node with GPUs is divided by its GPUs: a pod pays for those that it holds, and for nothing if it holds none. A
    node without is divided by its cores. docs/decisions/0020 says why.
    """
    if not node.gpus:
        return min(WHOLE, grant.cpu_milli * WHOLE // node.cpu_milli)
    shared = min(grant.gpu_milli, WHOLE_MILLI)
    held = sum(shared if gpu.divisible else gpu.milli for gpu in node.gpus if gpu.uuid in grant.gpu_uuids)
    return min(WHOLE, held * WHOLE // sum(gpu.milli for gpu in node.gpus))


def milliseconds(seconds: float) -> int:
    """A time or a span in whole milliseconds, the nearest."""
    return round(seconds * 1000)
