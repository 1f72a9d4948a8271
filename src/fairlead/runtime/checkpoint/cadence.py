"""Decides when a save begins and when training waits for one, so that a kill costs at most the interval.

A background save is usable only once it is complete, so a kill during the save falls back to the previous one. Two
rules keep the loss within the interval: a save begins early, by the time that the last one took, and training stops
while the newest complete checkpoint is one interval old. docs/decisions/0003 has the reasoning. Where the interval is a
number of steps and a save takes little of it, training waits instead, and checkpoints are of multiples of the interval.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from fairlead.runtime.save_interval import SaveInterval

MARGIN = 1.25
"""Factor by which the next save may exceed the last before training has to wait for it."""

MOST_WAITING = 0.05
"""Part of an interval in steps that training may wait for a save, so that saves are of multiples of the interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPoint:
    """A state of the training: its completed steps, and the clock by then without waits for saves."""

    step: int
    trained_s: float


class MemorySaveSchedule:
    """The schedule of saves into memory: a set time or number of steps after the previous save of any kind."""

    def __init__(
        self,
        *,
        every_s: float | None,
        every_steps: int | None,
        step: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every_s = every_s
        self._every_steps = every_steps
        self._clock = clock
        self._last_begun = TrainingPoint(step=step, trained_s=clock())

    def due(self, step: int) -> bool:
        """Return whether a save should begin after this step; False for a step that was already saved."""
        if self._every_steps is not None:
            return step - self._last_begun.step >= self._every_steps
        return (
            self._every_s is not None
            and step != self._last_begun.step
            and self._clock() - self._last_begun.trained_s >= self._every_s
        )

    def begin(self, step: int) -> None:
        """Record that a save of this step begins, into memory or to disk."""
        self._last_begun = TrainingPoint(step=step, trained_s=self._clock())


class Cadence:
    """The schedule of one rank's saves.

    Every rank keeps one. Only rank 0's values of ``due`` and ``exceeds_interval`` count; the others get them by the
    exchange. ``at_limit`` is the same on all ranks, because it changes only with facts that all of them know.
    """

    def __init__(
        self,
        *,
        every_s: float | None,
        every_steps: int | None,
        step: int,
        interval: SaveInterval | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # ``interval`` chooses the seconds where neither of the two is given.
        self._every_s = every_s
        self._every_steps = every_steps
        self._interval = interval
        self._clock = clock
        self._waited_s = 0.0
        start = TrainingPoint(step=step, trained_s=clock())
        self._last_begun = start
        # Written by the saving thread and read by the training thread, so it is always replaced as a whole.
        self._last_complete = start
        self._save_s: float | None = None
        self._blocked_s = 0.0
        self._limit = None if every_steps is None else step + every_steps

    def due(self, step: int) -> bool:
        """Return whether a save should begin after this step."""
        if self._every_steps is not None:
            if self._may_wait(step):
                return step // self._every_steps > self._last_begun.step // self._every_steps
            return step - self._last_begun.step >= self._every_steps - self._lead_steps(step)
        if self._every_s is not None:
            return self._trained_s() - self._last_begun.trained_s >= self._every_s - self._lead_s(self._every_s)
        if self._interval is not None:
            return self._trained_s() - self._last_begun.trained_s >= self._interval.seconds
        return False

    def exceeds_interval(self, step: int, *, steps_to_check: int = 1) -> bool:
        """Return whether a kill before the next check, ``gap`` steps later, would cost more than the interval."""
        if self._every_steps is not None:
            return step - self._last_complete.step >= self._every_steps
        if self._every_s is not None:
            return (
                self._trained_s() - self._last_complete.trained_s + steps_to_check * self._step_s(step) > self._every_s
            )
        if self._interval is not None and self._interval.is_measured:
            # An automatic interval promises only the lowest cost, so training waits only for a save that is far too
            # slow.
            return self._trained_s() - self._last_complete.trained_s > self.promised_s + steps_to_check * self._step_s(
                step
            )
        return False

    @property
    def promised_s(self) -> float:
        """Greatest age in seconds of the newest complete checkpoint when the interval is chosen automatically."""
        assert self._interval is not None
        return 2 * self._interval.seconds + MARGIN * self._interval.written_s

    def at_limit(self, step: int) -> bool:
        """Return whether the ranks must exchange at this step, as they may not continue without a newer save."""
        return self._limit is not None and step >= self._limit

    def begin(self, step: int) -> None:
        """Record that a save of this step begins."""
        self._last_begun = TrainingPoint(step=step, trained_s=self._trained_s())

    def end(self, *, seconds: float, blocked_s: float) -> None:
        """Record the end of the last save. A failed one counts too: retrying at each step would stop the training.

        Args:
            seconds: Duration of the whole save.
            blocked_s: The part of it in which training could not go on.
        """
        self._last_complete = self._last_begun
        self._save_s, self._blocked_s = seconds, blocked_s

    def agree_idle(self) -> None:
        """Record that all ranks know that no save is in progress, which sets the next limit."""
        if self._every_steps is not None:
            self._limit = self._last_complete.step + self._every_steps

    def add_wait(self, seconds: float) -> None:
        """Record that training paused for a save; the pause cannot be lost, and is not part of the step time."""
        self._waited_s += seconds

    def _trained_s(self) -> float:
        return self._clock() - self._waited_s

    def _step_s(self, step: int) -> float:
        steps = step - self._last_begun.step
        return (self._trained_s() - self._last_begun.trained_s) / steps if steps > 0 else 0.0

    def _lead_s(self, every_s: float) -> float:
        """Return how many seconds before the end of the interval the save begins; 0 if training waits for it.

        Let b be the part of a save that always blocks, d the rest, I the interval and x the lead. Training is paused
        for the share (max(0, d - x) + b) / (I - x), which is least at x = d if d + b < I, and at x = 0 otherwise.
        """
        if self._save_s is None:
            # No save was measured yet. Half the interval hides the longest save that can always be hidden.
            return every_s / 2
        lead_s = MARGIN * max(self._save_s - self._blocked_s, 0.0)
        return lead_s if lead_s + self._blocked_s < every_s else 0.0

    def _may_wait(self, step: int) -> bool:
        """Return whether training may wait for a save after an interval of steps, as it takes little of its time."""
        if self._save_s is None or self._every_steps is None:
            return False
        return self._save_s - self._blocked_s <= MOST_WAITING * self._every_steps * self._step_s(step)

    def _lead_steps(self, step: int) -> int:
        assert self._every_steps is not None
        if self._save_s is None:
            return self._every_steps // 2
        step_s = self._step_s(step)
        lead_s = self._lead_s(self._every_steps * step_s)
        return min(math.ceil(lead_s / step_s), self._every_steps - 1) if step_s > 0 else 0
