"""Chooses how often a run saves under `checkpoint.every: auto`: by a save's cost and the run's failures, as seen.

The time between two saves is that of J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
restart dumps", Future Generation Computer Systems 22 (2006), equation 37, which refines the square root of J. W. Young,
"A first order approximation to the optimum checkpoint interval", Communications of the ACM 17 (1974). What it costs is
the time that the training stands still: writing in the background delays a checkpoint by the same time however often
one is made, and has no part in the optimum.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

RANK_FAILURE_S = 2111 * 86_400.0
"""One failure for so many seconds of one rank, until failures are seen: Llama 3 had 419 in 54 days on 16,384."""
OTHER_FAILURE_S = 86_400.0
"""And one for so many seconds of a run of any size: reclaimed machines, people, the program itself."""
FIRST_S = 60.0
"""The first save, which measures what one costs, begins after so many seconds."""
LEAST_S = 30.0
"""Saves begin at most so often, however little they cost."""
MOST_SHARE = 0.05
"""The training stands still for saves for at most this share of the time."""
MOST_WRITING = 0.5
"""A save is being written for at most this share of the time."""
LATEST_WEIGHT = 0.3
"""How much the latest save counts in the smoothed cost, from 0 to 1."""


def best_interval_s(cost_s: float, between_failures_s: float) -> float:
    """Return the seconds of training between two saves that lose the least time, by Daly's equation 37.

    Args:
        cost_s: Seconds that the training stands still for a save, from 0 on.
        between_failures_s: Mean seconds between failures, above 0.
    """
    if cost_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = cost_s / (2 * between_failures_s)
    return math.sqrt(2 * cost_s * between_failures_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


class Interval:
    """Chooses the time between the saves of one run; what it has seen goes on with the run's checkpoints.

    Written by the thread that saves and read by the training's: each attribute is replaced whole.
    """

    def __init__(
        self,
        *,
        ranks: int,
        failures: int = 0,
        ran_s: float = 0.0,
        blocked_s: float | None = None,
        written_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with what earlier starts of the run have seen.

        Args:
            ranks: Processes of the run, at least 1.
            failures: Starts of the run that ended without a stop notice.
            ran_s: Seconds that the earlier starts ran, up to their last checkpoint.
            blocked_s: Smoothed seconds that the training stood still for a save; None before one was made.
            written_s: Smoothed seconds that a save took after that, in the background.
        """
        self._assumed_s = 1 / (ranks / RANK_FAILURE_S + 1 / OTHER_FAILURE_S)
        self._failures = failures
        self._ran_s = ran_s
        self._blocked_s = blocked_s
        self._written_s = written_s
        self._clock = clock
        self._began = clock()

    @property
    def is_measured(self) -> bool:
        """Return whether it is known what a save costs."""
        return self._blocked_s is not None

    @property
    def between_failures_s(self) -> float:
        """Mean seconds between failures: what is assumed counts as much as one failure that was seen."""
        return (self._assumed_s + self._seen_s()) / (1 + self._failures)

    @property
    def written_s(self) -> float:
        """Seconds from the moment at which the training goes on to the end of a save."""
        return self._written_s

    @property
    def seconds(self) -> float:
        """Seconds of training from the begin of one save to that of the next."""
        if self._blocked_s is None:
            return FIRST_S
        best_s = best_interval_s(self._blocked_s, self.between_failures_s)
        return max(best_s, self._blocked_s / MOST_SHARE, self._written_s / MOST_WRITING, LEAST_S)

    def saved(self, *, blocked_s: float, seconds: float) -> None:
        """Learn from a complete save what the next one will cost.

        Args:
            blocked_s: How long the training stood still.
            seconds: How long it took in all.
        """
        written_s = max(seconds - blocked_s, 0.0)
        if self._blocked_s is None:
            self._blocked_s, self._written_s = blocked_s, written_s
            return
        self._written_s += LATEST_WEIGHT * (written_s - self._written_s)
        self._blocked_s += LATEST_WEIGHT * (blocked_s - self._blocked_s)

    def why(self) -> str:
        """Return what the interval follows from, as a clause."""
        seen = "none was seen" if not self._failures else f"{self._failures} seen"
        return (
            f"a save stops the training for {self._blocked_s or 0.0:.3g} s and is complete {self._written_s:.3g} s "
            f"later; a failure every {self.between_failures_s / 3600:.3g} h is expected, {seen}"
        )

    def kept(self, *, stopped: bool = False) -> dict[str, Any]:
        """Return what a checkpoint keeps for the next start of the run.

        Args:
            stopped: The checkpoint is made at a stop notice: the start that follows is not due to a failure.
        """
        return {
            "failures": self._failures,
            "ran_s": self._seen_s(),
            "blocked_s": self._blocked_s,
            "written_s": self._written_s,
            "stopped": stopped,
        }

    def _seen_s(self) -> float:
        return self._ran_s + self._clock() - self._began


def continued(
    kept: Mapping[str, Any],
    *,
    ranks: int,
    starts: int,
    clock: Callable[[], float] = time.monotonic,
) -> Interval:
    """Return the choice as the newest checkpoint left it, with the failures since.

    Args:
        kept: What ``Interval.kept`` gave; empty without a checkpoint, or of one that was made for another `every`.
        starts: Times that the run was started since the start that made the checkpoint.
    """
    blocked_s = kept.get("blocked_s")
    return Interval(
        ranks=ranks,
        failures=int(kept.get("failures", 0)) + max(0, starts - bool(kept.get("stopped"))),
        ran_s=float(kept.get("ran_s", 0.0)),
        blocked_s=None if blocked_s is None else float(blocked_s),
        written_s=float(kept.get("written_s", 0.0)),
        clock=clock,
    )
