"""What tends to be asked for: counts of shapes, learnt from arrivals or from history."""

from collections import Counter
from collections.abc import Iterable

from fairlead.policy.shapes import Shape


class TaskMix:
    """How often each shape was asked for; memory does not tell shapes apart.

    Attributes:
        num_observed: Pods counted so far.
    """

    def __init__(self, history: Iterable[Shape] = ()) -> None:
        self._counts: Counter[Shape] = Counter()
        self.num_observed = 0
        for shape in history:
            self.observe(shape)

    @classmethod
    def settled(cls, history: Iterable[Shape]) -> "TaskMix":
        """The mix of so many of the oldest pods that it changes only when a fifth more have come."""
        shapes = list(history)
        keep = 1
        while (more := next_size(keep)) <= len(shapes):
            keep = more
        return cls(shapes[:keep])

    def observe(self, shape: Shape, count: int = 1) -> None:
        """Count pods of one shape."""
        self._counts[shape] += count
        self.num_observed += count

    def items(self) -> list[tuple[Shape, int]]:
        """Shapes with their counts, in the order of first arrival."""
        return list(self._counts.items())


def next_size(num_observed: int) -> int:
    """How many pods must have been observed before a mix of ``num_observed`` is worth learning again."""
    return num_observed + max(1, num_observed // 5)
