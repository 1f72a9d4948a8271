"""Learns the time of a batch by its size, and how long to hold a batch back. Pure: time is an argument.

A batch of n rows takes a + b*n seconds, fitted by least squares to recent times by size. Suppose n rows wait and the
predictor is idle. If it starts now, they end after a + b*n; the next row, which arrives in g seconds, then waits for
that batch and runs in a separate one. Holding back until it arrives costs each of the n rows g + b. It saves that row a
- g, as the row need not wait for the others' a + b*n - g and shares their a. So waiting pays while

    n * (g + b) < a - g,    that is, for gaps g below (a - n*b) / (n + 1).

The gap is the larger of the recent mean and the time since the last arrival, so that a pause ends the waiting. No row
is held so long that it would exceed max_latency before its batch ends, and no batch is so large that it alone exceeds
it.
"""

from __future__ import annotations

WEIGHT_OF_NEW = 0.1
GAP_WEIGHT = 0.2


class BatchTimes:
    """Learns the seconds of a batch by its number of rows.

    Attributes:
        fixed_s: Seconds of any batch, however small; 0 until two sizes have been seen.
        per_row_s: Additional seconds of each row.
    """

    def __init__(self) -> None:
        self._seen: dict[int, list[float]] = {}  # by power of two: weight, mean rows, mean seconds
        self.fixed_s = 0.0
        self.per_row_s = 0.0

    def learn(self, rows: int, seconds: float) -> None:
        """Record the time of a batch."""
        entry = self._seen.setdefault(rows.bit_length(), [0.0, float(rows), seconds])
        entry[0] = min(entry[0] + 1.0, 1.0 / WEIGHT_OF_NEW)
        weight = 1.0 / entry[0]
        entry[1] += weight * (rows - entry[1])
        entry[2] += weight * (seconds - entry[2])
        self._fit()

    def of(self, rows: int) -> float:
        """Return the expected seconds of a batch; 0 while nothing is known."""
        return self.fixed_s + self.per_row_s * rows

    def rows_within(self, seconds: float, most: int) -> int:
        """Return the most rows, at least 1, of a batch that takes at most ``seconds``.

        Returns ``most`` while only one size has been seen, and if even one row takes longer: rows that cannot be in
        time anyway should not delay the others.
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
    """Measures the recent gap between arrivals, in seconds per row."""

    def __init__(self) -> None:
        self.newest: float | None = None
        self.gap_s = float("inf")

    def add(self, now: float, rows: int) -> None:
        """Record the arrival of a request."""
        if self.newest is not None:
            gap = (now - self.newest) / rows
            self.gap_s = gap if self.gap_s == float("inf") else self.gap_s + GAP_WEIGHT * (gap - self.gap_s)
        self.newest = now


def hold_until(
    *, rows: int, most: int, oldest: float, max_latency_s: float, arrivals: Arrivals, times: BatchTimes
) -> float:
    """Return the time until which to hold back rows that wait for an idle predictor; a past time to start at once.

    Args:
        rows: Number of waiting rows.
        most: Most rows of one batch.
        oldest: Arrival time of the first of them.
    """
    if rows >= most or arrivals.newest is None:
        return oldest
    pays_s = (times.fixed_s - rows * times.per_row_s) / (rows + 1)
    if arrivals.gap_s >= pays_s:
        return oldest
    return min(arrivals.newest + pays_s, oldest + max_latency_s - times.of(rows + 1))
