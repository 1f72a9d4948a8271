"""Accounts for the time of every pod and every node. Seconds; times are Unix seconds.

Each second of a pod is in exactly one field of its ``PodTime``, and each second of a node is either up or down, so that
the GPU-seconds of all of them sum to the total.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import NamedTuple

from fairlead.frozen import dataclass
from fairlead.state.snapshot import WHOLE_MILLI, Grant, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTime:
    """The lifetime of one pod, divided by use.

    Attributes:
        num_gpus: The GPUs that it held; the mean over its lifetime where others held them as well.
        start_up_s: From its creation until its ranks worked, or until its end when they never did.
        kept_s: Work that did not have to be repeated.
        redone_s: Work that was lost with the pod.
        saving_s: Checkpoints, regular ones and those at stop notices.
        slowed_s: Extra time of work because of pods beside it.
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
    """A span in which a node existed, up or down."""

    node: str
    since: float
    until: float
    up: bool


@dataclass(slots=True)
class Accounts:
    """The accounts up to now.

    Attributes:
        pods: Terminated pods; all their work counts as kept until it is known what was saved.
        nodes: Finished spans.
        open: Beginning of the current span of each existing node, and whether the node is up.
    """

    pods: list[PodTime] = field(default_factory=list)
    nodes: list[NodeTime] = field(default_factory=list)
    open: dict[str, tuple[float, bool]] = field(default_factory=dict)
    _held: dict[tuple[str, int], float] = field(default_factory=dict)
    _saved: dict[tuple[str, int], float] = field(default_factory=dict)

    def node_is(self, node: str, up: bool | None, at: float) -> None:
        """Record that a node is up, down, or removed from a time on."""
        since, was = self.open.pop(node, (at, True))
        if at > since:
            self.nodes.append(NodeTime(node, since, at, was))
        if up is not None:
            self.open[node] = (at, up)

    def started_from(self, uid: str, attempt: int, held_s: float) -> None:
        """Record that a gang starts from a checkpoint that holds so much work."""
        self._held[uid, attempt] = held_s

    def left_behind(self, uid: str, attempt: int, saved_s: float) -> None:
        """Record that the work of a gang is saved up to so much work."""
        self._saved[uid, attempt] = saved_s

    def settled(self, now: float, live: Iterable[PodTime] = ()) -> "tuple[tuple[PodTime, ...], tuple[NodeTime, ...]]":
        """Return pods, with work divided into kept and lost, and nodes up to now."""
        nodes = [NodeTime(node, since, now, up) for node, (since, up) in self.open.items() if now > since]
        return tuple(map(self._divided, self.pods)) + tuple(live), (*self.nodes, *nodes)

    def _divided(self, pod: PodTime) -> PodTime:
        key = pod.workload_uid, pod.attempt
        if key not in self._saved:
            return pod
        kept_s = min(pod.kept_s, max(0.0, self._saved[key] - self._held.get(key, 0.0)))
        return replace(pod, kept_s=kept_s, redone_s=pod.kept_s - kept_s)


def gpus_of(grant: Grant, node: Node, held: Mapping[str, int] | None = None) -> float:
    """Return the number of GPUs that a pod holds; a share counts as its fraction, an instance as its size.

    Args:
        held: How many pods hold each GPU whole, by uuid; a GPU held by several is divided by their number.
    """
    shared = min(grant.gpu_milli, WHOLE_MILLI)
    own = [gpu for gpu in node.gpus if gpu.uuid in grant.gpu_uuids]
    if held is None or grant.gpu_milli < WHOLE_MILLI:
        return sum(shared if gpu.divisible else gpu.milli for gpu in own) / WHOLE_MILLI
    return sum((shared if gpu.divisible else gpu.milli) / max(1, held.get(gpu.uuid, 1)) for gpu in own) / WHOLE_MILLI
