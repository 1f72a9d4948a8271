"""Learns the usual requests: counts of shapes, from arrivals or from history."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from fairlead.policy.placement.memo import cached_last
from fairlead.policy.placement.pod_shapes import Shape
from fairlead.specs.resources import Resources
from fairlead.state.snapshot import Workload


class TaskMix:
    """The number of requests for each shape; memory does not distinguish shapes.

    Attributes:
        num_observed: Pods counted so far.
    """

    def __init__(self, history: Iterable[Shape] = ()) -> None:
        self._counts: Counter[Shape] = Counter()
        self.num_observed = 0
        for shape in history:
            self.observe(shape)

    @classmethod
    def settled(cls, counts: Sequence[tuple[Shape, int]]) -> "TaskMix":
        """Return the mix of so many of the oldest pods that it changes only when a fifth more have come.

        Args:
            counts: Shapes with the number of pods that requested each, oldest first.
        """
        left = settled_size(sum(count for _, count in counts))
        mix = cls()
        for shape, count in counts:
            if left > 0:
                mix.observe(shape, min(count, left))
                left -= count
        return mix

    def observe(self, shape: Shape, count: int = 1) -> None:
        """Count pods of one shape."""
        self._counts[shape] += count
        self.num_observed += count

    def items(self) -> tuple[tuple[Shape, int], ...]:
        """Return shapes with their counts, in the order of first arrival."""
        return tuple(self._counts.items())


def settled_mix(workloads: Iterable[Workload]) -> TaskMix:
    """Return the settled mix of all pods of these runs; shared between callers, so not to be modified."""
    oldest_first = sorted(workloads, key=lambda run: (run.created_at, run.uid))
    return _mix_of(
        tuple((workload.spec.resources, workload.status.size.nodes or workload.spec.nodes) for workload in oldest_first)
    )


@cached_last
def _mix_of(counts: tuple[tuple[Resources, int], ...]) -> TaskMix:
    return TaskMix.settled([(Shape.of(resources), count) for resources, count in counts])


@lru_cache(maxsize=4096)
def settled_size(num_asked: int) -> int:
    """Return the number of oldest pods, at least one, from which a mix is learnt if this many are requested."""
    size = 1
    while (more := next_size(size)) <= num_asked:
        size = more
    return size


def next_size(num_observed: int) -> int:
    """Return how many pods must have been observed before a mix of ``num_observed`` is worth learning again."""
    return num_observed + max(1, num_observed // 5)
