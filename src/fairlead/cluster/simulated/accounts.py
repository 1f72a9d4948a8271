"""Accounts for the time of every pod and every node. Seconds; times are Unix seconds.

Each second of a pod is in exactly one place of its ``PodTime``, and each second of a node is either up or down, so that
the GPU-seconds of all of them together are what there was.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import NamedTuple

from fairlead.frozen import dataclass
from fairlead.state.snapshot import WHOLE_MILLI, Grant, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTime:
    """The whole life of one pod.

    Attributes:
        num_gpus: The GPUs that it held; the mean over its life where others held them as well.
        start_up_s: From its creation until its ranks worked, or until its end when they never did.
        kept_s: Work that did not have to be done again.
        redone_s: Work that was lost with the pod.
        saving_s: Checkpoints, regular ones and those at stop notices.
        slowed_s: What working beside others took longer than working alone.
        stopping_s: After a stop notice, or hanging, without saving anything.
    """

    workload_uid: str
    attempt: int
    node: str
    num_gpus: float
    created_at: float
    ended_at: float
    start_up_s: float = 0.0
    kept_s: float = 0.0
    redone_s: float = 0.0
    saving_s: float = 0.0
    slowed_s: float = 0.0
    stopping_s: float = 0.0


class NodeTime(NamedTuple):
    """A stretch of time in which a node was there, up or down."""

    node: str
    since: float
    until: float
    up: bool


@dataclass(slots=True)
class Accounts:
    """Everything up to now.

    Attributes:
        pods: Those that have ended; all their work counts as kept until it is known what was saved.
        nodes: Stretches that are over.
        open: Since when each node that is there is as it is, and whether that is up.
    """

    pods: list[PodTime] = field(default_factory=list)
    nodes: list[NodeTime] = field(default_factory=list)
    open: dict[str, tuple[float, bool]] = field(default_factory=dict)
    _held: dict[tuple[str, int], float] = field(default_factory=dict)
    _saved: dict[tuple[str, int], float] = field(default_factory=dict)

    def node_is(self, node: str, up: bool | None, at: float) -> None:
        """From now on a node is up, down, or not there."""
        since, was = self.open.pop(node, (at, True))
        if at > since:
            self.nodes.append(NodeTime(node, since, at, was))
        if up is not None:
            self.open[node] = (at, up)

    def started_from(self, uid: str, attempt: int, held_s: float) -> None:
        """A gang starts from a checkpoint that holds so much work."""
        self._held[uid, attempt] = held_s

    def left_behind(self, uid: str, attempt: int, saved_s: float) -> None:
        """Note that what a gang has done is kept up to so much work."""
        self._saved[uid, attempt] = saved_s

    def settled(self, now: float, live: Iterable[PodTime] = ()) -> "tuple[tuple[PodTime, ...], tuple[NodeTime, ...]]":
        """Pods, their work divided into what was kept and what was lost, and nodes up to now."""
        nodes = [NodeTime(node, since, now, up) for node, (since, up) in self.open.items() if now > since]
        return tuple(map(self._divided, self.pods)) + tuple(live), (*self.nodes, *nodes)

    def _divided(self, pod: PodTime) -> PodTime:
        key = pod.workload_uid, pod.attempt
        if key not in self._saved:
            return pod
        kept_s = min(pod.kept_s, max(0.0, self._saved[key] - self._held.get(key, 0.0)))
        return replace(pod, kept_s=kept_s, redone_s=pod.kept_s - kept_s)


def gpus_of(grant: Grant, node: Node, held: Mapping[str, int] | None = None) -> float:
    """Count the GPUs that a pod holds; a share of one counts as its part, an instance as what it is.

    Args:
        held: How many pods hold each GPU whole, by uuid; one that several hold counts as so many parts.
    """
    shared = min(grant.gpu_milli, WHOLE_MILLI)
    own = [gpu for gpu in node.gpus if gpu.uuid in grant.gpu_uuids]
    if held is None or grant.gpu_milli < WHOLE_MILLI:
        return sum(shared if gpu.divisible else gpu.milli for gpu in own) / WHOLE_MILLI
    return sum((shared if gpu.divisible else gpu.milli) / max(1, held.get(gpu.uuid, 1)) for gpu in own) / WHOLE_MILLI
