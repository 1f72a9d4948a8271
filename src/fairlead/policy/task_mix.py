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

    def observe(self, shape: Shape, count: int = 1) -> None:
        """Count pods of one shape."""
        self._counts[shape] += count
        self.num_observed += count

    def items(self) -> list[tuple[Shape, int]]:
        """Shapes with their counts, in the order of first arrival."""
        return list(self._counts.items())
