"""Measures the steps of a start that tries a split, and ends the program when enough are measured.

A step lasts from one ``run.forward_backward`` to the next, so that the optimizer and the loading of data are in it; of
programs that compute gradients themselves, from one ``run.progress`` to the next.
"""

import statistics
import time
from collections.abc import Callable

# The first steps allocate, make the optimizer's states and find the fastest kernels.
WARM_UP_STEPS = 2
MEASURED_STEPS = 5
# Reports in between only show that it goes on; each takes a little of a step.
TELL_EVERY_S = 1.0


class Probe:
    """The steps of one start.

    Attributes:
        steps: Steps that are over.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter, settle: Callable[[], None] | None = None):
        """Begin with no step.

        Args:
            settle: Waits until the device has done what it was given; None to find out.
        """
        self._clock = clock
        self._settle = settle or _settle
        self._marks: list[float] = []
        self._by_gradients = False
        self._told = clock()

    @property
    def steps(self) -> int:
        return max(0, len(self._marks) - 1)

    @property
    def is_news(self) -> bool:
        """Tell whether it is time to report that it goes on; then not again for a while."""
        now = self._clock()
        if now - self._told < TELL_EVERY_S:
            return False
        self._told = now
        return True

    @property
    def step_s(self) -> float | None:
        """The median of the steps after those that warm up, or the shortest of fewer; None before the first is over."""
        lasted = [later - sooner for sooner, later in zip(self._marks, self._marks[1:], strict=False)]
        if not lasted:
            return None
        measured = lasted[WARM_UP_STEPS:]
        return statistics.median(measured) if measured else min(lasted)

    def begins(self) -> bool:
        """Note that the gradients of a step are about to be computed; tells whether enough is measured."""
        if not self._by_gradients:
            self._by_gradients = True
            self._marks = []
        return self._mark()

    def progressed(self) -> bool:
        """Note that a step is over of which nothing else told; tells whether enough is measured."""
        return False if self._by_gradients else self._mark()

    def _mark(self) -> bool:
        self._settle()
        self._marks.append(self._clock())
        return self.steps >= WARM_UP_STEPS + MEASURED_STEPS


def _settle() -> None:
    """Wait for the GPU, where there is one: it is given work ahead."""
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()
