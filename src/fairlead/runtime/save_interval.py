"""Chooses the interval of `checkpoint.every: auto` from the measured cost of a save and the observed failures.

The time between two saves is that of J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
restart dumps", Future Generation Computer Systems 22 (2006), equation 37, which refines the square root of J. W. Young,
"A first order approximation to the optimum checkpoint interval", Communications of the ACM 17 (1974). The cost of a
save is the time for which training is paused. Writing in the background delays every checkpoint by the same time,
however often one is saved, and does not affect the optimum.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

RANK_FAILURE_S = 2111 * 86_400.0
"""Seconds of one rank per failure, until failures are observed: Llama 3 had 419 in 54 days on 16,384 GPUs."""
DAY_S = 86_400.0
OTHER_FAILURE_S = DAY_S
"""Seconds per failure of other causes in a run of any size: reclaimed machines, operator errors, the program."""
FIRST_S = 60.0
"""Seconds until the first save begins, which measures the cost of a save."""
LEAST_S = 30.0
"""Minimum seconds between the starts of two saves, however little they cost."""
MOST_SHARE = 0.05
"""Largest share of the time for which training is paused for saves."""
MOST_WRITING = 0.5
"""Largest share of the time in which a save is being written."""
LATEST_WEIGHT = 0.3
"""Weight of the latest save in the smoothed cost, from 0 to 1."""


def best_interval_s(cost_s: float, between_failures_s: float) -> float:
    """Return the seconds of training between two saves that lose the least time, by Daly's equation 37.

    Args:
        cost_s: Seconds for which training is paused for a save, at least 0.
        between_failures_s: Mean seconds between failures, above 0.
    """
    if cost_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = cost_s / (2 * between_failures_s)
    return math.sqrt(2 * cost_s * between_failures_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


class SaveInterval:
    """Chooses the time between the saves of one run; its measurements are stored in the run's checkpoints.

    The saving thread writes it and the training thread reads it, so each attribute is replaced as a whole.
    """

    def __init__(
        self,
        *,
        ranks: int,
        node_failures_per_day: float | None = None,
        failures: int = 0,
        ran_s: float = 0.0,
        blocked_s: float | None = None,
        written_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with the measurements of earlier attempts of the run.

        Args:
            ranks: Number of ranks of the run, at least 1.
            node_failures_per_day: Expected failures a day of its nodes, by what all runs have seen of them; None for
                those of so many ranks on any nodes.
            failures: Attempts of the run that ended without a stop notice.
            ran_s: Seconds that the earlier attempts ran, up to their last checkpoint.
            blocked_s: Smoothed seconds for which training was paused for a save; None before the first save.
            written_s: Smoothed seconds that a save took after that, in the background.
        """
        of_nodes = ranks / RANK_FAILURE_S if node_failures_per_day is None else node_failures_per_day / DAY_S
        self._assumed_s = 1 / (of_nodes + 1 / OTHER_FAILURE_S)
        self._failures = failures
        self._ran_s = ran_s
        self._blocked_s = blocked_s
        self._written_s = written_s
        self._clock = clock
        self._began = clock()

    @property
    def is_measured(self) -> bool:
        """Return whether the cost of a save has been measured."""
        return self._blocked_s is not None

    @property
    def between_failures_s(self) -> float:
        """Mean seconds between failures; the assumed rate counts as much as one observed failure."""
        return (self._assumed_s + self._seen_s()) / (1 + self._failures)

    @property
    def written_s(self) -> float:
        """Seconds from the end of a save's pause to the end of the save."""
        return self._written_s

    @property
    def seconds(self) -> float:
        """Seconds of training from the start of one save to that of the next."""
        if self._blocked_s is None:
            return FIRST_S
        best_s = best_interval_s(self._blocked_s, self.between_failures_s)
        return max(best_s, self._blocked_s / MOST_SHARE, self._written_s / MOST_WRITING, LEAST_S)

    def saved(self, *, blocked_s: float, seconds: float) -> None:
        """Update the expected cost of a save from a complete one.

        Args:
            blocked_s: Seconds for which training was paused.
            seconds: Seconds that the save took in total.
        """
        written_s = max(seconds - blocked_s, 0.0)
        if self._blocked_s is None:
            self._blocked_s, self._written_s = blocked_s, written_s
            return
        self._written_s += LATEST_WEIGHT * (written_s - self._written_s)
        self._blocked_s += LATEST_WEIGHT * (blocked_s - self._blocked_s)

    def why(self) -> str:
        """Return the reason for the interval, as a clause."""
        seen = "none was seen" if not self._failures else f"{self._failures} seen"
        return (
            f"a save stops the training for {self._blocked_s or 0.0:.3g} s and is complete {self._written_s:.3g} s "
            f"later; a failure every {self.between_failures_s / 3600:.3g} h is expected, {seen}"
        )

    def measurements(self, *, stopped: bool = False) -> dict[str, Any]:
        """Return the measurements that a checkpoint stores for the next attempt of the run.

        Args:
            stopped: The checkpoint is saved at a stop notice, so the next attempt does not count as a failure.
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
    measurements: Mapping[str, Any],
    *,
    ranks: int,
    starts: int,
    node_failures_per_day: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> SaveInterval:
    """Return the interval with the measurements of the newest checkpoint and the failures since.

    Args:
        kept: From ``SaveInterval.measurements``; empty without a checkpoint, or for one saved under another `every`.
        starts: Number of attempts since the one that saved the checkpoint.
        node_failures_per_day: As in ``SaveInterval``.
    """
    blocked_s = measurements.get("blocked_s")
    return SaveInterval(
        ranks=ranks,
        node_failures_per_day=node_failures_per_day,
        failures=int(measurements.get("failures", 0)) + max(0, starts - bool(measurements.get("stopped"))),
        ran_s=float(measurements.get("ran_s", 0.0)),
        blocked_s=None if blocked_s is None else float(blocked_s),
        written_s=float(measurements.get("written_s", 0.0)),
        clock=clock,
    )
