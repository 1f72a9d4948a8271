"""Measures the steps of an attempt that tries a split, and ends the program when enough are measured.

A step lasts from one ``run.forward_backward`` to the next, so that it includes the optimizer and data loading. In a
program that computes gradients itself, it lasts from one ``run.progress`` to the next.
"""

import statistics
import time
from collections.abc import Callable

# The first steps allocate memory, create the optimizer's states and select the fastest kernels.
WARM_UP_STEPS = 2
MEASURED_STEPS = 5
# Reports in between only show that the probe is running; each takes a small part of a step.
TELL_EVERY_S = 1.0


class Probe:
    """The steps of one attempt.

    Attributes:
        steps: Number of completed steps.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter, settle: Callable[[], None] | None = None):
        """Begin with no step.

        Args:
            settle: Waits until the device has finished its work; None to wait for the GPU, if the program uses one.
        """
        self._clock = clock
        self._settle = settle or _settle
        self._marks: list[float] = []
        self._by_gradients = False
        self._reported_at = clock()

    @property
    def steps(self) -> int:
        return max(0, len(self._marks) - 1)

    @property
    def is_news(self) -> bool:
        """Return whether a report that the probe is running is due; at most once in ``TELL_EVERY_S`` seconds."""
        now = self._clock()
        if now - self._reported_at < TELL_EVERY_S:
            return False
        self._reported_at = now
        return True

    @property
    def step_s(self) -> float | None:
        """Median seconds of a step after the warm-up, or the shortest if there are only those; None without steps."""
        lasted = [later - sooner for sooner, later in zip(self._marks, self._marks[1:], strict=False)]
        if not lasted:
            return None
        measured = lasted[WARM_UP_STEPS:]
        return statistics.median(measured) if measured else min(lasted)

    def begins(self) -> bool:
        """Record that a step's gradients are about to be computed; return whether enough steps are measured."""
        if not self._by_gradients:
            self._by_gradients = True
            self._marks = []
        return self._mark()

    def progressed(self) -> bool:
        """Record a completed step if ``begins`` does not mark the steps; return whether enough steps are measured."""
        return False if self._by_gradients else self._mark()

    def _mark(self) -> bool:
        self._settle()
        self._marks.append(self._clock())
        return self.steps >= WARM_UP_STEPS + MEASURED_STEPS


def _settle() -> None:
    """Wait for the GPU, if there is one, because its work is queued."""
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()
