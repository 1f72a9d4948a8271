"""Usage: intervals in which parts of nodes were held, by use. Times are whole milliseconds since 1970, UTC.

See decision 20.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from fairlead.frozen import dataclass
from fairlead.state.snapshot import WHOLE_MILLI, Grant, Node, Pod

# Parts of a node are counted in these units. A node of up to ten GPUs, of 12, 14, 15 or 16, divides into thousandths
# of each without remainder: 5,040 is a multiple of all these numbers.
WHOLE = 5_040 * WHOLE_MILLI
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Use(StrEnum):
    """A use of a part of a node. Each moment of each part is one of these.

    The first six are of runs. ``STARTING`` is also a start that only measures a split; ``REDONE`` is work that was
    lost with a pod and has to be done again; ``STALLED`` is a hang, or the time between a stop notice and the end in
    which nothing was saved; ``IDLE_IN_RUN`` is held by a run that leaves its GPUs idle. The others belong to no run.
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
    """The identity of a run on bills.

    Attributes:
        uid: Uid of the workload.
        model: Its label ``model``, or else the name of the run.
        project: Its label ``project``; empty without one.
        user: Submitter.
    """

    uid: str
    run: str
    team: str
    model: str
    project: str = ""
    user: str = ""

    @property
    def account(self) -> str:
        """Return its team and project, each of which may have a budget."""
        return f"{self.team}/{self.project}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageInterval:
    """A part of a node that was held for one use.

    Attributes:
        holder: The run; None for what no run holds.
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
        """Return the milliseconds of it that lie within other bounds."""
        return max(0, min(self.end_ms, end_ms) - max(self.start_ms, start_ms))


def whole_holders(pods: Iterable[Pod]) -> Counter[tuple[str, str]]:
    """Count the live pods that hold each GPU whole, by node and uuid."""
    return Counter(
        (pod.node, uuid)
        for pod in pods
        if not pod.phase.is_final and pod.grant.gpu_milli >= WHOLE_MILLI
        for uuid in pod.grant.gpu_uuids
    )


def share_of(grant: Grant, node: Node, held: Mapping[tuple[str, str], int] | None = None) -> int:
    """Return the part of a node that a pod pays for, in units of which ``WHOLE`` make one.

    A node with GPUs is divided by its GPUs: a pod pays for those that it holds, and for nothing if it holds none. A
    node without is divided by its cores. docs/decisions/0020 says why.

    Args:
        held: As ``whole_holders`` has it; a GPU that several hold whole is divided among them.
    """
    if not node.gpus:
        return min(WHOLE, grant.cpu_milli * WHOLE // node.cpu_milli)
    shared = min(grant.gpu_milli, WHOLE_MILLI)
    held_milli = sum(shared if gpu.divisible else gpu.milli for gpu in node.gpus if gpu.uuid in grant.gpu_uuids)
    part = min(WHOLE, held_milli * WHOLE // sum(gpu.milli for gpu in node.gpus))
    return part if held is None else divided(part, grant, node.name, held)


def divided(part: int, grant: Grant, node: str, held: Mapping[tuple[str, str], int]) -> int:
    """Return a pod's part of a node after sharing GPUs that other pods hold whole as well."""
    if grant.gpu_milli < WHOLE_MILLI or not grant.gpu_uuids:
        return part
    num = len(grant.gpu_uuids)
    if all(held.get((node, uuid), 1) <= 1 for uuid in grant.gpu_uuids):
        return part
    return sum(part // (num * max(1, held.get((node, uuid), 1))) for uuid in grant.gpu_uuids)


def reshared(intervals: Iterable[UsageInterval], changes: Sequence[tuple[int, int]]) -> list[UsageInterval]:
    """Split intervals of one pod where its part of the node changed.

    Args:
        changes: Times in milliseconds, ascending, with the part from then on; before the first the interval's own.
    """
    parts = []
    for interval in intervals:
        share, start = interval.share, interval.start_ms
        for at, part in changes:
            if at >= interval.end_ms:
                break
            if at > start:
                parts.append(replace(interval, start_ms=start, end_ms=at, share=share))
                start = at
            share = part
        parts.append(replace(interval, start_ms=start, share=share))
    return parts


def milliseconds(seconds: float) -> int:
    """Return a time or a span in milliseconds, rounded to the nearest."""
    return round(seconds * 1000)
