"""Learns what a batch takes by its size, and how long it pays to hold a batch back. Pure: time comes as an argument.

A batch of n rows takes a + b*n seconds, fitted by least squares over what sizes took lately. Suppose n rows wait and
the predictor is idle. Starting now ends them at a + b*n; the next row, g seconds away, then waits for that, and runs
in a batch of its own. Holding back until it comes costs each of the n rows g + b, and saves that row a - g, as it need
not wait for the others' a + b*n - g and shares their a. So it pays to wait while

    n * (g + b) < a - g,    that is, for gaps g below (a - n*b) / (n + 1).

The gap is the larger of the recent mean and the time since the last arrival, so that a pause ends the waiting. No row
is held so long that max_latency would pass before its batch ends, and no batch is so large that it alone takes longer.
"""

from __future__ import annotations

WEIGHT_OF_NEW = 0.1
GAP_WEIGHT = 0.2


class BatchTimes:
    """Learned seconds of a batch by its rows.

    Attributes:
        fixed_s: Seconds of any batch; 0 until two sizes have been seen.
        per_row_s: Further seconds of each row.
    """

    def __init__(self) -> None:
        self._seen: dict[int, list[float]] = {}  # by the power of two: weight, mean rows, mean seconds
        self.fixed_s = 0.0
        self.per_row_s = 0.0

    def learn(self, rows: int, seconds: float) -> None:
        """Take in what a batch took."""
        entry = self._seen.setdefault(rows.bit_length(), [0.0, float(rows), seconds])
        entry[0] = min(entry[0] + 1.0, 1.0 / WEIGHT_OF_NEW)
        weight = 1.0 / entry[0]
        entry[1] += weight * (rows - entry[1])
        entry[2] += weight * (seconds - entry[2])
        self._fit()

    def of(self, rows: int) -> float:
        """Return the seconds that a batch is expected to take; 0 while nothing is known."""
        return self.fixed_s + self.per_row_s * rows

    def rows_within(self, seconds: float, most: int) -> int:
        """Return the most rows, at least 1, of a batch that takes no longer than that.

        All that there may be while only one size has been seen, and where even one row takes longer: what cannot be in
        time shall at least not hold up the others.
        """
        if len(self._seen) < 2 or self.of(most) <= seconds or self.of(1) > seconds:
            return most
        return max(1, min(most, int((seconds - self.fixed_s) / self.per_row_s)))

    def _fit(self) -> None:
        entries = list(self._seen.values())
        total = sum(entry[0] for entry in entries)
        rows = sum(weight * n for weight, n, _ in entries) / total
        seconds = sum(weight * s for weight, _, s in entries) / total
        spread = sum(weight * (n - rows) ** 2 for weight, n, _ in entries)
        if spread > 0.0:
            slope = sum(weight * (n - rows) * (s - seconds) for weight, n, s in entries) / spread
        else:
            slope = seconds / rows
        self.per_row_s = min(max(slope, 0.0), seconds / rows)
        self.fixed_s = seconds - self.per_row_s * rows


class Arrivals:
    """Recent gaps between arrivals, in seconds a row."""

    def __init__(self) -> None:
        self.newest: float | None = None
        self.gap_s = float("inf")

    def add(self, now: float, rows: int) -> None:
        """Take in a request."""
        if self.newest is not None:
            gap = (now - self.newest) / rows
            self.gap_s = gap if self.gap_s == float("inf") else self.gap_s + GAP_WEIGHT * (gap - self.gap_s)
        self.newest = now


def hold_until(
    *, rows: int, most: int, oldest: float, max_latency_s: float, arrivals: Arrivals, times: BatchTimes
) -> float:
    """Return the time until which to hold back rows that wait for an idle predictor; in the past to start at once.

    Args:
        rows: That wait.
        most: Of one batch.
        oldest: When the first of them came.
    """
    if rows >= most or arrivals.newest is None:
        return oldest
    pays_s = (times.fixed_s - rows * times.per_row_s) / (rows + 1)
    if arrivals.gap_s >= pays_s:
        return oldest
    return min(arrivals.newest + pays_s, oldest + max_latency_s - times.of(rows + 1))
